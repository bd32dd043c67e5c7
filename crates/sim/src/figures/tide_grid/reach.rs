//! What is possible in a point where a goal is missed: what [`told`](crate::told) has there, with all its choices, and what
//! the others have.
//!
//! Goals pull against each other: who drops less is idle more. If one of the choices meets all of them, and by more than
//! chance, they are possible. If none does, tide is to be compared with those choices that are no worse in all else. Of twenty
//! choices the best is so by chance, too: the one that decides is measured again.

use std::cell::{LazyCell, RefCell};

use super::super::lab::{Grid, Lab, Runs, Source, at, point};
use super::{fair, slo_us};
use crate::report::Report;

/// What the goals of a point are about, each the better the higher.
pub(super) type Marks = [f64; 4];

/// Which mark of a steady run is which: core time of answers in time, of capacity; 99th percentile, of the SLO, below
/// zero; refused by the server, of what arrived there, below zero; answered in time, of the most important quarter.
pub(super) const GOOD: usize = 0;
pub(super) const TAIL: usize = 1;
pub(super) const DROPS: usize = 2;
pub(super) const FIRST: usize = 3;

/// By so much two steady runs differ by chance.
const CHANCE: Marks = [0.002, 0.02, 0.001, 0.002];
/// As many requests are served in a run of `told`.
const SERVED: f64 = 100_000.0;
/// The one that decides is measured again with so many seeds.
const AGAIN: u32 = 4;
/// As many of each caller before it, and of all.
const SETTLING: f64 = 3.0;
const BEFORE: f64 = 20_000.0;

/// The marks of a steady run.
pub(super) fn marks(run: &Report, time: &str) -> Marks {
    let tail = run.p99_us / slo_us(time);
    [fair(run, time), -tail, -run.drop_rate, run.success_by_quarter[0]]
}

/// What `told` has in a point, one for each of its choices.
pub(super) struct Reach<'a> {
    choices: RefCell<Vec<Choice>>,
    chance: Marks,
    /// Measures a choice again, for longer.
    again: Box<dyn Fn(usize) -> Option<Marks> + 'a>,
}

#[derive(Clone, Copy)]
struct Choice {
    marks: Marks,
    /// Whether it was measured again: the best of twenty is so by chance, too.
    sure: bool,
}

/// The same, found out when somebody asks.
pub(super) type Known<'a> = LazyCell<Reach<'a>, Box<dyn FnOnce() -> Reach<'a> + 'a>>;

/// What there is to choose where nothing changes, and where something does.
pub(super) fn steady() -> Grid {
    Grid::new("told")
        .axis("told.offer", &["0.97", "0.985", "1.0", "1.02", "1.06"])
        .axis("told.room", &["0.2", "0.35", "0.5", "0.6"])
}

pub(super) fn changing() -> Grid {
    Grid::new("told")
        .axis("told.offer", &["0.97", "1.0", "1.05", "1.1"])
        .axis("told.room", &["0.35", "0.5"])
        .axis("told.notices", &["true", "false"])
}

impl<'a> Reach<'a> {
    /// Of what these choices have, which nobody can measure again.
    pub(super) fn new(choices: impl Iterator<Item = Marks>, chance: Marks) -> Self {
        let choices = choices.map(|marks| Choice { marks, sure: false }).collect();
        Self { choices: RefCell::new(choices), chance, again: Box::new(|_| None) }
    }

    /// Of a point in which these values are set.
    pub(super) fn of(
        lab: &'a Lab<'_>,
        plan: Source,
        grid: &Grid,
        time: &'a str,
        sets: &[String],
    ) -> Self {
        let sets = [sets, &["policy=[\"told\"]".to_owned()]].concat();
        let (choices, of) = (grid.sets(), move |runs: &Runs| marks(&runs.mean().0[0], time));
        let found = Self::new(lab.run_each(plan, &sets, &choices, None).iter().map(of), CHANCE);
        let again = move |choice: usize| {
            let seeds = [format!("seeds={AGAIN}")];
            Some(of(&lab.run(plan, &[&sets[..], &choices[choice], &seeds].concat())))
        };
        Self { again: Box::new(again), ..found }
    }

