//! The latency objective: given, or learned from the service and its callers.
//!
//! An answer later than the objective is worth nothing, and everything a policy waits for is a share
//! of it. Few people know theirs, and a wrong one is expensive: too short refuses what bursts would
//! have been served, too long lets every request wait. So, unless it is given:
//!
//! 1. The objective is [`FACTOR`] × the *unloaded* mean time that a request holds its slot, but no less than
//!    twice what ninety-nine in a hundred take, plus the round trip if the driver tells it, and at least
//!    [`FLOOR`]: no less than a timer, a garbage collection or a busy neighbour takes.
//! 2. Where requests come with deadlines it is no longer than what half of them have left when they
//!    arrive. Deadlines are often mere timeouts, far beyond any good answer, so a longer one does not
//!    make the objective longer; and it takes half of the traffic to make it shorter. A single request
//!    with less time left is held to its own deadline by the gate in any case.
//! 3. Unloaded means that few run. Slots that find themselves run few again and again, to see what throughput
//!    that costs, and say so ([`Slots::is_quiet`](crate::slots::Slots::is_quiet)): so it is known under any load. Else it means
//!    that nothing waits, nothing was refused lately, and that a request found and left
//!    nothing else running, or less than a quarter of the slots. Under load nothing makes the objective
//!    longer: a service is slow then, and an objective that grew with it would call that normal. But
//!    requests do not take less time under load, so a [`BATCH`] of them that took less shortens it.
//! 4. With a fixed number of slots that are never idle little is known: it is [`CAUTION`] × the mean under
//!    load, if that is longer than what one begins with, until [`FIRST`] requests were unloaded.
//! 5. A new value is in force when it differs by more than a tenth, so that policies are not moved by
//!    noise.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::slots::Finish;
use crate::time::{ParseSpanError, Span};
use crate::verdict::Outcome;

/// How many unloaded means the objective is: what services are asked for that say what they are asked for.
const FACTOR: f64 = 10.0;
/// How many times the 99th percentile of unloaded times it is at least: whoever is among the slowest can
/// still have waited as long as that.
const TAILS: f64 = 2.0;
const TAIL: f64 = 0.99;
/// Step towards that percentile, in means.
const TAIL_STEP: f64 = 0.1;
/// The shortest objective that is learned.
const FLOOR: Span = Span::from_millis(25);
/// The longest: beyond that a service is not interactive, and its deadlines decide.
const CEILING: Span = Span::from_secs(60);
/// The objective before anything was served.
const START: Span = Span::from_millis(50);
/// Unloaded requests from which on their mean decides: it is known to a third with exponential times, and
/// better with each that follows.
const FIRST: f64 = 8.0;
/// How many means under load the objective is before that: a service that takes long must not have
/// everything refused, and one that queues inside must not have its queue called normal.
const CAUTION: f64 = 4.0;
/// Requests under load whose mean is looked at: known to 6 %, so that the least of many is not chance.
const BATCH: u32 = 256;
/// Least weight of a request in the mean.
const GAIN: f64 = 1.0 / 256.0;
/// Unloaded requests after which it is decided anew, once their mean decides: in so many it moves by next to nothing.
const EVERY: u32 = 8;
/// Step towards the median of what requests have left: from an hour to 25 ms in four hundred requests.
const STEP: f64 = 1.0 / 32.0;
/// Time left of requests without a deadline, and the most that is told apart.
const NO_DEADLINE: f64 = 3600e9;
/// Change by which a new value comes into force.
const CHANGE: f64 = 0.1;

/// The objective as it is configured: in TOML a time such as `"50ms"`, or `"learned"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Objective {
    /// Found out, as the module describes.
    #[default]
    Learned,
    /// This.
    Given(Span),
}

impl Objective {
    /// What it is before anything was learned.
    pub(crate) fn at_first(self) -> Span {
        match self {
            Self::Learned => START,
            Self::Given(span) => span,
        }
    }
}

impl From<Span> for Objective {
    fn from(span: Span) -> Self {
        Self::Given(span)
    }
}

impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Learned => f.write_str("learned"),
            Self::Given(span) => span.fmt(f),
        }
    }
}

impl FromStr for Objective {
    type Err = ParseSpanError;

    fn from_str(text: &str) -> Result<Self, ParseSpanError> {
        if text.trim() == "learned" { Ok(Self::Learned) } else { text.parse().map(Self::Given) }
    }
}

