//! CoDel for requests: when a queue does not drain, let nobody wait long in it.
//!
//! A queue that empties now and then is good: it absorbs bursts. One whose *minimum* delay over an
//! interval stays above a target is a standing queue, which only adds delay. Both published forms
//! decide when a request leaves the queue; neither knows ranks, and tasks with several calls suffer
//! for it (DAGOR §5.4).
//!
//! `form = "slough"`, as in Facebook's folly (`Codel.cpp`), which replaces the square-root spacing
//! of network CoDel on purpose:
//! 1. Track the minimum delay of the requests of an interval of 100 ms.
//! 2. When the interval ends, the queue is overloaded if that minimum was above the target, 5 ms.
//!    An interval ends with the first request after its time; that request is never shed.
//! 3. While overloaded, shed requests that waited longer than twice the target.
//!
//! `form = "timeout"`, as told in "Fail at Scale" (Maurer, 2015):
//! 1. A request that arrives when the queue has not been empty for N = 100 ms may wait for
//!    M = 5 ms, any other for N.
//! 2. One that has waited longer is shed instead of served.
//!
//! The second form needs no timeout per request: while a request waits the queue is not empty, so
//! the queue was last empty at the same moment seen from its arrival as seen from its start.

use serde::{Deserialize, Serialize};

use super::{Admission, AdmissionConfig};
use crate::config::Problems;
use crate::request::{Cx, Request};
use crate::signal::Backlog;
use crate::time::{Instant, Span};
use crate::verdict::{Advice, Reason, Rejection, Verdict};

/// Sheds what waited too long in a standing queue.
#[derive(Clone, Debug)]
pub struct Codel {
    config: CodelConfig,
    /// End of the present interval (slough form).
    interval_end: Instant,
    /// Smallest delay in it so far.
    min_delay: Span,
    /// Whether the interval before it was overloaded.
    overloaded: bool,
    /// When the queue was last seen empty (timeout form).
    last_empty: Instant,
}

impl Codel {
    /// A policy that has seen no queue yet.
    pub fn new(config: &CodelConfig, now: Instant) -> Self {
        Self {
            config: *config,
            interval_end: now,
            min_delay: Span::ZERO,
            overloaded: false,
            last_empty: now,
        }
    }

    /// How near the queue is to shedding, 0 to 1: the smallest delay against the one that is shed.
    pub fn load(&self) -> f64 {
        let slough = self.slough().as_nanos().max(1) as f64;
        (self.min_delay.as_nanos_f64() / slough).min(1.0)
    }

    fn slough(&self) -> Span {
        self.config.target.scale(self.config.slough)
    }

    /// How long the request that leaves now after `delay` may have waited.
    fn slough_limit(&mut self, now: Instant, delay: Span) -> Span {
        if now > self.interval_end {
            self.interval_end = now + self.config.interval;
            self.overloaded = self.min_delay > self.config.target;
            self.min_delay = delay;
            // With one request per interval there is no telling a standing queue from bad luck.
            return Span::MAX;
        }
        self.min_delay = self.min_delay.min(delay);
        if self.overloaded { self.slough() } else { Span::MAX }
    }

    fn timeout_limit(&self, arrived: Instant) -> Span {
        let CodelConfig { interval, target, .. } = self.config;
        if arrived.since(self.last_empty) > interval { target } else { interval }
    }
}

impl Admission for Codel {
    fn name(&self) -> &'static str {
        "codel"
    }

    fn on_arrival(&mut self, _cx: &mut Cx, _backlog: &Backlog, _request: &Request) -> Verdict {
        Verdict::Admit
    }

    fn on_dequeue(
        &mut self,
        cx: &mut Cx,
        _backlog: &Backlog,
        request: &Request,
        sojourn: Span,
    ) -> Verdict {
        let limit = match self.config.form {
            CodelForm::Slough => self.slough_limit(cx.now, sojourn),
            CodelForm::Timeout => self.timeout_limit(request.enqueued),
        };
        if sojourn <= limit {
            return Verdict::Admit;
        }
        let (measured, limit) = (sojourn.as_nanos_f64(), limit.as_nanos_f64());
        Verdict::Refuse(Rejection::new(Reason::Delay, measured, limit, Advice::Elsewhere))
    }

    /// Called before every fact, so an empty queue is noticed before anything joins it.
    fn settle(&mut self, cx: &mut Cx, backlog: &Backlog) {
        if backlog.waiting() == 0 {
            self.last_empty = cx.now;
        }
    }

    fn reconfigure(&mut self, config: &AdmissionConfig) -> bool {
        let AdmissionConfig::Codel(config) = config else { return false };
        self.config = *config;
        true
    }

    fn clone_box(&self) -> Box<dyn Admission> {
        Box::new(self.clone())
    }
}

