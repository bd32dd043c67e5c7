//! Breakwater's Figure 6: goodput against the number of callers.
//!
//! A window is at least one request, so n callers keep n of them at a full server: n × 11.76 µs on ten
//! cores are within the SLO of 200 µs up to 170 callers.

use super::chart::{Axis, Chart, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Lab, Runs, goodput};
use super::testbed::{self, Bed, DAGOR, EVERYBODY, TESTBED};
use super::{Figure, Outcome};

pub(super) const FIGURE: Figure = Figure {
    name: "breakwater-6",
    title: "Goodput against the number of callers, 10 µs exponential",
    source: "Breakwater §5.2, Figure 6",
    make,
};

const LOADS: [f64; 2] = [1.2, 2.0];

fn make(lab: &Lab<'_>) -> Outcome {
    let (mut notes, mut runs) = (Vec::new(), Runs::default());
    let all: &[u32] =
        if lab.quick { &[10, 100, 1000, 10_000] } else { &[10, 30, 100, 300, 1000, 3000, 10_000] };
    for &callers in all {
        let bed = Bed { source: TESTBED, capacity: 850_000.0, callers, sets: &[], brief: false };
        let tuned = testbed::tuned_for(lab, &bed);
        let mut sets = lab.four_seconds(200_000);
        let here = [format!("load={LOADS:?}"), format!("callers=[{callers}]")];
        sets.push(format!("policy={:?}", &EVERYBODY[..4]));
        sets.extend(here.iter().chain(&tuned.sets).cloned());
        let (others, alone) = testbed::others(lab, &bed, &here);
        runs = runs.and(lab.run(TESTBED, &sets)).and(others);
        notes.push(tuned.and(alone).note);
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
    let regret =
        |callers, load| testbed::regret(runs, 10.0, &[("callers", callers), ("load", load)]);
    let worst =
        |callers: &[f64], load| callers.iter().map(|n| regret(*n, load)).fold(f64::MIN, f64::max);
    let dropped = |policy| runs.get(policy, &[("callers", 1e4), ("load", 2.0)]).drop_rate;
    let (share, times) = (Unit::Percent, Unit::Times);
    let ahead = |callers| {
        at("tide", callers, 2.0) / at("codel", callers, 2.0).max(at("window", callers, 2.0))
    };
    let over = |policy| at("breakwater", 1e4, 2.0) / at(policy, 1e4, 2.0);
    vec![
        Claim::at_most(
            "breakwater at 2×: 10,000 callers ÷ 100 (it degrades, too)",
            times,
            kept("breakwater"),
            1.0,
        )
        .paper("< 1×"),
        Claim::at_least("at 2×, 10,000 callers: breakwater ÷ dagor", times, over(DAGOR), 1.0)
            .paper("> 1×"),
        // SEDA's callers begin near their fair share here. In full that is all they need: they are ahead of Breakwater's, whose credits are
        // spread thin. In the paper they begin with a few requests per second each, and are behind.
        Claim::at_least(
            "at 2×, 10,000 callers: breakwater ÷ seda that begins near its fair share",
            times,
            over("seda"),
            1.0,
        )
        .paper("> 1×")
        .differs(0.9, 1.0),
        Claim::at_most(
            "the same, kept from 100 to 10,000 callers: seda's ÷ breakwater's",
            times,
            kept("seda") / kept("breakwater"),
            1.0,
        )
        .paper("< 1×")
        .differs(1.0, 1.2),
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
        Claim::at_most(
            "tide below ideal at 1.2× and 2×, up to 1,000 callers, worst, of capacity",
            share,
            worst(&[10.0, 100.0, 1e3], 1.2).max(worst(&[10.0, 100.0, 1e3], 2.0)),
            0.01,
        ),
        // They do not know the queue: who drops 1 % is idle for 1 % (tide-frontier), and tide wants both small.
        Claim::at_most(
            "the same, 10,000 callers",
            share,
            regret(1e4, 1.2).max(regret(1e4, 2.0)),
            0.013,
        ),
        Claim::at_most(
            "tide, 10,000 callers at 2×: dropped at the server",
            share,
            dropped("tide"),
            0.015,
        ),
        Claim::at_most(
            "codel at 2×: 10,000 callers ÷ 10 (fewer refusals share a message)",
            times,
            at("codel", 1e4, 2.0) / at("codel", 10.0, 2.0),
            1.0,
        )
        .paper("< 1× (Figure 1)"),
        Claim::at_least(
            "10 callers at 2×: window ÷ codel",
            times,
            at("window", 10.0, 2.0) / at("codel", 10.0, 2.0),
            1.0,
        )
        .paper("> 1× (Figure 1)"),
        Claim::at_most(
            "1,000 callers at 2×: window, of capacity",
            share,
            at("window", 1e3, 2.0),
            0.05,
        )
        .paper("collapses (Figure 1)"),
        Claim::at_least(
            "tide ÷ best of codel and window at 2×, least",
            times,
            [10.0, 100.0, 1e3, 1e4].map(ahead).into_iter().fold(f64::MAX, f64::min),
            0.995,
        ),
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
            lines: EVERYBODY.iter().map(|policy| runs.line(policy, "callers", goodput)).collect(),
        }
    };
    Chart { title: FIGURE.title.to_owned(), panels: LOADS.map(panel).to_vec() }
}
