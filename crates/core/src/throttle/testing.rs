//! What the tests of throttles share: a throttle, a clock, and somebody to lend them.

use super::{Answer, Response, Throttle, ThrottleConfig};
use crate::context::Context;
use crate::feedback::Feedback;
use crate::request::Cx;
use crate::time::{Instant, Span};
use crate::verdict::{Advice, Passage, Reason, Rejection};

/// One throttle on the bench, driven as a `Caller` would: settled before every question.
pub(crate) struct Bench {
    pub(crate) throttle: Box<dyn Throttle>,
    pub(crate) cx: Cx,
}

impl Bench {
    pub(crate) fn new(config: ThrottleConfig) -> Self {
        let throttle = config.build(Instant::ZERO, 7);
        Self { throttle, cx: Cx::new(Instant::ZERO, 11) }
    }

    pub(crate) fn pass(&mut self, time: Span) {
        self.cx.now += time;
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

    fn ask<T>(&mut self, body: impl FnOnce(&mut dyn Throttle, &mut Cx) -> T) -> T {
        let answer = body(&mut *self.throttle, &mut self.cx);
        self.throttle.invariants();
        answer
    }
}

/// Some refusal.
pub(crate) fn refused() -> Answer {
    Answer::Refused(Rejection::new(Reason::Delay, 2.0, 1.0, Advice::Elsewhere))
}
