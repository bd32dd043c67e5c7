//! Breakwater's Figure 6: goodput against the number of callers.

use super::chart::{Axis, Chart, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Lab, Runs, goodput};
use super::testbed::{self, DAGOR, TESTBED};
use super::{Figure, Outcome};

pub(super) const FIGURE: Figure = Figure {
    name: "breakwater-6",
    title: "Goodput against the number of callers, 10 µs exponential",
    source: "Breakwater §5.2, Figure 6",
    make,
};

const POLICIES: [&str; 5] = ["tide", "breakwater", DAGOR, "seda", "ideal"];
const LOADS: [f64; 2] = [1.2, 2.0];

fn make(lab: &Lab<'_>) -> Outcome {
    let (mut notes, mut runs) = (Vec::new(), Runs::default());
    let all: &[u32] =
        if lab.quick { &[10, 100, 1000, 10_000] } else { &[10, 30, 100, 300, 1000, 3000, 10_000] };
    for &callers in all {
        let tuned = testbed::tuned(lab, callers, &[]);
        let mut sets = lab.four_seconds(200_000);
        let here = [format!("load={LOADS:?}"), format!("callers=[{callers}]")];
        sets.push(format!("policy={:?}", &POLICIES[..4]));
        sets.extend(here.iter().cloned().chain(tuned.sets));
        runs = runs.and(lab.run(TESTBED, &sets)).and(testbed::ideal(lab, TESTBED, &here));
        notes.push(tuned.note);
    }
    Outcome { claims: claims(&runs), charts: vec![chart(&runs)], notes, ..Outcome::default() }
}

fn claims(runs: &Runs) -> Vec<Claim> {
    let at =
        |policy, callers, load| goodput(runs.get(policy, &[("callers", callers), ("load", load)]));
    let kept = |policy| at(policy, 1e4, 2.0) / at(policy, 100.0, 2.0);
    let least = |load| {
        [10.0, 100.0, 1e3, 1e4]
            .map(|callers| at("tide", callers, load))
            .into_iter()
            .fold(f64::MAX, f64::min)
    };
    let regret = |load| {
        let here = |callers| testbed::regret(runs, 10.0, &[("callers", callers), ("load", load)]);
        [10.0, 100.0, 1e3, 1e4].map(here).into_iter().fold(f64::MIN, f64::max)
    };
    let dropped = |policy| runs.get(policy, &[("callers", 1e4), ("load", 2.0)]).drop_rate;
    let (share, times) = (Unit::Percent, Unit::Times);
    let over = |policy| at("breakwater", 1e4, 2.0) / at(policy, 1e4, 2.0);
    vec![
        Claim::between(
            "breakwater at 2×: 10,000 callers ÷ 100 (it degrades, too)",
            times,
            kept("breakwater"),
            0.85,
            0.98,
        )
        .paper("< 1×"),
        Claim::at_least("at 2×, 10,000 callers: breakwater ÷ dagor", times, over(DAGOR), 1.0)
            .paper("> 1×"),
        Claim::at_least("at 2×, 10,000 callers: breakwater ÷ seda", times, over("seda"), 1.0)
            .paper("> 1×"),
        Claim::at_most(
            "seda loses more from 100 to 10,000 callers: kept ÷ breakwater's",
            times,
            kept("seda") / kept("breakwater"),
            1.0,
        )
        .paper("< 1×"),
        Claim::at_least(
            "dagor's cursors are stale at 10,000 callers: dropped at the server",
            share,
            dropped(DAGOR),
            0.1,
        ),
        Claim::at_most("breakwater: the same", share, dropped("breakwater"), 0.03),
        Claim::at_least("tide at 2×: 10,000 callers ÷ 100", times, kept("tide"), 0.98),
        Claim::at_least(
            "tide at 1.2×, least over all numbers, of capacity",
            share,
            least(1.2),
            0.97,
        ),
        Claim::at_least("tide at 2×, least over all numbers, of capacity", share, least(2.0), 0.97),
        Claim::at_most("tide below ideal at 1.2×, worst, of capacity", share, regret(1.2), 0.01),
        Claim::at_most("tide below ideal at 2×, worst, of capacity", share, regret(2.0), 0.01),
    ]
}

fn chart(runs: &Runs) -> Chart {
    let panel = |load: f64| {
        let here = |run: &&crate::Report| super::lab::at(run, "load") == Some(load);
        let runs = Runs(runs.0.iter().filter(here).cloned().collect());
        Panel {
            title: format!("demand {load} × capacity"),
            x: Axis::log("callers"),
            y: Axis::linear("goodput ÷ capacity").up_to(1.0),
            lines: POLICIES.iter().map(|policy| runs.line(policy, "callers", goodput)).collect(),
        }
    };
    Chart { title: FIGURE.title.to_owned(), panels: LOADS.map(panel).to_vec() }
}
