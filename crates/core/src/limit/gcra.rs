//! The token bucket as one number: the generic cell rate algorithm.
//!
//! A bucket that was ever touched is told entirely by its *theoretical arrival time*: the moment at
//! which it will be full again. One word per bucket makes it cheap to keep many
//! ([`Keyed`](super::Keyed)) and possible to change without a lock (`AtomicBucket` in
//! `tidegate-driver`).
//!
//! 1. A request at `now` that costs `price` would move the word to `max(word, now) + price`.
//! 2. It conforms if that is no later than `now + most`, where `most` is the price of a full burst.
//!
//! Equal to [`Bucket`](super::Bucket) for times that do not go back, see the tests. A time that does go back, from
//! another thread say, is judged as of that time: more strictly, never more loosely.

use super::bucket::{FRACTION, Limit, Shortage};
use crate::time::{Instant, Span};

/// The terms of a bucket that is one word. Words count from `origin` in 1/64 ns, for nine years;
/// after that nothing passes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gcra {
    limit: Limit,
    origin: Instant,
    /// Time per token.
    interval: u64,
    /// Time that can be saved up.
    most: u64,
    /// A token is there while less than this is missing; none if not even one fits.
    room: u64,
}

impl Gcra {
    /// The word of a bucket with all the tokens it can hold.
    pub const FULL: u64 = 0;

    /// The word of a bucket that another has taken over from: further ahead than any clock gets. Whoever
    /// keeps the word sees to it that nothing is taken from it and nothing given back.
    pub const CLOSED: u64 = u64::MAX;

    /// Terms whose words count from `origin`; earlier times count as that one.
    pub fn new(origin: Instant, limit: Limit) -> Self {
        let (interval, most) = (limit.interval(), limit.most() as u64);
        let room = (most + 1).saturating_sub(interval);
        Self { limit, origin, interval, most, room }
    }

    /// Takes one token: the new word, or when there is one.
    #[inline]
    pub fn take(&self, word: u64, now: Instant) -> Result<u64, Shortage> {
        let clock = self.clock(now);
        let from = word.max(clock);
        if from - clock < self.room {
            return Ok(from.wrapping_add(self.interval));
        }
        // Never, if less than a whole token fits.
        let next = from.saturating_add(self.interval);
        if self.room == 0 {
            Err(Shortage::Never)
        } else {
            Err(Shortage::Until(self.moment(next - self.most)))
        }
    }

    /// Takes a price of [`price`](Self::price).
    #[inline]
    pub fn take_price(&self, word: u64, now: Instant, price: u64) -> Result<u64, Shortage> {
        let clock = self.clock(now);
        let next = word.max(clock).saturating_add(price);
        if next <= clock.saturating_add(self.most) {
            Ok(next)
        } else {
            Err(Shortage::Until(self.moment(next - self.most)))
        }
    }

    /// Takes as many of `count` tokens as there are: the new word, and how many.
    pub fn take_batch(&self, word: u64, now: Instant, count: u32) -> (u64, u32) {
        let clock = self.clock(now);
        let from = word.max(clock);
        let there = self.most.saturating_sub(from - clock) / self.interval;
        let taken = count.min(u32::try_from(there).unwrap_or(u32::MAX));
        (from.saturating_add(u64::from(taken) * self.interval), taken)
    }

    /// Takes a price in advance: the new word, and when the request may go; refused if that is after
    /// `latest`.
    pub fn book(
        &self,
        word: u64,
        now: Instant,
        price: u64,
        latest: Instant,
    ) -> Result<(u64, Instant), Shortage> {
        let next = word.max(self.clock(now)).saturating_add(price);
        let due = self.moment(next.saturating_sub(self.most)).max(now);
        if due > latest { Err(Shortage::Until(due)) } else { Ok((next, due)) }
    }

