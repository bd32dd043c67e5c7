//! What requests cost, by rank.
//!
//! The mean of a level is one of very many requests, as the cut through ranks is by it: whatever of it is chance moves the
//! cut, and few levels are let in where much more is offered than can be served. But a service that is suddenly slower or faster has
//! other costs at all levels at once. That shows in some tens of requests of any of them: by the logarithm of cost ÷ what
//! was expected, which a factor moves by the same for every distribution, and which heavy tails hardly move at all.

use crate::levels::LEVELS;
use crate::meter::Cost;

/// Mean costs by level, and over all.
#[derive(Clone, Debug)]
pub(super) struct Costs {
    levels: Box<[Mean]>,
    /// Costs, and their squares.
    all: Mean,
    squares: f32,
    /// Logarithm, to the base 2, of cost ÷ what was expected: lately and for long, and its variance.
    lately: Mean<{ LATELY }>,
    long: Mean,
    variance: f32,
    /// What the messages of a request cost beside it.
    messages: f32,
}

/// Requests of which a mean is. With exponential costs a level is known to 2 %, and the sum of the six levels that are
/// let in at ten times the capacity to 1 %.
const MANY: u32 = 1024;
/// The same for what is seen lately, and after a change, when only what follows it counts.
const LATELY: u32 = 256;
const AFRESH: f32 = 16.0;
/// Standard deviations by which what is seen lately is more than chance. They are of a plain mean; one in which
/// later samples count more has 0.7 of them, so this is four…
const SHIFT: f32 = 3.0;
/// …after so many requests, as it takes some to know what chance is.
const KNOWN: f32 = 512.0;

impl Costs {
    pub(super) fn new() -> Self {
        Self {
            levels: vec![Mean::default(); LEVELS].into_boxed_slice(),
            all: Mean::default(),
            squares: 0.0,
            lately: Mean::default(),
            long: Mean::default(),
            variance: 0.0,
            messages: 0.0,
        }
    }

    /// From now on, the messages of a request cost this.
    pub(super) fn set_messages(&mut self, cost: Cost) {
        self.messages = cost.0 as f32;
    }

    /// A request of `level` took `cost`, beside its messages.
    pub(super) fn settle(&mut self, level: usize, cost: Cost) {
        let cost = (cost.0 as f32).max(1.0);
        if let Some(expected) = self.levels[level].get() {
            self.compare(log2(cost / expected));
        }
        self.levels[level].add(cost);
        self.all.add(cost);
        self.all.follow(&mut self.squares, cost * cost);
    }

    /// Learns from the logarithm of cost ÷ what was expected whether all costs have changed.
    fn compare(&mut self, off: f32) {
        self.lately.add(off);
        self.long.add(off);
        let surprise = off - self.long.mean;
        self.long.follow(&mut self.variance, surprise * surprise);
        let shift = self.lately.mean - self.long.mean;
        let chance = self.variance / self.lately.count;
        if self.long.count >= KNOWN && shift * shift > SHIFT * SHIFT * chance {
            self.scale(shift.exp2());
            self.lately = Mean { mean: self.long.mean, count: AFRESH };
        }
    }

    /// All costs are `factor` times what they were.
    #[cold]
    #[inline(never)]
    fn scale(&mut self, factor: f32) {
        for level in &mut self.levels {
            level.mean *= factor;
        }
        self.all.mean *= factor;
        self.squares *= factor * factor;
    }

    /// Mean cost of a request of `level` with its messages, as far as is known.
    pub(super) fn of(&self, level: usize) -> f32 {
        self.known(level).unwrap_or(self.mean())
    }

    /// The same, if any was seen.
    pub(super) fn known(&self, level: usize) -> Option<f32> {
        self.levels[level].get().map(|cost| cost + self.messages)
    }

    /// Mean cost of a request with its messages, over all ranks; 1 and its messages while nothing is known.
    pub(super) fn mean(&self) -> f32 {
        self.all.get().unwrap_or(1.0) + self.messages
    }

    /// How much costs differ: their variance in squares of their mean. 0 if all are the same, 1 if
    /// they are exponential.
    pub(super) fn variability(&self) -> f64 {
        let (own, mean) = (f64::from(self.all.mean), f64::from(self.mean()));
        ((f64::from(self.squares) - own * own) / (mean * mean)).max(0.0)
    }
}

/// The mean of the first `OF` samples; after them, one in which later samples count more.
#[derive(Clone, Copy, Debug, Default)]
struct Mean<const OF: u32 = MANY> {
    mean: f32,
    /// A whole number.
    count: f32,
}

