//! A goal: one bound for many points.

use super::super::claim::{Claim, Unit};

/// One bound for many points.
pub(super) struct Goal {
    what: String,
    unit: Unit,
    bound: Bound,
    points: Vec<(String, f64)>,
    open: bool,
}

#[derive(Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Goal {
    /// Every point must be `bound` or more.
    pub(super) fn at_least(what: impl Into<String>, unit: Unit, bound: f64) -> Self {
        Self::new(what.into(), unit, Bound::AtLeast(bound))
    }

    /// Every point must be `bound` or less.
    pub(super) fn at_most(what: impl Into<String>, unit: Unit, bound: f64) -> Self {
        Self::new(what.into(), unit, Bound::AtMost(bound))
    }

    fn new(what: String, unit: Unit, bound: Bound) -> Self {
        Self { what, unit, bound, points: Vec::new(), open: false }
    }

    /// Not reached in every point yet (see [`Claim::open`]).
    pub(super) fn open(self) -> Self {
        self.open_if(true)
    }

    /// Not reached in every point yet, if so many are run.
    pub(super) fn open_if(mut self, open: bool) -> Self {
        self.open = open;
        self
    }

    /// One more point.
    pub(super) fn point(&mut self, place: String, measured: f64) {
        self.points.push((place, measured));
    }

    /// The claim about the worst point.
    pub(super) fn claim(&self) -> Claim {
        // Not a number is the worst there is.
        let badness = |measured: f64| match self.bound {
            _ if measured.is_nan() => f64::INFINITY,
            Bound::AtLeast(_) => -measured,
            Bound::AtMost(_) => measured,
        };
        let worst = self.points.iter().max_by(|a, b| badness(a.1).total_cmp(&badness(b.1)));
        let (place, measured) =
            worst.map_or(("nowhere", f64::NAN), |(place, measured)| (place, *measured));
        let (all, missed) = (self.points.len(), self.misses().len());
        let what = match missed {
            0 => format!("{}; {all} points, worst {place}", self.what),
            _ => format!("{}; {missed} of {all} points miss, worst {place}", self.what),
        };
        let claim = match self.bound {
            Bound::AtLeast(bound) => Claim::at_least(&what, self.unit, measured, bound),
            Bound::AtMost(bound) => Claim::at_most(&what, self.unit, measured, bound),
        };
        if self.open { claim.open() } else { claim }
    }

    /// Every point that misses, in a line.
    pub(super) fn misses(&self) -> Vec<String> {
        let line = |(place, measured): &(String, f64)| {
            let (holds, bound) = match self.bound {
                Bound::AtLeast(bound) => {
                    (*measured >= bound, format!("≥ {}", self.unit.show(bound)))
                }
                Bound::AtMost(bound) => {
                    (*measured <= bound, format!("≤ {}", self.unit.show(bound)))
                }
            };
            let text =
                || format!("{}: {place}: {} ({bound})", self.what, self.unit.show(*measured));
            (!holds).then(text)
        };
        self.points.iter().filter_map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_point_decides_and_misses_are_listed() {
        let mut goal = Goal::at_least("goodput", Unit::Percent, 0.98);
        goal.point("a".to_owned(), 0.99);
        assert!(goal.claim().holds && goal.misses().is_empty());
        goal.point("b".to_owned(), 0.96);
        goal.point("c".to_owned(), 0.97);
        let claim = goal.claim();
        assert!(!claim.holds);
        assert_eq!(claim.what, "goodput; 2 of 3 points miss, worst b");
        assert_eq!(goal.misses()[1], "goodput: c: 97.0 % (≥ 98.0 %)");
        goal.point("d".to_owned(), f64::NAN);
        assert!(goal.claim().what.ends_with("worst d"));
    }

    #[test]
    fn a_goal_without_points_fails() {
        assert!(!Goal::at_most("nothing", Unit::Times, 1.0).claim().holds);
    }
}
