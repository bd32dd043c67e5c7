//! The corrected Algorithm 1 of DAGOR §4.2.3: where the cursor goes after a window.

use crate::rank::{Cursor, Rank};

/// Levels there are: 64 business ranks with 128 user levels each, the top seven bits of a user
/// rank. Merging them would make one level hold more than α of the traffic.
const LEVELS: usize = 64 << LEVEL_BITS;
const LEVEL_BITS: u32 = 7;
const SHIFT: u32 = 16 - LEVEL_BITS;

/// The histogram of a window and the cursor it moves.
#[derive(Clone, Debug)]
pub(super) struct Levels {
    /// Requests offered at each level in this window, admitted or not, those included that callers
    /// shed themselves and reported.
    offered: Box<[u32]>,
    /// Their sum.
    incoming: u64,
    /// Requests let in in this window.
    admitted: u64,
    /// Levels let in, counted from the most important one; never zero.
    open: usize,
}

impl Levels {
    pub(super) fn new() -> Self {
        Self { offered: vec![0; LEVELS].into(), incoming: 0, admitted: 0, open: LEVELS }
    }

    pub(super) fn cursor(&self) -> Cursor {
        Cursor::first((self.open as u32) << SHIFT)
    }

    /// Counts one request; true if it is let in.
    pub(super) fn on_arrival(&mut self, rank: Rank) -> bool {
        self.on_sheds(rank, 1);
        let admitted = level_of(rank) < self.open;
        self.admitted += u64::from(admitted);
        admitted
    }

    /// Counts requests that callers shed before they came here.
    pub(super) fn on_sheds(&mut self, rank: Rank, count: u32) {
        let offered = &mut self.offered[level_of(rank)];
        *offered = offered.saturating_add(count);
        self.incoming = self.incoming.saturating_add(u64::from(count));
    }

    /// Moves the cursor by what the window has shown, and starts the next window.
    pub(super) fn conclude(&mut self, overloaded: bool, alpha: f64, beta: f64) {
        let admitted = self.admitted as f64;
        if overloaded {
            self.close_to((1.0 - alpha) * admitted);
        } else {
            self.open_to(beta.mul_add(self.incoming as f64, admitted));
        }
        self.offered.fill(0);
        (self.incoming, self.admitted) = (0, 0);
    }

    /// Gives up levels, least important first, until what is left is at most `goal`.
    fn close_to(&mut self, goal: f64) {
        let first = self.offered.iter().position(|count| *count > 0).unwrap_or(0);
        let mut left = self.admitted as f64;
        // The first level that has traffic stays: closing it would serve nobody.
        while left > goal && self.open > first + 1 {
            self.open -= 1;
            left -= f64::from(self.offered[self.open]);
        }
    }

    /// Opens levels, most important first, until what they bring reaches `goal`.
    fn open_to(&mut self, goal: f64) {
        let mut brought = self.admitted as f64;
        while brought < goal && self.open < LEVELS {
            brought += f64::from(self.offered[self.open]);
            self.open += 1;
        }
    }

    pub(super) fn invariants(&self) {
        assert!((1..=LEVELS).contains(&self.open), "{} levels are open", self.open);
        assert!(self.admitted <= self.incoming, "{} of {}", self.admitted, self.incoming);
    }
}

