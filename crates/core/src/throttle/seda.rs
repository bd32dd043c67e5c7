//! SEDA at the caller: each caller finds its own sending rate from its own response times.
//!
//! SEDA (USITS'03) put this controller before a server's stage. Breakwater §5 moved it into every
//! client and changed the 90th percentile to the 99th and the second to a millisecond; this is that
//! form ("SEDA-c"), with the constants of Breakwater's code.
//!
//! 1. Requests take a token from a bucket of depth 4, and wait for one if there is none. The rate
//!    starts at random, so that a thousand callers do not move in step.
//! 2. After 100 response times, or a millisecond after the last update, take their 99th percentile
//!    and smooth it: `cur = 0.7 cur + 0.3 sample`.
//! 3. With `err = (cur − target) / target`: above 0, divide the rate by `adj_d`; below −0.5, add
//!    `−(err + 0.1) · adj_i`; between, hold. The step at −0.5 is a jump from 0 to `0.4 adj_i` in
//!    SEDA's sources too, and meant so.
//!
//! Where we deviate from Breakwater's code, to have it as strong as it can be:
//!
//! - There the millisecond is looked at only when a response arrives, so a stalled client never
//!   adapts. Here it is a timer. While requests are outstanding, nothing is answered and the oldest
//!   is older than the target, each period counts as a miss.
//! - There, a hundredth sample that comes together with the timeout wraps the sample count to zero,
//!   and the first sample passes for the percentile. Here it is always the percentile of all.
//! - The rate has a ceiling, so that a long calm does not take it out of reach of the next overload.
//!
//! Refusals are not response times and say nothing here; failures (timeouts) are.

use serde::{Deserialize, Serialize};

use super::{Answer, Response, Throttle, ThrottleConfig};
use crate::config::Problems;
use crate::context::Context;
use crate::limit::{Bucket, Limit};
use crate::request::Cx;
use crate::rng::Rng;
use crate::signal::{Ewma, Quantile};
use crate::time::{Instant, Span};
use crate::verdict::{Outcome, Passage};

/// Above this error the rate is not raised (SEDA's sources).
const RAISE_BELOW: f64 = -0.5;
/// Offset of the error in the additive step.
const RAISE_OFFSET: f64 = 0.1;

/// A sending rate that follows response times.
#[derive(Clone, Debug)]
pub struct Seda {
    config: SedaConfig,
    /// Requests per second, in [floor, ceiling].
    rate: f64,
    bucket: Bucket,
    /// Response times since the last update.
    sample: Quantile,
    /// The smoothed percentile, in nanoseconds.
    smoothed: Ewma,
    last_update: Instant,
    /// Requests sent and not answered.
    outstanding: u32,
    /// The last response, or the send that ended idleness: the oldest outstanding request is at
    /// least as old. Means nothing while none is outstanding.
    quiet_since: Instant,
    /// When a token comes for a request that was told to wait.
    waiting: Option<Instant>,
}

impl Seda {
    /// A throttle whose first rate is decided by `seed`.
    pub fn new(config: &SedaConfig, now: Instant, seed: u64) -> Self {
        let spread = config.start_high - config.start_low;
        let rate = config.start_low + spread * Rng::new(seed).unit();
        Self {
            config: config.clone(),
            rate,
            bucket: Bucket::full(now, Limit::new(rate, f64::from(config.depth))),
            sample: Quantile::new(config.samples),
            smoothed: Ewma::new(config.gain),
            last_update: now,
            outstanding: 0,
            quiet_since: now,
            waiting: None,
        }
    }

    /// Requests per second now.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// When there is something to learn from: a period's samples, or that there were none.
    fn update_due(&self) -> Option<Instant> {
        let period = self.last_update + self.config.timeout;
        if !self.sample.is_empty() {
            return Some(period);
        }
        // At the floor a further miss would change nothing.
        let stalls = self.outstanding > 0 && self.rate > self.config.floor;
        let too_old = self.quiet_since + self.config.target + Span::from_nanos(1);
        stalls.then(|| period.max(too_old))
    }

    fn update(&mut self, at: Instant) {
        let rate = match self.sample.take(self.config.percentile) {
            Some(latency) => {
                self.smoothed.add(latency as f64);
                self.config.adjust(self.rate, self.smoothed.get().unwrap_or(0.0))
            }
            None => self.config.lower(self.rate),
        };
        self.set_rate(at, rate);
        self.last_update = at;
    }

