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
    /// Sum of squares of what was counted at once: the variance of `counted`, since messages come
    /// independently of each other and one may report many sheds.
    variance: f32,
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

/// Weight of a round in which more or less was offered than chance explains…
const SHIFT_GAIN: f32 = 0.5;
/// …that is, by this many standard deviations. One round in ten thousand is that far off by chance.
const SHIFT: f32 = 4.0;
/// Weight of a new sample in the mean cost of its level. The error of a cut is that of 32 levels or
/// so; with exponential costs it is 0.8 % of the sum, with a weight of 1/32 it would be 2 %.
const COST_GAIN: f32 = 1.0 / 256.0;
/// Weight of a new sample in the place and spread of its level.
const PLACE_GAIN: f32 = 1.0 / 32.0;
/// Variance from which on a level counts as spread: half that of a uniform distribution over it.
const SPREAD: f32 = (LEVEL_RANKS * LEVEL_RANKS) as f32 / 24.0;

impl Offered {
    pub(super) fn new() -> Self {
        let levels = vec![Level::default(); LEVELS].into_boxed_slice();
        Self { levels, words: [0; LEVELS / 64], counted: 0.0, variance: 0.0, mean_cost: 0.0 }
    }

    /// `count` requests of `rank` were offered.
    pub(super) fn add(&mut self, rank: Rank, count: u32) {
        let level = level_of(rank);
        self.levels[level].add(rank, count as f32);
        self.words[level / 64] |= 1 << (level % 64);
        self.counted += count as f32;
        self.variance += count as f32 * count as f32;
    }

    /// A request of `rank` took `cost`.
    pub(super) fn settle(&mut self, rank: Rank, cost: Cost) {
        let cost = cost.0 as f32;
        for mean in [&mut self.levels[level_of(rank)].cost, &mut self.mean_cost] {
            *mean = if *mean == 0.0 { cost } else { *mean + COST_GAIN * (cost - *mean) };
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

    /// Ends a round that lasted for `elapsed`; `calm` is its weight if it was like those before it.
    pub(super) fn close(&mut self, elapsed: Span, calm: f64) {
        let nanos = elapsed.as_nanos().max(1) as f32;
        let expected = nanos * self.seen().map(|level| self.levels[level].rate).sum::<f32>();
        let chance = self.variance.max(expected).max(1.0).sqrt();
        let shifted = (self.counted - expected).abs() > SHIFT * chance;
        let gain = if shifted { SHIFT_GAIN } else { calm as f32 };
        for level in self.seen() {
            let at = &mut self.levels[level];
            at.rate += gain * (at.count / nanos - at.rate);
            at.count = 0.0;
            // A level of which less than one request in a thousand rounds is left has faded.
            if at.rate * nanos < 1e-3 {
                at.rate = 0.0;
                self.words[level / 64] &= !(1 << (level % 64));
            }
        }
        (self.counted, self.variance) = (0.0, 0.0);
    }

    /// The levels seen and not yet faded, the most important first.
    fn seen(&self) -> impl Iterator<Item = usize> + use<> {
        let next = |bits: &u64| Some(bits & (bits - 1)).filter(|bits| *bits != 0);
        let levels = move |(word, bits): (usize, u64)| {
            let first = Some(bits).filter(|bits| *bits != 0);
            std::iter::successors(first, next)
                .map(move |bits| word * 64 + bits.trailing_zeros() as usize)
        };
        self.words.into_iter().enumerate().flat_map(levels)
    }

    /// The cursor whose ranks offer `rate` (cost per nanosecond); open if all ranks together offer
    /// less.
    ///
    /// The level in which that is reached is cut in proportion if its requests are spread over it. If
    /// not, it is one rank that carries much of the demand, and is taken in whole or left out whole.
    pub(super) fn cut(&self, rate: f64, lump: Lump) -> Cursor {
        let mut offered = 0.0;
        for level in self.seen() {
            let at = &self.levels[level];
            let here = f64::from(at.rate * at.cost_or(self.mean_cost));
            if offered + here > rate {
                let part = match lump {
                    _ if at.spread >= SPREAD => (rate - offered) / here,
                    Lump::Within => 1.0,
                    Lump::Without => 0.0,
                };
                let ranks = (part * f64::from(LEVEL_RANKS)) as u32;
                return Cursor::first(level as u32 * LEVEL_RANKS + ranks.min(LEVEL_RANKS));
            }
            offered += here;
        }
        Cursor::OPEN
    }
}

/// What becomes of demand that cannot be cut, where a cut would have to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lump {
    /// It is let in: closing the only rank there is would leave the service idle.
    Within,
    /// It is left out.
    Without,
}

impl Level {
    fn add(&mut self, rank: Rank, count: f32) {
        self.count += count;
        let distance = (rank.key() % LEVEL_RANKS) as f32 - self.place;
        self.place += PLACE_GAIN * distance;
        self.spread += PLACE_GAIN * (distance * distance - self.spread);
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
            offered.close(Span::from_nanos(64), 0.1);
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
        assert_eq!(last_business(offered.cut(4.95, Lump::Within)), 31);
        assert_eq!(offered.cut(11.0, Lump::Within), Cursor::OPEN);
    }

    #[test]
    fn the_cut_is_by_cost_not_by_count() {
        // The first quarter costs seven times the rest: 28 and 4.
        let offered = uniform(|business| if business < 16 { 28 } else { 4 });
        assert_eq!(last_business(offered.cut(6.95, Lump::Within)), 15);
        assert!(last_business(offered.cut(8.5, Lump::Within)) > 35);
    }

    #[test]
    fn a_level_is_cut_only_if_demand_is_spread_over_it() {
        let (mut one, mut spread) = (Offered::new(), Offered::new());
        for user in 0..1_000u32 {
            one.add(Rank::new(24, 700), 1);
            spread.add(Rank::new(24, (user * 617 % 1_024) as u16), 1);
        }
        for offered in [&mut one, &mut spread] {
            offered.close(Span::from_nanos(1), 0.1);
        }
        assert!(one.cut(1e-9, Lump::Within).admits(Rank::new(24, 700)));
        assert!(!one.cut(1e-9, Lump::Without).admits(Rank::new(24, 700)));
        let half = spread.cut(spread.total() / 2.0, Lump::Within).last().unwrap();
        assert!((400..600).contains(&half.user()), "{half}");
    }

    #[test]
    fn what_is_no_longer_offered_fades() {
        let mut offered = uniform(|_| 10);
        for _ in 0..100 {
            offered.close(Span::from_nanos(64), 0.1);
        }
        assert_eq!(offered.total(), 0.0);
        assert_eq!(offered.cut(0.0, Lump::Within), Cursor::OPEN);
    }
}
