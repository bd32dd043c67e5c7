//! Wisp's Figure 8: small requests with a deadline of 300 ms beside clients that keep the system full.

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Lab, Runs, Source};
use super::wisp::{flow, outcome, sum};
use super::{Figure, Outcome};
use crate::report::Report;

pub(super) const FIGURE: Figure = Figure {
    name: "wisp-8",
    title: "Deadlines of 300 ms beside bulk clients",
    source: "Wisp §6, Figure 8",
    make,
};

const PLAN: Source =
    Source { name: "wisp-bulk", text: include_str!("../../../../plans/wisp-bulk.toml") };
const CLIENTS: &str = "tenants.0.callers";
const SMALL: [&str; 6] = ["l1", "l2", "l3", "l4", "l5", "l6"];

fn make(lab: &Lab<'_>) -> Outcome {
    let sets = if lab.quick {
        vec!["duration=25s".to_owned(), format!("{CLIENTS}=[40,120,200]")]
    } else {
        Vec::new()
    };
    let runs = lab.run(PLAN, &sets);
    outcome(claims(&runs), chart(&runs))
}

/// Answered by the deadline ÷ offered. Those without control are measured by it all the same.
fn in_time(run: &Report) -> f64 {
    sum(run, &SMALL, |flow| flow.in_time_rps) / sum(run, &SMALL, |flow| flow.offered_rps)
}

fn mean_ms(run: &Report) -> f64 {
    let weighted = sum(run, &SMALL, |flow| flow.mean_ms * flow.answered_rps);
    weighted / sum(run, &SMALL, |flow| flow.answered_rps)
}

fn claims(runs: &Runs) -> Vec<Claim> {
    let at = |policy, clients| runs.get(policy, &[(CLIENTS, clients)]);
    let share = Unit::Percent;
    let (none, wisp) = (at("timeouts", 200.0), at("wisp", 200.0));
    let bulk = flow(wisp, "bulk").answered_rps / flow(none, "bulk").answered_rps;
    vec![
        Claim::at_least(
            "timeouts, 40 clients: in time",
            share,
            in_time(at("timeouts", 40.0)),
            0.95,
        )
        .paper("all"),
        Claim::at_least("wisp, 40 clients: in time", share, in_time(at("wisp", 40.0)), 0.95)
            .paper("all"),
        Claim::at_most("timeouts, 200 clients: in time", share, in_time(none), 0.5)
            .paper("well below Wisp"),
        Claim::at_least("wisp, 200 clients: in time", share, in_time(wisp), 0.95).paper("80 %"),
        Claim::at_least(
            "mean latency, 200 clients: timeouts ÷ wisp",
            Unit::Times,
            mean_ms(none) / mean_ms(wisp),
            2.0,
        )
        .paper("2×"),
        Claim::at_least("bulk, 200 clients: wisp ÷ timeouts", share, bulk, 0.7),
    ]
}

fn chart(runs: &Runs) -> Chart {
    let lines = |value: fn(&Report) -> f64| -> Vec<Line> {
        ["timeouts", "wisp"].map(|policy| runs.line(policy, CLIENTS, value)).into()
    };
    let panel = |title: &str, y: &str, lines| Panel {
        title: title.to_owned(),
        x: Axis::linear("bulk clients"),
        y: Axis::linear(y),
        lines,
    };
    let late = |run: &Report| 100.0 * (1.0 - in_time(run));
    Chart {
        title: FIGURE.title.to_owned(),
        panels: vec![
            panel("mean latency of small requests", "ms", lines(mean_ms)),
            panel("small requests late or lost", "%", lines(late)),
        ],
    }
}
