//! The token bucket: `rate` tokens a second, at most `burst` of them saved up.
//!
//! Time is saved up and spent, not tokens: a bucket that has gone `interval` without a request holds
//! one token. That is whole-number arithmetic, so settling often or rarely gives the same answer to
//! the nanosecond, a token that is due at a moment is there at that moment, and the bucket equals
//! its GCRA form (`tat = at + most − saved`) exactly, not nearly.
//!
//! 1. A request takes its cost at the moment it *arrived*, whenever it is looked at; a moment before
//!    the last one counts as no time (SRTM §III-A).
//! 2. Too few tokens: refuse, saying when there will be enough ([`Bucket::take_cost`]), or take them
//!    now and go later ([`Bucket::book`]).
//! 3. Who does not know its cost pays an estimate and settles afterwards. What is then missing is
//!    owed, up to a bound, and nothing passes until it is earned.
//! 4. What was earned so far was earned under the old terms: another rate or burst settles first.
//!    Less burst clips, more is there to be earned; no change mints a token. (SRTM's own code changes
//!    the cap without crediting what was earned first.)

use crate::config::Problems;
use crate::time::{Instant, Span};

/// Fractions of a nanosecond kept. An interval of whole nanoseconds would be off by up to 5 % at 100
/// million tokens a second, one of 1/64 ns by 0.08 %; and 2⁶³ of these are four and a half years.
pub(crate) const FRACTION: u64 = 64;

/// What a bucket allows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// Tokens per second.
    pub rate: f64,
    /// Most tokens saved up.
    pub burst: f64,
}

impl Limit {
    /// Slowest and fastest rate kept, in tokens per second; others are taken to the nearer one.
    /// About one token a day, and one a nanosecond.
    pub const RATES: (f64, f64) = (1e-5, 1e9);
    /// Smallest and largest burst kept, in tokens.
    pub const BURSTS: (f64, f64) = (1e-6, 1e12);

    /// A limit of `rate` tokens a second and `burst` at once.
    pub const fn new(rate: f64, burst: f64) -> Self {
        Self { rate, burst }
    }

    /// Notes what is wrong with it. `least` is the smallest burst that makes sense: one token where
    /// tokens are requests.
    pub fn validate(&self, problems: &mut Problems, least: f64) {
        problems.range("rate", self.rate, Self::RATES.0, Self::RATES.1);
        problems.range("burst", self.burst, least.max(Self::BURSTS.0), Self::BURSTS.1);
    }

    /// Time per token, in 1/[`FRACTION`] ns; at least one.
    pub(crate) fn interval(&self) -> u64 {
        let (slowest, fastest) = Self::RATES;
        // `max` and `min` take the other number when the rate is NaN: the slowest.
        ((1e9 * FRACTION as f64) / self.rate.max(slowest).min(fastest)).round() as u64
    }

    /// Time that can be saved up, in the same unit; at least one, and at most half of what fits, so
    /// that sums of two do.
    pub(crate) fn most(&self) -> i64 {
        let burst = self.burst.max(Self::BURSTS.0).min(Self::BURSTS.1);
        ((burst * self.interval() as f64) as i64).clamp(1, i64::MAX / 2)
    }
}

/// Why tokens were not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// There will be enough at this moment, if nobody else takes them.
    Until(Instant),
    /// More than the bucket can ever hold.
    Never,
}

/// Saves up to `burst` tokens at `rate`.
#[derive(Clone, Debug)]
pub struct Bucket {
    limit: Limit,
    /// Time per token, in 1/[`FRACTION`] ns; at least one.
    interval: u64,
    /// Most time saved, in the same unit.
    most: i64,
    /// Time saved up to `at`, at most `most`; below zero it is owed.
    saved: i64,
    at: Instant,
}

impl Bucket {
    /// A bucket with no tokens yet.
    pub fn empty(now: Instant, limit: Limit) -> Self {
        Self { limit, interval: limit.interval(), most: limit.most(), saved: 0, at: now }
    }

    /// A bucket with all the tokens it can hold.
    pub fn full(now: Instant, limit: Limit) -> Self {
        let mut bucket = Self::empty(now, limit);
        bucket.saved = bucket.most;
        bucket
    }

    /// Takes a token, if there is one.
    pub fn take(&mut self, now: Instant) -> bool {
        self.settle(now);
        let enough = self.saved >= self.interval as i64;
        if enough {
            self.saved -= self.interval as i64;
        }
        enough
    }

