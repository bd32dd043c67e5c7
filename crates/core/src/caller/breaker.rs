//! Circuit breaking: an endpoint that only fails is left alone for a while.
//!
//! The problem: a process that has crashed or hangs costs every call that is sent to it a timeout, and
//! calls keep it from coming back. The idea is old (Nygard, *Release It!*): after some failures in a
//! row stop calling, and try with one call at a time whether it works again.
//!
//! 1. Closed: `failures` failures in a row open the circuit; an answer begins the count anew.
//! 2. Open: no call is sent for `pause`, doubled each time in a row up to `longest`, and spread by up
//!    to a fifth so that callers do not come back together.
//! 3. Then one call is sent. If it is answered the circuit is closed, if it fails it is open again.
//!
//! **Refusals never count**, for or against: an endpoint that refuses does so to stay up, and to take
//! its refusals for failures would send its load to the others, which then refuse in turn. A call that
//! was given up says nothing either.

use serde::{Deserialize, Serialize};

use crate::config::Problems;
use crate::rng::Rng;
use crate::throttle::Answer;
use crate::time::{Instant, Span};
use crate::verdict::Outcome;

/// The circuit to one endpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Breaker {
    state: State,
    /// Failures in a row.
    failures: u32,
    /// Times in a row that it was opened.
    opened: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Closed,
    Open {
        until: Instant,
    },
    /// One call is under way that decides.
    Trying,
}

impl Breaker {
    /// Whether a call may be sent.
    pub(super) fn allows(&self, now: Instant) -> bool {
        match self.state {
            State::Closed => true,
            State::Open { until } => until <= now,
            State::Trying => false,
        }
    }

    /// When a call may be sent again, if that is known.
    pub(super) fn until(&self) -> Option<Instant> {
        match self.state {
            State::Open { until } => Some(until),
            State::Closed | State::Trying => None,
        }
    }

    /// Failures in a row.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    pub(super) fn on_send(&mut self) {
        if let State::Open { .. } = self.state {
            self.state = State::Trying;
        }
    }

    /// A call has ended. True if the circuit was opened or closed by it.
    pub(super) fn on_answer(
        &mut self,
        now: Instant,
        answer: &Answer,
        config: &BreakerConfig,
        rng: &mut Rng,
    ) -> bool {
        match (answer, self.state) {
            (Answer::Done(Outcome::Serve), State::Closed) => {
                self.failures = 0;
                false
            }
            (Answer::Done(Outcome::Serve), State::Open { .. } | State::Trying) => {
                *self = Self::default();
                true
            }
            (Answer::Done(Outcome::Fail), State::Closed) => {
                self.failures += 1;
                self.failures >= config.failures && self.open(now, config, rng)
            }
            (Answer::Done(Outcome::Fail), State::Trying) => self.open(now, config, rng),
            // Of a call sent before it was opened.
            (Answer::Done(Outcome::Fail), State::Open { .. }) => false,
            // Nothing learned: the next call tries.
            (Answer::Refused(_) | Answer::Done(Outcome::Cancel), State::Trying) => {
                self.state = State::Open { until: now };
                false
            }
            (Answer::Refused(_) | Answer::Done(Outcome::Cancel), _) => false,
        }
    }

    fn open(&mut self, now: Instant, config: &BreakerConfig, rng: &mut Rng) -> bool {
        let doubled = config.pause.as_nanos().saturating_mul(1 << self.opened.min(30));
        let pause = Span::from_nanos(doubled).min(config.longest);
        self.state = State::Open { until: now + pause.scale(1.0 + 0.2 * rng.unit()) };
        self.opened = self.opened.saturating_add(1);
        true
    }
}

/// Parameters of circuit breaking, per endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BreakerConfig {
    /// Failures in a row that open the circuit. Fewer react sooner and to chance; more cost more
    /// timeouts. Default 5, as in Envoy's outlier detection.
    pub failures: u32,
    /// How long no call is sent after that, at first. Shorter finds sooner that it works again, longer
    /// disturbs its start less. Default 1 s, by judgement.
    pub pause: Span,
    /// The longest such pause. Default 30 s, Envoy's base time.
    pub longest: Span,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self { failures: 5, pause: Span::from_secs(1), longest: Span::from_secs(30) }
    }
}

impl BreakerConfig {
    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        problems.check("failures", self.failures, self.failures > 0, "1 or more");
        problems.check("pause", self.pause, self.pause > Span::ZERO, "more than 0s");
        problems.check("longest", self.longest, self.longest >= self.pause, "pause or more");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::{Advice, Reason, Rejection};

    const GOOD: Answer = Answer::Done(Outcome::Serve);
    const BAD: Answer = Answer::Done(Outcome::Fail);
    const REFUSED: Answer =
        Answer::Refused(Rejection::new(Reason::Delay, 1.0, 0.0, Advice::Elsewhere));

    struct Bench(Breaker, Rng);

    impl Bench {
        fn new() -> Self {
            Self(Breaker::default(), Rng::new(1))
        }

        fn call(&mut self, millis: u64, answer: Answer) -> bool {
            let now = Instant::ZERO + Span::from_millis(millis);
            assert!(self.0.allows(now), "{:?}", self.0);
            self.0.on_send();
            self.0.on_answer(now, &answer, &BreakerConfig::default(), &mut self.1)
        }

        fn allows(&self, millis: u64) -> bool {
            self.0.allows(Instant::ZERO + Span::from_millis(millis))
        }
    }

    #[test]
    fn failures_in_a_row_open_it_and_one_answer_closes_it() {
        let mut bench = Bench::new();
        for _ in 0..4 {
            assert!(!bench.call(0, BAD));
        }
        bench.call(0, GOOD);
        for n in 0..5 {
            assert_eq!(bench.call(0, BAD), n == 4, "an answer begins the count anew");
        }
        assert!(!bench.allows(999) && bench.allows(1_200));
        bench.0.on_send();
        assert!(!bench.allows(1_200), "one call at a time");
        bench.0.state = State::Open { until: Instant::ZERO };
        assert!(bench.call(1_200, BAD), "open again");
        assert!(!bench.allows(3_199) && bench.allows(3_600), "for twice as long");
        assert!(bench.call(3_600, GOOD));
        assert!(bench.allows(3_600));
    }

    #[test]
    fn refusals_never_count() {
        let mut bench = Bench::new();
        for _ in 0..4 {
            bench.call(0, BAD);
        }
        for _ in 0..1_000 {
            assert!(!bench.call(0, REFUSED), "not against it");
        }
        assert!(bench.call(0, BAD), "nor for it");
        assert!(!bench.call(2_000, REFUSED));
        assert!(bench.call(2_000, GOOD), "the next call tries");
    }

    #[test]
    fn pauses_are_bounded_and_late_failures_change_nothing() {
        let mut bench = Bench::new();
        for _ in 0..5 {
            bench.call(0, BAD);
        }
        let before = bench.0.until();
        bench.0.on_answer(Instant::ZERO, &BAD, &BreakerConfig::default(), &mut bench.1);
        assert_eq!(bench.0.until(), before);
        for n in 1..40 {
            bench.call(100_000 * n, BAD);
            assert!(bench.allows(100_000 * n + 36_000));
        }
    }
}