const fn level_of(rank: Rank) -> usize {
    (rank.key() >> SHIFT) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALPHA: f64 = 0.05;
    const BETA: f64 = 0.01;

    /// Level (business, user) of the paper's figure 4.
    fn level(business: u8, user: u16) -> Rank {
        Rank::new(business, user << SHIFT)
    }

    /// The last level let in that has traffic in the oracle's window, as (business, user).
    fn cursor(levels: &Levels) -> (u8, u16) {
        let last = levels.cursor().last().unwrap();
        (last.business(), last.user() >> SHIFT)
    }

    /// DAGOR §4.2.3, worked example: counts (1,1)…(2,4) = 10, 20, … 80.
    const COUNTS: [(u8, u16, u32); 8] = [
        (1, 1, 10),
        (1, 2, 20),
        (1, 3, 30),
        (1, 4, 40),
        (2, 1, 50),
        (2, 2, 60),
        (2, 3, 70),
        (2, 4, 80),
    ];

    fn offer_oracle(levels: &mut Levels) -> u64 {
        for (business, user, count) in COUNTS {
            for _ in 0..count {
                levels.on_arrival(level(business, user));
            }
        }
        levels.admitted
    }

    /// DAGOR §4.2.3 as corrected, worked example: windows 1 to 3.
    #[test]
    fn the_oracle_windows() {
        let mut levels = Levels::new();
        assert_eq!(offer_oracle(&mut levels), 360);
        levels.conclude(true, ALPHA, BETA);
        assert_eq!(cursor(&levels), (2, 3));
        assert_eq!(offer_oracle(&mut levels), 280);
        levels.conclude(true, ALPHA, BETA);
        assert_eq!(cursor(&levels), (2, 2));
        assert_eq!(offer_oracle(&mut levels), 210);
        levels.conclude(false, ALPHA, BETA);
        assert_eq!(cursor(&levels), (2, 3));
    }

    /// Algorithm 1 as printed: the base is what came in, the counters are what was let in, and the
    /// scan starts at the most important level.
    fn printed(levels: &Levels, overloaded: bool) -> Option<(u8, u16)> {
        let incoming = levels.incoming as f64;
        let goal = if overloaded { (1.0 - ALPHA) * incoming } else { (1.0 + BETA) * incoming };
        let (mut last, mut prefix) = (None, 0.0);
        for (business, user, count) in COUNTS {
            let admitted = levels.cursor().admits(level(business, user));
            prefix += if admitted { f64::from(count) } else { 0.0 };
            if prefix > goal {
                return last;
            }
            last = Some((business, user));
        }
        last
    }

    /// DAGOR §4.2.3, the same example, window 2: the printed algorithm opens everything in a window
    /// that is still overloaded, since 95 % of what comes in is more than what is let in.
    #[test]
    fn the_printed_algorithm_relaxes_under_overload_and_ours_does_not() {
        let mut levels = Levels::new();
        offer_oracle(&mut levels);
        assert_eq!(printed(&levels, true), Some((2, 3)));
        levels.conclude(true, ALPHA, BETA);
        offer_oracle(&mut levels);
        assert_eq!(printed(&levels, true), Some((2, 4)), "the fault");
        levels.conclude(true, ALPHA, BETA);
        assert_eq!(cursor(&levels), (2, 2));
    }

    /// DAGOR §4.2.3, speed: 14 overloaded windows to halve, 50 calm ones to come back.
    #[test]
    fn halves_in_14_windows_and_returns_in_50() {
        let mut levels = Levels::new();
        let offer = |levels: &mut Levels, overloaded| {
            for key in 0..LEVELS as u32 {
                levels.on_arrival(Rank::from_key(key << SHIFT));
            }
            levels.conclude(overloaded, ALPHA, BETA);
        };
        let mut windows = 0;
        while levels.open > LEVELS / 2 {
            offer(&mut levels, true);
            windows += 1;
        }
        assert_eq!(windows, 14);
        levels.open = LEVELS / 2;
        windows = 0;
        while levels.open < LEVELS {
            offer(&mut levels, false);
            windows += 1;
        }
        assert_eq!(windows, 50);
    }

    /// With all demand on one level there is nothing less important to refuse.
    #[test]
    fn the_most_important_level_with_traffic_stays_open() {
        let mut levels = Levels::new();
        for _ in 0..100 {
            for _ in 0..50 {
                assert!(levels.on_arrival(level(24, 5)));
                levels.on_arrival(level(30, 5));
            }
            levels.conclude(true, ALPHA, BETA);
        }
        assert_eq!(cursor(&levels), (24, 5));
    }

    /// What callers shed themselves is known, so a calm window opens one level, not all of them.
    #[test]
    fn reported_sheds_keep_a_calm_window_from_opening_everything() {
        let mut levels = Levels::new();
        levels.open = level_of(level(24, 10)) + 1;
        for _ in 0..1_000 {
            levels.on_arrival(level(24, 3));
        }
        let mut forgetful = levels.clone();
        for user in 11..111 {
            levels.on_sheds(level(24, user), 20);
        }
        levels.conclude(false, ALPHA, BETA);
        assert_eq!(cursor(&levels), (24, 12), "1 % of 3,000 is two levels of 20");
        forgetful.conclude(false, ALPHA, BETA);
        assert_eq!(forgetful.cursor(), Cursor::OPEN);
    }

    proptest! {
        /// An overloaded window never relaxes the cursor and a calm one never tightens it, whatever
        /// came, and the most important level that had traffic is not closed.
        #[test]
        fn windows_move_the_cursor_one_way(
            windows in prop::collection::vec(
                (any::<bool>(), prop::collection::vec((0..64u8, any::<u16>(), 0..5u32), 0..40)),
                1..30,
            ),
            alpha in 0.0..1.0f64,
            beta in 0.0..1.0f64,
        ) {
            let mut levels = Levels::new();
            for (overloaded, traffic) in windows {
                let mut first = None;
                for (business, user, sheds) in traffic {
                    let rank = Rank::new(business, user);
                    levels.on_arrival(rank);
                    levels.on_sheds(rank, sheds);
                    first = Some(first.map_or(rank, |first: Rank| first.min(rank)));
                }
                let before = levels.cursor();
                levels.conclude(overloaded, alpha, beta);
                levels.invariants();
                let after = levels.cursor();
                let wrong_way = if overloaded { after > before } else { after < before };
                prop_assert!(!wrong_way, "{before} to {after}");
                if let Some(first) = first.filter(|first| before.admits(*first)) {
                    prop_assert!(after.admits(first), "{first} was closed by {after}");
                }
            }
        }
    }
}
