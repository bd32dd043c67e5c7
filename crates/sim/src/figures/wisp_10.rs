//! Wisp's Figure 10: what the quantile knob does. With the slowest process deciding, capacity is left unused; with
//! the fastest, work is done in vain.

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Lab, Runs, Source};
use super::wisp::{announced, by_second, flow, outcome, refused, service};
use super::{Figure, Outcome};
use crate::report::Report;

pub(super) const FIGURE: Figure = Figure {
    name: "wisp-10",
    title: "The quantile: announced rates and throughput",
    source: "Wisp §6, Figure 10",
    make,
};

const PLAN: Source =
    Source { name: "wisp-quantile", text: include_str!("../../../../plans/wisp-quantile.toml") };
const Q: &str = "policies.wisp.gate.workflow.quantile.q";

fn make(lab: &Lab<'_>) -> Outcome {
    let duration = if lab.quick { "45s" } else { "100s" };
    let runs = by_second(lab, PLAN, &[format!("duration={duration}")]);
    outcome(claims(&runs), chart(&runs))
}

fn claims(runs: &Runs) -> Vec<Claim> {
    let at = |q| runs.get("wisp", &[(Q, q)]);
    let scans = |q| flow(at(q), "scan").answered_rps;
    let busy = |q| service(at(q), "en").utilization;
    let (share, times, rate) = (Unit::Percent, Unit::Times, Unit::Rate);
    vec![
        Claim::at_least("scans answered: q = 0.5 ÷ q = 0", times, scans(0.5) / scans(0.0), 1.2)
            .paper("lower with q = 0"),
        Claim::at_least("scans answered: q = 0.5 ÷ q = 1", times, scans(0.5) / scans(1.0), 1.2),
        Claim::at_least(
            "busy extent nodes, q = 0.5 less q = 0",
            share,
            busy(0.5) - busy(0.0),
            0.05,
        )
        .paper("low with q = 0"),
        Claim::at_least("dropped at extent nodes: q = 1", rate, refused(at(1.0), "en"), 100.0)
            .paper("congestion"),
        Claim::at_most("dropped at extent nodes: q = 0.5", rate, refused(at(0.5), "en"), 20.0),
        Claim::at_most(
            "the light tenant, worst: turned away",
            share,
            [0.0, 0.5, 1.0]
                .map(|q| flow(at(q), "light").turned_away)
                .into_iter()
                .fold(0.0, f64::max),
            0.01,
        ),
    ]
}

fn chart(runs: &Runs) -> Chart {
    let panel = |q: f64, run: &Report| Panel {
        title: format!("q = {q}"),
        x: Axis::linear("seconds"),
        y: Axis::log("scan requests per second, summed by tier"),
        lines: ["en", "ps", "fe"].map(|tier| announced(run, tier, "scan", 1.0)).into(),
    };
    let mut panels: Vec<Panel> =
        [0.0, 0.5, 1.0].map(|q| panel(q, runs.get("wisp", &[(Q, q)]))).into();
    panels.push(Panel {
        title: "throughput".to_owned(),
        x: Axis::linear("q"),
        y: Axis::linear("scans answered per second"),
        lines: vec![Line {
            name: "scan".to_owned(),
            ..runs.line("wisp", Q, |run| flow(run, "scan").answered_rps)
        }],
    });
    Chart { title: FIGURE.title.to_owned(), panels }
}
