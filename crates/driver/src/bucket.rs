//! [`AtomicBucket`]: a token bucket for any number of threads, without a lock.
//!
//! The whole state is one word ([`Gcra`]), so taking a token is one compare-and-swap, repeated only
//! when another thread took one in between: somebody always gets on. No other memory is ordered by
//! that word, so `Relaxed` is enough.

use std::fmt;

use tidegate_core::Instant;
use tidegate_core::limit::{Gcra, Limit, Shortage};

use crate::sync::{AtomicU64, Ordering};

/// The lock-free twin of [`tidegate_core::limit::Bucket`].
pub struct AtomicBucket {
    terms: Gcra,
    /// When the bucket will be full again, as `terms` counts.
    word: AtomicU64,
}

impl AtomicBucket {
    /// A bucket with all the tokens it can hold. Times before `now` count as `now`.
    pub fn full(now: Instant, limit: Limit) -> Self {
        Self { terms: Gcra::new(now, limit), word: AtomicU64::new(Gcra::FULL) }
    }

    /// A bucket with no tokens yet.
    pub fn empty(now: Instant, limit: Limit) -> Self {
        let bucket = Self::full(now, limit);
        bucket.word.store(bucket.terms.empty(now), Ordering::Relaxed);
        bucket
    }

    /// Takes a token, or says when there is one.
    #[inline]
    pub fn take(&self, now: Instant) -> Result<(), Shortage> {
        self.update(|word| self.terms.take(word, now))
    }

    /// Takes `cost` tokens, all or none.
    #[inline]
    pub fn take_cost(&self, now: Instant, cost: f64) -> Result<(), Shortage> {
        let price = self.terms.price(cost)?;
        self.update(|word| self.terms.take_price(word, now, price))
    }

    /// Gives back `cost` tokens that were taken for nothing.
    pub fn refund(&self, cost: f64) {
        // Always an answer, so never an error.
        let _ = self.update(|word| Ok(self.terms.refund(word, cost)));
    }

    /// Another limit from `now` on; nobody else may be using the bucket meanwhile. What is saved
    /// stays that many tokens.
    pub fn set_limit(&mut self, now: Instant, limit: Limit) {
        let terms = Gcra::new(now, limit);
        let word = self.terms.convert(self.word.load(Ordering::Relaxed), now, &terms);
        *self = Self { terms, word: AtomicU64::new(word) };
    }

    /// Tokens at `now`.
    pub fn tokens(&self, now: Instant) -> f64 {
        self.terms.tokens(self.word.load(Ordering::Relaxed), now)
    }

    #[inline]
    fn update(&self, step: impl Fn(u64) -> Result<u64, Shortage>) -> Result<(), Shortage> {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let next = step(word)?;
            match self.word.compare_exchange_weak(word, next, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return Ok(()),
                Err(seen) => word = seen,
            }
        }
    }
}

impl fmt::Debug for AtomicBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AtomicBucket").field("limit", &self.terms.limit()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;
    use tidegate_core::limit::Bucket;

    use super::*;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    proptest! {
        #[test]
        fn equals_the_plain_bucket(
            ops in prop::collection::vec((0..6u8, 0..3_000_000u64, 0..80u32), 1..100),
            empty in any::<bool>(),
        ) {
            let limit = Limit::new(2_000.0, 10.0);
            let (mut plain, mut atomic) = if empty {
                (Bucket::empty(at(5), limit), AtomicBucket::empty(at(5), limit))
            } else {
                (Bucket::full(at(5), limit), AtomicBucket::full(at(5), limit))
            };
            let mut now = 5;
            for (op, step, n) in ops {
                now += step;
                let (time, cost) = (at(now), f64::from(n) / 4.0);
                match op {
                    0 => {
                        let limit = Limit::new(f64::from(n + 1) * 100.0, f64::from(n % 13 + 1));
                        plain.set_limit(time, limit);
                        atomic.set_limit(time, limit);
                    }
                    1 => {
                        plain.refund(time, cost);
                        atomic.refund(cost);
                    }
                    2 => prop_assert_eq!(atomic.take(time).is_ok(), plain.take(time)),
                    _ => prop_assert_eq!(atomic.take_cost(time, cost), plain.take_cost(time, cost)),
                }
                prop_assert_eq!(atomic.tokens(time), plain.tokens(time));
            }
        }
    }
}