impl Serialize for Objective {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Objective {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Why the objective is what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Because {
    /// The configuration says so.
    Given,
    /// Nothing was served yet.
    Unknown,
    /// Services as quick as this one get the shortest that is learned.
    Floor {
        /// The unloaded mean.
        mean: Span,
    },
    /// It has been under load from the start.
    Loaded {
        /// The mean under load.
        mean: Span,
    },
    /// A multiple of how long the service takes unloaded.
    Service {
        /// The unloaded mean.
        mean: Span,
    },
    /// A multiple of how long the slowest take.
    Tail {
        /// What ninety-nine in a hundred take unloaded, at most.
        tail: Span,
    },
    /// Half of the requests have no more time than this.
    Deadlines,
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |mean: &Span| mean.as_millis_f64();
        match self {
            Self::Given => f.write_str("it is configured"),
            Self::Unknown => f.write_str("nothing was served yet"),
            Self::Floor { mean } => {
                write!(f, "requests take {:.3} ms unloaded, and this is the least", millis(mean))
            }
            Self::Loaded { mean } => {
                write!(f, "requests take {:.3} ms under load, and it was never idle", millis(mean))
            }
            Self::Service { mean } => {
                write!(
                    f,
                    "it is {FACTOR} times the {:.3} ms that requests take unloaded",
                    millis(mean)
                )
            }
            Self::Tail { tail } => {
                write!(
                    f,
                    "it is {TAILS} times the {:.3} ms that the slowest take unloaded",
                    millis(tail)
                )
            }
            Self::Deadlines => f.write_str("half of the requests have no more time left"),
        }
    }
}

const fn nanos(span: Span) -> f64 {
    span.as_nanos_f64()
}

fn span(nanos: f64) -> Span {
    Span::from_nanos(nanos.round() as u64)
}

/// An objective that finds itself.
#[derive(Clone, Debug)]
pub(crate) struct Learner {
    /// Unloaded mean time that a slot is held, in nanoseconds.
    mean: f64,
    /// What 99 in 100 of them take at most, in nanoseconds.
    tail: f64,
    /// Requests that the mean rests on.
    evidence: f64,
    /// Those to come until it is decided anew.
    rests: u32,
    /// Requests under load since the last batch, and the sum of their times in nanoseconds.
    loaded: (u32, f64),
    /// What half of the requests have left when they arrive, in nanoseconds.
    left: f64,
    /// As told by the driver, in nanoseconds.
    round_trip: f64,
    /// What is in force, in nanoseconds too, and why.
    current: Span,
    in_force: f64,
    because: Because,
}

impl Learner {
    pub(crate) fn new() -> Self {
        Self {
            mean: 0.0,
            tail: 0.0,
            evidence: 0.0,
            rests: 0,
            loaded: (0, 0.0),
            left: NO_DEADLINE,
            round_trip: 0.0,
            current: START,
            in_force: nanos(START),
            because: Because::Unknown,
        }
    }

    /// A request has arrived with so much time left; [`Span::MAX`] if it has no deadline.
    pub(crate) fn on_arrival(&mut self, left: Span, shedding: bool) {
        // Most services see no deadlines at all.
        if shedding || (left == Span::MAX && self.left == NO_DEADLINE) {
            return;
        }
        // Up as often as down: the median, in steps in proportion to itself.
        let step = if left.as_nanos_f64() < self.left { -STEP } else { STEP };
        self.left = (self.left * (1.0 + step)).clamp(1.0, NO_DEADLINE);
    }

    /// The driver has measured how long a message to a caller and back takes.
    pub(crate) fn on_round_trip(&mut self, round_trip: Span) {
        self.round_trip = nanos(round_trip);
    }

    /// A slot was given back while there were `slots`. Returns the objective if it has changed.
    pub(crate) fn on_finish(&mut self, finish: &Finish, slots: u32) -> Option<Span> {
        if finish.outcome != Outcome::Serve {
            return None;
        }
        // What came meanwhile does not count: less comes while short ones run.
        let calm = finish.beside == 0 || finish.beside.saturating_mul(4) < slots;
        let unloaded = finish.quiet || calm && !finish.shedding;
        let service = finish.service.as_nanos_f64();
        if !unloaded {
            return self.under_load(service);
        }
        self.loaded = (0, 0.0);
        self.evidence += 1.0;
        self.mean += (service - self.mean) * (1.0 / self.evidence).max(GAIN);
        let step = if service > self.tail { TAIL } else { TAIL - 1.0 };
        self.tail = (self.tail + TAIL_STEP * self.mean * step).max(0.0);
        if self.rests > 0 {
            self.rests -= 1;
            return None;
        }
        self.rests = if self.evidence < FIRST { 0 } else { EVERY - 1 };
        self.decide()
    }

