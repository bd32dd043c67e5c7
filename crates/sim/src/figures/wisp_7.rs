//! Wisp's Figure 7: one tenant sends more than its share, another in bursts, and neither is felt by the rest.

use super::chart::{Axis, Chart, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Lab, Runs, Source};
use super::wisp::{answered, by_second, flow, only, outcome, over_time};
use super::{Figure, Outcome};
use crate::report::Report;

pub(super) const FIGURE: Figure = Figure {
    name: "wisp-7",
    title: "An aggressive and a bursty tenant beside five quiet ones",
    source: "Wisp §6, Figure 7",
    make,
};

const PLAN: Source =
    Source { name: "wisp-isolation", text: include_str!("../../../../plans/wisp-isolation.toml") };
const QUIET: [&str; 5] = ["a", "b", "c", "d", "e"];

fn make(lab: &Lab<'_>) -> Outcome {
    let duration = format!("duration={}", if lab.quick { "60s" } else { "110s" });
    let runs = by_second(lab, PLAN, std::slice::from_ref(&duration));
    // Bursts of G meet F by chance, and G sends one every other second: five seeds to tell what both get.
    let turns = ["policy=fq-rc", "seeds=5"].map(str::to_owned);
    let turns = lab.run(PLAN, &turns.into_iter().chain([duration]).collect::<Vec<_>>());
    outcome(claims(&runs, &turns), chart(&runs))
}

fn claims(runs: &Runs, turns: &Runs) -> Vec<Claim> {
    let share = Unit::Percent;
    let run = |policy| only(runs, policy);
    let quiet = |policy| answered(run(policy), &QUIET);
    let lost = |run: &Report| 1.0 - answered(run, &["g"]);
    let by_seed = |value: &dyn Fn(&Report) -> f64| turns.0.iter().map(value).collect::<Vec<_>>();
    let mean = |policy| flow(run(policy), "a").mean_ms;
    vec![
        Claim::at_most(
            "timeouts only: answered of A–D",
            share,
            answered(run("timeouts"), &QUIET[..4]),
            0.5,
        )
        .paper("collapse"),
        Claim::at_least("rates: answered of A–E", share, quiet("rc"), 0.98).paper("unaffected"),
        Claim::at_least("rates and turns: answered of A–E", share, quiet("fq-rc"), 0.98)
            .paper("unaffected"),
        // 0.7 of ten cores, less what A–D and G use, is 95 of its 300 per second.
        Claim::between_on_average(
            "rates and turns: answered of F, five seeds",
            share,
            &by_seed(&|run| answered(run, &["f"])),
            0.27,
            0.35,
        )
        .paper("throttled to its share"),
        Claim::at_least("rates alone: lost of G", share, lost(run("rc")), 0.1).paper("12 %"),
        Claim::at_most(
            "rates and turns: lost of G, five seeds",
            share,
            by_seed(&lost).iter().sum::<f64>() / turns.0.len() as f64,
            0.05,
        )
        .paper("none"),
        Claim::at_most(
            "mean latency of A, turns ÷ rates alone",
            Unit::Times,
            mean("fq-rc") / mean("rc"),
            0.5,
        ),
    ]
}

fn chart(runs: &Runs) -> Chart {
    let panel = |policy: &str, title: &str| Panel {
        title: title.to_owned(),
        x: Axis::linear("seconds (F begins at 15)"),
        y: Axis::linear("answers per second").up_to(200.0),
        lines: ["a", "e", "f"].map(|name| over_time(only(runs, policy), name, |row| row.0)).into(),
    };
    Chart {
        title: FIGURE.title.to_owned(),
        panels: vec![
            panel("timeouts", "timeouts only"),
            panel("rc", "rates"),
            panel("fq-rc", "rates and fair turns"),
        ],
    }
}
