//! "Handling Overload": the less critical is refused first, and what is critical hardly ever.

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Lab, Runs, Source, at};
use super::{Figure, Outcome};
use crate::report::Report;

pub(super) const FIGURE: Figure = Figure {
    name: "sre-criticality",
    title: "Four criticalities in equal parts: who is answered under overload",
    source: "\"Handling Overload\", Criticality and Utilization Signals",
    make,
};

const PLAN: Source = Source {
    name: "sre-criticality",
    text: include_str!("../../../../plans/sre-criticality.toml"),
};
const POLICIES: [&str; 3] = ["tide", "utilization", "open"];
const NAMES: [&str; 4] = ["critical plus", "critical", "sheddable plus", "sheddable"];

fn make(lab: &Lab<'_>) -> Outcome {
    let mut sets = lab.requests(80_000, 400_000);
    sets.push(format!("policy={POLICIES:?}"));
    if lab.quick {
        sets.push("load=[1.0,2.0,4.0]".to_owned());
    }
    let runs = lab.run(PLAN, &sets);
    Outcome {
        misses: Vec::new(),
        claims: claims(&runs),
        charts: vec![chart(&runs)],
        ..Outcome::default()
    }
}

/// Least by which a criticality is ahead of the next, over all loads; less than zero if the order is
/// ever broken.
fn order(runs: &Runs, policy: &str) -> f64 {
    let ahead = |run: &Report| {
        let [a, b, c, d] = run.success_by_quarter;
        (a - b).min(b - c).min(c - d)
    };
    runs.of(policy).map(ahead).fold(f64::MAX, f64::min)
}

fn claims(runs: &Runs) -> Vec<Claim> {
    let share = Unit::Percent;
    let success =
        |policy, load, n: usize| runs.get(policy, &[("load", load)]).success_by_quarter[n];
    let spread = {
        let quarters = runs.get("open", &[("load", 2.0)]).success_by_quarter;
        quarters.iter().fold(0.0, |most: f64, q| most.max(*q))
            - quarters.iter().fold(1.0, |least: f64, q| least.min(*q))
    };
    let loads = [2.0, 4.0];
    let mut claims = Vec::new();
    for load in loads {
        for policy in ["utilization", "tide"] {
            // At 4× there is just room for them and nobody else.
            let floor = if load > 3.0 { 0.95 } else { 0.99 };
            let what = format!("{policy} at {load}×, critical plus");
            let claim = Claim::at_least(&what, share, success(policy, load, 0), floor);
            claims.push(claim.paper("refused last"));
        }
    }
    claims.extend([
        Claim::at_least(
            "utilization: least lead of a criticality over the next, all loads",
            share,
            order(runs, "utilization"),
            -0.001,
        )
        .paper("strict order"),
        Claim::at_least("tide: the same", share, order(runs, "tide"), -0.001),
        Claim::at_most("utilization at 2×, sheddable", share, success("utilization", 2.0, 3), 0.1),
        Claim::at_most("tide at 2×, sheddable", share, success("tide", 2.0, 3), 0.01),
        Claim::at_most("full queue at 2×: best − worst criticality", share, spread, 0.02),
        Claim::at_least(
            "tide ÷ utilization at 1×, goodput: no thresholds to stay below",
            Unit::Times,
            runs.get("tide", &[("load", 1.0)]).goodput_rps
                / runs.get("utilization", &[("load", 1.0)]).goodput_rps,
            1.2,
        ),
    ]);
    claims
}

fn chart(runs: &Runs) -> Chart {
    let panel = |policy: &str| {
        let line = |(n, name): (usize, &str)| {
            let point =
                |run: &Report| (at(run, "load").unwrap_or(0.0), 100.0 * run.success_by_quarter[n]);
            Line::new(name, runs.of(policy).map(point).collect())
        };
        Panel {
            title: policy.to_owned(),
            x: Axis::linear("demand ÷ capacity"),
            y: Axis::linear("% answered in time").up_to(100.0),
            lines: NAMES.into_iter().enumerate().map(line).collect(),
        }
    };
    Chart { title: FIGURE.title.to_owned(), panels: POLICIES.map(panel).to_vec() }
}
