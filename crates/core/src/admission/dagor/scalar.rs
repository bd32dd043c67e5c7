//! DAGOR as Breakwater's authors re-implemented it for their figures: one number between 1 and 127
//! that falls by α and rises by β of 128. No histogram, no business ranks. That DAGOR "takes 500
//! ms" to settle (Breakwater, abstract) is a statement about this cursor.

use crate::rank::{Cursor, Rank};

/// User levels; those of a rank are the top seven bits of its user part.
const LEVELS: f64 = 128.0;
const SHIFT: u32 = 9;

/// The last user level let in, with a fraction.
#[derive(Clone, Debug)]
pub(super) struct Scalar {
    threshold: f64,
    /// The business rank of all traffic so far, as long as there is just one.
    business: Seen,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Nothing,
    One(u8),
    Several,
}

impl Scalar {
    /// Where Breakwater's code starts.
    const START: f64 = 32.0;

    pub(super) fn new() -> Self {
        Self { threshold: Self::START, business: Seen::Nothing }
    }

    /// Whether `rank` is let in.
    pub(super) fn on_arrival(&mut self, rank: Rank) -> bool {
        self.business = match self.business {
            Seen::Nothing => Seen::One(rank.business()),
            Seen::One(business) if business == rank.business() => self.business,
            _ => Seen::Several,
        };
        f64::from(rank.user() >> SHIFT) <= self.threshold
    }

    pub(super) fn conclude(&mut self, overloaded: bool, alpha: f64, beta: f64) {
        let threshold = if overloaded {
            self.threshold * (1.0 - alpha)
        } else {
            beta.mul_add(LEVELS, self.threshold)
        };
        self.threshold = threshold.clamp(1.0, LEVELS - 1.0);
    }

    /// What callers are told. A cursor compares business first, so it can say this only while all
    /// traffic has one business rank, as on Breakwater's testbed; otherwise callers are told
    /// nothing.
    pub(super) fn cursor(&self) -> Option<Cursor> {
        let Seen::One(business) = self.business else { return None };
        let user = ((self.threshold as u32 + 1) << SHIFT) - 1;
        Some(Cursor::at(Rank::new(business, user as u16)))
    }

    pub(super) fn invariants(&self) {
        assert!((1.0..LEVELS).contains(&self.threshold), "threshold {}", self.threshold);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Breakwater's code, worked example: 32 → 30.4 → 28.88 → 27.436; 127 to 64 takes 14 overloaded
    /// periods, back 50.
    #[test]
    fn the_oracle() {
        let mut scalar = Scalar::new();
        for expected in [30.4, 28.88, 27.436] {
            scalar.conclude(true, 0.05, 0.01);
            assert!((scalar.threshold - expected).abs() < 1e-9, "{}", scalar.threshold);
        }
        let mut periods = |from: f64, overloaded, until: fn(f64) -> bool| {
            scalar.threshold = from;
            (1..).find(|_| {
                scalar.conclude(overloaded, 0.05, 0.01);
                until(scalar.threshold)
            })
        };
        assert_eq!(periods(127.0, true, |threshold| threshold <= 64.0), Some(14));
        assert_eq!(periods(64.0, false, |threshold| threshold >= 127.0), Some(50));
    }

    #[test]
    fn the_first_level_is_never_shed() {
        let mut scalar = Scalar::new();
        for _ in 0..1_000 {
            scalar.conclude(true, 0.05, 0.01);
        }
        assert!(scalar.on_arrival(Rank::new(24, 0)));
        assert!(scalar.on_arrival(Rank::new(24, (2 << SHIFT) - 1)));
        assert!(!scalar.on_arrival(Rank::new(24, 2 << SHIFT)));
        let cursor = scalar.cursor().unwrap();
        assert!(cursor.admits(Rank::new(24, (2 << SHIFT) - 1)));
        assert!(!cursor.admits(Rank::new(24, 2 << SHIFT)));
        scalar.on_arrival(Rank::new(3, 0));
        assert_eq!(scalar.cursor(), None);
    }
}