    fn set_rate(&mut self, at: Instant, rate: f64) {
        self.rate = rate;
        self.bucket.set_rate(at, rate);
        self.waiting = self.waiting.map(|_| self.bucket.due());
    }
}

impl Throttle for Seda {
    fn name(&self) -> &'static str {
        "seda"
    }

    fn on_submit(&mut self, cx: &mut Cx, _context: &Context) -> Passage {
        if !self.bucket.take(cx.now) {
            self.waiting = Some(self.bucket.due());
            return Passage::Hold;
        }
        if self.outstanding == 0 {
            self.quiet_since = cx.now;
        }
        self.outstanding += 1;
        Passage::Send
    }

    fn on_response(&mut self, cx: &mut Cx, response: &Response) {
        self.outstanding = self.outstanding.saturating_sub(1);
        self.quiet_since = cx.now;
        let timed = matches!(response.answer, Answer::Done(Outcome::Serve | Outcome::Fail));
        if !timed {
            return;
        }
        let full = self.sample.add(response.latency.as_nanos());
        if full || cx.now >= self.last_update + self.config.timeout {
            self.update(cx.now);
        }
    }

    fn settle(&mut self, cx: &mut Cx) {
        // Ends: samples are gone after one turn, and misses lead to the floor.
        while let Some(due) = self.update_due().filter(|due| *due <= cx.now) {
            self.update(due);
        }
        self.bucket.settle(cx.now);
        self.waiting = self.waiting.filter(|due| *due > cx.now);
    }

    fn next_wakeup(&self) -> Option<Instant> {
        self.waiting.into_iter().chain(self.update_due()).min()
    }

    fn adopt(&mut self, outstanding: u32) {
        self.outstanding = outstanding;
    }

    fn reconfigure(&mut self, config: &ThrottleConfig) -> bool {
        let ThrottleConfig::Seda(config) = config else { return false };
        if config.samples != self.config.samples {
            self.sample = Quantile::new(config.samples);
        }
        let mut smoothed = Ewma::new(config.gain);
        self.smoothed.get().into_iter().for_each(|value| smoothed.add(value));
        self.smoothed = smoothed;
        self.config = config.clone();
        self.bucket.set_burst(f64::from(config.depth));
        // No time has passed since `settle`, which comes before every change.
        self.set_rate(self.last_update, self.rate.clamp(config.floor, config.ceiling));
        true
    }

    fn invariants(&self) {
        let (floor, ceiling) = (self.config.floor, self.config.ceiling);
        assert!((floor..=ceiling).contains(&self.rate), "rate {}", self.rate);
        self.bucket.invariants();
        self.sample.invariants();
    }

    fn clone_box(&self) -> Box<dyn Throttle> {
        Box::new(self.clone())
    }
}

/// Parameters of SEDA at the caller. The defaults are Breakwater's for 1,000 callers of a service
/// of 10 µs; `target` and the two steps have to be tuned per service and number of callers, which is
/// its weakness (Breakwater §5.1).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SedaConfig {
    /// Response time to keep the percentile at. Less holds back sooner. Default 80 µs.
    pub target: Span,
    /// Step upward, in requests per second at an error of −1.1. More recovers faster and overshoots
    /// more; has to shrink as callers grow in number. Default 40.
    pub adj_i: f64,
    /// Divisor downward. More backs off harder. Default 1.04.
    pub adj_d: f64,
    /// Response times per update. More is steadier and slower. Default 100 (SEDA).
    pub samples: usize,
    /// Longest time between updates while there is anything to learn from. Default 1 ms
    /// (Breakwater's code; SEDA itself has 1 s).
    pub timeout: Span,
    /// Share of response times that should be below the target. Default 0.99 (Breakwater; SEDA
    /// itself has 0.9).
    pub percentile: f64,
    /// Weight of a new percentile against the smoothed one, 0 to 1. More follows faster. Default
    /// 0.3 (SEDA).
    pub gain: f64,
    /// Lowest first rate, per second. Default 2.
    pub start_low: f64,
    /// Highest first rate, per second. Default 4; Breakwater's code has 4 or 8.
    pub start_high: f64,
    /// Lowest rate, per second. More keeps a caller alive, and is what the callee cannot refuse
    /// times the number of callers. Default 2.
    pub floor: f64,
    /// Highest rate, per second. Less reaches a sensible rate sooner after a long calm. Default one
    /// million (judgement: no caller of ours is faster).
    pub ceiling: f64,
    /// Requests that may leave at once after a pause. Default 4.
    pub depth: u32,
}

