//! Utilization thresholds by criticality ("Handling Overload", Criticality and Utilization
//! Signals).
//!
//! The problem: most services run out of cpu or memory before anything waits in their own queue.
//! The idea: the driver measures how full the machine is, and each criticality has a threshold
//! above which it is refused, lower for the less important.
//!
//! 1. Take utilization samples as they come
//!    ([`Gate::on_utilization`](crate::Gate::on_utilization)), with hysteresis: a rise counts at
//!    once, a fall only beyond a margin, so that the answer does not flap around a threshold.
//! 2. A criticality is refused with a probability that ramps from 0 at its own threshold to 1 at
//!    the next more important one's. So a class is touched only when all less important ones are
//!    fully refused, and there is no cliff between all and nothing.
//! 3. Between a class's *degrade* and *refuse* thresholds, and for what the ramp still lets in, the
//!    handler is asked for a cheaper answer ("Handling Overload", degraded results).
//!
//! Without a fresh sample everything is let in: a signal that fell silent says nothing.

use serde::{Deserialize, Serialize};

use super::{Admission, AdmissionConfig};
use crate::config::Problems;
use crate::rank::Criticality;
use crate::request::{Cx, Request};
use crate::signal::Backlog;
use crate::time::{Instant, Span};
use crate::verdict::{Advice, Reason, Rejection, Verdict};

/// Refuses by how full the machine is, the least important criticality first.
#[derive(Clone, Debug)]
pub struct Utilization {
    config: UtilizationConfig,
    /// The utilization acted upon: the latest sample, or up to the margin more.
    level: f64,
    /// When the latest sample came.
    sampled: Instant,
}

impl Utilization {
    /// A policy that knows no utilization yet.
    pub fn new(config: &UtilizationConfig, now: Instant) -> Self {
        Self { config: *config, level: 0.0, sampled: now }
    }

    /// The utilization acted upon at `now`.
    pub fn level(&self, now: Instant) -> f64 {
        if now.since(self.sampled) > self.config.stale_after { 0.0 } else { self.level }
    }

    /// How likely a request of `criticality` is refused at `level`, 0 to 1.
    fn refused(&self, criticality: Criticality, level: f64) -> f64 {
        let bounds = self.config.refuse_bounds();
        let (from, to) = (bounds[criticality.index() + 1], bounds[criticality.index()]);
        ((level - from) / (to - from)).clamp(0.0, 1.0)
    }
}

impl Admission for Utilization {
    fn name(&self) -> &'static str {
        "utilization"
    }

    fn on_arrival(&mut self, cx: &mut Cx, _backlog: &Backlog, request: &Request) -> Verdict {
        let criticality = request.context.rank.criticality();
        let level = self.level(cx.now);
        let refused = self.refused(criticality, level);
        let thresholds = self.config.thresholds(criticality);
        if refused > 0.0 && cx.rng.unit() < refused {
            let advice = Advice::Elsewhere;
            let limit = thresholds.refuse;
            return Verdict::Refuse(Rejection::new(Reason::Utilization, level, limit, advice));
        }
        if level > thresholds.degrade { Verdict::Degrade } else { Verdict::Admit }
    }

    fn on_utilization(&mut self, cx: &mut Cx, utilization: f64) {
        // The latest sample or the last peak, whichever is nearer within the margin.
        let highest = utilization + self.config.hysteresis;
        self.level = self.level(cx.now).clamp(utilization, highest);
        self.sampled = cx.now;
    }

    fn reconfigure(&mut self, config: &AdmissionConfig) -> bool {
        let AdmissionConfig::Utilization(config) = config else { return false };
        self.config = *config;
        true
    }

    fn invariants(&self) {
        assert!(self.level.is_finite() && self.level >= 0.0, "level {}", self.level);
    }

    fn clone_box(&self) -> Box<dyn Admission> {
        Box::new(self.clone())
    }
}

