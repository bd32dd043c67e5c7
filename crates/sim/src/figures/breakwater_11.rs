//! Breakwater's Figure 11: how much parameters matter. Three parameters of each system are set a
//! little wrong in all combinations.

use tidegate_core::admission::{BreakwaterConfig, DagorConfig, TideConfig};

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Lab, Runs, Tuned};
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
/// right, and too large. What is right for DAGOR and SEDA is what they are tuned to at 10 µs and 1,000
/// callers; Breakwater has its paper's values and tide its defaults.
struct System {
    policy: &'static str,
    parameters: [(&'static str, [String; 3]); 3],
}

fn systems(tuned: &Tuned) -> [System; 4] {
    let (tide, paper) = (TideConfig::default(), BreakwaterConfig::default());
    let dagor = DagorConfig::default();
    let targets = |middle, unit| around(middle, 0.05, unit);
    [
        System {
            policy: "tide",
            // With ranks spread evenly credits decide nothing, so it is not the pool's steps that matter.
            parameters: [
                ("gate.admission.target", targets(tide.target, "")),
                ("gate.admission.drop", around(tide.drop, 0.08, "")),
                ("gate.admission.probe", doubled(tide.probe)),
            ],
        },
        System {
            policy: "breakwater",
            parameters: [
                ("gate.admission.target", targets(0.4, " slo")),
                ("gate.admission.additive", doubled(paper.additive)),
                ("gate.admission.multiplicative", doubled(paper.multiplicative)),
            ],
        },
        System {
            policy: DAGOR,
            parameters: [
                ("gate.admission.detector.threshold", targets(tuned.number("threshold"), " slo")),
                ("gate.admission.beta", doubled(dagor.beta)),
                ("gate.admission.alpha", doubled(dagor.alpha)),
            ],
        },
        System {
            policy: "seda",
            parameters: [
                ("caller.throttle.target", targets(0.4, " slo")),
                ("caller.throttle.adj_i", doubled(tuned.number("adj_i"))),
                // It divides, so what counts is by how much it is above one.
                (
                    "caller.throttle.adj_d",
                    doubled(tuned.number("adj_d") - 1.0).map(|above| format!("1{}", &above[1..])),
                ),
            ],
        },
    ]
}

/// A little less, and a little more. 0.05 of the SLO is 10 µs.
fn around(middle: f64, little: f64, unit: &str) -> [String; 3] {
    [middle - little, middle, middle + little].map(|value| format!("{value:.3}{unit}"))
}

/// Half, and twice as much.
fn doubled(middle: f64) -> [String; 3] {
    [middle / 2.0, middle, middle * 2.0].map(|value| format!("{value:.5}"))
}

/// Corners of the 27 combinations and their middle, which is all a quick look needs.
const CORNERS: [[usize; 3]; 5] = [[1, 1, 1], [0, 0, 2], [2, 2, 0], [2, 0, 0], [0, 2, 2]];

fn make(lab: &Lab<'_>) -> Outcome {
    let mut choices: Vec<[usize; 3]> = CORNERS.to_vec();
    if !lab.quick {
        choices = (0..27).map(|n| [n / 9, n / 3 % 3, n % 3]).collect();
    }
    let tuned = testbed::tuned(lab, 1000, &[]);
    let systems = systems(&tuned);
    let clouds: Vec<Runs> =
        systems.iter().map(|system| cloud(lab, system, &choices, &tuned.sets)).collect();
    Outcome {
        claims: claims(&clouds),
        charts: vec![chart(&systems, &clouds)],
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
        for ((path, values), place) in system.parameters.iter().zip(choice) {
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

fn chart(systems: &[System], clouds: &[Runs]) -> Chart {
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
        panels: systems.iter().zip(clouds).map(panel).collect(),
    }
}
