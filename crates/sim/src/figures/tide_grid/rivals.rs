//! tide beside the others in the same points: whoever else is best there must not be better.

use super::super::claim::Unit;
use super::super::lab::Runs;
use super::fair;
use super::goal::Goal;
use super::reach::{Known, Marks};
use crate::report::Report;

/// Goodput beside the best of the others, tail and drops beside Breakwater's.
pub(super) struct Beside {
    goodput: Goal,
    tail: Goal,
    drops: Goal,
}

/// A run of tide, and what else may be asked about its point.
pub(super) struct Entry<'a, 'k> {
    pub(super) place: String,
    pub(super) time: &'a str,
    pub(super) tide: &'a Report,
    /// What tide and `ideal` have there, measured with several seeds.
    pub(super) again: &'a dyn Fn(&str) -> f64,
    /// What `told` has there.
    pub(super) told: &'a Known<'k>,
    /// Least of the first quarter that is to be answered.
    pub(super) first: f64,
}

impl Beside {
    /// For points called `prefix`; the claim names whom it was compared with.
    pub(super) fn new(prefix: &str, others: &Runs) -> Self {
        let mut names: Vec<&str> = others.0.iter().map(|run| run.policy.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let what = format!("{prefix}: goodput ÷ best of {}", names.join(", "));
        let tail = format!("{prefix}: p99 ÷ the larger of breakwater's and 0.8 SLO");
        let drops = format!("{prefix}, ≤ 100 µs: dropped ÷ the larger of breakwater's and 1 %");
        Self {
            goodput: Goal::at_least(what, Unit::Times, LEAST).near(0.005, 0.85),
            tail: Goal::at_most(tail, Unit::Times, 1.0).near(0.02, 1.1),
            drops: Goal::at_most(drops, Unit::Times, 1.0).near(0.5, 20.0),
        }
    }

    /// A point, and all runs of the others, of which those of the same point count.
    pub(super) fn add(&mut self, entry: &Entry<'_, '_>, others: &Runs) {
        let Entry { place, time, tide, again, told, first } = entry;
        let same = || others.0.iter().filter(|other| other.point == tide.point);
        let best = same().map(|run| fair(run, time)).fold(0.0, f64::max);
        // One run is off by half a percent by chance.
        let once = fair(tide, time) / best;
        let ratio = if once < LEAST { again("tide") / best } else { once };
        // Where many answers to one caller are ready together they share messages, which is more than `ideal` can do.
        self.goodput.point_or(place.clone(), ratio, || Some(again("ideal") / best));
        let breakwater = same().find(|run| run.policy == "breakwater").expect("it was run");
        let breakwater = Marks::of(breakwater, time);
        let tide = Marks::of(tide, time);
        let (tail, drops) = (breakwater.tail.max(0.8), breakwater.drops.max(0.01));
        let goals = Marks { good: 0.98, tail, drops, first: *first };
        self.tail.point_or(place.clone(), tide.tail / tail, || {
            let best = told.best(&goals, &tide, |marks| &mut marks.tail, f64::min);
            best.map(|best| best / tail)
        });
        if !matches!(*time, "1ms" | "10ms") {
            self.drops.point_or(place.clone(), tide.drops / drops, || {
                let best = told.best(&goals, &tide, |marks| &mut marks.drops, f64::min);
                best.map(|best| best / drops)
            });
        }
    }

    pub(super) fn goals(self) -> [Goal; 3] {
        [self.goodput, self.tail, self.drops]
    }
}

/// Least goodput, in the best other's.
const LEAST: f64 = 0.995;
