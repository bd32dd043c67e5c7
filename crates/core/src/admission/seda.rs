//! SEDA's adaptive admission control (Welsh and Culler, USITS 2003), at the server as published.
//!
//! The problem: keep the 90th percentile of response times at a target. The idea: let requests in
//! through a token bucket whose rate follows that percentile.
//!
//! 1. Sample the response times of 100 completions, or of one second; take their 90th percentile
//!    and smooth it, 0.7 old and 0.3 new.
//! 2. err = (percentile − target) ÷ target. Above 0: divide the rate by 1.2. Below −0.5: add
//!    2·(−err − 0.1) requests per second. In between: hold. The increase jumps from nothing to 0.8
//!    at −0.5; that is how its authors' code has it.
//! 3. Several classes, here the criticalities: when a class misses its target, every less important
//!    class is divided by ten and may not increase the next time. Only the least important class,
//!    or one that missed 20 times with nobody left to penalise, cuts itself.
//!
//! The constants are those of the controller in its authors' sources. Breakwater's figures use a
//! variant in each *client*, which is the throttle of the same name.
//!
//! Deviation: the percentile needs completions, and a stalled server has none. A class that let
//! requests in and saw none complete takes the age of the oldest waiting request as its sample when
//! the period ends.

use serde::{Deserialize, Serialize};

use super::{Admission, AdmissionConfig, Needs};
use crate::config::Problems;
use crate::meter::Cost;
use crate::rank::{Criticality, Rank};
use crate::request::{Cx, Request};
use crate::signal::{Backlog, DelaySignal, Ewma};
use crate::time::{Instant, Span};
use crate::verdict::{Advice, Outcome, Reason, Rejection, Verdict};

/// The SEDA policy: one rate per class.
#[derive(Clone, Debug)]
pub struct Seda {
    config: SedaConfig,
    /// Most important first: one, or one per criticality.
    classes: Vec<Class>,
}

#[derive(Clone, Debug)]
struct Class {
    /// Requests let in per second.
    rate: f64,
    /// Tokens there were at `refilled`, at most the depth.
    tokens: f64,
    refilled: Instant,
    /// Response times of the present period, nanoseconds; fewer than a full sample.
    samples: Vec<u64>,
    /// The smoothed percentile, nanoseconds.
    percentile: Ewma,
    /// Start of the present period.
    since: Instant,
    /// Requests that arrived in it.
    arrivals: u32,
    /// Whether something was let in after the last completion.
    awaiting: bool,
    /// Whether a more important class cut this one since it last could increase.
    preempted: bool,
    /// Misses in a row with nobody left to penalise.
    misses: u32,
}

/// Weight of a new percentile.
const GAIN: f64 = 0.3;
/// By how much a class divides its rate when it misses its target.
const DECREASE: f64 = 1.2;
/// By how much a class divides the rates of less important ones.
const PENALTY: f64 = 10.0;
/// Requests per second added per unit of error, above the offset.
const INCREASE: f64 = 2.0;
const INCREASE_OFFSET: f64 = 0.1;
const INCREASE_BELOW: f64 = -0.5;
/// Misses with nobody left to penalise after which a class cuts itself.
const PATIENCE: u32 = 20;
/// A token that is short by less than this is whole: it was earned in many small parts.
const ROUNDING: f64 = 1e-9;
/// Periods of one stall that are worked through; in fewer, any rate has fallen to its floor.
const STALL_MEMORY: u64 = 2048;

impl Class {
    fn new(config: &SedaConfig, now: Instant) -> Self {
        Self {
            rate: config.start_rate,
            tokens: config.depth,
            refilled: now,
            samples: Vec::with_capacity(config.samples as usize),
            percentile: Ewma::new(GAIN),
            since: now,
            arrivals: 0,
            awaiting: false,
            preempted: false,
            misses: 0,
        }
    }

    fn refill(&mut self, now: Instant, depth: f64) {
        let earned = self.rate * now.since(self.refilled).as_secs_f64();
        self.tokens = (self.tokens + earned).min(depth);
        self.refilled = self.refilled.max(now);
    }

    /// Changes the rate. Tokens earned so far are settled first.
    fn set_rate(&mut self, now: Instant, rate: f64, config: &SedaConfig) {
        self.refill(now, config.depth);
        self.rate = rate.clamp(config.min_rate, config.max_rate);
    }

