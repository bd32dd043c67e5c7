//! tide beside the others in the same points: whoever else is best there must not be better.

use super::super::claim::Unit;
use super::super::lab::Runs;
use super::fair;
use super::goal::Goal;
use super::reach::{DROPS, GOOD, Known, Marks, TAIL, marks};
use crate::report::Report;

/// Goodput beside the best of the others, tail and drops beside Breakwater's.
pub(super) struct Beside {
    goodput: Goal,
    tail: Goal,
    drops: Goal,
}

/// Runs of others, and the parameters that they have beside those of the plan.
pub(super) struct Rivals {
    pub(super) sets: Vec<String>,
    pub(super) runs: Runs,
}

/// A run of tide, and what else may be asked about its point.
pub(super) struct Entry<'a, 'k> {
    pub(super) place: String,
    pub(super) time: &'a str,
    pub(super) tide: &'a Report,
    /// What a policy with these parameters has there, the mean of several seeds.
    pub(super) again: &'a dyn Fn(&str, &[String]) -> Report,
    /// What `told` has there.
    pub(super) told: &'a Known<'k>,
    /// Least of the first quarter that is to be answered.
    pub(super) first: f64,
}

impl Beside {
    /// For points called `prefix`; the claim names whom it was compared with.
    pub(super) fn new(prefix: &str, others: &[Rivals]) -> Self {
        let all = others.iter().flat_map(|rivals| &rivals.runs.0);
        let mut names: Vec<&str> = all.map(|run| run.policy.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let what = format!("{prefix}: goodput ÷ best of {}", names.join(", "));
        let tail = format!("{prefix}: p99 ÷ the larger of breakwater's and the SLO");
        let drops = format!("{prefix}, ≤ 100 µs: dropped ÷ the larger of breakwater's and 1 %");
        Self {
            goodput: Goal::at_least(what, Unit::Times, LEAST).near(0.005, 0.85),
            tail: Goal::at_most(tail, Unit::Times, 1.05).near(0.02, 1.1),
            drops: Goal::at_most(drops, Unit::Times, 1.0).near(0.5, 20.0),
        }
    }

    /// A point, and all runs of the others, of which those of the same point count.
    pub(super) fn add(&mut self, entry: &Entry<'_, '_>, others: &[Rivals]) {
        let Entry { place, time, tide, again, told, first } = entry;
        let same = || {
            let all = others.iter().flat_map(|Rivals { sets, runs }| {
                runs.0.iter().map(move |run| (run, sets.as_slice()))
            });
            all.filter(|(run, _)| run.point == tide.point)
        };
        let good = |run: &Report| fair(run, time);
        let best = same().max_by(|(a, _), (b, _)| good(a).total_cmp(&good(b)));
        let (rival, sets) = best.expect("others were run");
        let (mut best, mut own) = (good(rival), marks(tide, time));
        let breakwater = same().find(|(run, _)| run.policy == "breakwater").expect("it was run").0;
        let bounds = |breakwater: &Report, chance: f64| {
            let breakwater = marks(breakwater, time);
            [breakwater[TAIL].min(-1.0), (breakwater[DROPS] - chance).min(-0.01)]
        };
        let [mut tail, mut drops] = bounds(breakwater, 0.0);
        let judged = !matches!(*time, "1ms" | "10ms");
        let late = |own: &Marks| own[TAIL] < tail || judged && own[DROPS] < drops;
        // One run is off by half a percent by chance.
        if own[GOOD] < LEAST * best || late(&own) {
            own = marks(&again("tide", &[]), time);
        }
        if own[GOOD] < LEAST * best {
            best = good(&again(&rival.policy, sets));
        }
        if late(&own) {
            [tail, drops] = bounds(&again("breakwater", &[]), CHANCE);
        }
        // What must not be dropped is nobody's goal where a refusal costs nothing to speak of.
        let dropped = if judged { drops } else { f64::NEG_INFINITY };
        let goals = [(LEAST * best).max(0.98), tail, dropped, *first];
        let others: Vec<Marks> = same().map(|(run, _)| marks(run, time)).collect();
        let possible = |which: usize| told.best_beside(&others, &goals, &own, which);
        // Where many answers to one caller are ready together they share messages, which is more than `ideal` can do.
        let most = || {
            let ideal = good(&again("ideal", &[]));
            Some(possible(GOOD).map_or(ideal, |told| told.min(ideal)) / best)
        };
        self.goodput.point_or(place.clone(), own[GOOD] / best, most);
        let possible = |which: usize| possible(which).map(|possible| possible / goals[which]);
        self.tail.point_or(place.clone(), own[TAIL] / tail, || possible(TAIL));
        if judged {
            self.drops.point_or(place.clone(), own[DROPS] / drops, || possible(DROPS));
        }
    }

    pub(super) fn goals(self) -> [Goal; 3] {
        [self.goodput, self.tail, self.drops]
    }
}

/// By so much of what arrives the drops of two policies differ by chance where both were measured again.
const CHANCE: f64 = 0.001;
/// Least goodput, in the best other's.
const LEAST: f64 = 0.995;
