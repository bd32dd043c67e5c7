//! tide beside the others in the same points: whoever else is best there must not be better.

use super::super::claim::Unit;
use super::super::lab::Runs;
use super::goal::Goal;
use super::{fair, slo_us};
use crate::report::Report;

/// Goodput beside the best of the others, tail and drops beside Breakwater's.
pub(super) struct Beside {
    goodput: Goal,
    tail: Goal,
    drops: Goal,
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
            goodput: Goal::at_least(what, Unit::Times, 0.995),
            tail: Goal::at_most(tail, Unit::Times, 1.0),
            drops: Goal::at_most(drops, Unit::Times, 1.0),
        }
    }

    /// A run of tide, and all of the others', of which those of the same point count.
    pub(super) fn add(&mut self, place: &str, time: &str, tide: &Report, others: &Runs) {
        let same = || others.0.iter().filter(|other| other.point == tide.point);
        let best = same().map(|run| fair(run, time)).fold(0.0, f64::max);
        self.goodput.point(place.to_owned(), fair(tide, time) / best);
        let breakwater = same().find(|run| run.policy == "breakwater").expect("it was run");
        let slo = slo_us(time);
        self.tail.point(place.to_owned(), tide.p99_us / breakwater.p99_us.max(0.8 * slo));
        if slo < 2000.0 {
            let drops = tide.drop_rate / breakwater.drop_rate.max(0.01);
            self.drops.point(place.to_owned(), drops);
        }
    }

    pub(super) fn goals(self) -> [Goal; 3] {
        [self.goodput, self.tail, self.drops]
    }
}
