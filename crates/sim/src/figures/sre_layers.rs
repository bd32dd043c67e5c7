//! "Handling Overload": retries in every layer of a stack multiply. The layer right above a refusal may
//! retry; it tells those above it not to.
//!
//! With up to three attempts in a layer that is refused with probability r, it makes
//! A(r) = 1 + r + r² calls per request and is refused itself with probability r³. If the layers above
//! retry as well, three layers make A(r) · A(r³) · A(r⁹) calls, and 1 − r²⁷ of the requests succeed.
//! At demand L that is 1 ÷ L, which gives r, and the expectations below.

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Lab, Runs, Source, at};
use super::{Figure, Outcome};
use crate::report::Report;

pub(super) const FIGURE: Figure = Figure {
    name: "sre-layers",
    title: "Retries in layers: calls to a full service per request",
    source: "\"Handling Overload\", Deciding to Retry, Figure 21-2",
    make,
};

const PLAN: Source =
    Source { name: "sre-layers", text: include_str!("../../../../plans/sre-layers.toml") };

fn make(lab: &Lab<'_>) -> Outcome {
    let mut sets = lab.requests(8_000, 50_000);
    let loads = if lab.quick { "[0.8,2.0,10.0]" } else { "[0.5,0.8,1.2,1.5,2.0,3.0,5.0,10.0]" };
    sets.push(format!("load={loads}"));
    sets.push("services.a.retry_above=[false,true]".to_owned());
    sets.push("services.b.retry_above=[false,true]".to_owned());
    let runs = lab.run(PLAN, &sets);
    Outcome {
        misses: Vec::new(),
        claims: claims(&runs),
        charts: vec![chart(&runs)],
        ..Outcome::default()
    }
}

/// How many layers retry: B always does, A if B lets it, the callers if A lets them as well.
fn layers(run: &Report) -> Option<i32> {
    let flag = |path: &str| {
        let value = run.point.iter().find(|(name, _)| name == path);
        value.and_then(|(_, value)| value.as_bool()).unwrap_or_default()
    };
    match (flag("services.b.retry_above"), flag("services.a.retry_above")) {
        (false, false) => Some(1),
        (true, false) => Some(2),
        (true, true) => Some(3),
        // A has nobody below that would let it retry for its callers to see.
        (false, true) => None,
    }
}

/// Calls that reach the lowest service per request.
fn calls(run: &Report) -> f64 {
    let lowest = run.services.iter().find(|service| service.name == "db");
    lowest.map_or(f64::NAN, |service| service.arrived_rps / run.offered_rps)
}

/// What is to be expected of so many layers at demand `load`.
fn expected(load: f64, layers: i32) -> f64 {
    if load <= 1.0 {
        return 1.0;
    }
    let attempts = 3f64.powi(layers);
    let reject = (1.0 - 1.0 / load).powf(1.0 / attempts);
    (0..layers).map(|layer| reject.powf(3f64.powi(layer))).map(|r| 1.0 + r + r * r).product()
}

fn claims(runs: &Runs) -> Vec<Claim> {
    let times = Unit::Times;
    let calls_of =
        |load, n| calls(runs.only(|run| layers(run) == Some(n)).get("open", &[("load", load)]));
    let mut claims = Vec::new();
    for (load, paper) in [(2.0, ""), (10.0, "3× for one layer, 27× for three")] {
        for n in 1..=3 {
            let theory = expected(load, n);
            let what = format!("{load}×, layers that retry: {n}; calls per request");
            let claim = Claim::between(&what, times, calls_of(load, n), theory * 0.9, theory * 1.1);
            claims.push(claim.paper(paper));
        }
    }
    let calm = calls_of(0.8, 3);
    claims.push(Claim::at_most("0.8×, three layers: calls per request", times, calm, 1.01));
    claims
}

fn chart(runs: &Runs) -> Chart {
    let line = |n: i32| {
        let here = runs.only(|run| layers(run) == Some(n));
        let point = |run: &Report| (at(run, "load").unwrap_or(0.0), calls(run));
        let name = ["only the layer right above", "two layers", "all three layers"];
        Line::new(name[n as usize - 1], here.of("open").map(point).collect())
    };
    let panel = Panel {
        title: "three services, the lowest is full".to_owned(),
        x: Axis::linear("demand ÷ capacity"),
        y: Axis::linear("calls to the lowest per request"),
        lines: vec![line(3), line(2), line(1)],
    };
    Chart { title: FIGURE.title.to_owned(), panels: vec![panel] }
}