/// Where one criticality is touched; utilization 1 is a full machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Thresholds {
    /// Utilization above which requests are let in *degraded*. At most `refuse`.
    pub degrade: f64,
    /// Utilization above which some requests are refused, and all at the next more important
    /// criticality's.
    pub refuse: f64,
}

/// Parameters of [`Utilization`].
///
/// The default thresholds are judgement: a machine is best used at about 70 to 80 %, the last tenth
/// is for what matters most, and each class has a ramp of a tenth to find its level in.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UtilizationConfig {
    /// How far utilization must fall below its last peak before the answer follows. More flaps less
    /// and recovers later. Default 0.02, judgement: about the noise of a smoothed cpu share.
    pub hysteresis: f64,
    /// Utilization above which everything is refused, the most important as well. Default 1.1: only
    /// when run queues grow beyond the cores.
    pub full: f64,
    /// Age from which on a sample says nothing. Default 10 s, some ten samples of a usual driver.
    pub stale_after: Span,
    /// Business 0–15. Default 0.95 and 1.0.
    pub critical_plus: Thresholds,
    /// Business 16–31. Default 0.85 and 0.9.
    pub critical: Thresholds,
    /// Business 32–47. Default 0.75 and 0.8.
    pub sheddable_plus: Thresholds,
    /// Business 48–63. Default 0.65 and 0.7.
    pub sheddable: Thresholds,
}

impl Default for UtilizationConfig {
    fn default() -> Self {
        let thresholds = |degrade, refuse| Thresholds { degrade, refuse };
        Self {
            hysteresis: 0.02,
            full: 1.1,
            stale_after: Span::from_secs(10),
            critical_plus: thresholds(0.95, 1.0),
            critical: thresholds(0.85, 0.9),
            sheddable_plus: thresholds(0.75, 0.8),
            sheddable: thresholds(0.65, 0.7),
        }
    }
}

impl UtilizationConfig {
    /// The thresholds of a criticality.
    pub const fn thresholds(&self, criticality: Criticality) -> Thresholds {
        match criticality {
            Criticality::CriticalPlus => self.critical_plus,
            Criticality::Critical => self.critical,
            Criticality::SheddablePlus => self.sheddable_plus,
            Criticality::Sheddable => self.sheddable,
        }
    }