    /// The percentile of the samples, which are used up.
    fn take_percentile(&mut self, quantile: f64) -> Option<f64> {
        let last = self.samples.len().checked_sub(1)?;
        let index = ((self.samples.len() as f64 * quantile) as usize).min(last);
        let (_, percentile, _) = self.samples.select_nth_unstable(index);
        let percentile = *percentile as f64;
        self.samples.clear();
        Some(percentile)
    }
}

impl Seda {
    /// A policy that starts at the configured rate.
    pub fn new(config: &SedaConfig, now: Instant) -> Self {
        let classes = if config.per_criticality { Criticality::ALL.len() } else { 1 };
        Self { config: *config, classes: vec![Class::new(config, now); classes] }
    }

    /// The rate at which requests of `rank` are let in, per second.
    pub fn rate(&self, rank: Rank) -> f64 {
        self.classes[self.class_of(rank)].rate
    }

    fn class_of(&self, rank: Rank) -> usize {
        if self.config.per_criticality { rank.criticality().index() } else { 0 }
    }

    /// The class whose period ended first, and when.
    fn next_due(&self, active: bool) -> Option<(Instant, usize)> {
        let period = self.config.period;
        let due = |(index, class): (usize, &Class)| (class.since + period, index);
        let is_active = |class: &Class| class.awaiting || !class.samples.is_empty();
        let classes = self.classes.iter().enumerate();
        classes.filter(|(_, class)| !active || is_active(class)).map(due).min()
    }

    /// Ends a class's period as of `at`.
    fn conclude(&mut self, index: usize, at: Instant, now: Instant, backlog: &Backlog) {
        let class = &mut self.classes[index];
        let stalled = class.awaiting && backlog.waiting() > 0;
        let percentile = class
            .take_percentile(self.config.quantile)
            .or_else(|| stalled.then(|| backlog.delay(at, DelaySignal::Oldest).as_nanos_f64()));
        let period = self.config.period.as_nanos().max(1);
        let missed = now.since(at).as_nanos() / period;
        let skipped = if stalled { missed.saturating_sub(STALL_MEMORY) } else { missed };
        class.since = at + Span::from_nanos(skipped * period);
        class.arrivals = 0;
        if let Some(percentile) = percentile {
            class.percentile.add(percentile);
            let target = self.config.target.as_nanos_f64();
            let smoothed = class.percentile.get().unwrap_or(percentile);
            self.adjust(index, at, (smoothed - target) / target);
        }
    }

    fn adjust(&mut self, index: usize, at: Instant, err: f64) {
        if err > 0.0 {
            return self.miss(index, at);
        }
        let class = &mut self.classes[index];
        class.misses = 0;
        if err < INCREASE_BELOW && !std::mem::take(&mut class.preempted) {
            let rate = class.rate + INCREASE * (-err - INCREASE_OFFSET);
            class.set_rate(at, rate, &self.config);
        }
    }

    /// A class missed its target: less important ones pay first.
    fn miss(&mut self, index: usize, at: Instant) {
        let config = self.config;
        let mut penalised = false;
        for class in &mut self.classes[index + 1..] {
            if class.rate > config.min_rate {
                class.set_rate(at, class.rate / PENALTY, &config);
                class.preempted = true;
                penalised = true;
            }
        }
        let last = index + 1 == self.classes.len();
        let class = &mut self.classes[index];
        class.misses = if penalised { 0 } else { class.misses + 1 };
        if last || class.misses >= PATIENCE {
            class.misses = 0;
            class.set_rate(at, class.rate / DECREASE, &config);
        }
    }
}

