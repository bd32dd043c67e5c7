//! "Handling Overload", Figure 21-1: which attempts a service sees. With reject probability r and up
//! to three attempts, a thousand first attempts are followed by 1,000 r second and 1,000 r² third
//! ones. From them a service can tell that others are full, too.
//!
//! At demand L, 1 − r³ = 1 ÷ L of the requests are accepted in the end; the loads below are those
//! for which r is one half and nine tenths.

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Lab, Runs, Source};
use super::{Figure, Outcome};

pub(super) const FIGURE: Figure = Figure {
    name: "sre-attempts",
    title: "Attempts that a service sees per thousand first ones",
    source: "\"Handling Overload\", Figure 21-1",
    make,
};

const PLAN: Source =
    Source { name: "sre-retries", text: include_str!("../../../../plans/sre-retries.toml") };
/// Demand and the reject probability that follows from it.
const LOADS: [(f64, f64); 3] = [(0.8, 0.0), (1.142_857, 0.5), (3.690_037, 0.9)];

fn make(lab: &Lab<'_>) -> Outcome {
    let mut sets = lab.requests(60_000, 600_000);
    sets.push("policy=[\"naive\",\"told-not-to\"]".to_owned());
    sets.push(format!("load={:?}", LOADS.map(|(load, _)| load)));
    let runs = lab.run(PLAN, &sets);
    Outcome {
        misses: Vec::new(),
        claims: claims(&runs),
        charts: vec![chart(&runs)],
        ..Outcome::default()
    }
}

fn claims(runs: &Runs) -> Vec<Claim> {
    let seen = |policy, load| runs.get(policy, &[("load", load)]).attempts;
    let rate = Unit::Count;
    let [(calm, _), (half, _), (most, _)] = LOADS;
    // Requests refused together come back together, which spreads the numbers a little while few
    // are refused.
    vec![
        Claim::at_most("0.8×: second attempts", rate, seen("naive", calm)[1], 5.0).paper("none"),
        Claim::between("r = 0.5: second attempts", rate, seen("naive", half)[1], 425.0, 575.0)
            .paper("500"),
        Claim::between("r = 0.5: third attempts", rate, seen("naive", half)[2], 200.0, 300.0)
            .paper("250"),
        Claim::between("r = 0.9: second attempts", rate, seen("naive", most)[1], 880.0, 920.0)
            .paper("900"),
        Claim::between("r = 0.9: third attempts", rate, seen("naive", most)[2], 780.0, 840.0)
            .paper("810"),
        Claim::at_most("never a fourth", rate, seen("naive", most)[3], 0.0),
        Claim::at_most(
            "r = 0.9, \"don't retry\" from such histograms: second attempts",
            rate,
            seen("told-not-to", most)[1],
            300.0,
        ),
    ]
}

fn chart(runs: &Runs) -> Chart {
    let panel = |policy: &str| {
        let line = |(load, reject): (f64, f64)| {
            let seen = runs.get(policy, &[("load", load)]).attempts;
            let points = (1..=3).zip(seen).map(|(n, count)| (f64::from(n), count)).collect();
            Line::new(&format!("demand {load:.2} × capacity, r = {reject}"), points)
        };
        Panel {
            title: policy.to_owned(),
            x: Axis::linear("attempt"),
            y: Axis::linear("per thousand first attempts"),
            lines: LOADS.map(line).to_vec(),
        }
    };
    Chart { title: FIGURE.title.to_owned(), panels: ["naive", "told-not-to"].map(panel).to_vec() }
}