    /// The word after a request that paid `paid` tokens and cost `actual` was settled: the rest is
    /// given back, or charged until `debt` tokens are owed. And the tokens charged to nobody.
    pub fn settle_cost(
        &self,
        word: u64,
        now: Instant,
        paid: f64,
        actual: f64,
        debt: f64,
    ) -> (u64, f64) {
        // A cost that is no number is none that was measured: the estimate stands.
        let more = if actual.is_nan() { 0.0 } else { actual.max(0.0) - paid.max(0.0) };
        if more <= 0.0 {
            return (self.refund(word, -more), 0.0);
        }
        let from = word.max(self.clock(now));
        let settled = self.charge(from, now, more, debt);
        (settled, (more - (settled - from) as f64 / self.interval as f64).max(0.0))
    }

    /// What `cost` tokens are in time, rounded up, but a whole burst is no more than there can be. A
    /// cost that is no number is.
    pub fn price(&self, cost: f64) -> Result<u64, Shortage> {
        let units = cost * self.interval as f64;
        let fits = units >= 0.0 && units.floor() <= self.most as f64;
        if fits { Ok((units.ceil() as u64).min(self.most)) } else { Err(Shortage::Never) }
    }

    /// The word after `cost` tokens were charged, owed up to `debt` where there are too few.
    pub fn charge(&self, word: u64, now: Instant, cost: f64, debt: f64) -> u64 {
        let units = |tokens: f64| (tokens.max(0.0) * self.interval as f64).ceil() as u64;
        let latest = self.empty(now).saturating_add(units(debt)).max(word);
        word.max(self.clock(now)).saturating_add(units(cost)).min(latest)
    }

    /// The word after `cost` tokens were given back. What is not finite was never taken.
    pub fn refund(&self, word: u64, cost: f64) -> u64 {
        let cost = if cost.is_finite() { cost.max(0.0) } else { 0.0 };
        word.saturating_sub((cost * self.interval as f64) as u64)
    }

    /// The word of a bucket that has no tokens at `now`.
    pub fn empty(&self, now: Instant) -> u64 {
        self.clock(now).saturating_add(self.most)
    }

    /// The same bucket under other terms: what is missing stays that many tokens, rounded up, and
    /// what a larger burst adds is missing too: it is there to be earned.
    pub fn convert(&self, word: u64, now: Instant, to: &Self) -> u64 {
        let missing = word.saturating_sub(self.clock(now));
        let saved = i128::from(self.most) - i128::from(missing);
        let kept = (saved * i128::from(to.interval)).div_euclid(i128::from(self.interval));
        let missing = (i128::from(to.most) - kept).max(0);
        to.clock(now).saturating_add(u64::try_from(missing).unwrap_or(u64::MAX))
    }

    /// When a bucket owes nothing any more; long ago if it never did.
    pub fn clear(&self, word: u64) -> Instant {
        self.moment(word.saturating_sub(self.most))
    }

    /// Tokens at `now`; below zero they are owed.
    pub fn tokens(&self, word: u64, now: Instant) -> f64 {
        let missing = word.saturating_sub(self.clock(now));
        (self.most as f64 - missing as f64) / self.interval as f64
    }

    /// Whether the bucket is full at `now`, so that its word says nothing any more.
    #[inline]
    pub fn is_full(&self, word: u64, now: Instant) -> bool {
        word <= self.clock(now)
    }

    /// What it allows.
    pub fn limit(&self) -> Limit {
        self.limit
    }

    /// `now` in the unit of words.
    #[inline]
    fn clock(&self, now: Instant) -> u64 {
        // After nine years this begins anew at zero, where every word is in the future: nothing passes.
        now.since(self.origin).as_nanos() << FRACTION.ilog2()
    }