    /// Takes `cost` tokens, all or none. A cost of nothing passes while nothing is owed.
    pub fn take_cost(&mut self, now: Instant, cost: f64) -> Result<(), Shortage> {
        self.settle(now);
        let price = self.price(cost)?;
        if self.saved < price {
            return Err(Shortage::Until(self.due_for(price)));
        }
        self.saved -= price;
        Ok(())
    }

    /// Takes as many of `count` tokens as there are; a batch is served from its front.
    pub fn take_batch(&mut self, now: Instant, count: u32) -> u32 {
        self.settle(now);
        let there = u64::try_from(self.saved).unwrap_or(0) / self.interval;
        let taken = count.min(u32::try_from(there).unwrap_or(u32::MAX));
        self.saved -= (u64::from(taken) * self.interval) as i64;
        taken
    }

    /// Takes `cost` tokens in advance and says when the request may go; refused without effect if
    /// that is after `latest`. Those that come later wait behind it.
    pub fn book(&mut self, now: Instant, cost: f64, latest: Instant) -> Result<Instant, Shortage> {
        self.settle(now);
        let price = self.price(cost)?;
        let due = self.due_for(price).max(self.at);
        if due > latest {
            return Err(Shortage::Until(due));
        }
        self.saved = self.saved.saturating_sub(price);
        Ok(due)
    }

    /// Settles a request that paid an estimate of `paid` tokens and cost `actual`: the rest is given
    /// back, or charged until `debt` tokens are owed. Returns the tokens charged to nobody.
    pub fn settle_cost(&mut self, now: Instant, paid: f64, actual: f64, debt: f64) -> f64 {
        // A cost that is no number is none that was measured: the estimate stands.
        let more = if actual.is_nan() { 0.0 } else { actual.max(0.0) - paid.max(0.0) };
        if more <= 0.0 {
            self.refund(now, -more);
            return 0.0;
        }
        self.settle(now);
        let floor = -self.units(debt).min(i64::MAX / 2);
        let charged = self.saved.saturating_sub(self.units(more)).max(floor.min(self.saved));
        let forgiven = more - (self.saved - charged) as f64 / self.interval as f64;
        self.saved = charged;
        forgiven.max(0.0)
    }

    /// Gives back `cost` tokens that were taken for nothing. What time has refilled meanwhile is not
    /// given twice.
    pub fn refund(&mut self, now: Instant, cost: f64) {
        self.settle(now);
        // Rounded down, where taking rounds up: a refund is never more than what was taken. And what
        // is not finite was never taken.
        let cost = if cost.is_finite() { cost.max(0.0) } else { 0.0 };
        let units = (cost * self.interval as f64) as i64;
        self.saved = self.saved.saturating_add(units).min(self.most);
    }

    /// Counts what was earned up to now.
    pub fn settle(&mut self, now: Instant) {
        let earned = now.since(self.at).as_nanos().saturating_mul(FRACTION);
        let earned = i64::try_from(earned).unwrap_or(i64::MAX);
        self.saved = self.saved.saturating_add(earned).min(self.most);
        self.at = self.at.max(now);
    }

    /// When the next token is there, as of the last settlement; in the past if one is there.
    pub fn due(&self) -> Instant {
        self.due_for(self.interval as i64)
    }

    /// Another limit from `now` on. What is saved or owed stays that many tokens, rounded down.
    pub fn set_limit(&mut self, now: Instant, limit: Limit) {
        self.settle(now);
        let (old, new) = (self.interval, limit.interval());
        if old != new {
            let kept = (i128::from(self.saved) * i128::from(new)).div_euclid(i128::from(old));
            let bound = i128::from(i64::MAX / 2);
            self.saved = kept.clamp(-bound, bound) as i64;
        }
        (self.limit, self.interval, self.most) = (limit, new, limit.most());
        self.saved = self.saved.min(self.most);
    }

    /// Another limit in another unit, in which nothing that was saved can be told: no tokens, and
    /// none before what is owed would have been earned.
    pub fn restart(&mut self, now: Instant, limit: Limit) {
        self.settle(now);
        // Time is saved, so a debt stays as long, whatever its tokens were.
        self.saved = self.saved.min(0);
        (self.limit, self.interval, self.most) = (limit, limit.interval(), limit.most());
    }

