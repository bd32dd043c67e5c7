//! How long a request may wait: as long as leaves most of those behind it the time they need.
//!
//! A wait of 0.6 of the objective is fine where service takes a twentieth of it. Where one request in a
//! hundred takes half of the objective, those that waited for the longest are late, and their work was
//! in vain. So the gate learns how long before the objective a request has to start, to be in time
//! ninety-nine times in a hundred, and keeps the queue that much shorter. A request with a deadline of its
//! own needs to be in time for that, not for the objective.

use crate::request::Request;
use crate::time::{Instant, Span};

/// How long before the objective requests have to start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lead {
    /// In objectives; so many are in time that start then.
    share: f64,
}

/// Requests that start with this lead and are in time.
const IN_TIME: f64 = 0.99;
/// Step by which the lead follows what requests need, in objectives: it is known to some 0.03 and
/// follows a change of service times within a few hundred requests.
const STEP: f64 = 0.02;
/// However long service takes, this part of the objective may be waited for, …
const LEAST: f64 = 0.5;
/// …and as many requests may wait: a shorter queue is empty by chance more often than it saves work.
const ROOM: f64 = 24.0;

impl Lead {
    /// A request has ended that held a slot for `request.attained`.
    pub(super) fn add(&mut self, request: &Request, objective: Span) {
        let Request { context, arrived, attained, .. } = request;
        let spare = match context.deadline {
            Instant::FAR => 0.0,
            deadline => deadline.since(*arrived).ratio(objective) - 1.0,
        };
        let needed = attained.ratio(objective) - spare;
        let step = if needed > self.share { IN_TIME } else { IN_TIME - 1.0 };
        self.share = (self.share + STEP * step).clamp(0.0, 1.0);
    }

    /// The longest allowed wait, at most `most`, where `pace` requests are served per nanosecond. The wait
    /// that is predicted for one behind n that differ by `variability` is off by √(variability ÷ n) of
    /// itself.
    pub(super) fn longest(&self, objective: Span, most: Span, pace: f64, variability: f64) -> Span {
        let room = pace * most.as_nanos() as f64;
        let error = (variability / room.max(1.0)).sqrt().min(1.0);
        let in_time = objective.scale((1.0 - self.share) / (1.0 + error));
        let least = objective.scale(LEAST).max(most.scale(ROOM / room.max(1.0)));
        in_time.max(least).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Context;
    use crate::meter::Cost;
    use crate::rng::Rng;
    use crate::slab::Key;

    const OBJECTIVE: Span = Span::from_millis(10);
    const MOST: Span = Span::from_micros(6_200);
    /// Ten a millisecond, per nanosecond.
    const PACE: f64 = 1e-5;

    fn request(attained: Span, deadline: Instant) -> Request {
        let context = Context { deadline, ..Context::default() };
        let (arrived, enqueued) = (Instant::ZERO, Instant::ZERO);
        Request { id: Key::NOWHERE, context, arrived, enqueued, cost: Cost(1), attained }
    }

    /// After requests that take `mean` on average, exponentially.
    fn after(mean: Span, deadline: Instant) -> Lead {
        let (mut lead, mut rng) = (Lead::default(), Rng::new(1));
        for _ in 0..20_000 {
            let took = mean.scale(-(1.0 - rng.unit()).ln());
            lead.add(&request(took, deadline), OBJECTIVE);
        }
        lead
    }

    #[test]
    fn ninety_nine_in_a_hundred_have_the_time_they_need() {
        // The 99th percentile of an exponential time is 4.6 means.
        let lead = after(Span::from_millis(1), Instant::FAR);
        assert!((0.38..0.56).contains(&lead.share), "{lead:?}");
        let longest = lead.longest(OBJECTIVE, MOST, 1.0, 1.0);
        assert!((4_900..MOST.as_nanos() / 1_000).contains(&(longest.as_nanos() / 1_000)));
        assert!(lead.longest(OBJECTIVE, MOST, PACE, 0.2) < longest, "a wait is never certain");
    }

    #[test]
    fn short_services_and_long_deadlines_leave_the_wait_as_it_is() {
        for lead in [
            after(Span::from_micros(100), Instant::FAR),
            after(Span::from_millis(1), Instant::ZERO + OBJECTIVE.scale(2.0)),
        ] {
            assert_eq!(lead.longest(OBJECTIVE, MOST, PACE, 1.0), MOST, "{lead:?}");
        }
    }

    #[test]
    fn half_of_the_objective_may_always_be_waited_for_and_two_dozen_always_wait() {
        let lead = after(Span::from_millis(50), Instant::FAR);
        assert_eq!(lead.longest(OBJECTIVE, MOST, PACE, 1.0), OBJECTIVE.scale(LEAST));
        let two_dozen = lead.longest(OBJECTIVE, MOST, 24.0 / 5.5e6, 1.0);
        assert!(two_dozen.as_nanos().abs_diff(5_500_000) < 10, "{two_dozen}");
        assert_eq!(lead.longest(OBJECTIVE, MOST, 0.0, 1.0), MOST, "nothing is known yet");
    }
}