impl<const OF: u32> Mean<OF> {
    fn add(&mut self, sample: f32) {
        self.count = (self.count + 1.0).min(OF as f32);
        self.mean += (sample - self.mean) / self.count;
    }

    /// Takes a sample into another mean, of as many samples as this one.
    fn follow(self, other: &mut f32, sample: f32) {
        *other += (sample - *other) / self.count;
    }

    fn get(self) -> Option<f32> {
        (self.count > 0.0).then_some(self.mean)
    }
}

/// The logarithm to the base 2, to 0.09: between two powers of two it is a straight line.
fn log2(value: f32) -> f32 {
    const ONE: f32 = (1 << 23) as f32;
    value.to_bits() as f32 / ONE - 127.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pseudo-random, 0 to 1.
    fn uniform(seed: &mut u64) -> f64 {
        *seed =
            seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*seed >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Costs of three shapes with a mean of `mean`: exponential, bimodal, and with a tail so heavy that
    /// they have no variance.
    fn sample(shape: usize, mean: f64, seed: &mut u64) -> Cost {
        let chance = uniform(seed).max(1e-9);
        let cost = match shape {
            0 => -chance.ln(),
            1 => {
                if chance < 0.2 {
                    4.0
                } else {
                    0.25
                }
            }
            _ => chance.powf(-1.0 / 1.5) / 3.0,
        };
        Cost((mean * cost) as u64)
    }

    #[test]
    fn a_level_is_known_well_and_chance_is_no_change() {
        for shape in 0..2 {
            let (mut costs, mut seed) = (Costs::new(), 1);
            let (mut least, mut most) = (f32::MAX, 0.0f32);
            for n in 0..400_000 {
                costs.settle(n % 16, sample(shape, 10_000.0, &mut seed));
                if n > 50_000 {
                    (least, most) = (least.min(costs.mean()), most.max(costs.mean()));
                }
            }
            assert!(least > 8_000.0 && most < 12_000.0, "{shape}: {least} to {most}");
            let levels: f32 = (0..16).map(|level| costs.of(level)).sum();
            assert!((levels / 16.0 - 10_000.0).abs() < 500.0, "{shape}: {levels}");
        }
    }

    #[test]
    fn a_service_that_is_suddenly_slower_is_so_at_all_levels() {
        for shape in 0..3 {
            let (mut costs, mut seed) = (Costs::new(), 7);
            for n in 0..50_000 {
                costs.settle(n % 64, sample(shape, 10_000.0, &mut seed));
            }
            let before = costs.of(63);
            // 600 requests, none of them of the last level.
            for n in 0..600 {
                costs.settle(n % 32, sample(shape, 20_000.0, &mut seed));
            }
            let grown = costs.of(63) / before;
            assert!((1.5..2.7).contains(&grown), "{shape}: {grown}");
        }
    }

    #[test]
    fn what_is_let_in_may_be_of_other_ranks_without_any_of_them_costing_more() {
        let (mut costs, mut seed) = (Costs::new(), 3);
        let mean = |level: usize| if level < 4 { 28_000.0 } else { 4_000.0 };
        for n in 0..50_000 {
            costs.settle(n % 16, sample(0, mean(n % 16), &mut seed));
        }
        let (dear, cheap) = (costs.of(0), costs.of(9));
        for n in 0..5_000 {
            costs.settle(n % 4, sample(0, mean(n % 4), &mut seed));
        }
        assert_eq!(costs.of(9), cheap);
        assert!((costs.of(0) / dear - 1.0).abs() < 0.2 && costs.mean() > 20_000.0);
    }

    #[test]
    fn what_was_never_seen_costs_the_mean() {
        let mut costs = Costs::new();
        assert_eq!((costs.of(3), costs.known(3), costs.variability()), (1.0, None, 0.0));
        costs.settle(1, Cost(40));
        assert_eq!((costs.of(3), costs.known(1)), (40.0, Some(40.0)));
        costs.settle(1, Cost(0));
        assert_eq!(costs.of(1), 20.5, "even nothing is something");
        costs.set_messages(Cost(10));
        assert_eq!((costs.of(1), costs.mean(), Costs::new().mean()), (30.5, 30.5, 1.0));
    }

    #[test]
    fn the_logarithm_is_near_enough() {
        for value in [0.001f32, 0.3, 0.9, 1.0, 1.5, 7.0, 1e6] {
            assert!((log2(value) - value.log2()).abs() < 0.09, "{value}");
        }
    }
}
