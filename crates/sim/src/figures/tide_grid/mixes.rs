//! Who is refused, when ranks are spread evenly, all the same, or few have most of the demand, and
//! when the most or the least important quarter costs seven times as much as the rest.
//!
//! The others ignore ranks, so where costs differ they may answer more requests by answering cheap ones
//! that do not matter. Goodput is compared by core time, then: what part of it went into answers in
//! time. Even so there is one mix in which that is no fair comparison, and none is made: with 1 ms, a
//! first quarter that costs more takes longer than the SLO by itself in one of 37 requests, and who
//! does not prefer it loses less by that.

use super::super::claim::Unit;
use super::super::lab::{Lab, Runs, Source, at, point, text};
use super::goal::Goal;
use super::reach::{FIRST, GOOD, Known, Reach, marks};
use super::rivals::{Beside, Entry, Rivals};
use super::{Part, beyond_ideal, mean_us, slo_us};
use crate::report::Report;

const PLAN: Source = Source {
    name: "ranks-and-costs",
    text: include_str!("../../../../../plans/ranks-and-costs.toml"),
};

pub(super) fn part(lab: &Lab<'_>) -> Part {
    let times: &[&str] = if lab.quick { &["10us"] } else { &["10us", "1ms"] };
    let mut sets = lab.requests(60_000, 200_000);
    if lab.quick {
        sets.push("policy=[\"tide\",\"breakwater\",\"codel\"]".to_owned());
        sets.push("load=[1.2]".to_owned());
        sets.push("workload.ranks=[\"uniform\",\"one\"]".to_owned());
        sets.push("workload.cost=[\"independent\",\"falling\"]".to_owned());
    } else {
        sets.push("policy=[\"tide\",\"breakwater\",\"codel\",\"dagor-aimd\"]".to_owned());
        sets.push("load=[0.9,1.2,2.0,4.0]".to_owned());
        // Its window of 1 ms is five SLOs of the paper's service.
        sets.push("policies.dagor-aimd.gate.admission.detector.window=5 slo".to_owned());
    }
    let of = |time: &str| {
        let slo = format!("slo={}us", slo_us(time));
        vec![format!("service.time={time}"), slo, "caller.hold_time=0.05 slo".to_owned()]
    };
    let run = |time: &&'static str| (*time, lab.run(PLAN, &[sets.clone(), of(time)].concat()));
    let all: Vec<(&str, Runs)> = times.iter().map(run).collect();
    let others = |runs: &Runs| {
        vec![Rivals { sets: Vec::new(), runs: runs.only(|run| run.policy != "tide") }]
    };
    let mut beside = Beside::new("mixes, 1.2× and more", &others(&all[0].1));
    let mut goals = Goals::new();
    for (time, runs) in &all {
        let others = others(runs);
        for tide in runs.of("tide") {
            let told = &Reach::lazily(lab, PLAN, time, tide, &of(time));
            let here = || [&sets[..], &of(time)].concat();
            let refused = || beyond_ideal(lab, PLAN, &here(), CALM, &[tide])[0];
            goals.add(time, tide, told, refused);
            if load(tide) <= 1.0 || in_time(time, cost(tide)) <= 0.99 {
                continue;
            }
            let again = |policy: &str, with: &[String]| {
                let mut sets = [&here()[..], with, &point(tide)].concat();
                sets.extend([format!("policy={policy}"), "seeds=4".to_owned()]);
                lab.run(PLAN, &sets).mean().0.remove(0)
            };
            let first = first(time, tide);
            let place = place(time, tide);
            beside.add(&Entry { place, time, tide, again: &again, told, first }, &others);
        }
    }
    let [best, tail, drops] = beside.goals();
    let goals = goals.0.into_iter().chain([best, tail, drops.open_if(lab.quick)]).collect();
    Part { goals, ..Part::default() }
}

/// Least of the first quarter that is to be answered: with one rank for all there is none to prefer.
fn first(time: &str, run: &Report) -> f64 {
    match text(run, "workload.ranks") {
        "one" => 0.0,
        _ => 0.98 * possible(time, cost(run), load(run)),
    }
}

