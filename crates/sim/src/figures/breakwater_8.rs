//! Breakwater's Figure 8: what it costs to be told every change of demand instead of guessing it.
//!
//! A caller that may only send with a credit, and gets one only for demand that it has told, needs a
//! round trip of messages for each request. So requests are held for up to a quarter of the SLO
//! here, for both; with the 10 µs of the other figures hardly any would live to be sent.

use super::chart::{Axis, Chart, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Lab, Runs, goodput};
use super::testbed::{TESTBED, variant};
use super::{Figure, Outcome};
use crate::report::Report;

pub(super) const FIGURE: Figure = Figure {
    name: "breakwater-8",
    title: "Demand told by messages of its own against demand guessed, 1,000 callers",
    source: "Breakwater §5.2, Figure 8",
    make,
};

const SYNCHRONISED: &str = "synchronised";
const POLICIES: [&str; 3] = ["tide", "breakwater", SYNCHRONISED];

fn make(lab: &Lab<'_>) -> Outcome {
    let loads = if lab.quick { "[0.5,1.2,2.0]" } else { "[0.3,0.5,0.7,0.8,0.9,1.0,1.2,1.5,2.0]" };
    let mut sets = lab.four_seconds(60_000);
    sets.extend(variant(SYNCHRONISED, &[("demand", "synchronise")], &[("synchronise", "true")]));
    sets.extend([
        format!("policy={POLICIES:?}"),
        format!("load={loads}"),
        "callers=1000".to_owned(),
        "caller.hold_time=50us".to_owned(),
    ]);
    let runs = lab.run(TESTBED, &sets);
    Outcome { claims: claims(&runs), charts: vec![chart(&runs)], ..Outcome::default() }
}

fn claims(runs: &Runs) -> Vec<Claim> {
    let at = |policy, load| runs.get(policy, &[("load", load)]);
    let ratio = |load, value: fn(&Report) -> f64| {
        value(at(SYNCHRONISED, load)) / value(at("breakwater", load))
    };
    let (rx, tx) = (|run: &Report| run.rx_per_request, |run: &Report| run.tx_per_request);
    let times = Unit::Times;
    vec![
        Claim::between("0.5×: messages received, told ÷ guessed", times, ratio(0.5, rx), 1.9, 2.1)
            .paper("2×"),
        Claim::between("0.5×: messages sent, told ÷ guessed", times, ratio(0.5, tx), 1.8, 2.1)
            .paper("2×"),
        Claim::at_least("2×: messages received, told ÷ guessed", times, ratio(2.0, rx), 3.0)
            .paper("grows with demand"),
        Claim::at_most("1.2×: goodput, told ÷ guessed", times, ratio(1.2, goodput), 0.92)
            .paper("< 1×"),
        Claim::at_most("2×: goodput, told ÷ guessed", times, ratio(2.0, goodput), 0.85)
            .paper("< 1×"),
        Claim::at_most(
            "2×: dropped by those who are told, of arrived",
            Unit::Percent,
            at(SYNCHRONISED, 2.0).drop_rate,
            0.005,
        )
        .paper("less than guessed"),
        Claim::at_most(
            "tide at 2×: messages received per request",
            times,
            rx(at("tide", 2.0)),
            1.02,
        ),
    ]
}

fn chart(runs: &Runs) -> Chart {
    let lines = |value: fn(&Report) -> f64| {
        POLICIES.iter().map(|policy| runs.line(policy, "load", value)).collect()
    };
    let panel = |title: &str, y, lines| Panel {
        title: title.to_owned(),
        x: Axis::linear("demand ÷ capacity"),
        y,
        lines,
    };
    Chart {
        title: FIGURE.title.to_owned(),
        panels: vec![
            panel("goodput", Axis::linear("÷ capacity"), lines(goodput)),
            panel("received", Axis::linear("messages per request"), lines(|r| r.rx_per_request)),
            panel("sent", Axis::linear("messages per request"), lines(|r| r.tx_per_request)),
        ],
    }
}