impl Default for SedaConfig {
    fn default() -> Self {
        Self {
            target: Span::from_micros(80),
            adj_i: 40.0,
            adj_d: 1.04,
            samples: 100,
            timeout: Span::from_millis(1),
            percentile: 0.99,
            gain: 0.3,
            start_low: 2.0,
            start_high: 4.0,
            floor: 2.0,
            ceiling: 1e6,
            depth: 4,
        }
    }
}

impl SedaConfig {
    /// Step 3: the rate that follows `rate` when the smoothed percentile is `latency` nanoseconds.
    fn adjust(&self, rate: f64, latency: f64) -> f64 {
        let target = self.target.as_nanos_f64();
        let error = (latency - target) / target;
        if error > 0.0 {
            self.lower(rate)
        } else if error < RAISE_BELOW {
            (rate - (error + RAISE_OFFSET) * self.adj_i).min(self.ceiling)
        } else {
            rate
        }
    }

    fn lower(&self, rate: f64) -> f64 {
        (rate / self.adj_d).max(self.floor)
    }

    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        for (field, span) in [("target", self.target), ("timeout", self.timeout)] {
            let fine = (Span::from_nanos(1)..=Span::from_secs(3600)).contains(&span);
            problems.check(field, span, fine, "1ns to 1h");
        }
        problems.range("adj_i", self.adj_i, 0.0, 1e9);
        problems.range("adj_d", self.adj_d, 1.001, 1000.0);
        let samples = (1..=65_536).contains(&self.samples);
        problems.check("samples", self.samples, samples, "1 to 65536");
        problems.range("percentile", self.percentile, 0.0, 1.0);
        problems.range("gain", self.gain, 0.001, 1.0);
        problems.range("floor", self.floor, 0.001, 1e9);
        problems.range("ceiling", self.ceiling, self.floor, 1e9);
        problems.range("start_low", self.start_low, self.floor, self.ceiling);
        problems.range("start_high", self.start_high, self.start_low, self.ceiling);
        problems.check("depth", self.depth, (1..=1 << 20).contains(&self.depth), "1 to 1048576");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::throttle::testing::Bench;

    fn started_at(rate: f64) -> SedaConfig {
        SedaConfig { start_low: rate, start_high: rate, ..SedaConfig::default() }
    }

    fn micros(n: u64) -> Span {
        Span::from_micros(n)
    }

    /// Runs `body` on a throttle and the bench that lends it time.
    fn seda(config: &SedaConfig, body: impl FnOnce(&mut Seda, &mut Bench)) {
        let mut bench = Bench::new(ThrottleConfig::Open);
        let mut seda = Seda::new(config, bench.cx.now, 7);
        body(&mut seda, &mut bench);
        seda.invariants();
    }

    fn answer(seda: &mut Seda, bench: &mut Bench, latency: Span, answer: Answer) {
        let response = Response { context: Context::default(), latency, answer };
        seda.settle(&mut bench.cx);
        seda.on_response(&mut bench.cx, &response);
    }

    const SERVED: Answer = Answer::Done(Outcome::Serve);

    /// Breakwater's code, worked example: target 80, rate 100, client variant (40, 1.04).
    #[test]
    fn the_control_law() {
        for (latency, expected) in [(20, 126.0), (39, 116.5), (41, 100.0), (80, 100.0), (81, 96.15)]
        {
            seda(&started_at(100.0), |seda, bench| {
                for _ in 0..99 {
                    answer(seda, bench, micros(latency), SERVED);
                    assert_eq!(seda.rate(), 100.0, "no update before the hundredth sample");
                }
                answer(seda, bench, micros(latency), SERVED);
                assert!((seda.rate() - expected).abs() < 0.005, "{latency}: {}", seda.rate());
            });
        }
    }

    #[test]
    fn the_percentile_is_smoothed() {
        seda(&started_at(100.0), |seda, bench| {
            for latency in [20, 200] {
                // Two of a hundred are slow: the 99th percentile is one of them.
                for n in 0..100 {
                    answer(seda, bench, micros(if n < 98 { 10 } else { latency }), SERVED);
                }
            }
            // 0.7 · 20 + 0.3 · 200 = 74: inside the band that holds.
            assert!((seda.smoothed.get().unwrap() - 74_000.0).abs() < 1e-6);
            assert!((seda.rate() - 126.0).abs() < 1e-9);
        });
    }

