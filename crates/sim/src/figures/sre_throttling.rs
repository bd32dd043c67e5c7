//! "Handling Overload": a caller that counts requests and accepts holds back by itself, and leaves
//! the service K − 1 refusals per accept, however large the demand.

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Lab, Runs, Source};
use super::{Figure, Outcome};
use crate::report::Report;

pub(super) const FIGURE: Figure = Figure {
    name: "sre-throttling",
    title: "Adaptive throttling: refusals per accept at the service",
    source: "\"Handling Overload\", Client-Side Throttling",
    make,
};

const PLAN: Source =
    Source { name: "sre-throttling", text: include_str!("../../../../plans/sre-throttling.toml") };
const POLICIES: [&str; 3] = ["k-2", "k-1.1", "open"];

fn make(lab: &Lab<'_>) -> Outcome {
    let mut sets = lab.requests(100_000, 600_000);
    if lab.quick {
        sets.push("load=[0.8,2.0,4.0,8.0]".to_owned());
    }
    let runs = lab.run(PLAN, &sets);
    Outcome {
        misses: Vec::new(),
        claims: claims(&runs),
        charts: vec![chart(&runs)],
        ..Outcome::default()
    }
}

/// Refusals that the service had to make per request that it accepted.
fn refusals(run: &Report) -> f64 {
    run.drop_rate / (1.0 - run.drop_rate)
}

fn claims(runs: &Runs) -> Vec<Claim> {
    let at = |policy, load| runs.get(policy, &[("load", load)]);
    let (share, times) = (Unit::Percent, Unit::Times);
    let mut claims = Vec::new();
    for load in [4.0, 8.0] {
        let what = format!("K = 2 at {load}×: refusals per accept");
        claims.push(Claim::between(&what, times, refusals(at("k-2", load)), 0.9, 1.1).paper("1"));
        let what = format!("K = 1.1 at {load}×: refusals per accept");
        claims.push(
            Claim::between(&what, times, refusals(at("k-1.1", load)), 0.07, 0.14).paper("0.1"),
        );
    }
    let freely = refusals(at("open", 8.0));
    let held_back = at("k-2", 0.8).local_reject_rate;
    let throughput = at("k-1.1", 8.0).throughput_rps / at("open", 8.0).throughput_rps;
    claims.extend([
        Claim::at_least("no throttle at 8×: refusals per accept", times, freely, 6.0),
        Claim::at_most("K = 2 at 0.8×: held back without need", share, held_back, 0.001),
        Claim::at_least("K = 1.1 ÷ no throttle at 8×, accepts", times, throughput, 0.98),
    ]);
    claims
}

fn chart(runs: &Runs) -> Chart {
    let lines = |value: fn(&Report) -> f64| -> Vec<Line> {
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
            panel("at the service", Axis::linear("refusals per accept"), lines(refusals)),
            panel(
                "at the caller",
                Axis::linear("% rejected locally"),
                lines(|run| run.local_reject_rate * 100.0),
            ),
        ],
    }
}
