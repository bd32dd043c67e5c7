//! Heavy tails, bursts and faults: how far below `ideal`, in points of capacity.

use super::super::chart::Chart;
use super::super::claim::Unit;
use super::super::lab::{Lab, Source, at};
use super::goal::Goal;
use super::{fair, slo_us};

const PLAN: Source =
    Source { name: "rough", text: include_str!("../../../../../plans/rough.toml") };

/// What is rough, and what to set for it; times of faults are shares of the measured time.
const CASES: [(&str, &[&str]); 11] = [
    ("lognormal", &["service.distribution=lognormal"]),
    ("lognormal, sigma 2", &["service.distribution=lognormal", "service.sigma=2.0"]),
    ("pareto", &["service.distribution=pareto"]),
    ("pareto, shape 1.5", &["service.distribution=pareto", "service.shape=1.5"]),
    (
        "bursts of 10",
        &["service.distribution=exponential", "workload.arrivals=bursts", "workload.burst=10"],
    ),
    (
        "bursts of 50",
        &["service.distribution=exponential", "workload.arrivals=bursts", "workload.burst=50"],
    ),
    ("half as fast for a tenth", &["service.distribution=exponential", "kind=\"slow\",factor=2.0"]),
    (
        "half of the cores for a tenth",
        &["service.distribution=exponential", "kind=\"cores\",cores=5"],
    ),
    (
        "half of the feedback lost",
        &["service.distribution=exponential", "kind=\"lose-feedback\",share=0.5"],
    ),
    ("1 % of the messages lost", &["service.distribution=exponential", "kind=\"loss\",share=0.01"]),
    (
        "jitter of three round trips",
        &["service.distribution=exponential", "kind=\"jitter\",jitter=\"30us\""],
    ),
];

pub(super) fn part(lab: &Lab<'_>) -> (Vec<Goal>, Vec<Chart>) {
    let what = "rough: goodput below ideal, of capacity";
    let mut goal = Goal::at_most(what, Unit::Percent, 0.01);
    let times: &[&str] = if lab.quick { &["10us"] } else { &["10us", "1ms"] };
    let (loads, cases): (&[f64], _) =
        if lab.quick { (&[2.0], &CASES[..1]) } else { (&[1.2, 2.0], &CASES[..]) };
    for time in times {
        for (name, sets) in cases {
            for load in loads {
                let mut sets: Vec<String> =
                    sets.iter().map(|set| fault(set, time, *load)).collect();
                sets.extend(lab.requests(50_000, 200_000));
                sets.extend([
                    "policy=[\"tide\",\"ideal\"]".to_owned(),
                    format!("load=[{load:?}]"),
                    format!("service.time={time}"),
                ]);
                let runs = lab.run(PLAN, &sets);
                let (tide, ideal) = (runs.get("tide", &[]), runs.get("ideal", &[]));
                let place = format!("{time}, {name}, {}×", at(tide, "load").unwrap_or_default());
                goal.point(place, fair(ideal, time) - fair(tide, time));
            }
        }
    }
    (vec![goal], Vec::new())
}

/// A fault begins where a quarter of the measured time is over and lasts for a tenth of it.
fn fault(set: &str, time: &str, load: f64) -> String {
    if !set.starts_with("kind=") {
        return set.to_owned();
    }
    let capacity = 1e7 / (slo_us(time) / 10.0 - 10.0 + 1.76);
    // As many requests to warm up as are measured.
    let seconds = 200_000.0 / (load * capacity);
    let (from, lasts) = (seconds * 1.25e6, seconds * 0.1e6);
    format!("faults=[{{{set},at=\"{from:.0}us\",for=\"{lasts:.0}us\"}}]")
}
