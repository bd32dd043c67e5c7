//! What is possible in a point where a goal is missed: what [`told`](crate::told) has there, with all its choices.
//!
//! Goals pull against each other: who drops less is idle more. If one of the choices meets all of them, they are
//! possible. If none does, tide is to be compared with those choices that are no worse in all else.

use std::cell::LazyCell;

use super::super::lab::{Grid, Lab, Source, at};
use super::{fair, slo_us};
use crate::report::Report;

/// What goals are about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks {
    /// Core time of answers in time, of capacity.
    pub(super) good: f64,
    /// 99th percentile, of the SLO.
    pub(super) tail: f64,
    /// Refused by the server, of what arrived there.
    pub(super) drops: f64,
    /// Answered in time, of the most important quarter.
    pub(super) first: f64,
}

/// As many requests are served in a run.
const SERVED: f64 = 100_000.0;
/// By so much two runs differ by chance.
const CHANCE: Marks = Marks { good: 0.002, tail: 0.02, drops: 0.001, first: 0.002 };

impl Marks {
    pub(super) fn of(run: &Report, time: &str) -> Self {
        Self {
            good: fair(run, time),
            tail: run.p99_us / slo_us(time),
            drops: run.drop_rate,
            first: run.success_by_quarter[0],
        }
    }

    /// Whether these are as good as `others`, but for chance.
    fn meet(&self, others: &Self, chance: bool) -> bool {
        let but = if chance { 1.0 } else { 0.0 };
        self.good >= others.good - but * CHANCE.good
            && self.tail <= others.tail + but * CHANCE.tail
            && self.drops <= others.drops + but * CHANCE.drops
            && self.first >= others.first - but * CHANCE.first
    }
}

/// What `told` has in a point, one for each of its choices.
pub(super) struct Reach(Vec<Marks>);

/// The same, found out when somebody asks.
pub(super) type Known<'a> = LazyCell<Reach, Box<dyn FnOnce() -> Reach + 'a>>;

/// What there is to choose where nothing changes, and where something does.
pub(super) fn steady() -> Grid {
    Grid::new("told")
        .axis("told.offer", &["0.96", "0.98", "0.99", "1.0", "1.02", "1.04", "1.07", "1.1", "1.15"])
        .axis("told.room", &["0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7"])
}

pub(super) fn changing() -> Grid {
    Grid::new("told")
        .axis("told.offer", &["0.97", "1.0", "1.05", "1.1"])
        .axis("told.room", &["0.2", "0.35", "0.5", "0.65"])
        .axis("told.notices", &["true", "false"])
}

impl Reach {
    /// Of a point in which these values are set.
    pub(super) fn of(
        lab: &Lab<'_>,
        plan: Source,
        grid: &Grid,
        time: &str,
        sets: &[String],
    ) -> Self {
        let sets = [sets, &["policy=[\"told\"]".to_owned()]].concat();
        let runs = lab.run_each(plan, &sets, &grid.sets(), None);
        Self(runs.iter().map(|runs| Marks::of(&runs.mean().0[0], time)).collect())
    }

    /// Of the point of a steady run, with so many requests served.
    pub(super) fn lazily<'a>(
        lab: &'a Lab<'_>,
        plan: Source,
        time: &'a str,
        run: &Report,
        more: &[String],
    ) -> Known<'a> {
        let load = at(run, "load").unwrap_or(1.0);
        let mut sets = more.to_vec();
        sets.extend(run.point.iter().map(|(path, value)| format!("{path}=[{value}]")));
        sets.push(format!("warmup_requests={:.0}", 20_000.0 * load));
        sets.push(format!("requests={:.0}", SERVED * load));
        LazyCell::new(Box::new(move || Self::of(lab, plan, &steady(), time, &sets)))
    }

    /// The most goodput of all choices.
    pub(super) fn most(&self) -> f64 {
        self.0.iter().map(|choice| choice.good).fold(0.0, f64::max)
    }

    /// The best that is possible of one mark, for one who is no worse than `tide` in the others; none if all `goals`
    /// are possible together. Who is ahead of every choice has itself to compare with.
    pub(super) fn best(
        &self,
        goals: &Marks,
        tide: &Marks,
        mark: impl Fn(&mut Marks) -> &mut f64,
        better: fn(f64, f64) -> f64,
    ) -> Option<f64> {
        if self.0.iter().any(|choice| choice.meet(goals, false)) {
            return None;
        }
        let value = |marks: &Marks| *mark(&mut { *marks });
        let mut rest = *tide;
        // Whatever it has of this one will do.
        *mark(&mut rest) = -better(f64::INFINITY, f64::NEG_INFINITY);
        let as_good = self.0.iter().filter(|choice| choice.meet(&rest, true));
        Some(as_good.map(value).fold(value(tide), better))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOALS: Marks = Marks { good: 0.98, tail: 0.8, drops: 0.01, first: 0.0 };

    fn marks(good: f64, drops: f64) -> Marks {
        Marks { good, tail: 0.7, drops, first: 1.0 }
    }

    #[test]
    fn what_one_choice_meets_is_possible() {
        let reach = Reach(vec![marks(0.97, 0.005), marks(0.985, 0.009)]);
        let tide = marks(0.99, 0.03);
        assert_eq!(reach.best(&GOALS, &tide, |marks| &mut marks.drops, f64::min), None);
    }

    #[test]
    fn who_is_as_good_in_all_else_is_compared_with() {
        let reach = Reach(vec![marks(0.97, 0.005), marks(0.985, 0.02), marks(0.995, 0.05)]);
        let best = |tide: Marks| reach.best(&GOALS, &tide, |marks| &mut marks.drops, f64::min);
        assert_eq!(best(marks(0.984, 0.03)), Some(0.02));
        assert_eq!(best(marks(0.99, 0.03)), Some(0.03), "nobody else has as much with fewer");
        let most = |tide: Marks| reach.best(&GOALS, &tide, |marks| &mut marks.good, f64::max);
        assert_eq!(most(marks(0.975, 0.03)), Some(0.985));
    }
}
