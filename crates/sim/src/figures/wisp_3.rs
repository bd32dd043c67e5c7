//! Wisp's Figure 3, an example with numbers: 75 requests per second may enter if the slowest process behind
//! counts, 100 if the fastest does.

use tidegate_core::Span;

use super::chart::{Axis, Chart, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Lab, Runs, Source};
use super::wisp::{announced, flow, outcome, refused};
use super::{Figure, Outcome};
use crate::report::Report;

pub(super) const FIGURE: Figure = Figure {
    name: "wisp-3",
    title: "Rates bubble up from a full process",
    source: "Wisp §4.1.2, Figure 3",
    make,
};

const PLAN: Source =
    Source { name: "wisp-example", text: include_str!("../../../../plans/wisp-example.toml") };
const Q: &str = "policies.wisp.gate.workflow.quantile.q";

fn make(lab: &Lab<'_>) -> Outcome {
    let runs = lab.run_series(PLAN, &[], Some(Span::from_millis(500)));
    outcome(claims(&runs), chart(&runs))
}

fn claims(runs: &Runs) -> Vec<Claim> {
    let at = |q| runs.get("wisp", &[(Q, q)]);
    // Only w1 is refused at a.
    let admitted = |q| 100.0 - refused(at(q), "a");
    let (rate, share) = (Unit::Rate, Unit::Percent);
    let others = |q| {
        let lost = |name| flow(at(q), name).turned_away;
        lost("w2").max(lost("w3"))
    };
    vec![
        Claim::between("q = 0: w1 let in at a", rate, admitted(0.0), 74.25, 75.75).paper("75/s"),
        Claim::between("q = 1: w1 let in at a", rate, admitted(1.0), 99.0, 101.0).paper("100/s"),
        Claim::at_most("q = 0: turned away at e", rate, refused(at(0.0), "e"), 1.0).paper("0/s"),
        Claim::between("q = 1: turned away at e", rate, refused(at(1.0), "e"), 95.0, 105.0)
            .paper("100/s"),
        Claim::at_most("q = 0: w2 and w3 turned away", share, others(0.0), 0.001).paper("none"),
        Claim::at_most("q = 1: w2 and w3 turned away", share, others(1.0), 0.001).paper("none"),
    ]
}

fn chart(runs: &Runs) -> Chart {
    let panel = |q: f64, run: &Report| Panel {
        title: format!("q = {q}"),
        x: Axis::linear("seconds"),
        y: Axis::linear("requests of w1 per second, by service").up_to(400.0),
        lines: ["e", "c", "b", "a"].map(|service| announced(run, service, "w1", 0.5)).into(),
    };
    let panels = [0.0, 1.0].map(|q| panel(q, runs.get("wisp", &[(Q, q)])));
    Chart { title: "Announced rates".to_owned(), panels: panels.into() }
}
