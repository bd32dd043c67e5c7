//! What is offered, by rank and in cost: arrivals, and what callers shed themselves.
//!
//! Kept on the coarse grid of [`levels`](crate::levels). A request counts with the mean cost of its
//! level, learned from what finished there, so a few expensive important requests weigh what they
//! weigh.

use crate::levels::{LEVEL_RANKS, LEVELS, level_of};
use crate::meter::Cost;
use crate::rank::{Cursor, Rank};
use crate::time::Span;

/// Offered cost by level.
#[derive(Clone, Debug)]
pub(super) struct Offered {
    levels: Box<[Level]>,
    /// Bit `b` of `words[w]` is set when level `64·w + b` has ever been seen and not yet faded.
    words: [u64; LEVELS / 64],
    /// Requests counted in the present window.
    counted: f32,
    /// Mean cost over all levels, zero while unknown.
    mean_cost: f32,
    /// Sum of all levels' smoothed rates, in cost per nanosecond.
    total: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Level {
    /// Requests in the present window.
    count: f32,
    /// Smoothed requests per nanosecond.
    rate: f32,
    /// Mean cost of a request, zero while unknown.
    cost: f32,
}

/// Weight of a new window.
const GAIN: f32 = 0.4;
/// Weight of a new cost sample in the mean of its level.
const COST_GAIN: f32 = 1.0 / 32.0;

impl Offered {
    pub(super) fn new() -> Self {
        let levels = vec![Level::default(); LEVELS].into_boxed_slice();
        Self { levels, words: [0; LEVELS / 64], counted: 0.0, mean_cost: 0.0, total: 0.0 }
    }

    /// `count` requests of `rank` were offered.
    pub(super) fn add(&mut self, rank: Rank, count: u32) {
        let level = level_of(rank);
        self.levels[level].count += count as f32;
        self.words[level / 64] |= 1 << (level % 64);
        self.counted += count as f32;
    }

    /// A request of `rank` took `cost`.
    pub(super) fn settle(&mut self, rank: Rank, cost: Cost) {
        let cost = cost.0 as f32;
        for mean in [&mut self.levels[level_of(rank)].cost, &mut self.mean_cost] {
            *mean = if *mean == 0.0 { cost } else { *mean + COST_GAIN * (cost - *mean) };
        }
    }

    /// Requests counted since the last window was closed.
    pub(super) fn counted(&self) -> f32 {
        self.counted
    }

    /// Offered cost per nanosecond, over all ranks.
    pub(super) fn total(&self) -> f64 {
        self.total
    }

    /// Ends a window that lasted for `elapsed`.
    pub(super) fn close(&mut self, elapsed: Span) {
        let per_nano = 1.0 / elapsed.as_nanos().max(1) as f32;
        let mut total = 0.0;
        for word in 0..self.words.len() {
            let mut bits = self.words[word];
            while bits != 0 {
                let bit = bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let level = &mut self.levels[word * 64 + bit];
                level.rate += GAIN * (level.count * per_nano - level.rate);
                level.count = 0.0;
                // A level of which less than one request in a thousand windows is left has faded.
                if level.rate < 1e-3 * per_nano {
                    level.rate = 0.0;
                    self.words[word] &= !(1 << bit);
                }
                total += f64::from(level.rate * level.cost_or(self.mean_cost));
            }
        }
        self.total = total;
        self.counted = 0.0;
    }

    /// The cursor whose ranks offer `rate` (cost per nanosecond), at the end of the level in which
    /// that is reached; open if all ranks together offer less.
    ///
    /// Ending with a whole level matters when one rank carries much of the demand: cutting inside it
    /// would close the only rank there is.
    pub(super) fn cut(&self, rate: f64) -> Cursor {
        let mut offered = 0.0;
        for word in 0..self.words.len() {
            let mut bits = self.words[word];
            while bits != 0 {
                let level = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                offered +=
                    f64::from(self.levels[level].rate * self.levels[level].cost_or(self.mean_cost));
                if offered > rate {
                    return Cursor::first((level as u32 + 1) * LEVEL_RANKS);
                }
            }
        }
        Cursor::OPEN
    }
}

impl Level {
    fn cost_or(&self, mean: f32) -> f32 {
        if self.cost > 0.0 { self.cost } else { mean.max(1.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offers one request per business rank 0..64 and closes a window of 64 ns, many times.
    fn uniform(cost: impl Fn(u8) -> u64) -> Offered {
        let mut offered = Offered::new();
        for _ in 0..200 {
            for business in 0..64 {
                offered.add(Rank::new(business, 0), 1);
                offered.settle(Rank::new(business, 0), Cost(cost(business)));
            }
            offered.close(Span::from_nanos(64));
        }
        offered
    }

    fn last_business(cursor: Cursor) -> u8 {
        cursor.last().unwrap().business()
    }

    #[test]
    fn the_cut_lets_in_what_can_be_served() {
        let offered = uniform(|_| 10);
        assert!((offered.total() - 10.0).abs() < 0.1);
        assert_eq!(last_business(offered.cut(4.95)), 31);
        assert_eq!(offered.cut(11.0), Cursor::OPEN);
    }

    #[test]
    fn the_cut_is_by_cost_not_by_count() {
        // The first quarter costs seven times the rest: 28 and 4.
        let offered = uniform(|business| if business < 16 { 28 } else { 4 });
        assert_eq!(last_business(offered.cut(6.95)), 15);
        assert!(last_business(offered.cut(8.5)) > 35);
    }

    #[test]
    fn a_single_rank_is_never_cut_off() {
        let mut offered = Offered::new();
        offered.add(Rank::UNRANKED, 1_000_000);
        offered.close(Span::from_nanos(1));
        assert!(offered.cut(1e-9).admits(Rank::UNRANKED));
    }

    #[test]
    fn what_is_no_longer_offered_fades() {
        let mut offered = uniform(|_| 10);
        for _ in 0..100 {
            offered.close(Span::from_nanos(64));
        }
        assert_eq!(offered.total(), 0.0);
        assert_eq!(offered.cut(0.0), Cursor::OPEN);
    }
}
