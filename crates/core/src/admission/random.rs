//! Shed at random: the naive baseline of DAGOR §5.3.
//!
//! 1. Once per window, detect overload as DAGOR does (§4.1; [`DetectorConfig`]).
//! 2. Overloaded: let in α less; else β of all requests more. The steps are those of DAGOR, so a
//!    figure with both compares *what* is shed and not *how much*.
//! 3. Let each request in with that probability, whatever its rank.
//!
//! A task with x calls then succeeds with probability pˣ: at half the load let in, one in sixteen
//! tasks of four calls (DAGOR §5.3).

use serde::{Deserialize, Serialize};

use super::detector::{Detector, DetectorConfig};
use super::{Admission, AdmissionConfig, Needs};
use crate::config::Problems;
use crate::meter::Cost;
use crate::request::{Cx, Request};
use crate::signal::Backlog;
use crate::time::{Instant, Span};
use crate::verdict::{Advice, Outcome, Reason, Rejection, Verdict};

/// Sheds requests by chance, whatever their rank.
#[derive(Clone, Debug)]
pub struct Random {
    config: RandomConfig,
    /// Says once per window whether there is overload.
    detector: Detector,
    /// Probability that a request is let in, [`Self::FLOOR`] to 1.
    admitted: f64,
}

impl Random {
    /// The least that is let in: enough to notice that the overload has ended.
    const FLOOR: f64 = 0.01;

    /// A policy that lets everything in until it knows better.
    pub fn new(config: &RandomConfig, now: Instant) -> Self {
        Self { config: *config, detector: Detector::new(&config.detector, now), admitted: 1.0 }
    }

    fn conclude(&mut self, now: Instant, backlog: &Backlog) {
        if let Some(reading) = self.detector.conclude(now, backlog) {
            let admitted = if reading.overloaded {
                self.admitted * (1.0 - self.config.alpha)
            } else {
                self.admitted + self.config.beta
            };
            self.admitted = admitted.clamp(Self::FLOOR, 1.0);
        }
    }
}

impl Admission for Random {
    fn name(&self) -> &'static str {
        "random"
    }

    fn needs(&self) -> Needs {
        Needs { ages: true, ..Needs::default() }
    }

    fn on_arrival(&mut self, cx: &mut Cx, backlog: &Backlog, _request: &Request) -> Verdict {
        let drawn = cx.rng.unit();
        let verdict = if drawn < self.admitted {
            Verdict::Admit
        } else {
            let advice = Advice::Elsewhere;
            Verdict::Refuse(Rejection::new(Reason::Chance, drawn, self.admitted, advice))
        };
        self.detector.on_arrival();
        self.conclude(cx.now, backlog);
        verdict
    }

    fn on_dequeue(
        &mut self,
        cx: &mut Cx,
        _backlog: &Backlog,
        request: &Request,
        _sojourn: Span,
    ) -> Verdict {
        self.detector.on_start(cx.now, request);
        Verdict::Admit
    }

    fn on_finish(
        &mut self,
        cx: &mut Cx,
        _backlog: &Backlog,
        request: &Request,
        outcome: Outcome,
        _cost: Cost,
    ) {
        self.detector.on_finish(cx.now, request, outcome);
    }

    fn settle(&mut self, cx: &mut Cx, backlog: &Backlog) {
        self.conclude(cx.now, backlog);
    }

    fn next_wakeup(&self) -> Option<Instant> {
        self.detector.next_wakeup()
    }

    fn reconfigure(&mut self, config: &AdmissionConfig) -> bool {
        let AdmissionConfig::Random(config) = config else { return false };
        self.config = *config;
        self.detector.reconfigure(&config.detector);
        true
    }

    fn invariants(&self) {
        self.detector.invariants();
        assert!((Self::FLOOR..=1.0).contains(&self.admitted), "lets in {}", self.admitted);
    }

    fn clone_box(&self) -> Box<dyn Admission> {
        Box::new(self.clone())
    }
}

/// Parameters of [`Random`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RandomConfig {
    /// Share of the admitted load given up after an overloaded window, 0 to 1. More sheds sooner
    /// and overshoots more. Default 0.05, as in `dagor`.
    pub alpha: f64,
    /// Share of all requests let in more after a calm window, 0 to 1. More recovers sooner. Default
    /// 0.01, as in `dagor`.
    pub beta: f64,
    /// When a window counts as overloaded.
    pub detector: DetectorConfig,
}

impl Default for RandomConfig {
    fn default() -> Self {
        Self { alpha: 0.05, beta: 0.01, detector: DetectorConfig::default() }
    }
}

impl RandomConfig {
    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        problems.range("alpha", self.alpha, 0.0, 1.0);
        problems.range("beta", self.beta, 0.0, 1.0);
        problems.within("detector", |problems| self.detector.validate(problems));
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, at};
    use super::*;
    use crate::rank::Rank;

    /// Ten requests a window, each of which waited for `wait`; how many of them are let in.
    fn windows(bench: &mut Bench, from: u64, to: u64, wait: Span) -> u32 {
        let mut admitted = 0;
        for n in from * 10..to * 10 {
            let now = at(n * 100_000);
            admitted += u32::from(bench.arrive(now, Rank::UNRANKED) == Verdict::Admit);
            bench.dequeue(now, wait);
        }
        admitted
    }

    #[test]
    fn sheds_more_while_overloaded_and_less_while_calm() {
        let mut bench = Bench::new(&AdmissionConfig::Random(RandomConfig::default()));
        let calm = Span::from_millis(10);
        let overloaded = Span::from_millis(30);
        assert_eq!(windows(&mut bench, 1, 11, calm), 100);
        // Halved after 14 overloaded windows, as in DAGOR.
        windows(&mut bench, 11, 25, overloaded);
        let half = windows(&mut bench.clone_at_rest(), 25, 65, calm);
        assert!((230..330).contains(&half), "50 % rising to 90 % of 400: {half}");
        windows(&mut bench, 25, 125, overloaded);
        let floor = windows(&mut bench, 125, 225, overloaded);
        assert!(floor < 40, "1 % of 1,000: {floor}");
        windows(&mut bench, 225, 330, calm);
        assert_eq!(windows(&mut bench, 330, 340, calm), 100);
    }

    /// The naive baseline does not look at ranks.
    #[test]
    fn ranks_do_not_matter() {
        let mut bench = Bench::new(&AdmissionConfig::Random(RandomConfig::default()));
        windows(&mut bench, 1, 15, Span::from_millis(30));
        let mut other = bench.clone_at_rest();
        for n in 0..100 {
            let now = at(15_000_000 + n);
            assert_eq!(bench.arrive(now, Rank::FIRST), other.arrive(now, Rank::LAST));
        }
    }

    #[test]
    fn bad_parameters_are_all_named() {
        let config = RandomConfig { alpha: -0.1, beta: 2.0, ..RandomConfig::default() };
        let mut problems = Problems::default();
        AdmissionConfig::Random(config).validate(&mut problems);
        assert_eq!(problems.into_result().unwrap_err().problems().len(), 2);
    }
}
