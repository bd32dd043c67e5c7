//! "Handling Overload": three attempts per request make up to three times the load when it can be
//! borne least; a budget per caller of a tenth keeps it to 1.1 times.
//!
//! With reject probability r, three attempts make 1 + r + r² = (1 − r³) ÷ (1 − r) times the load.
//! At demand L the service accepts a share 1 ÷ L of the requests in the end, so 1 − r³ = 1 ÷ L, and the
//! expectation below needs no measurement.

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Lab, Runs, Source};
use super::{Figure, Outcome};
use crate::report::Report;

pub(super) const FIGURE: Figure = Figure {
    name: "sre-retries",
    title: "Attempts that reach the service per request, up to three allowed",
    source: "\"Handling Overload\", Deciding to Retry",
    make,
};

const PLAN: Source =
    Source { name: "sre-retries", text: include_str!("../../../../plans/sre-retries.toml") };
const POLICIES: [&str; 3] = ["budget", "told-not-to", "naive"];

fn make(lab: &Lab<'_>) -> Outcome {
    let mut sets = lab.requests(50_000, 400_000);
    if lab.quick {
        sets.push("load=[0.8,2.0,10.0]".to_owned());
    }
    let runs = lab.run(PLAN, &sets);
    Outcome {
        misses: Vec::new(),
        claims: claims(&runs),
        charts: vec![chart(&runs)],
        ..Outcome::default()
    }
}

/// Attempts that arrived per request offered: what arrived was refused or answered.
fn attempts(run: &Report) -> f64 {
    run.throughput_rps / (1.0 - run.drop_rate) / run.offered_rps
}

/// Attempts per request, up to three, when only one request in `load` can be accepted.
fn expected(load: f64) -> f64 {
    if load <= 1.0 {
        return 1.0;
    }
    let reject = (1.0 - 1.0 / load).cbrt();
    1.0 + reject + reject * reject
}

fn claims(runs: &Runs) -> Vec<Claim> {
    let at = |policy, load| attempts(runs.get(policy, &[("load", load)]));
    let times = Unit::Times;
    let mut claims = Vec::new();
    for load in [2.0, 10.0] {
        let theory = expected(load);
        let what = format!("no budget at {load}×: attempts per request");
        let claim = Claim::between(&what, times, at("naive", load), theory * 0.98, theory * 1.02);
        claims.push(claim.paper("up to 3×"));
        let what = format!("budget of 10 % at {load}×: attempts per request");
        claims.push(Claim::between(&what, times, at("budget", load), 1.05, 1.105).paper("≤ 1.1×"));
    }
    claims.push(Claim::at_most(
        "told \"overloaded; don't retry\" at 10×: attempts per request",
        times,
        at("told-not-to", 10.0),
        1.3,
    ));
    claims
}

fn chart(runs: &Runs) -> Chart {
    let mut lines: Vec<Line> =
        POLICIES.iter().map(|policy| runs.line(policy, "load", attempts)).collect();
    let theory = lines[0].points.iter().map(|(load, _)| (*load, expected(*load))).collect();
    lines.push(Line::new("theory, no budget", theory));
    let panel = Panel {
        title: "a service that refuses what finds its queue full".to_owned(),
        x: Axis::linear("demand ÷ capacity"),
        y: Axis::linear("attempts per request"),
        lines,
    };
    Chart { title: FIGURE.title.to_owned(), panels: vec![panel] }
}
