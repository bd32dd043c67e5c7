//! Who is answered when not everybody can be: success by importance, tide against Breakwater.

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Lab, Runs};
use super::testbed::TESTBED;
use super::{Figure, Outcome};

pub(super) const FIGURE: Figure = Figure {
    name: "tide-rank",
    title: "Answered in time, by quarter of the ranks: at the same goodput, tide keeps the important",
    source: "no paper's: Breakwater has credits without ranks",
    make,
};

const POLICIES: [&str; 2] = ["tide", "breakwater"];
const LOADS: [f64; 3] = [1.2, 2.0, 4.0];

fn make(lab: &Lab<'_>) -> Outcome {
    let mut sets = lab.requests(300_000, 2_000_000);
    sets.extend([format!("policy={POLICIES:?}"), format!("load={LOADS:?}")]);
    sets.push("callers=1000".to_owned());
    let runs = lab.run(TESTBED, &sets);
    Outcome { claims: claims(&runs), charts: vec![chart(&runs)], ..Outcome::default() }
}

fn claims(runs: &Runs) -> Vec<Claim> {
    let quarter =
        |policy, load, n: usize| runs.get(policy, &[("load", load)]).success_by_quarter[n];
    let spread = |load| {
        let quarters = runs.get("breakwater", &[("load", load)]).success_by_quarter;
        quarters.iter().fold(0.0, |most: f64, q| most.max(*q))
            - quarters.iter().fold(1.0, |least: f64, q| least.min(*q))
    };
    let ratio = |load| {
        runs.get("tide", &[("load", load)]).goodput_rps
            / runs.get("breakwater", &[("load", load)]).goodput_rps
    };
    let share = Unit::Percent;
    let mut claims = vec![
        Claim::at_least("tide at 1.2×, first quarter", share, quarter("tide", 1.2, 0), 0.995),
        Claim::at_least("tide at 1.2×, third quarter", share, quarter("tide", 1.2, 2), 0.97),
        Claim::at_least("tide at 2×, first quarter", share, quarter("tide", 2.0, 0), 0.995),
        Claim::at_most("tide at 2×, last quarter", share, quarter("tide", 2.0, 3), 0.01),
        Claim::at_least(
            "tide at 4×, first quarter (there is room for 25 %)",
            share,
            quarter("tide", 4.0, 0),
            0.9,
        ),
        Claim::between(
            "breakwater at 2×, first quarter: its fair share",
            share,
            quarter("breakwater", 2.0, 0),
            0.45,
            0.51,
        ),
    ];
    for load in LOADS {
        let what = format!("breakwater at {load}×, best quarter − worst: it knows no ranks");
        claims.push(Claim::at_most(&what, share, spread(load), 0.02));
        let what = format!("tide ÷ breakwater at {load}×, goodput");
        claims.push(Claim::at_least(&what, Unit::Times, ratio(load), 0.985));
    }
    claims
}

fn chart(runs: &Runs) -> Chart {
    let panel = |load: f64| Panel {
        title: format!("demand {load} × capacity"),
        x: Axis::linear("quarter of the ranks, most important first"),
        y: Axis::linear("% answered within the SLO").up_to(100.0),
        lines: POLICIES.iter().map(|policy| line(runs, policy, load)).collect(),
    };
    Chart { title: FIGURE.title.to_owned(), panels: LOADS.map(panel).to_vec() }
}

fn line(runs: &Runs, policy: &str, load: f64) -> Line {
    let quarters = runs.get(policy, &[("load", load)]).success_by_quarter;
    let points = (1..).zip(quarters).map(|(n, success)| (f64::from(n), success * 100.0));
    Line::new(policy, points.collect())
}
