//! The goals of tide on a grid of everything: service times of three shapes from 1 µs to 10 ms, 10 to
//! 10,000 callers, demand from 0.9 to ten times the capacity, all mixes of rank and cost, steps, heavy
//! tails, bursts and faults. Its parameters are the same in every point; only the objective differs.
//!
//! A goal is one number per point with one bound for all. Its claim tells the worst point; every
//! point that misses is listed. Where a yardstick that knows everything misses it too, the goal is out of reach: then
//! tide must be near what that has, and the point is listed too. Runs are sized in requests, about 200,000 each, so that services of
//! microseconds and of milliseconds cost the same to simulate.

mod goal;
pub(super) mod mixes;
mod reach;
mod rivals;
pub(super) mod rough;
mod steady;
mod steps;

use super::chart::Chart;
use super::lab::{Lab, Source, at, fair_goodput, point};
use super::{Figure, Outcome};
use crate::report::Report;
use goal::Goal;

pub(super) const FIGURE: Figure = Figure {
    name: "tide-grid",
    title: "tide's goals on a grid: service times, shapes, callers, loads, ranks, costs, steps, faults",
    source: "no paper's: the goals stand in docs/figures.md",
    make,
};

fn make(lab: &Lab<'_>) -> Outcome {
    let mut outcome = Outcome::default();
    for part in [steady::part, mixes::part, steps::part, rough::part] {
        let Part { goals, charts, told } = part(lab);
        for goal in goals {
            outcome.misses.extend(goal.misses());
            let beyond = goal.out_of_reach();
            outcome.measured.extend(beyond.iter().map(|line| format!("out of reach: {line}")));
            outcome.claims.push(goal.claim());
        }
        outcome.measured.extend(told);
        outcome.charts.extend(charts);
    }
    outcome
}

/// What a part of the grid has found.
#[derive(Default)]
struct Part {
    goals: Vec<Goal>,
    charts: Vec<Chart>,
    /// What is worth telling and no goal.
    told: Vec<String>,
}

/// Share of what was offered that somebody turned away.
fn refused(run: &Report) -> f64 {
    run.drop_rate + run.local_reject_rate + run.expired_rate
}

/// What was refused in the points of `runs`, beyond what `ideal` does not answer in time there either: where requests differ
/// much, some are late whatever one does. It is asked only where more than `calm` is.
fn beyond_ideal(
    lab: &Lab<'_>,
    plan: Source,
    sets: &[String],
    calm: f64,
    runs: &[&Report],
) -> Vec<f64> {
    let asks = |run: &&&Report| refused(run) > calm;
    let point = |run: &&Report| {
        let mut sets = point(run);
        let many = at(run, "callers").filter(|callers| *callers > f64::from(MANY));
        sets.extend(many.map(|_| format!("callers=[{MANY}]")));
        sets
    };
    let points: Vec<_> = runs.iter().filter(asks).map(point).collect();
    let sets = [sets, &["policy=ideal".to_owned()]].concat();
    let mut ideals = lab.run_each(plan, &sets, &points, None).into_iter();
    let late = |ideal: &Report| 1.0 - ideal.goodput_rps / ideal.offered_rps;
    let beyond = |run: &&Report| {
        let ideal = if asks(&run) { ideals.next() } else { None };
        (refused(run) - ideal.map_or(0.0, |ideal| late(&ideal.0[0]))).max(0.0)
    };
    runs.iter().map(beyond).collect()
}

/// Callers that are too many for answers to share messages: `ideal` is the same for all further ones.
const MANY: u32 = 1000;

/// Service times with their RTT are as in the plans: the SLO is ten times both.
pub(super) fn slo_us(time: &str) -> f64 {
    10.0 * (mean_us(time) + 10.0)
}

/// Requests per second that the ten cores can serve. Receiving and sending take 1.76 µs.
fn capacity(time: &str) -> f64 {
    1e7 / (mean_us(time) + 1.76)
}

/// Goodput as it compares with that of other runs: by core time, so that neither the luck of the draw counts
/// nor whether many cheap requests were answered or few expensive ones.
pub(super) fn fair(run: &Report, time: &str) -> f64 {
    fair_goodput(run, mean_us(time), 1.76)
}

fn mean_us(time: &str) -> f64 {
    match time {
        "1us" => 1.0,
        "10us" => 10.0,
        "100us" => 100.0,
        "1ms" => 1000.0,
        "10ms" => 10_000.0,
        other => unreachable!("a service time of {other} is not in the grid"),
    }
}