    /// Another rate from `now` on.
    pub fn set_rate(&mut self, now: Instant, rate: f64) {
        self.set_limit(now, Limit { rate, ..self.limit });
    }

    /// Another burst, as of the last settlement.
    pub fn set_burst(&mut self, burst: f64) {
        self.set_limit(self.at, Limit { burst, ..self.limit });
    }

    /// What it allows.
    pub fn limit(&self) -> Limit {
        self.limit
    }

    /// Tokens at `now`; below zero they are owed.
    pub fn tokens(&self, now: Instant) -> f64 {
        let earned = i64::try_from(now.since(self.at).as_nanos().saturating_mul(FRACTION));
        let saved = self.saved.saturating_add(earned.unwrap_or(i64::MAX)).min(self.most);
        saved as f64 / self.interval as f64
    }

    /// Panics if the state contradicts itself.
    pub fn invariants(&self) {
        assert!(self.saved <= self.most, "tokens within burst");
        assert!(self.interval >= 1 && self.most >= 1, "a limit is some time and some tokens");
    }

    /// What `cost` tokens are in time, rounded up, but a whole burst is no more than there can be. A
    /// cost that is no number is.
    fn price(&self, cost: f64) -> Result<i64, Shortage> {
        let units = cost * self.interval as f64;
        let fits = units >= 0.0 && units.floor() <= self.most as f64;
        if fits { Ok(self.units(cost).min(self.most)) } else { Err(Shortage::Never) }
    }

    fn units(&self, cost: f64) -> i64 {
        (cost.max(0.0) * self.interval as f64).ceil() as i64
    }

