//! Heavy tails, bursts and faults: how far below `ideal`, in points of capacity. A fault is judged by
//! itself: what is measured begins with it and ends a little after it, so that nothing dilutes it.

use super::super::claim::Unit;
use super::super::lab::{Grid, Lab, Runs, Source};
use super::goal::Goal;
use super::reach::{GOOD, Reach, changing, steady};
use super::{Part, capacity, fair, slo_us};

const PLAN: Source =
    Source { name: "rough", text: include_str!("../../../../../plans/rough.toml") };

/// What is rough, and what to set for it.
const SHAPES: [(&str, &[&str]); 6] = [
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
];

/// What goes wrong for a while: with the server, and with messages.
const SLOWER: [(&str, &str); 2] =
    [("half as fast", "kind=\"slow\",factor=2.0"), ("half of the cores", "kind=\"cores\",cores=5")];
const GARBLED: [(&str, &str); 3] = [
    ("1 % of the messages lost", "kind=\"loss\",share=0.01"),
    ("half of the feedback lost", "kind=\"lose-feedback\",share=0.5"),
    ("jitter of three round trips", "kind=\"jitter\",jitter=\"30us\""),
];
/// How long a fault lasts, and how long after it is still measured, in SLOs.
pub(in super::super) const LASTS: f64 = 100.0;
const AFTER: f64 = 25.0;
/// So short a time is worth a percent by chance alone; the mean of so many seeds is half of that.
const SEEDS: u32 = 3;
/// Most by which goodput is below that of `ideal`. Who misses it by no more than chance is measured again, with so many seeds.
const MOST: f64 = 0.01;
const CHANCE: f64 = 0.003;
const AGAIN: u32 = 8;
/// Requests offered before a fault, at the capacity: forty of each of the 1,000 callers.
const BEFORE: f64 = 40_000.0;

pub(super) fn part(lab: &Lab<'_>) -> Part {
    let shapes = spots(lab, &SHAPES, &|shape, _, _| {
        let sets = shape.iter().map(|&set| set.to_owned());
        sets.chain(lab.requests(50_000, 200_000)).collect()
    });
    let faults =
        |kinds| spots(lab, kinds, &|kind: &&str, time: &str, load| fault(kind, time, load, SEEDS));
    Part {
        goals: vec![
            near_ideal(lab, "heavy tails and bursts", &steady(), &shapes),
            // Who is not told at once sends what the server must refuse, and half of it is all there is.
            near_ideal(
                lab,
                "half of the capacity gone for 100 SLOs",
                &changing(),
                &faults(&SLOWER),
            ),
            near_ideal(lab, "messages garbled for 100 SLOs", &changing(), &faults(&GARBLED)),
        ],
        ..Part::default()
    }
}

/// A point: where it is, and what is set there.
struct Spot {
    place: String,
    time: &'static str,
    sets: Vec<String>,
}

/// All points in which something of these kinds happens, `of` telling what to set for it; a quick look is at one.
fn spots<T>(
    lab: &Lab<'_>,
    kinds: &[(&str, T)],
    of: &dyn Fn(&T, &str, f64) -> Vec<String>,
) -> Vec<Spot> {
    let times: &[&str] = if lab.quick { &["10us"] } else { &["10us", "1ms"] };
    let loads: &[f64] = if lab.quick { &[2.0] } else { &[1.2, 2.0] };
    let kinds = if lab.quick { &kinds[..1] } else { kinds };
    let mut spots = Vec::new();
    for (time, load) in times.iter().flat_map(|time| loads.iter().map(move |load| (time, *load))) {
        for (name, kind) in kinds {
            let mut sets = of(kind, time, load);
            sets.extend([format!("load=[{load:?}]"), format!("service.time={time}")]);
            spots.push(Spot { place: format!("{time}, {name}, {load}×"), time, sets });
        }
    }
    spots
}

/// How far tide is below `ideal` in some points, and where that is far, how far the best of `choices` is.
fn near_ideal(lab: &Lab<'_>, whose: &str, choices: &Grid, spots: &[Spot]) -> Goal {
    let what = format!("{whose}: goodput below ideal, of capacity");
    let mut goal = Goal::at_most(what, Unit::Percent, MOST).near(0.01, 0.12);
    let both = ["policy=[\"ideal\",\"tide\"]".to_owned()];
    let found = |runs: &Runs, time: &str| {
        let runs = runs.mean();
        ["tide", "ideal"].map(|policy| fair(runs.get(policy, &[]), time))
    };
    let sets: Vec<Vec<String>> = spots.iter().map(|spot| spot.sets.clone()).collect();
    let runs = lab.run_each(PLAN, &both, &sets, None);
    for (Spot { place, time, sets }, runs) in spots.iter().zip(runs) {
        let [mut tide, mut ideal] = found(&runs, time);
        if !lab.quick && (MOST..MOST + CHANCE).contains(&(ideal - tide)) {
            let seeds = [format!("seeds={AGAIN}")];
            [tide, ideal] = found(&lab.run(PLAN, &[&sets[..], &both, &seeds].concat()), time);
        }
        // Who drops less would else have nobody to compare with.
        goal.point_or(place.clone(), ideal - tide, || {
            Reach::of(lab, PLAN, choices, time, sets).most(GOOD).map(|best| ideal - best)
        });
    }
    goal
}

/// A fault at the begin of what is measured.
pub(in super::super) fn fault(kind: &str, time: &str, load: f64, seeds: u32) -> Vec<String> {
    let begins = BEFORE / capacity(time) * 1e6;
    let (slo, lasts) = (slo_us(time), LASTS * slo_us(time));
    vec![
        "service.distribution=exponential".to_owned(),
        format!("seeds={seeds}"),
        format!("warmup_requests={:.0}", BEFORE * load),
        format!("requests={:.0}", (LASTS + AFTER) * slo / 1e6 * load * capacity(time)),
        format!("faults=[{{{kind},at=\"{begins:.0}us\",for=\"{lasts:.0}us\"}}]"),
    ]
}