impl Admission for Seda {
    fn name(&self) -> &'static str {
        "seda"
    }

    fn needs(&self) -> Needs {
        Needs { ages: true, ..Needs::default() }
    }

    fn on_arrival(&mut self, cx: &mut Cx, _backlog: &Backlog, request: &Request) -> Verdict {
        let index = self.class_of(request.context.rank);
        let class = &mut self.classes[index];
        class.arrivals = class.arrivals.saturating_add(1);
        class.refill(cx.now, self.config.depth);
        if class.tokens < 1.0 - ROUNDING {
            let elapsed = cx.now.since(class.since).max(Span::from_millis(1)).as_secs_f64();
            let offered = f64::from(class.arrivals) / elapsed;
            let advice = Advice::Elsewhere;
            return Verdict::Refuse(Rejection::new(Reason::Rate, offered, class.rate, advice));
        }
        class.tokens = (class.tokens - 1.0).max(0.0);
        class.awaiting = true;
        Verdict::Admit
    }

    fn on_finish(
        &mut self,
        cx: &mut Cx,
        backlog: &Backlog,
        request: &Request,
        outcome: Outcome,
        _cost: Cost,
    ) {
        let index = self.class_of(request.context.rank);
        let class = &mut self.classes[index];
        class.awaiting = false;
        if outcome == Outcome::Cancel {
            return;
        }
        class.samples.push(cx.now.since(request.arrived).as_nanos());
        if class.samples.len() >= self.config.samples as usize {
            self.conclude(index, cx.now, cx.now, backlog);
        }
    }

    fn settle(&mut self, cx: &mut Cx, backlog: &Backlog) {
        // At the end of time nothing comes after.
        while let Some((due, index)) =
            self.next_due(false).filter(|(due, _)| *due <= cx.now && *due < Instant::FAR)
        {
            self.conclude(index, due, cx.now, backlog);
        }
    }

    fn next_wakeup(&self) -> Option<Instant> {
        self.next_due(true).map(|(due, _)| due)
    }

    fn reconfigure(&mut self, config: &AdmissionConfig) -> bool {
        match config {
            AdmissionConfig::Seda(config)
                if config.per_criticality == self.config.per_criticality =>
            {
                self.config = *config;
                for class in &mut self.classes {
                    class.tokens = class.tokens.min(config.depth);
                    class.rate = class.rate.clamp(config.min_rate, config.max_rate);
                    class.samples.truncate(config.samples as usize - 1);
                }
                true
            }
            _ => false,
        }
    }

    fn invariants(&self) {
        let SedaConfig { min_rate, max_rate, depth, samples, .. } = self.config;
        for class in &self.classes {
            assert!((min_rate..=max_rate).contains(&class.rate), "rate {}", class.rate);
            assert!((0.0..=depth).contains(&class.tokens), "tokens {}", class.tokens);
            assert!(class.samples.len() < samples as usize, "a full sample is used at once");
            assert!(class.misses < PATIENCE);
        }
    }

    fn clone_box(&self) -> Box<dyn Admission> {
        Box::new(self.clone())
    }
}

/// Parameters of [`Seda`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SedaConfig {
    /// Response time that the percentile is held at. Less refuses more. Default 100 ms, judgement:
    /// it depends on the service.
    pub target: Span,
    /// Which percentile, as a fraction. More looks further into the tail. Default 0.9 (SEDA).
    pub quantile: f64,
    /// Completions per sample. Fewer reacts sooner to a noisier percentile. Default 100 (SEDA).
    pub samples: u32,
    /// Longest time per sample. Default 1 s (SEDA).
    pub period: Span,
    /// Whether each criticality is a class of its own. Default: one class, as in the figures of
    /// others.
    pub per_criticality: bool,
    /// Rate at the start, per second and class. Default 100 (SEDA).
    pub start_rate: f64,
    /// Least rate. A class at this rate still probes. Default 0.05 (SEDA).
    pub min_rate: f64,
    /// Greatest rate: must be above what the service can do. Default 5,000 (SEDA).
    pub max_rate: f64,
    /// Depth of the token bucket, at least 1. More lets bursts in. Default 1 (SEDA).
    pub depth: f64,
}

impl Default for SedaConfig {
    fn default() -> Self {
        Self {
            target: Span::from_millis(100),
            quantile: 0.9,
            samples: 100,
            period: Span::from_secs(1),
            per_criticality: false,
            start_rate: 100.0,
            min_rate: 0.05,
            max_rate: 5_000.0,
            depth: 1.0,
        }
    }
}