    /// Where classes are fully refused, and so the next one touched: falling, from `full` to the
    /// threshold of the least important class.
    const fn refuse_bounds(&self) -> [f64; 5] {
        [
            self.full,
            self.critical_plus.refuse,
            self.critical.refuse,
            self.sheddable_plus.refuse,
            self.sheddable.refuse,
        ]
    }

    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        problems.range("hysteresis", self.hysteresis, 0.0, 1.0);
        problems.range("full", self.full, 0.0, 1e6);
        let fine = self.stale_after > Span::ZERO;
        problems.check("stale_after", self.stale_after, fine, "more than 0s");
        for (criticality, name) in Criticality::ALL.into_iter().zip([
            "critical_plus",
            "critical",
            "sheddable_plus",
            "sheddable",
        ]) {
            let Thresholds { degrade, refuse } = self.thresholds(criticality);
            let above = self.refuse_bounds()[criticality.index()];
            problems.within(name, |problems| {
                problems.range("degrade", degrade, 0.0, refuse);
                let fine = refuse >= 0.0 && refuse < above;
                problems.check("refuse", refuse, fine, "less than the next more important one's");
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{Bench, at};
    use super::*;
    use crate::rank::Rank;

    fn bench() -> Bench {
        Bench::new(&AdmissionConfig::Utilization(UtilizationConfig::default()))
    }

    fn sample(bench: &mut Bench, now: Instant, utilization: f64) {
        bench.tell(now, |policy, cx, _| policy.on_utilization(cx, utilization));
    }

    /// Share of 1,000 interleaved requests of each criticality that are refused.
    fn refused(bench: &mut Bench, now: Instant) -> [f64; 4] {
        let mut refused = [0.0; 4];
        for _ in 0..1_000 {
            for criticality in Criticality::ALL {
                let rank = Rank::UNRANKED.with_criticality(criticality);
                if matches!(bench.arrive(now, rank), Verdict::Refuse(_)) {
                    refused[criticality.index()] += 0.001;
                }
            }
        }
        refused
    }

    #[test]
    fn a_class_ramps_between_its_threshold_and_the_next() {
        for (utilization, expected) in [
            (0.0, [0.0, 0.0, 0.0, 0.0]),
            (0.7, [0.0, 0.0, 0.0, 0.0]),
            (0.75, [0.0, 0.0, 0.0, 0.5]),
            (0.8, [0.0, 0.0, 0.0, 1.0]),
            (0.89, [0.0, 0.0, 0.9, 1.0]),
            (0.92, [0.0, 0.2, 1.0, 1.0]),
            (1.05, [0.5, 1.0, 1.0, 1.0]),
            (9.0, [1.0, 1.0, 1.0, 1.0]),
        ] {
            let mut bench = bench();
            sample(&mut bench, at(1), utilization);
            for (got, expected) in refused(&mut bench, at(1)).into_iter().zip(expected) {
                assert!((got - expected).abs() < 0.06, "{utilization}: {got} not {expected}");
            }
        }
    }

    #[test]
    fn between_two_thresholds_the_answer_is_degraded() {
        let mut bench = bench();
        let mut ask = |utilization, rank| {
            sample(&mut bench, at(1), utilization);
            bench.arrive(at(1), rank)
        };
        assert_eq!(ask(0.64, Rank::LAST), Verdict::Admit);
        assert_eq!(ask(0.66, Rank::LAST), Verdict::Degrade);
        assert_eq!(ask(0.66, Rank::FIRST), Verdict::Admit);
        assert_eq!(ask(0.96, Rank::FIRST), Verdict::Degrade);
    }

    #[test]
    fn a_fall_counts_only_beyond_the_margin() {
        let policy = Utilization::new(&UtilizationConfig::default(), Instant::ZERO);
        let mut bench = Bench::with(Box::new(policy));
        let mut after = |utilization: f64| {
            bench.tell(at(1), |policy, cx, _| policy.on_utilization(cx, utilization));
            bench.policy.level(at(1))
        };
        assert_eq!(after(0.80), 0.80);
        assert_eq!(after(0.79), 0.80);
        assert_eq!(after(0.81), 0.81);
        assert!((after(0.70) - 0.72).abs() < 1e-12);
        assert!((after(0.71) - 0.72).abs() < 1e-12);
    }

    #[test]
    fn a_silent_signal_says_nothing() {
        let mut bench = bench();
        sample(&mut bench, at(0), 5.0);
        assert!(refused(&mut bench, at(10_000_000)).iter().all(|share| *share > 0.999));
        assert_eq!(refused(&mut bench, at(10_000_001)), [0.0; 4]);
    }

    proptest! {
        /// "Handling Overload", Criticality: whatever the utilization, a class is touched only when
        /// every less important one is fully refused.
        #[test]
        fn classes_are_refused_in_order(level in 0.0..2.0f64) {
            let policy = Utilization::new(&UtilizationConfig::default(), Instant::ZERO);
            let shares = Criticality::ALL.map(|criticality| policy.refused(criticality, level));
            for class in 0..3 {
                prop_assert!(shares[class] == 0.0 || shares[class + 1] == 1.0, "{shares:?}");
            }
        }
    }

    #[test]
    fn bad_parameters_are_all_named() {
        let mut config = UtilizationConfig { hysteresis: -1.0, ..UtilizationConfig::default() };
        config.critical.refuse = 1.0;
        config.sheddable.degrade = f64::NAN;
        let mut problems = Problems::default();
        AdmissionConfig::Utilization(config).validate(&mut problems);
        let error = problems.into_result().unwrap_err();
        let fields: Vec<_> = error.problems().iter().map(|problem| &*problem.field).collect();
        assert_eq!(fields, ["hysteresis", "critical.refuse", "sheddable.degrade"]);
    }
}
