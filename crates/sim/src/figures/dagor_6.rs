//! DAGOR's Figure 6: queueing time tells overload from slowness, response time does not.
//!
//! A busy service with more threads than cores is slow before it is full, and its response time says
//! so, its queueing time does not. So the detector by response time sheds while there is room.

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Lab, Runs, Source};
use super::{Figure, Outcome};
use crate::report::Report;

pub(super) const FIGURE: Figure = Figure {
    name: "dagor-6",
    title: "Overload told by queueing time or by response time",
    source: "DAGOR §5.2, Figure 6",
    make,
};

const PLAN: Source =
    Source { name: "dagor-detector", text: include_str!("../../../../plans/dagor-detector.toml") };
const POLICIES: [&str; 2] = ["dagor", "dagor-response"];

fn make(lab: &Lab<'_>) -> Outcome {
    let mut sets = vec!["warmup=60s".to_owned(), "duration=160s".to_owned()];
    if lab.quick {
        sets.push("sweep.rate=[250,500,700,750,1500]".to_owned());
    }
    let runs = lab.run(PLAN, &sets);
    Outcome { claims: claims(&runs), charts: vec![chart(&runs)], ..Outcome::default() }
}

fn success(run: &Report) -> f64 {
    run.goodput_rps / run.offered_rps
}

fn claims(runs: &Runs) -> Vec<Claim> {
    let at = |policy, rate| runs.get(policy, &[("rate", rate)]);
    let lost = |policy, rate| 1.0 - success(at(policy, rate));
    let of_best = |policy| at(policy, 1500.0).goodput_rps / at(policy, 1500.0).capacity_rps;
    let ratio = at("dagor", 750.0).goodput_rps / at("dagor-response", 750.0).goodput_rps;
    let share = Unit::Percent;
    vec![
        Claim::at_most("by queueing time, 700/s of 750: lost", share, lost("dagor", 700.0), 0.01)
            .paper("none to 750/s"),
        Claim::at_least(
            "by response time, 700/s of 750: lost",
            share,
            lost("dagor-response", 700.0),
            0.02,
        )
        .paper("sheds from 630/s"),
        Claim::at_most(
            "by response time, 500/s: lost (it is no alarm at any load)",
            share,
            lost("dagor-response", 500.0),
            0.01,
        )
        .paper("none"),
        Claim::at_least("queueing ÷ response time at 750/s, goodput", Unit::Times, ratio, 1.04),
        Claim::at_least("by queueing time at 1,500/s, of capacity", share, of_best("dagor"), 0.93),
    ]
}

fn chart(runs: &Runs) -> Chart {
    let named = |(policy, name): (&str, &str)| Line {
        name: name.to_owned(),
        ..runs.line(policy, "rate", |run| success(run) * 100.0)
    };
    let names = POLICIES.into_iter().zip(["by queueing time", "by response time"]);
    let mut lines: Vec<Line> = names.map(named).collect();
    let best = |run: &Report| 100.0 * (run.capacity_rps / run.offered_rps).min(1.0);
    lines.push(Line { name: "optimum".to_owned(), ..runs.line(POLICIES[0], "rate", best) });
    let panel = Panel {
        title: "one call to M per task, M can do 750/s".to_owned(),
        x: Axis::linear("tasks per second"),
        y: Axis::linear("% answered in time").up_to(100.0),
        lines,
    };
    Chart { title: FIGURE.title.to_owned(), panels: vec![panel] }
}
