//! Breakwater's Figure 11: how much parameters matter. Target, step up and step down of each system
//! are set a little wrong in all combinations.

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Lab, Runs};
use super::testbed::{self, DAGOR, TESTBED};
use super::{Figure, Outcome};
use crate::report::Report;

pub(super) const FIGURE: Figure = Figure {
    name: "breakwater-11",
    title: "Throughput and tail with parameters set a little wrong, demand 1.2 × capacity",
    source: "Breakwater §5.2, Figure 11",
    make,
};

/// A system and its three most sensitive parameters: path, and value when it is a little too small,
/// right, and too large. The middle of each is what it is tuned to at 10 µs and 1,000 callers.
struct System {
    policy: &'static str,
    target: (&'static str, [&'static str; 3]),
    up: (&'static str, [&'static str; 3]),
    down: (&'static str, [&'static str; 3]),
}

const SYSTEMS: [System; 4] = [
    System {
        policy: "tide",
        target: ("gate.admission.target", ["0.35", "0.4", "0.45"]),
        up: ("gate.admission.additive", ["0.0005", "0.001", "0.002"]),
        down: ("gate.admission.multiplicative", ["0.01", "0.02", "0.04"]),
    },
    System {
        policy: "breakwater",
        target: ("gate.admission.target", ["70us", "80us", "90us"]),
        up: ("gate.admission.additive", ["0.0005", "0.001", "0.002"]),
        down: ("gate.admission.multiplicative", ["0.01", "0.02", "0.04"]),
    },
    System {
        policy: DAGOR,
        target: ("gate.admission.detector.threshold", ["50us", "60us", "70us"]),
        up: ("gate.admission.beta", ["0.005", "0.01", "0.02"]),
        down: ("gate.admission.alpha", ["0.025", "0.05", "0.1"]),
    },
    System {
        policy: "seda",
        target: ("caller.throttle.target", ["70us", "80us", "90us"]),
        up: ("caller.throttle.adj_i", ["20.0", "40.0", "80.0"]),
        down: ("caller.throttle.adj_d", ["1.02", "1.04", "1.08"]),
    },
];
/// Corners of the 27 combinations and their middle, which is all a quick look needs.
const CORNERS: [[usize; 3]; 5] = [[1, 1, 1], [0, 0, 2], [2, 2, 0], [2, 0, 0], [0, 2, 2]];

fn make(lab: &Lab<'_>) -> Outcome {
    let mut choices: Vec<[usize; 3]> = CORNERS.to_vec();
    if !lab.quick {
        choices = (0..27).map(|n| [n / 9, n / 3 % 3, n % 3]).collect();
    }
    let tuned = testbed::tuned(lab, 1000, &[]);
    let clouds: Vec<Runs> =
        SYSTEMS.iter().map(|system| cloud(lab, system, &choices, &tuned.sets)).collect();
    Outcome {
        claims: claims(&clouds),
        charts: vec![chart(&clouds)],
        notes: vec![tuned.note],
        ..Outcome::default()
    }
}

fn cloud(lab: &Lab<'_>, system: &System, choices: &[[usize; 3]], tuned: &[String]) -> Runs {
    let mut all = Runs::default();
    for choice in choices {
        let mut sets = lab.four_seconds(60_000);
        // Where callers of SEDA start; its steps and thresholds are set below.
        sets.extend(tuned.iter().cloned());
        sets.extend([
            format!("policy=[\"{}\"]", system.policy),
            "load=[1.2]".to_owned(),
            "callers=1000".to_owned(),
        ]);
        let parameters = [&system.target, &system.up, &system.down];
        for ((path, values), place) in parameters.into_iter().zip(choice) {
            sets.push(format!("policies.{}.{path}={}", system.policy, values[*place]));
        }
        all = all.and(lab.run(TESTBED, &sets));
    }
    all
}

fn throughput(run: &Report) -> f64 {
    run.throughput_rps / run.capacity_rps
}

/// Least and most of a cloud.
fn range(cloud: &Runs, value: fn(&Report) -> f64) -> (f64, f64) {
    let values = || cloud.0.iter().map(value);
    (values().fold(f64::MAX, f64::min), values().fold(f64::MIN, f64::max))
}

fn claims(clouds: &[Runs]) -> Vec<Claim> {
    let [tide, breakwater, dagor, seda] = clouds else { unreachable!("four systems") };
    let spread = |cloud| {
        let (least, most) = range(cloud, throughput);
        least / most
    };
    let tail = |cloud| range(cloud, |run| run.p99_us / 200.0).1;
    let times = Unit::Times;
    vec![
        Claim::at_least("breakwater: worst ÷ best throughput", times, spread(breakwater), 0.9)
            .paper("comparable"),
        Claim::at_most("breakwater: worst p99, of the SLO", times, tail(breakwater), 1.1)
            .paper("comparable"),
        Claim::at_least(
            "dagor: worst p99 ÷ breakwater's",
            times,
            tail(dagor) / tail(breakwater),
            1.2,
        )
        .paper("up to 4 SLO"),
        Claim::at_most(
            "seda: worst ÷ best throughput, ÷ breakwater's",
            times,
            spread(seda) / spread(breakwater),
            1.0,
        )
        .paper("severe degradation"),
        Claim::at_least("tide: worst ÷ best throughput", times, spread(tide), 0.97),
        Claim::at_most("tide: worst p99, of the SLO", times, tail(tide), 1.05),
    ]
}

fn chart(clouds: &[Runs]) -> Chart {
    let panel = |(system, cloud): (&System, &Runs)| {
        let point = |run: &Report| (throughput(run), run.p99_us);
        Panel {
            title: system.policy.to_owned(),
            x: Axis::linear("throughput ÷ capacity").up_to(1.0),
            y: Axis::linear("p99, µs").up_to(1000.0),
            lines: vec![Line::scatter(system.policy, cloud.0.iter().map(point).collect())],
        }
    };
    Chart {
        title: FIGURE.title.to_owned(),
        panels: SYSTEMS.iter().zip(clouds).map(panel).collect(),
    }
}