    /// Second defect of Breakwater's code: the hundredth sample together with the timeout.
    #[test]
    fn a_full_sample_at_the_timeout_counts_whole() {
        seda(&started_at(100.0), |seda, bench| {
            answer(seda, bench, micros(20), SERVED);
            for _ in 0..98 {
                answer(seda, bench, micros(200), SERVED);
            }
            bench.pass(micros(999));
            answer(seda, bench, micros(200), SERVED);
            assert_eq!(seda.smoothed.get(), Some(200_000.0));
        });
    }

    #[test]
    fn few_samples_count_when_the_time_is_up() {
        seda(&started_at(100.0), |seda, bench| {
            answer(seda, bench, micros(20), SERVED);
            assert_eq!(seda.next_wakeup(), Some(Instant::ZERO + micros(1_000)));
            bench.pass(micros(1_000));
            seda.settle(&mut bench.cx);
            assert!((seda.rate() - 126.0).abs() < 1e-9);
            assert_eq!(seda.next_wakeup(), None, "nothing outstanding, nothing to learn");
        });
    }

    /// First defect of Breakwater's code: a stalled client never adapts. And waking late, after any
    /// number of periods, is the same as waking for each.
    #[test]
    fn a_stall_lowers_the_rate_however_late_we_look() {
        let config = started_at(1_000.0);
        seda(&config, |exact, bench| {
            assert_eq!(exact.on_submit(&mut bench.cx, &Context::default()), Passage::Send);
            let mut lazy = exact.clone();
            let mut misses = 0;
            while let Some(at) = exact.next_wakeup() {
                bench.pass(at.since(bench.cx.now));
                exact.settle(&mut bench.cx);
                misses += 1;
                if misses == 10 {
                    assert_eq!(bench.cx.now, Instant::ZERO + micros(10_000));
                    assert!((exact.rate() - 1_000.0 / 1.04f64.powi(10)).abs() < 1e-9);
                }
            }
            // ln(1000 / 2) / ln 1.04 = 158.4
            assert_eq!((misses, exact.rate()), (159, 2.0));
            bench.pass(Span::from_secs(3_600));
            lazy.settle(&mut bench.cx);
            assert_eq!((lazy.rate(), lazy.last_update), (exact.rate(), exact.last_update));
        });
    }

    #[test]
    fn a_slow_target_is_waited_for_before_silence_is_a_miss() {
        let config = SedaConfig { target: Span::from_millis(50), ..started_at(100.0) };
        seda(&config, |seda, bench| {
            seda.on_submit(&mut bench.cx, &Context::default());
            let due = Instant::ZERO + Span::from_millis(50) + Span::from_nanos(1);
            assert_eq!(seda.next_wakeup(), Some(due));
        });
    }

    #[test]
    fn a_burst_then_holds_until_the_next_token() {
        seda(&started_at(100.0), |seda, bench| {
            for _ in 0..4 {
                assert_eq!(seda.on_submit(&mut bench.cx, &Context::default()), Passage::Send);
                answer(seda, bench, micros(60), SERVED);
            }
            assert_eq!(seda.on_submit(&mut bench.cx, &Context::default()), Passage::Hold);
            bench.pass(Span::from_millis(9));
            seda.settle(&mut bench.cx);
            assert_eq!(seda.next_wakeup(), Some(Instant::ZERO + Span::from_millis(10)));
            bench.pass(Span::from_millis(1));
            seda.settle(&mut bench.cx);
            assert_eq!(seda.next_wakeup(), None);
            assert_eq!(seda.on_submit(&mut bench.cx, &Context::default()), Passage::Send);
        });
    }

    #[test]
    fn first_rates_are_spread() {
        let config = SedaConfig::default();
        let rates: Vec<f64> =
            (0..1_000).map(|seed| Seda::new(&config, Instant::ZERO, seed).rate()).collect();
        let mean = rates.iter().sum::<f64>() / 1_000.0;
        assert!((mean - 3.0).abs() < 0.1, "{mean}");
        assert!(rates.iter().all(|rate| (2.0..4.0).contains(rate)));
    }
}
