//! Three hops with a slow leaf: what the leaf cannot take should be refused at the entry, before any
//! work is done for it. Policies that know nothing of the hops below work in vain for every task
//! refused there: all of what is beyond the capacity.

use super::chart::{Axis, Chart, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Lab, Runs, Source, goodput};
use super::{Figure, Outcome};
use crate::report::Report;

pub(super) const FIGURE: Figure = Figure {
    name: "three-hops",
    title: "Three hops with a slow leaf: work done in vain at the entry",
    source: "no paper's: Breakwater §6 leaves it for later, DAGOR §4.2.4 has cursors go up",
    make,
};

const PLAN: Source =
    Source { name: "three-hops", text: include_str!("../../../../plans/three-hops.toml") };
const POLICIES: [&str; 5] = ["tide", "dagor", "breakwater", "codel", "open"];

fn make(lab: &Lab<'_>) -> Outcome {
    let count = if lab.quick { 60_000 } else { 200_000 };
    let loads = if lab.quick { "[0.8,2.0]" } else { "[0.8,1.0,1.2,2.0,4.0]" };
    let sets = [
        format!("policy={POLICIES:?}"),
        format!("load={loads}"),
        format!("requests={count}"),
        format!("warmup_requests={count}"),
    ];
    let runs = lab.run(PLAN, &sets);
    Outcome { claims: claims(&runs), charts: vec![chart(&runs)], ..Outcome::default() }
}

fn claims(runs: &Runs) -> Vec<Claim> {
    let at = |policy, load| runs.get(policy, &[("load", load)]);
    let (share, times) = (Unit::Percent, Unit::Times);
    let worst = runs.of("tide").map(|run| run.wasted).fold(0.0, f64::max);
    // The leaf is half of what the entry could do, so half of the tasks at 2× are refused below.
    vec![
        Claim::at_most("tide, worst over all loads, wasted", share, worst, 0.05),
        Claim::at_least("tide at 2×, of capacity", share, goodput(at("tide", 2.0)), 0.98),
        Claim::at_most("tide at 0.8×, wasted", share, at("tide", 0.8).wasted, 0.001),
        Claim::at_most("dagor at 2×, wasted", share, at("dagor", 2.0).wasted, 0.1)
            .paper("cursors go up"),
        Claim::between(
            "breakwater at 2×, wasted: all that is beyond capacity",
            share,
            at("breakwater", 2.0).wasted,
            0.45,
            0.55,
        )
        .paper("\"is wasted\""),
        Claim::between("codel at 2×, the same", share, at("codel", 2.0).wasted, 0.45, 0.55),
        Claim::at_most(
            "tide ÷ breakwater at 2×, wasted",
            times,
            at("tide", 2.0).wasted / at("breakwater", 2.0).wasted,
            0.25,
        ),
    ]
}

fn chart(runs: &Runs) -> Chart {
    let lines = |value: fn(&Report) -> f64| {
        POLICIES.iter().map(|policy| runs.line(policy, "load", value)).collect()
    };
    let panel = |title: &str, y, lines| Panel {
        title: title.to_owned(),
        x: Axis::linear("demand ÷ capacity of the leaf"),
        y,
        lines,
    };
    Chart {
        title: FIGURE.title.to_owned(),
        panels: vec![
            panel("work in vain at the entry", Axis::linear("%"), lines(|run| 100.0 * run.wasted)),
            panel("goodput", Axis::linear("÷ capacity"), lines(goodput)),
        ],
    }
}
