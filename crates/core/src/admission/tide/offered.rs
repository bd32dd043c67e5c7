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
    /// Requests counted in the present round.
    counted: f32,
    /// Mean cost over all levels, zero while unknown.
    mean_cost: f32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Level {
    /// Requests in the present round.
    count: f32,
    /// Smoothed requests per nanosecond.
    rate: f32,
    /// Mean cost of a request, zero while unknown.
    cost: f32,
    /// Mean and variance of where in the level requests are, in ranks.
    place: f32,
    spread: f32,
}

/// Weight of a new round.
const GAIN: f32 = 0.4;
/// Weight of a new sample in the mean cost, place and spread of its level.
const SAMPLE_GAIN: f32 = 1.0 / 32.0;
/// Variance from which on a level counts as spread: half that of a uniform distribution over it.
const SPREAD: f32 = (LEVEL_RANKS * LEVEL_RANKS) as f32 / 24.0;

impl Offered {
    pub(super) fn new() -> Self {
        let levels = vec![Level::default(); LEVELS].into_boxed_slice();
        Self { levels, words: [0; LEVELS / 64], counted: 0.0, mean_cost: 0.0 }
    }

    /// `count` requests of `rank` were offered.
    pub(super) fn add(&mut self, rank: Rank, count: u32) {
        let level = level_of(rank);
        self.levels[level].add(rank, count as f32);
        self.words[level / 64] |= 1 << (level % 64);
        self.counted += count as f32;
    }

    /// A request of `rank` took `cost`.
    pub(super) fn settle(&mut self, rank: Rank, cost: Cost) {
        let cost = cost.0 as f32;
        for mean in [&mut self.levels[level_of(rank)].cost, &mut self.mean_cost] {
            *mean = if *mean == 0.0 { cost } else { *mean + SAMPLE_GAIN * (cost - *mean) };
        }
    }

    /// Requests counted since the last round was closed.
    pub(super) fn counted(&self) -> f32 {
        self.counted
    }

    /// Mean cost of a request, over all ranks.
    pub(super) fn mean_cost(&self) -> f64 {
        f64::from(self.mean_cost.max(1.0))
    }

    /// Whether nothing has been offered for so long that it has faded.
    pub(super) fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Offered cost per nanosecond, over all ranks.
    #[cfg(test)]
    pub(super) fn total(&self) -> f64 {
        let cost = |level: &Level| f64::from(level.rate * level.cost_or(self.mean_cost));
        self.levels.iter().map(cost).sum()
    }

    /// Ends a round that lasted for `elapsed`.
    pub(super) fn close(&mut self, elapsed: Span) {
        let per_nano = 1.0 / elapsed.as_nanos().max(1) as f32;
        for word in 0..self.words.len() {
            let mut bits = self.words[word];
            while bits != 0 {
                let bit = bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let level = &mut self.levels[word * 64 + bit];
                level.rate += GAIN * (level.count * per_nano - level.rate);
                level.count = 0.0;
                // A level of which less than one request in a thousand rounds is left has faded.
                if level.rate < 1e-3 * per_nano {
                    level.rate = 0.0;
                    self.words[word] &= !(1 << bit);
                }
            }
        }
        self.counted = 0.0;
    }

    /// The cursor whose ranks offer `rate` (cost per nanosecond); open if all ranks together offer
    /// less.
    ///
    /// The level in which that is reached is cut in proportion if its requests are spread over it.
    /// If not, it is let in whole: cutting inside would close the only rank there is.
    pub(super) fn cut(&self, rate: f64) -> Cursor {
        let mut offered = 0.0;
        for word in 0..self.words.len() {
            let mut bits = self.words[word];
            while bits != 0 {
                let level = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let at = &self.levels[level];
                let here = f64::from(at.rate * at.cost_or(self.mean_cost));
                if offered + here > rate {
                    let part = if at.spread < SPREAD { 1.0 } else { (rate - offered) / here };
                    let ranks = (part * f64::from(LEVEL_RANKS)) as u32;
                    let ranks = ranks.clamp(1, LEVEL_RANKS);
                    return Cursor::first(level as u32 * LEVEL_RANKS + ranks);
                }
                offered += here;
            }
        }
        Cursor::OPEN
    }
}

impl Level {
    fn add(&mut self, rank: Rank, count: f32) {
        self.count += count;
        let distance = (rank.key() % LEVEL_RANKS) as f32 - self.place;
        self.place += SAMPLE_GAIN * distance;
        self.spread += SAMPLE_GAIN * (distance * distance - self.spread);
    }

    fn cost_or(&self, mean: f32) -> f32 {
        if self.cost > 0.0 { self.cost } else { mean.max(1.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offers one request per business rank 0..64 and closes a round of 64 ns, many times.
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
    fn a_level_is_cut_only_if_demand_is_spread_over_it() {
        let (mut one, mut spread) = (Offered::new(), Offered::new());
        for user in 0..1_000u32 {
            one.add(Rank::new(24, 700), 1);
            spread.add(Rank::new(24, (user * 617 % 1_024) as u16), 1);
        }
        for offered in [&mut one, &mut spread] {
            offered.close(Span::from_nanos(1));
        }
        assert!(one.cut(1e-9).admits(Rank::new(24, 700)));
        let half = spread.cut(spread.total() / 2.0).last().unwrap();
        assert!((400..600).contains(&half.user()), "{half}");
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