    /// Of the point of a steady run.
    pub(super) fn lazily(
        lab: &'a Lab<'_>,
        plan: Source,
        time: &'a str,
        run: &Report,
        more: &[String],
    ) -> Known<'a> {
        let (load, callers) = (at(run, "load").unwrap_or(1.0), at(run, "callers").unwrap_or(0.0));
        let mut sets = [more, &point(run)].concat();
        sets.push(format!("warmup_requests={:.0}", BEFORE.max(SETTLING * callers) * load));
        sets.push(format!("requests={:.0}", SERVED * load));
        LazyCell::new(Box::new(move || Self::of(lab, plan, &steady(), time, &sets)))
    }

    /// The most that a choice has of this mark, whatever it has of the others.
    pub(super) fn most(&self, which: usize) -> Option<f64> {
        self.first(|marks| Some(marks[which]))
    }

    /// The best that is possible of one mark, for one who is no worse than `own` in the others but for chance; none if
    /// all `goals` are possible together. Who is ahead of every choice has itself to compare with.
    pub(super) fn best(&self, goals: &Marks, own: &Marks, which: usize) -> Option<f64> {
        self.best_beside(&[], goals, own, which)
    }

    /// The same, where `others` show what is possible too.
    pub(super) fn best_beside(
        &self,
        others: &[Marks],
        goals: &Marks,
        own: &Marks,
        which: usize,
    ) -> Option<f64> {
        let meets = |marks: &Marks| (0..4).all(|n| marks[n] >= goals[n] + self.chance[n]);
        let as_good =
            |marks: &Marks| (0..4).all(|n| n == which || marks[n] >= own[n] - self.chance[n]);
        if others.iter().any(meets) || self.first(|marks| meets(marks).then_some(0.0)).is_some() {
            return None;
        }
        let told = self.first(|marks| as_good(marks).then_some(marks[which]));
        let others = others.iter().filter(|marks| as_good(marks)).map(|marks| marks[which]);
        Some(others.chain(told).fold(own[which], f64::max))
    }

    /// The most that `of` finds in a choice, once that was measured again.
    fn first(&self, of: impl Fn(&Marks) -> Option<f64>) -> Option<f64> {
        let mut choices = self.choices.borrow_mut();
        loop {
            let found = choices.iter().enumerate().filter_map(|(n, it)| Some((n, of(&it.marks)?)));
            let (best, value) = found.max_by(|a, b| a.1.total_cmp(&b.1))?;
            let choice = &mut choices[best];
            if std::mem::replace(&mut choice.sure, true) {
                return Some(value);
            }
            choice.marks = (self.again)(best).unwrap_or(choice.marks);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOALS: Marks = [0.98, -0.8, -0.01, f64::NEG_INFINITY];

    fn marks(good: f64, drops: f64) -> Marks {
        [good, -0.7, -drops, 1.0]
    }

    #[test]
    fn what_one_choice_meets_by_more_than_chance_is_possible() {
        let best = |choice: Marks| {
            let reach = Reach::new([marks(0.97, 0.005), choice].into_iter(), CHANCE);
            reach.best(&GOALS, &marks(0.99, 0.03), DROPS)
        };
        assert_eq!(best(marks(0.985, 0.008)), None);
        assert_eq!(best(marks(0.985, 0.0095)), Some(-0.03), "that may be chance");
    }

    #[test]
    fn who_is_as_good_in_all_else_is_compared_with() {
        let choices = [marks(0.97, 0.005), marks(0.985, 0.02), marks(0.995, 0.05)];
        let reach = Reach::new(choices.into_iter(), CHANCE);
        let best = |own: Marks| reach.best(&GOALS, &own, DROPS);
        assert_eq!(best(marks(0.984, 0.03)), Some(-0.02));
        assert_eq!(best(marks(0.99, 0.03)), Some(-0.03), "nobody else has as much with fewer");
        assert_eq!(reach.best(&GOALS, &marks(0.975, 0.03), GOOD), Some(0.985));
        let beside = |other| reach.best_beside(&[other], &GOALS, &marks(0.99, 0.03), DROPS);
        assert_eq!(beside(marks(0.99, 0.01)), Some(-0.01), "somebody else has");
        assert_eq!(beside(marks(0.99, 0.001)), None);
    }

    #[test]
    fn who_is_best_by_chance_is_measured_again() {
        let measured = |again: Marks| {
            let choices = [marks(0.97, 0.005), marks(0.99, 0.005)].into_iter();
            let again = Box::new(move |n| Some(if n == 1 { again } else { marks(0.97, 0.005) }));
            let reach = Reach { again, ..Reach::new(choices, CHANCE) };
            reach.best(&GOALS, &marks(0.96, 0.005), GOOD)
        };
        assert_eq!(measured(marks(0.985, 0.005)), None);
        assert_eq!(measured(marks(0.975, 0.005)), Some(0.975));
        assert_eq!(measured(marks(0.95, 0.005)), Some(0.97), "the next best, measured again too");
    }
}