impl SedaConfig {
    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        let hour = Span::from_secs(3600);
        let fine = (Span::from_nanos(1)..=hour).contains(&self.target);
        problems.check("target", self.target, fine, "1ns to 1h");
        problems.range("quantile", self.quantile, 0.0, 1.0);
        let samples = self.samples;
        problems.check("samples", samples, (1..=10_000).contains(&samples), "1 to 10000");
        let fine = (Span::from_micros(1)..=hour).contains(&self.period);
        problems.check("period", self.period, fine, "1us to 1h");
        problems.range("min_rate", self.min_rate, 1e-6, 1e9);
        problems.range("max_rate", self.max_rate, self.min_rate, 1e9);
        problems.range("start_rate", self.start_rate, self.min_rate, self.max_rate);
        problems.range("depth", self.depth, 1.0, 1e9);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, at};
    use super::*;
    use crate::meter::Weight;

    const SECOND: u64 = 1_000_000;

    fn seda(per_criticality: bool) -> Seda {
        let target = Span::from_micros(80);
        let config = SedaConfig { target, per_criticality, ..SedaConfig::default() };
        Seda::new(&config, Instant::ZERO)
    }

    fn rates(seda: &Seda) -> Vec<f64> {
        seda.classes.iter().map(|class| class.rate).collect()
    }

    /// SEDA's sources, worked example: target 80, rate 100; p90 of 20, 39, 41…80 and 81.
    #[test]
    fn the_oracle() {
        for (percentile, expected) in
            [(20, 101.3), (39, 100.825), (41, 100.0), (80, 100.0), (81, 100.0 / 1.2)]
        {
            let mut bench = Bench::with(Box::new(seda(false)));
            for n in 0..100 {
                // A tenth above the percentile, most below: only the 90th counts.
                let latency = if n < 90 { percentile.min(n) } else { percentile };
                bench.finish(at(SECOND / 2), Rank::UNRANKED, Span::from_micros(latency));
            }
            let rate = bench.policy.rate(Rank::UNRANKED);
            assert!((rate - expected).abs() < 1e-9, "{percentile}: {rate}");
        }
    }

    /// The token bucket of depth 1: a request every 10 ms at the start.
    #[test]
    fn lets_in_at_its_rate() {
        let mut bench = Bench::with(Box::new(seda(false)));
        let admitted = (0..1_000u64)
            .filter(|n| bench.arrive(at(n * 1_000), Rank::UNRANKED) == Verdict::Admit)
            .count();
        assert!((99..=101).contains(&admitted), "{admitted}");
    }

    /// Without completions the timer still ends the period.
    #[test]
    fn a_stall_cuts_the_rate_and_an_idle_second_does_not() {
        let mut bench = Bench::with(Box::new(seda(false)));
        bench.arrive(at(SECOND / 2), Rank::UNRANKED);
        assert_eq!(bench.policy.next_wakeup(), Some(at(SECOND)));
        let mut stalled = bench.clone_at_rest();
        stalled.backlog.on_enqueue(at(SECOND / 2), 0, at(SECOND / 2), Weight::ONE);
        stalled.tell(at(3 * SECOND), |_, _, _| ());
        let cut = 100.0 / 1.2 / 1.2 / 1.2;
        assert!((stalled.policy.rate(Rank::UNRANKED) - cut).abs() < 1e-9);
        // A million missed periods take bounded time and end at the floor.
        stalled.tell(at(1_000_000 * SECOND), |_, _, _| ());
        assert_eq!(stalled.policy.rate(Rank::UNRANKED), 0.05);
        bench.tell(at(1_000_000 * SECOND), |_, _, _| ());
        assert_eq!(bench.policy.rate(Rank::UNRANKED), 100.0);
    }

    /// SEDA's sources, multi-class: the less important pay first, tenfold, and may not grow once.
    #[test]
    fn less_important_classes_pay_first() {
        let mut seda = seda(true);
        seda.adjust(1, at(0), 0.5);
        assert_eq!(rates(&seda), [100.0, 100.0, 10.0, 10.0]);
        seda.adjust(3, at(0), -0.75);
        assert_eq!(rates(&seda)[3], 10.0, "pre-empted once");
        seda.adjust(3, at(0), -0.75);
        assert!((rates(&seda)[3] - 11.3).abs() < 1e-9);
        // The least important class has only itself to cut.
        seda.adjust(3, at(0), 0.1);
        assert!((rates(&seda)[3] - 11.3 / 1.2).abs() < 1e-9);
        for _ in 0..3 {
            seda.adjust(1, at(0), 0.5);
        }
        assert_eq!(rates(&seda), [100.0, 100.0, 0.05, 0.05]);
        for _ in 0..19 {
            seda.adjust(1, at(0), 0.5);
        }
        assert_eq!(rates(&seda)[1], 100.0, "19 misses with nobody left to penalise");
        seda.adjust(1, at(0), 0.5);
        assert!((rates(&seda)[1] - 100.0 / 1.2).abs() < 1e-9);
        assert_eq!(rates(&seda)[0], 100.0);
    }

    #[test]
    fn bad_parameters_are_all_named() {
        let config = SedaConfig {
            samples: 0,
            min_rate: 10.0,
            max_rate: 5.0,
            depth: 0.5,
            ..SedaConfig::default()
        };
        let mut problems = Problems::default();
        AdmissionConfig::Seda(config).validate(&mut problems);
        let error = problems.into_result().unwrap_err();
        let fields: Vec<_> = error.problems().iter().map(|problem| &*problem.field).collect();
        assert_eq!(fields, ["samples", "max_rate", "start_rate", "depth"]);
    }
}
