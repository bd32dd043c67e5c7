//! Breakwater's Figure 1: shedding at the server costs what it saves once demand is high, and
//! windows at the callers collapse once callers are many.

use super::chart::{Axis, Chart, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Lab, Runs, Tuned, goodput};
use super::testbed::{self, TESTBED};
use super::{Figure, Outcome};

pub(super) const FIGURE: Figure = Figure {
    name: "breakwater-1",
    title: "Shedding at the server degrades with demand, windows at callers with their number",
    source: "Breakwater §2.2, Figure 1",
    make,
};

const CALLERS: [u32; 4] = [10, 100, 1000, 10_000];
const POLICIES: [&str; 5] = ["tide", "breakwater", "codel", "window", "ideal"];

fn make(lab: &Lab<'_>) -> Outcome {
    let mut notes = Vec::new();
    let (mut by_load, mut by_callers) = (Runs::default(), Runs::default());
    let loads =
        if lab.quick { "[0.9,1.2,2.0,4.0]" } else { "[0.5,0.9,1.0,1.1,1.2,1.4,2.0,3.0,4.0]" };
    for callers in CALLERS {
        let sets = |policy: &str, load: &str| {
            let mut sets = lab.requests(60_000, 400_000);
            sets.extend([format!("policy=[\"{policy}\"]"), format!("load={load}")]);
            sets.push(format!("callers={callers}"));
            sets
        };
        for policy in POLICIES {
            let tuned = match policy {
                "codel" | "window" => testbed::tuned_alone(lab, policy, callers),
                _ => Tuned::default(),
            };
            let run =
                |load: &str| lab.run(TESTBED, &[sets(policy, load), tuned.sets.clone()].concat());
            by_callers = by_callers.and(run(if policy == "ideal" { "[1.4]" } else { "[1.4,4.0]" }));
            if callers == 1000 {
                by_load = by_load.and(run(loads));
            }
            notes.extend(Some(tuned.note).filter(|note| !note.is_empty()));
        }
    }
    Outcome {
        claims: claims(&by_load, &by_callers),
        charts: vec![chart(&by_load, &by_callers)],
        notes,
        ..Outcome::default()
    }
}

fn claims(by_load: &Runs, by_callers: &Runs) -> Vec<Claim> {
    let codel = |load| goodput(by_load.get("codel", &[("load", load)]));
    let at = |policy, callers, load| {
        goodput(by_callers.get(policy, &[("callers", callers), ("load", load)]))
    };
    let share = Unit::Percent;
    let regret =
        |callers| testbed::regret(by_callers, 10.0, &[("callers", callers), ("load", 1.4)]);
    let worst = CALLERS.map(|callers| regret(f64::from(callers))).into_iter().fold(0.0, f64::max);
    vec![
        Claim::at_least("codel holds goodput at 1.2×, of capacity", share, codel(1.2), 0.93),
        Claim::at_most(
            "codel, goodput at 2× ÷ at 1.2×",
            Unit::Times,
            codel(2.0) / codel(1.2),
            0.92,
        ),
        Claim::at_most("codel, goodput at 4× ÷ at 1.2×", Unit::Times, codel(4.0) / codel(1.2), 0.7),
        Claim::at_most(
            "codel at 4×: 10,000 callers ÷ 10 (fewer refusals share a message)",
            Unit::Times,
            at("codel", 1e4, 4.0) / at("codel", 10.0, 4.0),
            0.9,
        ),
        Claim::at_least(
            "10 callers at 1.4×: window ÷ codel",
            Unit::Times,
            at("window", 10.0, 1.4) / at("codel", 10.0, 1.4),
            1.0,
        ),
        Claim::at_most(
            "1,000 callers at 1.4×: window ÷ codel",
            Unit::Times,
            at("window", 1e3, 1.4) / at("codel", 1e3, 1.4),
            0.5,
        ),
        Claim::at_most(
            "10,000 callers at 1.4×: window, of capacity",
            share,
            at("window", 1e4, 1.4),
            0.05,
        ),
        Claim::at_most(
            "1.4×, 10 to 10,000 callers: tide below ideal, worst, of capacity",
            share,
            worst,
            0.01,
        ),
    ]
}

fn chart(by_load: &Runs, by_callers: &Runs) -> Chart {
    let at_14 = |run: &&crate::Report| super::lab::at(run, "load") == Some(1.4);
    let by_callers = Runs(by_callers.0.iter().filter(at_14).cloned().collect());
    let lines =
        |runs: &Runs, path| POLICIES.map(|policy| runs.line(policy, path, goodput)).to_vec();
    let of_capacity = || Axis::linear("goodput ÷ capacity").up_to(1.0);
    Chart {
        title: FIGURE.title.to_owned(),
        panels: vec![
            Panel {
                title: "1,000 callers".to_owned(),
                x: Axis::linear("demand ÷ capacity"),
                y: of_capacity(),
                lines: lines(by_load, "load"),
            },
            Panel {
                title: "demand 1.4 × capacity".to_owned(),
                x: Axis::log("callers"),
                y: of_capacity(),
                lines: lines(&by_callers, "callers"),
            },
        ],
    }
}