    fn due_for(&self, price: i64) -> Instant {
        let missing = u64::try_from(price.saturating_sub(self.saved)).unwrap_or(0);
        self.at + Span::from_nanos(missing.div_ceil(FRACTION))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    fn limit(rate: f64, burst: f64) -> Limit {
        Limit::new(rate, burst)
    }

    #[test]
    fn a_burst_then_the_rate() {
        let mut bucket = Bucket::full(at(0), limit(1e6, 4.0));
        assert_eq!((0..10).filter(|_| bucket.take(at(0))).count(), 4);
        for n in 1..100 {
            assert_eq!(bucket.due(), at(1_000 * n));
            assert!(!bucket.take(at(1_000 * n - 1)));
            assert!(bucket.take(bucket.due()));
        }
    }

    /// SRTM §III-A, by hand: r = 10/s, b = 2, four arrivals at once.
    #[test]
    fn delays_of_four_at_once() {
        let mut whole = Bucket::full(at(0), limit(10.0, 2.0));
        let millis = |bucket: &mut Bucket| {
            bucket.book(at(0), 1.0, Instant::FAR).unwrap().as_nanos() / 1_000_000
        };
        assert_eq!([0; 4].map(|_| millis(&mut whole)), [0, 0, 100, 200]);
        // Split in two, two arrivals each: 0, .2, 0, .2 s.
        for _ in 0..2 {
            let mut part = Bucket::full(at(0), limit(5.0, 1.0));
            assert_eq!([0; 2].map(|_| millis(&mut part)), [0, 200]);
        }
    }

    /// The last of a batch of m at an empty bucket waits m tokens.
    #[test]
    fn the_last_of_a_batch_waits_for_all_of_it() {
        let mut bucket = Bucket::empty(at(0), limit(1_000.0, 8.0));
        assert_eq!(bucket.take_batch(at(2_500_000), 5), 2);
        let mut bucket = Bucket::empty(at(0), limit(1_000.0, 8.0));
        let last = (0..5).map(|_| bucket.book(at(0), 1.0, Instant::FAR).unwrap()).last();
        assert_eq!(last, Some(at(5_000_000)));
    }

    #[test]
    fn a_refusal_says_when_and_a_cost_above_the_burst_never() {
        let mut bucket = Bucket::empty(at(0), limit(1_000.0, 3.0));
        assert_eq!(bucket.take_cost(at(0), 2.5), Err(Shortage::Until(at(2_500_000))));
        assert_eq!(bucket.take_cost(at(2_499_999), 2.5), Err(Shortage::Until(at(2_500_000))));
        assert_eq!(bucket.take_cost(at(2_500_000), 2.5), Ok(()));
        for cost in [3.1, f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(bucket.take_cost(at(2_500_000), cost), Err(Shortage::Never), "{cost}");
        }
        assert_eq!(bucket.tokens(at(2_500_000)), 0.0);
        for cost in [f64::NAN, f64::INFINITY, -1.0] {
            bucket.refund(at(2_500_000), cost);
            assert_eq!(bucket.tokens(at(2_500_000)), 0.0, "{cost}");
        }
    }

    #[test]
    fn who_cannot_wait_that_long_takes_nothing() {
        let mut bucket = Bucket::empty(at(0), limit(1_000.0, 3.0));
        assert_eq!(bucket.book(at(0), 2.0, at(1_999_999)), Err(Shortage::Until(at(2_000_000))));
        assert_eq!(bucket.tokens(at(0)), 0.0);
        assert_eq!(bucket.book(at(0), 2.0, at(2_000_000)), Ok(at(2_000_000)));
        assert_eq!(bucket.tokens(at(0)), -2.0);
    }

    #[test]
    fn debt_is_paid_before_anything_passes_and_is_bounded() {
        let mut bucket = Bucket::full(at(0), limit(1_000.0, 10.0));
        bucket.take_cost(at(0), 1.0).unwrap();
        // Cost 30 where 1 was paid: 9 were there, 5 may be owed, the other 15 nobody pays.
        assert_eq!(bucket.settle_cost(at(0), 1.0, 30.0, 5.0), 15.0);
        assert_eq!(bucket.tokens(at(0)), -5.0);
        assert_eq!(bucket.take_cost(at(0), 0.0), Err(Shortage::Until(at(5_000_000))));
        assert_eq!(bucket.take_cost(at(5_000_000), 0.0), Ok(()));
        // A request that cost less than its estimate gets the rest back.
        bucket.take_cost(at(9_000_000), 4.0).unwrap();
        assert_eq!(bucket.settle_cost(at(9_000_000), 4.0, 1.5, 5.0), 0.0);
        assert_eq!(bucket.tokens(at(9_000_000)), 2.5);
        // A measurement that is none changes nothing.
        assert_eq!(bucket.settle_cost(at(9_000_000), 4.0, f64::NAN, 5.0), 0.0);
        assert_eq!(bucket.tokens(at(9_000_000)), 2.5);
    }

    #[test]
    fn limits_that_are_none_are_the_smallest() {
        for rate in [f64::NAN, 0.0, -3.0] {
            assert_eq!(limit(rate, 1.0).interval(), limit(1e-5, 1.0).interval(), "{rate}");
        }
        assert_eq!(limit(f64::INFINITY, 1.0).interval(), FRACTION);
        for burst in [f64::NAN, 0.0, -3.0] {
            assert_eq!(limit(1.0, burst).most(), limit(1.0, 1e-6).most(), "{burst}");
        }
        let mut problems = Problems::default();
        limit(-1.0, f64::NAN).validate(&mut problems, 1.0);
        let told = problems.into_result().unwrap_err().to_string();
        assert!(told.contains("rate = -1") && told.contains("burst = NaN"), "{told}");
    }

    /// Most of a token stays most of a token, however often rate and burst change.
    #[test]
    fn a_changing_limit_mints_nothing() {
        let mut bucket = Bucket::empty(at(0), limit(1e6, 1_000.0));
        bucket.settle(at(900));
        for n in 0..10_000 {
            let (rate, burst) = ([1e9, 7.0, 0.01, 1e6][n % 4], [1.0, 1_000.0][n % 2]);
            bucket.set_limit(at(900), limit(rate, burst));
            assert!(!bucket.take(at(900)));
        }
        assert!(bucket.due() > at(900));
    }

    /// A change settles what was earned at the old rate first.
    #[test]
    fn tokens_earned_at_the_old_rate_are_kept() {
        let mut bucket = Bucket::empty(at(0), limit(1_000.0, 10.0));
        bucket.set_limit(at(4_000_000), limit(1.0, 20.0));
        assert_eq!(bucket.tokens(at(4_000_000)), 4.0);
        bucket.set_burst(3.0);
        assert_eq!(bucket.tokens(at(4_000_000)), 3.0);
        bucket.set_burst(20.0);
        assert_eq!(bucket.tokens(at(4_000_000)), 3.0);
    }

    /// The generic cell rate algorithm in unbounded whole numbers: one theoretical arrival time.
    struct Gcra {
        interval: i128,
        tolerance: i128,
        tat: i128,
    }

    impl Gcra {
        fn conforms(&mut self, now: u64, price: i128) -> bool {
            let now = i128::from(now) * i128::from(FRACTION);
            let tat = self.tat.max(now) + price;
            let fits = tat <= now + self.tolerance;
            if fits {
                self.tat = tat;
            }
            fits
        }
    }

    proptest! {
        /// Token by token and nanosecond by nanosecond, whatever costs and times; also when it is
        /// settled in between, and when moments come out of order.
        #[test]
        fn equals_its_gcra_form(
            ops in prop::collection::vec((0..3_000_000u64, 0..2_000u64, 0..20u32), 1..200),
            rate in 1..100_000u32,
            burst in 1..16u32,
        ) {
            let terms = limit(f64::from(rate), f64::from(burst));
            let mut bucket = Bucket::full(at(0), terms);
            let interval = i128::from(terms.interval());
            let mut gcra = Gcra { interval, tolerance: interval * i128::from(burst), tat: 0 };
            let mut now = 0;
            for (step, back, cost) in ops {
                now += step;
                let seen = now.saturating_sub(back).max(bucket.at.as_nanos());
                bucket.settle(at(seen - (seen - bucket.at.as_nanos()) / 2));
                let taken = bucket.take_cost(at(now.saturating_sub(back)), f64::from(cost));
                let conforms = gcra.conforms(seen, gcra.interval * i128::from(cost))
                    && cost <= burst;
                prop_assert_eq!(taken.is_ok(), conforms, "cost {} at {}", cost, seen);
                if let Err(Shortage::Until(due)) = taken {
                    // The moment it names is the first at which the same request passes.
                    let price = gcra.interval * i128::from(cost);
                    let first = gcra.tat + price - gcra.tolerance;
                    let nanos = (first + i128::from(FRACTION) - 1) / i128::from(FRACTION);
                    prop_assert_eq!(i128::from(due.as_nanos()), nanos);
                }
                bucket.invariants();
            }
        }

        /// What passes in any stretch of time is at most burst + rate × time, whatever is taken,
        /// given back and changed; a refund is as if nothing had been taken.
        #[test]
        fn never_gives_more_than_its_terms(
            ops in prop::collection::vec((0..4u8, 0..500_000u64, 1..40u32), 1..150),
        ) {
            let mut bucket = Bucket::full(at(0), limit(5_000.0, 10.0));
            // An upper bound on tokens in exact time: earned at the rate in force, clipped at the
            // burst in force, and in units no rounding of the bucket can reach.
            let (mut ceiling, mut rate, mut burst, mut now) = (10.0f64, 5_000.0, 10.0, 0);
            for (op, step, n) in ops {
                now += step;
                ceiling = (ceiling + step as f64 * rate / 1e9).min(burst);
                let amount = f64::from(n) / 4.0;
                match op {
                    0 => {
                        (rate, burst) = (f64::from(n) * 300.0, f64::from(n % 12 + 1));
                        bucket.set_limit(at(now), limit(rate, burst));
                        ceiling = ceiling.min(burst);
                    }
                    1 => {
                        if bucket.take_cost(at(now), amount).is_ok() {
                            bucket.refund(at(now), amount);
                        }
                    }
                    _ => {
                        if bucket.take_cost(at(now), amount).is_ok() {
                            ceiling -= amount;
                        }
                    }
                }
                prop_assert!(ceiling > -1e-3, "took {} more than there can be", -ceiling);
                prop_assert!(bucket.tokens(at(now)) <= ceiling + 1e-3);
                bucket.invariants();
            }
        }

        /// Against tokens in floating point; and settling in between changes nothing.
        #[test]
        fn equals_a_naive_bucket(
            ops in prop::collection::vec((0..4u8, 0..3_000_000u64, 1..2_000u32), 1..100),
            burst in 1..8u32,
        ) {
            let mut bucket = Bucket::full(at(0), limit(1_000.0, f64::from(burst)));
            let (mut tokens, mut rate, mut now) = (f64::from(burst), 1_000.0, 0);
            for (op, step, new_rate) in ops {
                now += step;
                tokens = (tokens + step as f64 * rate / 1e9).min(f64::from(burst));
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