    fn moment(&self, units: u64) -> Instant {
        self.origin + Span::from_nanos(units.div_ceil(FRACTION))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Bucket;
    use super::*;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    /// Costs that are none neither pass, nor charge, nor give anything back.
    #[test]
    fn costs_that_are_none_change_nothing() {
        let gcra = Gcra::new(at(0), Limit::new(1_000.0, 4.0));
        let word = gcra.take_price(Gcra::FULL, at(9), gcra.price(3.0).unwrap()).unwrap();
        for cost in [f64::NAN, -1.0, f64::NEG_INFINITY] {
            assert_eq!(gcra.price(cost), Err(Shortage::Never), "{cost}");
            assert_eq!(gcra.charge(word, at(9), cost, 2.0), word, "{cost}");
            assert_eq!(gcra.charge(word, at(9), 1.0, cost), gcra.charge(word, at(9), 1.0, 0.0));
            assert_eq!(gcra.refund(word, cost), word, "{cost}");
        }
        assert_eq!(gcra.settle_cost(word, at(9), 1.0, f64::NAN, 2.0), (word, 0.0));
        assert_eq!(gcra.price(f64::INFINITY), Err(Shortage::Never));
        assert_eq!(gcra.refund(word, f64::INFINITY), word);
        // More than can be said is charged up to the debt.
        assert_eq!(gcra.tokens(gcra.charge(word, at(9), f64::INFINITY, 2.0), at(9)), -2.0);
    }

    proptest! {
        /// The same answers as the bucket, with the same moments, through costs, refunds and changes.
        #[test]
        fn equals_the_bucket(
            start in 0..1_000_000_000u64,
            ops in prop::collection::vec((0..11u8, 0..3_000_000u64, 0..80u32), 1..200),
        ) {
            let limit = Limit::new(2_000.0, 10.0);
            let mut bucket = Bucket::full(at(start), limit);
            let (mut gcra, mut word) = (Gcra::new(at(start), limit), Gcra::FULL);
            let mut now = start;
            for (op, step, n) in ops {
                now += step;
                let (time, cost) = (at(now), f64::from(n) / 4.0);
                match op {
                    0 => {
                        let limit = Limit::new(f64::from(n + 1) * 100.0, f64::from(n % 13 + 1));
                        bucket.set_limit(time, limit);
                        let new = Gcra::new(at(start), limit);
                        word = gcra.convert(word, time, &new);
                        gcra = new;
                    }
                    1 => {
                        bucket.refund(time, cost);
                        word = gcra.refund(word, cost);
                    }
                    2 | 3 => {
                        let taken = gcra.take(word, time);
                        prop_assert_eq!(taken.is_ok(), bucket.take(time));
                        if let Err(Shortage::Until(due)) = taken {
                            prop_assert_eq!(due, bucket.due());
                        }
                        word = taken.unwrap_or(word);
                    }
                    4 => {
                        let (next, taken) = gcra.take_batch(word, time, n / 8);
                        prop_assert_eq!(taken, bucket.take_batch(time, n / 8));
                        word = next;
                    }
                    5 => {
                        let latest = at(now + u64::from(n) * 100_000);
                        let booked = gcra.price(cost).and_then(|price| gcra.book(word, time, price, latest));
                        prop_assert_eq!(booked.map(|(_, due)| due), bucket.book(time, cost, latest));
                        word = booked.map_or(word, |(next, _)| next);
                    }
                    6 => {
                        let (next, forgiven) = gcra.settle_cost(word, time, 5.0, cost, 2.5);
                        prop_assert_eq!(forgiven, bucket.settle_cost(time, 5.0, cost, 2.5));
                        word = next;
                    }
                    _ => {
                        let taken = gcra.price(cost).and_then(|price| gcra.take_price(word, time, price));
                        prop_assert_eq!(taken.map(|_| ()), bucket.take_cost(time, cost));
                        word = taken.unwrap_or(word);
                    }
                }
                prop_assert_eq!(gcra.tokens(word, time), bucket.tokens(time));
            }
        }

        /// A moment before the last one is judged more strictly, never more loosely.
        #[test]
        fn time_that_goes_back_mints_nothing(
            ops in prop::collection::vec(0..10_000_000u64, 1..200),
        ) {
            let limit = Limit::new(1_000.0, 3.0);
            let (gcra, mut word) = (Gcra::new(at(0), limit), Gcra::FULL);
            let mut bucket = Bucket::full(at(0), limit);
            for nanos in ops {
                if let Ok(next) = gcra.take(word, at(nanos)) {
                    word = next;
                    prop_assert!(bucket.take(at(nanos)), "at {}", nanos);
                }
            }
        }
    }
}
