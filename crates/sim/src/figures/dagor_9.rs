//! DAGOR's Figure 9: tasks with one to four calls, mixed. A policy that judges every call for itself
//! favours tasks of one call; one that judges by rank treats all alike.

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::dagor::{self, Tasks};
use super::lab::{Lab, Runs, Source, at};
use super::{Figure, Outcome};
use crate::report::Report;

pub(super) const FIGURE: Figure = Figure {
    name: "dagor-9",
    title: "Fairness: tasks with one to four calls to a full service, in equal parts",
    source: "DAGOR §5.4, Figure 9",
    make,
};

const PLAN: Source =
    Source { name: "dagor-mixed", text: include_str!("../../../../plans/dagor-mixed.toml") };
const POLICIES: [&str; 3] = ["tide", "dagor", "codel"];
/// Tasks per second at which the claims are checked; there is room for 300.
const RATE: f64 = 1500.0;

fn make(lab: &Lab<'_>) -> Outcome {
    let rates = if lab.quick { "[250,1500]" } else { "[250,500,750,1000,1500,2000,2750]" };
    let mut sets = vec![format!("policy={POLICIES:?}"), format!("sweep.rate={rates}")];
    sets.extend(["warmup=60s".to_owned(), "duration=160s".to_owned()]);
    let crowd = [format!("sweep.rate=[{RATE:?}]")];
    let tasks = Tasks { source: PLAN, sets: &crowd };
    let (chosen, notes) = dagor::tuned(lab, &tasks, &POLICIES[1..]);
    sets.extend(chosen);
    let runs = lab.run(PLAN, &sets);
    Outcome { claims: claims(&runs), charts: vec![chart(&runs)], notes, ..Outcome::default() }
}

/// Success of the least and of the most favoured kind of task.
fn extremes(run: &Report) -> (f64, f64) {
    let success = || run.workflows.iter().map(|(_, success)| *success);
    (success().fold(f64::MAX, f64::min), success().fold(0.0, f64::max))
}

fn fairness(run: &Report) -> f64 {
    let (least, most) = extremes(run);
    least / most
}

fn claims(runs: &Runs) -> Vec<Claim> {
    let run = |policy| runs.get(policy, &[("rate", RATE)]);
    let best = |policy| run(policy).goodput_rps / run(policy).capacity_rps;
    let calm = runs.get("dagor", &[("rate", 250.0)]);
    let (share, times) = (Unit::Percent, Unit::Times);
    vec![
        Claim::at_least("250/s: all kinds, least success", share, extremes(calm).0, 0.99),
        Claim::at_least("dagor at 1,500/s: worst ÷ best kind", times, fairness(run("dagor")), 0.65)
            .paper("roughly the same"),
        Claim::at_most("codel at 1,500/s: worst ÷ best kind", times, fairness(run("codel")), 0.25)
            .paper("favours one call"),
        Claim::at_least("tide at 1,500/s: worst ÷ best kind", times, fairness(run("tide")), 0.85),
        Claim::at_least("tide at 1,500/s, of the optimum", share, best("tide"), 0.95),
        Claim::at_least("dagor at 1,500/s, of the optimum", share, best("dagor"), 0.85),
    ]
}

fn chart(runs: &Runs) -> Chart {
    let panel = |policy: &str| {
        let names = ["m1", "m2", "m3", "m4"];
        let line = |name: &str| {
            let success = |run: &Report| {
                let found = run.workflows.iter().find(|(workflow, _)| workflow == name);
                found.map_or(0.0, |(_, success)| 100.0 * success)
            };
            let points = runs.of(policy).map(|run| (at(run, "rate").unwrap_or(0.0), success(run)));
            Line::new(&format!("{} calls", &name[1..]), points.collect())
        };
        Panel {
            title: policy.to_owned(),
            x: Axis::linear("tasks per second"),
            y: Axis::linear("% of the tasks that succeed").up_to(100.0),
            lines: names.map(line).to_vec(),
        }
    };
    Chart { title: FIGURE.title.to_owned(), panels: POLICIES.map(panel).to_vec() }
}
