//! A goal: one bound for many points, and what is possible where it is missed.

use super::super::claim::{Claim, Unit};

/// One bound for many points.
pub(super) struct Goal {
    what: String,
    unit: Unit,
    bound: Bound,
    /// How near to the best that is possible it must be where the bound is out of reach, and what it must be in any case:
    /// who is bad in one way and best in another has nobody to compare with.
    near: f64,
    limit: f64,
    points: Vec<Point>,
    open: bool,
}

struct Point {
    place: String,
    measured: f64,
    /// The best that is possible here, where that misses the bound too.
    best: Option<f64>,
}

#[derive(Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    /// How far inside the bound it is, below zero outside. Not a number is the worst there is.
    fn room(self, measured: f64) -> f64 {
        match self {
            _ if measured.is_nan() => f64::NEG_INFINITY,
            Self::AtLeast(bound) => measured - bound,
            Self::AtMost(bound) => bound - measured,
        }
    }

    fn holds(self, measured: f64) -> bool {
        self.room(measured) >= 0.0
    }

    /// One that is `near` the best that is possible, and never beyond `limit`.
    fn at(self, best: f64, near: f64, limit: f64) -> Self {
        match self {
            Self::AtLeast(_) => Self::AtLeast((best - near).max(limit)),
            Self::AtMost(_) => Self::AtMost((best + near).min(limit)),
        }
    }

    fn show(self, unit: Unit) -> String {
        match self {
            Self::AtLeast(bound) => format!("≥ {}", unit.show(bound)),
            Self::AtMost(bound) => format!("≤ {}", unit.show(bound)),
        }
    }
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
        let (Bound::AtLeast(limit) | Bound::AtMost(limit)) = bound;
        Self { what, unit, bound, near: 0.0, limit, points: Vec::new(), open: false }
    }

    /// So near it must be to the best that is possible, where the bound is out of reach, and within `limit`.
    pub(super) fn near(mut self, near: f64, limit: f64) -> Self {
        (self.near, self.limit) = (near, limit);
        self
    }

    /// Not reached in every point yet, if so many are run (see [`Claim::open`]).
    pub(super) fn open_if(mut self, open: bool) -> Self {
        self.open = open;
        self
    }

    /// One more point.
    pub(super) fn point(&mut self, place: String, measured: f64) {
        self.point_or(place, measured, || None);
    }

    /// One more point. If it misses, `best` tells the best that is possible there, if anybody knows. Where that misses
    /// too, the bound is out of reach, and what is measured must be near that instead.
    pub(super) fn point_or(
        &mut self,
        place: String,
        measured: f64,
        best: impl FnOnce() -> Option<f64>,
    ) {
        let missed = !self.bound.holds(measured);
        let best = missed.then(best).flatten().filter(|best| !self.bound.holds(*best));
        self.points.push(Point { place, measured, best });
    }

    fn bound_of(&self, point: &Point) -> Bound {
        point.best.map_or(self.bound, |best| self.bound.at(best, self.near, self.limit))
    }

    fn room(&self, point: &Point) -> f64 {
        self.bound_of(point).room(point.measured)
    }

    /// The claim about the worst point.
    pub(super) fn claim(&self) -> Claim {
        let worst = self.points.iter().min_by(|a, b| self.room(a).total_cmp(&self.room(b)));
        let (place, measured, bound) = worst.map_or(("nowhere", f64::NAN, self.bound), |worst| {
            (&worst.place, worst.measured, self.bound_of(worst))
        });
        let (all, missed, beyond) =
            (self.points.len(), self.misses().len(), self.out_of_reach().len());
        let mut what = format!("{}; ", self.what);
        what += &match missed {
            0 => format!("{all} points"),
            _ => format!("{missed} of {all} points miss"),
        };
        if beyond > 0 {
            what += &format!(", {beyond} out of reach");
        }
        what += &format!(", worst {place}");
        let claim = match bound {
            Bound::AtLeast(bound) => Claim::at_least(&what, self.unit, measured, bound),
            Bound::AtMost(bound) => Claim::at_most(&what, self.unit, measured, bound),
        };
        if self.open { claim.open() } else { claim }
    }

    /// Every point that misses, in a line.
    pub(super) fn misses(&self) -> Vec<String> {
        self.lines(|point| self.room(point) < 0.0)
    }

    /// Every point in which the bound is out of reach and that is near what is possible, in a line.
    pub(super) fn out_of_reach(&self) -> Vec<String> {
        self.lines(|point| point.best.is_some() && self.room(point) >= 0.0)
    }

    fn lines(&self, of: impl Fn(&Point) -> bool) -> Vec<String> {
        let line = |point: &Point| {
            let Point { place, measured, best } = point;
            let [measured, bound] = [self.unit.show(*measured), self.bound.show(self.unit)];
            let best =
                best.map_or(String::new(), |best| format!("; possible {}", self.unit.show(best)));
            format!("{}: {place}: {measured} ({bound}{best})", self.what)
        };
        self.points.iter().filter(|point| of(point)).map(line).collect()
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
    fn where_it_is_out_of_reach_what_is_possible_is_the_bound() {
        let mut goal = Goal::at_most("dropped", Unit::Times, 1.0).near(0.25, 4.0);
        goal.point_or("a".to_owned(), 0.9, || panic!("nobody asks where it holds"));
        goal.point_or("b".to_owned(), 3.2, || Some(3.0));
        assert_eq!(goal.claim().what, "dropped; 2 points, 1 out of reach, worst b");
        assert!(goal.claim().holds && goal.misses().is_empty());
        assert_eq!(goal.out_of_reach(), ["dropped: b: 3.200× (≤ 1.000×; possible 3.000×)"]);
        goal.point_or("c".to_owned(), 3.3, || Some(3.0));
        assert!(!goal.claim().holds, "far from what is possible");
        let mut goal = Goal::at_most("dropped", Unit::Times, 1.0).near(0.25, 4.0);
        goal.point_or("f".to_owned(), 5.0, || Some(5.0));
        assert!(!goal.claim().holds, "too much, whoever else would have as much");
        let mut goal = Goal::at_most("dropped", Unit::Times, 1.0).near(0.25, 4.0);
        goal.point_or("d".to_owned(), 1.1, || Some(0.9));
        goal.point_or("e".to_owned(), 1.1, || None);
        assert_eq!(goal.misses().len(), 2, "it is possible, or nobody knows");
    }

    #[test]
    fn a_goal_without_points_fails() {
        assert!(!Goal::at_most("nothing", Unit::Times, 1.0).claim().holds);
    }
}