/// Which published form of CoDel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CodelForm {
    /// By the minimum delay of an interval (folly).
    #[default]
    Slough,
    /// By how long the queue has not been empty ("Fail at Scale").
    Timeout,
}

/// Parameters of [`Codel`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CodelConfig {
    /// Which form. Default: slough.
    pub form: CodelForm,
    /// How long a queue may stand before anything is shed; in the timeout form also how long a
    /// request may wait at most. More lets longer bursts pass. Default 100 ms (both sources).
    pub interval: Span,
    /// Delay that a standing queue may have; in the timeout form how long requests may wait in it.
    /// Less sheds more and keeps waits shorter. Must be below `interval`. Default 5 ms (both
    /// sources).
    pub target: Span,
    /// Delay above which the slough form sheds, as a multiple of `target`, at least 1. More sheds
    /// fewer. Default 2 (folly).
    pub slough: f64,
}

impl Default for CodelConfig {
    fn default() -> Self {
        Self {
            form: CodelForm::Slough,
            interval: Span::from_millis(100),
            target: Span::from_millis(5),
            slough: 2.0,
        }
    }
}

impl CodelConfig {
    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        let Self { interval, target, slough, .. } = *self;
        let hour = Span::from_secs(3600);
        let fine = (Span::from_micros(1)..=hour).contains(&interval);
        problems.check("interval", interval, fine, "1us to 1h");
        let fine = target > Span::ZERO && target < interval;
        problems.check("target", target, fine, "more than 0s and less than interval");
        problems.range("slough", slough, 1.0, 1000.0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, at};
    use super::*;
    use crate::meter::Weight;
    use crate::rank::Rank;

    fn codel(form: CodelForm) -> AdmissionConfig {
        AdmissionConfig::Codel(CodelConfig { form, ..CodelConfig::default() })
    }

    /// Whether a request that waited for `delay` milliseconds is shed at `now` milliseconds.
    fn shed(bench: &mut Bench, now: u64, delay: u64) -> bool {
        bench.dequeue(at(now * 1_000), Span::from_millis(delay)) != Verdict::Admit
    }

    /// folly's own test (`CodelTest.cpp`).
    #[test]
    fn the_slough_oracle() {
        let mut bench = Bench::new(&codel(CodelForm::Slough));
        for (now, delay, expected) in [
            (1_000, 100, false),
            (1_101, 50, false), // the first of an interval passes
            (1_102, 50, true),
            (1_103, 8, false), // not above twice the target
            (1_202, 2, false),
        ] {
            assert_eq!(shed(&mut bench, now, delay), expected, "{now}");
        }
        assert!(shed(&mut bench, 1_203, 20), "overloaded by the interval before");
        assert!(!shed(&mut bench, 1_303, 20));
        assert!(!shed(&mut bench, 1_304, 20), "the minimum of 2 ms has ended it");
    }

    /// folly's load, worked example: load after samples of 10, 7 and 2 ms is 100, 70 and 20 %.
    #[test]
    fn load_is_the_minimum_against_the_slough() {
        let mut codel = Codel::new(&CodelConfig::default(), Instant::ZERO);
        for (delay, load) in [(10, 1.0), (7, 0.7), (2, 0.2)] {
            codel.slough_limit(at(1_000), Span::from_millis(delay));
            assert_eq!(codel.load(), load);
        }
    }

    /// "Fail at Scale": 100 ms is fine in a queue that was empty lately, 5 ms in one that was not.
    #[test]
    fn a_queue_that_never_empties_gets_a_short_timeout() {
        let mut bench = Bench::new(&codel(CodelForm::Timeout));
        bench.arrive(at(1_000_000), Rank::UNRANKED);
        // From here on something waits.
        bench.backlog.on_enqueue(at(1_000_000), 0, at(1_000_000), Weight::ONE);
        for (arrived, delay, expected) in [
            (1_000, 99, false),
            (1_000, 101, true),
            (1_100, 6, false),
            (1_100, 100, false),
            (1_101, 5, false),
            (1_101, 6, true),
        ] {
            let mut bench = bench.clone_at_rest();
            assert_eq!(shed(&mut bench, arrived + delay, delay), expected, "{arrived} {delay}");
        }
    }

    #[test]
    fn bad_parameters_are_all_named() {
        let config = CodelConfig {
            interval: Span::from_millis(5),
            target: Span::from_millis(5),
            slough: 0.0,
            ..CodelConfig::default()
        };
        let mut problems = Problems::default();
        AdmissionConfig::Codel(config).validate(&mut problems);
        assert_eq!(problems.into_result().unwrap_err().problems().len(), 2);
    }
}