    fn under_load(&mut self, service: f64) -> Option<Span> {
        let (count, sum) = (self.loaded.0 + 1, self.loaded.1 + service);
        self.loaded = if count < BATCH { (count, sum) } else { (0, 0.0) };
        let mean = sum / f64::from(count);
        if self.evidence < FIRST {
            let enough = count.is_multiple_of(FIRST as u32);
            return if enough { self.guess(mean) } else { None };
        }
        if count < BATCH || mean >= self.mean {
            return None;
        }
        self.mean = mean;
        self.decide()
    }

    /// By what requests take under load, which is more than they would.
    fn guess(&mut self, mean: f64) -> Option<Span> {
        let cautious = (mean * CAUTION).max(nanos(START)).min((mean * FACTOR).max(nanos(FLOOR)));
        self.put_in_force(cautious.min(nanos(CEILING)), || Because::Loaded { mean: span(mean) })
    }

    /// What is in force, and why.
    pub(crate) fn current(&self) -> (Span, Because) {
        (self.current, self.because)
    }

    fn decide(&mut self) -> Option<Span> {
        if self.evidence < FIRST && matches!(self.because, Because::Loaded { .. }) {
            return None;
        }
        let mean = self.mean;
        let tail = self.tail;
        let by_tail = TAILS * tail;
        let by_service = ((mean * FACTOR).max(by_tail) + self.round_trip).min(nanos(CEILING));
        // Less than a request takes would refuse everything, whatever is claimed.
        let by_deadlines = if self.left > mean * 2.0 { self.left } else { mean * 2.0 };
        let without_deadlines = by_service.max(nanos(FLOOR));
        self.put_in_force(by_deadlines.min(without_deadlines), || {
            if by_deadlines < without_deadlines {
                Because::Deadlines
            } else if by_service < nanos(FLOOR) {
                Because::Floor { mean: span(mean) }
            } else if by_tail > mean * FACTOR {
                Because::Tail { tail: span(tail) }
            } else {
                Because::Service { mean: span(mean) }
            }
        })
    }

    #[inline]
    fn put_in_force(&mut self, objective: f64, because: impl FnOnce() -> Because) -> Option<Span> {
        let current = self.in_force;
        let same = (objective - current).abs() <= CHANGE * current;
        if same && self.because != Because::Unknown {
            return None;
        }
        (self.current, self.because) = (span(objective), because());
        self.in_force = nanos(self.current);
        Some(self.current)
    }

