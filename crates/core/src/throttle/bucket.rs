//! A token bucket for one caller: how soon may the next request leave?
//!
//! Time is saved up and spent, not tokens: a bucket that has gone `interval` without a send holds
//! one token. That is whole-number arithmetic, so settling often or rarely gives the same answer to
//! the nanosecond, and a token that is due at a moment is there at that moment.

use crate::time::{Instant, Span};

/// Fractions of a nanosecond kept: at 100 million requests a second an interval of whole
/// nanoseconds would be off by up to 5 %, one of 1/1024 ns by 0.005 %.
const FRACTION: u64 = 1024;

/// Saves up to `depth` tokens, one per `interval`.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    /// Time per token, in 1/[`FRACTION`] ns; at least one.
    interval: u64,
    /// Most tokens saved; at least one.
    depth: u32,
    /// Time saved up to `at`, in 1/[`FRACTION`] ns; at most `depth · interval`.
    saved: u64,
    at: Instant,
}

impl Bucket {
    /// Slowest and fastest rate kept, in tokens per second; others are taken to the nearer one.
    /// About one token a day, and one a nanosecond.
    const RATES: (f64, f64) = (1e-5, 1e9);

    /// A bucket with no tokens yet.
    pub(super) fn empty(now: Instant, rate: f64, depth: u32) -> Self {
        Self { interval: interval(rate), depth: depth.max(1), saved: 0, at: now }
    }

    /// A bucket with all the tokens it can hold.
    pub(super) fn full(now: Instant, rate: f64, depth: u32) -> Self {
        let mut bucket = Self::empty(now, rate, depth);
        bucket.saved = bucket.most();
        bucket
    }

    /// Takes a token, if there is one.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        self.settle(now);
        let enough = self.saved >= self.interval;
        if enough {
            self.saved -= self.interval;
        }
        enough
    }

    /// Counts what was earned up to now.
    pub(super) fn settle(&mut self, now: Instant) {
        let earned = now.since(self.at).as_nanos().saturating_mul(FRACTION);
        self.saved = self.saved.saturating_add(earned).min(self.most());
        self.at = self.at.max(now);
    }

    /// When the next token is there, as of the last settlement; in the past if one is there.
    pub(super) fn due(&self) -> Instant {
        let missing = self.interval.saturating_sub(self.saved);
        self.at + Span::from_nanos(missing.div_ceil(FRACTION))
    }

    /// Another rate from `now` on. What was earned so far was earned at the old rate, and stays
    /// that many tokens, rounded down: a change never mints any.
    pub(super) fn set_rate(&mut self, now: Instant, rate: f64) {
        self.settle(now);
        let (old, new) = (self.interval, interval(rate));
        self.interval = new;
        let tokens_kept = u128::from(self.saved) * u128::from(new) / u128::from(old);
        self.saved = u64::try_from(tokens_kept).unwrap_or(u64::MAX).min(self.most());
    }

    /// Another depth: less clips, more is there to be earned.
    pub(super) fn set_depth(&mut self, depth: u32) {
        self.depth = depth.max(1);
        self.saved = self.saved.min(self.most());
    }

    /// Panics if the state contradicts itself.
    pub(super) fn invariants(&self) {
        assert!(self.saved <= self.most(), "tokens within depth");
    }

    fn most(&self) -> u64 {
        self.interval.saturating_mul(u64::from(self.depth))
    }
}

/// Time per token in 1/[`FRACTION`] ns.
fn interval(rate: f64) -> u64 {
    let (slowest, fastest) = Bucket::RATES;
    // `max` and `min` take the other number when the rate is NaN: the slowest.
    ((1e9 * FRACTION as f64) / rate.max(slowest).min(fastest)).round() as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    #[test]
    fn a_burst_then_the_rate() {
        let mut bucket = Bucket::full(at(0), 1e6, 4);
        assert_eq!((0..10).filter(|_| bucket.take(at(0))).count(), 4);
        for n in 1..100 {
            assert_eq!(bucket.due(), at(1_000 * n));
            assert!(!bucket.take(at(1_000 * n - 1)));
            assert!(bucket.take(bucket.due()));
        }
    }

    #[test]
    fn rates_that_are_none_are_the_slowest() {
        for rate in [f64::NAN, 0.0, -3.0] {
            assert_eq!(interval(rate), interval(Bucket::RATES.0), "{rate}");
        }
        assert_eq!(interval(f64::INFINITY), FRACTION);
    }

    /// Most of a token stays most of a token, however often rate and depth change.
    #[test]
    fn a_changing_rate_mints_nothing() {
        let mut bucket = Bucket::empty(at(0), 1e6, 1_000);
        bucket.settle(at(900));
        for n in 0..10_000 {
            bucket.set_rate(at(900), [1e9, 7.0, 0.01, 1e6][n % 4]);
            bucket.set_depth([1, 1_000][n % 2]);
            assert!(!bucket.take(at(900)));
        }
        assert!(bucket.due() > at(900));
    }

    proptest! {
        /// Against tokens in floating point; and settling in between changes nothing.
        #[test]
        fn equals_a_naive_bucket(
            ops in prop::collection::vec((0..4u8, 0..3_000_000u64, 1..2_000u32), 1..100),
            depth in 1..8u32,
        ) {
            let mut bucket = Bucket::full(at(0), 1_000.0, depth);
            let (mut tokens, mut rate, mut now) = (f64::from(depth), 1_000.0, 0);
            for (op, step, new_rate) in ops {
                now += step;
                tokens = (tokens + step as f64 * rate / 1e9).min(f64::from(depth));
                let mut lazy = bucket.clone();
                bucket.settle(at(now - step / 2));
                if op == 0 {
                    rate = f64::from(new_rate);
                    bucket.set_rate(at(now), rate);
                    lazy.set_rate(at(now), rate);
                } else {
                    let taken = bucket.take(at(now));
                    prop_assert_eq!(taken, lazy.take(at(now)));
                    // Within rounding of a whole token both answers are right.
                    if (tokens - 1.0).abs() > 1e-6 {
                        prop_assert_eq!(taken, tokens > 1.0, "tokens {}", tokens);
                    }
                    tokens -= f64::from(u8::from(taken));
                }
                prop_assert_eq!(bucket.saved, lazy.saved);
                bucket.invariants();
            }
        }
    }
}