/// Most of the first quarter that may be lost where there is room for all of it.
const CALM: f64 = 0.005;

struct Goals([Goal; 4]);

impl Goals {
    fn new() -> Self {
        let first = "mixes, 1.2× and more: first quarter answered, of what is possible";
        let most = "mixes, 1.2× and more, cost independent of rank: goodput, of capacity";
        let by_rank =
            "mixes, 1.2× and more, cost by rank: core time of answers in time, of capacity";
        let calm = "mixes: refused at 0.9× beyond what ideal does not answer in time either, or of the \
                    first quarter not answered at 1.2×";
        Self([
            Goal::at_least(first, Unit::Percent, 0.98).near(0.01, 0.9),
            Goal::at_least(most, Unit::Percent, 0.98),
            Goal::at_least(by_rank, Unit::Percent, 0.98).near(0.01, 0.95),
            Goal::at_most(calm, Unit::Percent, CALM).near(0.01, 0.1),
        ])
    }

    /// A run, what is possible in its point, and what it refuses beyond what `ideal` does not answer in time.
    fn add(
        &mut self,
        time: &str,
        run: &Report,
        told: &Known<'_>,
        beyond_ideal: impl FnOnce() -> f64,
    ) {
        let [first, most, by_rank, calm] = &mut self.0;
        let (cost, load, place) = (cost(run), load(run), place(time, run));
        let tide = marks(run, time);
        // As if nobody cared for tails and drops: with those goals too, still less is possible.
        let goals = [0.98, -1.0, -1.0, self::first(time, run)];
        if load > 1.0 && in_time(time, cost) > 0.99 {
            let most = if cost == "independent" { most } else { by_rank };
            most.point_or(place.clone(), tide[GOOD], || told.best(&goals, &tide, GOOD));
        }
        // With one rank for all there is no first quarter to prefer.
        if text(run, "workload.ranks") == "one" {
            return;
        }
        let quarter = || told.best(&goals, &tide, FIRST);
        if load > 1.0 {
            let all = possible(time, cost, load);
            first.point_or(place.clone(), tide[FIRST] / all, || quarter().map(|best| best / all));
        }
        if load < 1.0 {
            calm.point(place, beyond_ideal());
        } else if load <= 1.2 {
            calm.point_or(place, 1.0 - tide[FIRST], || quarter().map(|best| 1.0 - best));
        }
    }
}

fn load(run: &Report) -> f64 {
    at(run, "load").unwrap_or_default()
}

fn cost(run: &Report) -> &str {
    text(run, "workload.cost")
}

fn place(time: &str, run: &Report) -> String {
    let ranks = text(run, "workload.ranks");
    format!("{time}, ranks {ranks}, cost {}, {}×", cost(run), load(run))
}

/// How much of the first quarter can be answered in time: its share of the cost, times demand, may be
/// more than everything, and some take longer than the SLO by themselves.
pub(in super::super) fn possible(time: &str, cost: &str, load: f64) -> f64 {
    (1.0 / (load * share(time, cost))).min(1.0) * in_time(time, cost)
}

/// The first quarter's share of all core time. Receiving and sending take 1.76 µs, whatever the request.
pub(in super::super) fn share(time: &str, cost: &str) -> f64 {
    let micros = mean_us(time);
    0.25 * (factor(cost) * micros + 1.76) / (micros + 1.76)
}

/// Part of the first quarter that takes no longer than the SLO by itself: times are exponential, and the
/// round trip is 10 µs.
fn in_time(time: &str, cost: &str) -> f64 {
    1.0 - (-(slo_us(time) - 10.0) / (factor(cost) * mean_us(time))).exp()
}

/// What the first quarter costs, in means.
fn factor(cost: &str) -> f64 {
    match cost {
        "falling" => 2.8,
        "rising" => 0.4,
        _ => 1.0,
    }
}