    /// Panics if the state contradicts itself.
    pub(crate) fn invariants(&self) {
        assert!(self.mean.is_finite() && self.mean >= 0.0);
        assert!((1.0..=NO_DEADLINE).contains(&self.left));
        assert!(self.current > Span::ZERO || self.mean < 1.0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn served(millis: u64) -> Finish {
        let service = Span::from_millis(millis);
        Finish {
            objective: Span::MAX,
            service,
            outcome: Outcome::Serve,
            running: 0,
            beside: 0,
            waiting: 0,
            shedding: false,
            quiet: false,
            late: false,
            crowded: false,
        }
    }

    fn learn(learner: &mut Learner, count: u32, finish: Finish) -> (Span, Because) {
        for _ in 0..count {
            learner.on_finish(&finish, 8);
            learner.invariants();
        }
        learner.current()
    }

    #[test]
    fn the_objective_is_a_multiple_of_the_unloaded_mean_and_no_less_than_the_floor() {
        let mut learner = Learner::new();
        assert_eq!(learner.current(), (START, Because::Unknown));
        let (objective, because) = learn(&mut learner, 40, served(4));
        assert_eq!(
            (objective, because),
            (Span::from_millis(40), Because::Service { mean: Span::from_millis(4) })
        );
        learner.on_round_trip(Span::from_millis(30));
        assert_eq!(learn(&mut learner, 40, served(4)).0, Span::from_millis(70));
        let mut quick = Learner::new();
        assert_eq!(learn(&mut quick, 40, served(0)), (FLOOR, Because::Floor { mean: Span::ZERO }));
    }

    /// However many there were under load before, and whether or not more follow.
    #[test]
    fn as_many_unloaded_requests_as_are_needed_decide() {
        let mut learner = Learner::new();
        learn(&mut learner, 64, Finish { beside: 2, ..served(100) });
        assert_eq!(learner.current().0, Span::from_millis(400));
        assert_eq!(learn(&mut learner, FIRST as u32 - 1, served(1)).0, Span::from_millis(400));
        assert_eq!(learn(&mut learner, 1, served(1)).0, FLOOR);
    }

    #[test]
    fn what_is_learned_is_frozen_under_load() {
        let mut learner = Learner::new();
        learn(&mut learner, 40, served(2));
        let before = learner.current();
        for loaded in [
            Finish { shedding: true, ..served(40) },
            Finish { beside: 2, ..served(40) },
            Finish { outcome: Outcome::Fail, ..served(40) },
            Finish { outcome: Outcome::Cancel, ..served(40) },
        ] {
            assert_eq!(learn(&mut learner, 2_000, loaded), before, "{loaded:?}");
        }
        for _ in 0..2_000 {
            learner.on_arrival(Span::from_millis(1), true);
        }
        assert_eq!(learn(&mut learner, 10, served(2)), before);
        // Calm again, so this is what it takes.
        assert!(learn(&mut learner, 2_000, served(40)).0 > Span::from_millis(360));
    }

    #[test]
    fn of_a_service_loaded_from_the_start_little_is_believed() {
        let loaded = |millis| Finish { shedding: true, waiting: 9, beside: 7, ..served(millis) };
        let mut slow = Learner::new();
        let (objective, because) = learn(&mut slow, 64, loaded(100));
        let mean = Span::from_millis(100);
        assert_eq!((objective, because), (Span::from_millis(400), Because::Loaded { mean }));
        let mut queueing = Learner::new();
        assert_eq!(learn(&mut queueing, 64, loaded(4)).0, Span::from_millis(40));
        // Known once it was unloaded; and what takes less under load takes no more without.
        assert_eq!(learn(&mut queueing, 40, served(8)).0, Span::from_millis(80));
        assert_eq!(learn(&mut queueing, 2 * BATCH, loaded(3)).0, Span::from_millis(30));
    }

    #[test]
    fn deadlines_shorten_it_only_if_half_of_the_requests_have_them() {
        let tries = |share: u32, left: Span| {
            let mut learner = Learner::new();
            for n in 0..4_000 {
                learner.on_arrival(if n % 10 < share { left } else { Span::MAX }, false);
            }
            learn(&mut learner, 40, served(4)).0
        };
        let usual = Span::from_millis(40);
        assert_eq!(tries(4, Span::from_millis(20)), usual);
        let shorter = tries(9, Span::from_millis(20));
        assert!((Span::from_millis(19)..=Span::from_millis(22)).contains(&shorter), "{shorter}");
        assert_eq!(tries(10, Span::from_secs(30)), usual, "a timeout is no objective");
        assert_eq!(
            tries(10, Span::from_nanos(1)),
            Span::from_millis(8),
            "twice the mean is the least"
        );
    }

    #[test]
    fn noise_does_not_move_it() {
        let mut learner = Learner::new();
        learn(&mut learner, 400, served(10));
        let moved =
            (0..1_000).filter(|n| learner.on_finish(&served(9 + n % 3), 8).is_some()).count();
        assert_eq!(moved, 0);
    }

    proptest! {
        #[test]
        fn whatever_comes_the_objective_is_in_bounds(
            facts in proptest::collection::vec((any::<u64>(), 0..400u64, any::<bool>()), 1..300),
        ) {
            let mut learner = Learner::new();
            for (left, millis, shedding) in facts {
                learner.on_arrival(Span::from_nanos(left), shedding);
                learner.on_finish(&Finish { shedding, ..served(millis) }, 4);
                learner.invariants();
                prop_assert!(learner.current().0 <= CEILING);
            }
        }

        #[test]
        fn shown_objectives_read_back(nanos in any::<u64>()) {
            for objective in [Objective::Learned, Objective::Given(Span::from_nanos(nanos))] {
                prop_assert_eq!(objective.to_string().parse(), Ok(objective));
            }
        }
    }
}
