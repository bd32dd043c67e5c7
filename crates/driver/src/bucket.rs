//! [`AtomicBucket`]: a token bucket for any number of threads, without a lock.
//!
//! The whole state is one word ([`Gcra`]), so taking a token is one compare-and-swap, repeated only
//! when another thread took one in between: somebody always gets on. No other memory is ordered by
//! that word, so `Relaxed` is enough.
//!
//! The terms are not in that word. A bucket that others are using takes no other limit; another one
//! takes over from it ([`AtomicBucket::renew`]).

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
        self.update(|word| Ok((self.terms.take(word, now)?, ())))
    }

    /// Takes `cost` tokens, all or none.
    #[inline]
    pub fn take_cost(&self, now: Instant, cost: f64) -> Result<(), Shortage> {
        let price = self.terms.price(cost)?;
        self.update(|word| Ok((self.terms.take_price(word, now, price)?, ())))
    }

    /// Takes as many of `count` tokens as there are; a batch is served from its front.
    pub fn take_batch(&self, now: Instant, count: u32) -> u32 {
        self.update(|word| Ok(self.terms.take_batch(word, now, count))).unwrap_or(0)
    }

    /// Takes `cost` tokens in advance and says when the request may go; refused without effect if
    /// that is after `latest`. Those that come later wait behind it.
    pub fn book(&self, now: Instant, cost: f64, latest: Instant) -> Result<Instant, Shortage> {
        let price = self.terms.price(cost)?;
        self.update_open(|word| self.terms.book(word, now, price, latest))
    }

    /// Settles a request that paid an estimate of `paid` tokens and cost `actual`: the rest is given
    /// back, or charged until `debt` tokens are owed. Returns the tokens charged to nobody.
    pub fn settle_cost(&self, now: Instant, paid: f64, actual: f64, debt: f64) -> f64 {
        let settle = |word| Ok(self.terms.settle_cost(word, now, paid, actual, debt));
        // Only a closed bucket has no answer: all that is still to be paid is charged to nobody.
        self.update_open(settle).unwrap_or_else(|_| (actual - paid.max(0.0)).max(0.0))
    }

    /// Gives back `cost` tokens that were taken for nothing.
    pub fn refund(&self, cost: f64) {
        // An error is a closed bucket, where nothing is given back.
        let _ = self.update_open(|word| Ok((self.terms.refund(word, cost), ())));
    }

    /// The bucket that takes over from this one under another limit, with what is saved or owed. This
    /// one is closed from then on: it never gives a token, and what is given back or charged to it is
    /// lost. None if it was closed before, so of several who renew it at once only one succeeds.
    pub fn renew(&self, now: Instant, limit: Limit) -> Option<Self> {
        let terms = Gcra::new(now, limit);
        let word = self.word.swap(Gcra::CLOSED, Ordering::Relaxed);
        let renewed = || AtomicU64::new(self.terms.convert(word, now, &terms));
        (word != Gcra::CLOSED).then(|| Self { terms, word: renewed() })
    }

    /// Another limit from `now` on; nobody else may be using the bucket meanwhile. What is saved
    /// stays that many tokens, and a closed bucket stays closed.
    pub fn set_limit(&mut self, now: Instant, limit: Limit) {
        if let Some(renewed) = self.renew(now, limit) {
            *self = renewed;
        }
    }

    /// Tokens at `now`.
    pub fn tokens(&self, now: Instant) -> f64 {
        self.terms.tokens(self.word.load(Ordering::Relaxed), now)
    }

    /// As [`Self::update`], for what could open a closed bucket or wait for it. To take from one needs no
    /// check: it is short of tokens for years, and the check would make the bucket slower than others.
    fn update_open<T>(
        &self,
        step: impl Fn(u64) -> Result<(u64, T), Shortage>,
    ) -> Result<T, Shortage> {
        self.update(|word| if word == Gcra::CLOSED { Err(Shortage::Never) } else { step(word) })
    }

    #[inline]
    fn update<T>(&self, step: impl Fn(u64) -> Result<(u64, T), Shortage>) -> Result<T, Shortage> {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let (next, answer) = step(word)?;
            match self.word.compare_exchange_weak(word, next, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return Ok(answer),
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

    #[test]
    fn costs_that_are_none_change_nothing() {
        let bucket = AtomicBucket::full(at(0), Limit::new(1_000.0, 4.0));
        bucket.take_cost(at(0), 3.0).unwrap();
        for cost in [f64::NAN, -1.0, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(bucket.take_cost(at(0), cost), Err(Shortage::Never), "{cost}");
            assert_eq!(bucket.book(at(0), cost, Instant::FAR), Err(Shortage::Never), "{cost}");
            bucket.refund(cost);
            assert_eq!(bucket.tokens(at(0)), 1.0, "{cost}");
        }
        assert_eq!(bucket.settle_cost(at(0), 1.0, f64::NAN, 4.0), 0.0);
        assert_eq!(bucket.tokens(at(0)), 1.0);
    }

    #[test]
    fn who_was_renewed_gives_nothing() {
        let old = AtomicBucket::full(at(0), Limit::new(1_000.0, 4.0));
        old.take(at(0)).unwrap();
        let new = old.renew(at(0), Limit::new(10.0, 9.0)).unwrap();
        old.refund(1e15);
        assert_eq!(old.settle_cost(at(0), 1e15, 1.0, 4.0), 0.0);
        assert_eq!(old.settle_cost(at(0), 1.0, 3.0, 4.0), 2.0, "charged to nobody");
        for nanos in [0, 1_000_000_000, 1 << 55] {
            let now = at(nanos);
            assert!(old.take(now).is_err() && old.take_cost(now, 1.0).is_err());
            assert_eq!(old.book(now, 1.0, Instant::FAR), Err(Shortage::Never));
            assert_eq!(old.take_batch(now, 5), 0);
        }
        assert_eq!(new.tokens(at(0)), 3.0);
        // Nor is there a second one that takes over from it, however fast.
        assert!(old.renew(at(0), Limit::new(1e9, 1e12)).is_none());
        let mut old = old;
        old.set_limit(at(0), Limit::new(1e9, 1e12));
        assert!(old.take(at(1 << 55)).is_err());
    }

    proptest! {
        #[test]
        fn equals_the_plain_bucket(
            ops in prop::collection::vec((0..9u8, 0..3_000_000u64, 0..80u32), 1..100),
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
                        if step % 2 == 0 {
                            atomic.set_limit(time, limit);
                        } else {
                            atomic = atomic.renew(time, limit).expect("in use");
                        }
                    }
                    1 => {
                        plain.refund(time, cost);
                        atomic.refund(cost);
                    }
                    2 => prop_assert_eq!(atomic.take(time).is_ok(), plain.take(time)),
                    3 => prop_assert_eq!(atomic.take_batch(time, n / 8), plain.take_batch(time, n / 8)),
                    4 => {
                        let latest = at(now + u64::from(n) * 100_000);
                        prop_assert_eq!(atomic.book(time, cost, latest), plain.book(time, cost, latest));
                    }
                    5 => prop_assert_eq!(
                        atomic.settle_cost(time, 5.0, cost, 2.5),
                        plain.settle_cost(time, 5.0, cost, 2.5)
                    ),
                    _ => prop_assert_eq!(atomic.take_cost(time, cost), plain.take_cost(time, cost)),
                }
                prop_assert_eq!(atomic.tokens(time), plain.tokens(time));
            }
        }
    }
}
