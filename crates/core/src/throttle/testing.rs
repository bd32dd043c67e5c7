//! What the tests of throttles share: a throttle, a clock, and somebody to lend them.

use super::{Answer, Response, Throttle, ThrottleConfig};
use crate::context::Context;
use crate::event::Events;
use crate::feedback::Feedback;
use crate::request::Cx;
use crate::rng::Rng;
use crate::time::{Instant, Span};
use crate::verdict::{Advice, Passage, Reason, Rejection};

/// One throttle on the bench, driven as a `Caller` would: settled before every question.
pub(crate) struct Bench {
    pub(crate) throttle: Box<dyn Throttle>,
    pub(crate) now: Instant,
    pub(crate) rng: Rng,
    pub(crate) events: Events,
}

impl Bench {
    pub(crate) fn new(config: ThrottleConfig) -> Self {
        let throttle = config.build(Instant::ZERO, 7);
        Self { throttle, now: Instant::ZERO, rng: Rng::new(11), events: Events::default() }
    }

    /// Lends time, randomness and events to a throttle that is not on the bench.
    pub(crate) fn with<T>(&mut self, body: impl FnOnce(&mut Cx<'_>) -> T) -> T {
        body(&mut Cx { now: self.now, rng: &mut self.rng, events: &mut self.events })
    }

    pub(crate) fn pass(&mut self, time: Span) {
        self.now += time;
        self.ask(|throttle, cx| throttle.settle(cx));
    }

    pub(crate) fn submit(&mut self, context: &Context) -> Passage {
        self.ask(|throttle, cx| throttle.on_submit(cx, context))
    }

    pub(crate) fn answer(&mut self, context: &Context, latency: Span, answer: Answer) {
        let response = Response { context: *context, latency, answer };
        self.ask(|throttle, cx| throttle.on_response(cx, &response));
    }

    pub(crate) fn hear(&mut self, feedback: &Feedback) -> bool {
        self.ask(|throttle, cx| throttle.on_feedback(cx, feedback))
    }

    fn ask<T>(&mut self, body: impl FnOnce(&mut dyn Throttle, &mut Cx<'_>) -> T) -> T {
        let mut cx = Cx { now: self.now, rng: &mut self.rng, events: &mut self.events };
        let answer = body(&mut *self.throttle, &mut cx);
        self.throttle.invariants();
        answer
    }
}

/// Some refusal.
pub(crate) fn refused() -> Answer {
    Answer::Refused(Rejection::new(Reason::Delay, 2.0, 1.0, Advice::Elsewhere))
}
