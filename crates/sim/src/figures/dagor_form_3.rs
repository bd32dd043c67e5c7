//! DAGOR's Form 3 of overload: two services, both full, called one after the other, in either order.
//! The paper has no figure of it. Each refuses half of what comes; a task that both judge at random
//! gets through with the product of two chances, and what the first did for it was in vain.

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::dagor::{self, Tasks};
use super::lab::{Lab, Runs, Source};
use super::{Figure, Outcome};
use crate::report::Report;

pub(super) const FIGURE: Figure = Figure {
    name: "dagor-form-3",
    title: "Two services, both full, called in either order",
    source: "DAGOR §3.1, Form 3 (no figure there)",
    make,
};

const PLAN: Source = Source {
    name: "dagor-two-callees",
    text: include_str!("../../../../plans/dagor-two-callees.toml"),
};
const POLICIES: [&str; 4] = ["tide", "dagor", "codel", "random"];

fn make(lab: &Lab<'_>) -> Outcome {
    let loads = if lab.quick { "[2.0]" } else { "[0.5,1.0,1.5,2.0,3.0,4.0]" };
    let mut sets = vec![format!("policy={POLICIES:?}"), format!("load={loads}")];
    sets.extend(["warmup=60s".to_owned(), "duration=160s".to_owned()]);
    let twice = ["load=2.0".to_owned()];
    let tasks = Tasks { source: PLAN, sets: &twice };
    let (chosen, notes) = dagor::tuned(lab, &tasks, &POLICIES[1..]);
    sets.extend(chosen);
    let runs = lab.run(PLAN, &sets);
    Outcome { claims: claims(&runs), charts: vec![chart(&runs)], notes, ..Outcome::default() }
}

/// Goodput ÷ the best possible.
fn of_best(run: &Report) -> f64 {
    run.goodput_rps / run.capacity_rps.min(run.offered_rps)
}

fn claims(runs: &Runs) -> Vec<Claim> {
    let run = |policy| runs.get(policy, &[("load", 2.0)]);
    let at = |policy| of_best(run(policy));
    let orders = |policy| {
        let success = || run(policy).workflows.iter().map(|(_, success)| *success);
        success().fold(f64::MAX, f64::min) / success().fold(0.0, f64::max)
    };
    let (share, times) = (Unit::Percent, Unit::Times);
    vec![
        Claim::at_least("dagor at 2×, of the optimum", share, at("dagor"), 0.88)
            .paper("\"properly handled\""),
        Claim::at_least("tide at 2×, of the optimum", share, at("tide"), 0.95),
        Claim::at_most("random at 2×, of the optimum", share, at("random"), 0.8),
        Claim::at_least("dagor ÷ codel at 2×", times, at("dagor") / at("codel"), 1.15),
        Claim::at_least("tide ÷ dagor at 2×", times, at("tide") / at("dagor"), 1.0),
        Claim::at_least("tide at 2×: worse ÷ better order", times, orders("tide"), 0.95),
        Claim::at_most("tide at 2×: work in vain at A", share, run("tide").wasted, 0.1),
        Claim::at_least("codel at 2×: work in vain at A", share, run("codel").wasted, 0.4),
    ]
}

fn chart(runs: &Runs) -> Chart {
    let lines = |value: fn(&Report) -> f64| -> Vec<Line> {
        POLICIES.iter().map(|policy| runs.line(policy, "load", value)).collect()
    };
    let panel = |title: &str, y: &str, lines| Panel {
        title: title.to_owned(),
        x: Axis::linear("demand ÷ capacity"),
        y: Axis::linear(y),
        lines,
    };
    Chart {
        title: FIGURE.title.to_owned(),
        panels: vec![
            panel("successful tasks", "% of the optimum", lines(|run| 100.0 * of_best(run))),
            panel("work in vain at A", "%", lines(|run| 100.0 * run.wasted)),
        ],
    }
}
