//! What an answer teaches, and what follows from it: the end of a call, or another attempt.

use super::routing::Route;
use super::{Call, Caller, Next, State, expired, no_credit};
use crate::context::Workflow;
use crate::event::{Event, Misuse};
use crate::feedback::Feedback;
use crate::request::RequestId;
use crate::throttle::{Answer, Response};
use crate::time::{Instant, Span};
use crate::verdict::{Advice, Outcome, Reason, Rejection};

/// Longest pause before another attempt, whatever the callee asks for: a call without a deadline must
/// not hang on somebody's `Retry-After` for a year.
const LONGEST_PAUSE: Span = Span::from_secs(60);

impl Caller {
    /// A call was answered, refused, or broke.
    pub fn respond(
        &mut self,
        now: Instant,
        id: RequestId,
        answer: Answer,
        feedback: Option<&Feedback>,
    ) -> Next {
        let now = self.advance(now);
        let Some((call, endpoint)) = self.sent(id) else {
            self.cx.events.push(now, || Event::Ignore(Misuse::NeverSent));
            // A second answer to an attempt does not end a call that waits for its next one.
            let alive = self.calls.get(id).is_some();
            return if alive { Next::Retry } else { Next::Over(answer) };
        };
        let latency = now.since(call.sent);
        self.count_answer(now, endpoint, latency, answer);
        let response = Response { context: call.context, latency, answer };
        self.endpoints[endpoint].throttle.on_response(&mut self.cx, &response);
        // Before a retry is decided: it should know what the callee said, and what this answer
        // freed belongs to those who wait.
        match feedback {
            Some(feedback) => self.hear(now, endpoint, Some(call.context.workflow), feedback),
            None => self.release(now, endpoint, false),
        }
        let next = self.after(now, id, &call, endpoint, answer);
        if next != Next::Retry {
            self.calls.remove(id);
        }
        next
    }

    /// An endpoint tells its state unasked.
    pub fn notice(&mut self, now: Instant, endpoint: usize, feedback: &Feedback) {
        let now = self.advance(now);
        if endpoint < self.endpoints.len() {
            self.hear(now, endpoint, None, feedback);
        } else {
            self.cx.events.push(now, || Event::Ignore(Misuse::UnknownId));
        }
    }

    pub(super) fn hear(
        &mut self,
        now: Instant,
        endpoint: usize,
        workflow: Option<Workflow>,
        feedback: &Feedback,
    ) {
        let feedback = &Feedback { workflow, ..*feedback };
        let target = &mut self.endpoints[endpoint];
        if !target.is_news(feedback) {
            self.cx.events.push(now, || Event::Ignore(Misuse::Overtaken));
            return self.release(now, endpoint, false);
        }
        if let Some(utilization) = feedback.utilization {
            target.load.on_utilization(utilization);
        }
        let relaxed = target.throttle.on_feedback(&mut self.cx, feedback);
        self.release(now, endpoint, relaxed);
    }

    /// What an answer says about the endpoint's load and about how long answers take.
    pub(super) fn count_answer(
        &mut self,
        now: Instant,
        endpoint: usize,
        latency: Span,
        answer: Answer,
    ) {
        self.judge(now, endpoint, &answer);
        let load = &mut self.endpoints[endpoint].load;
        match answer {
            Answer::Done(Outcome::Serve) => {
                load.on_answer(latency);
                if let Some(config) = &self.config.hedge {
                    self.hedge.on_answer(latency, config);
                }
                let nanos = latency.as_nanos_f64();
                self.deviation.add((nanos - self.latency.get().unwrap_or(nanos)).abs());
                self.latency.add(nanos);
            }
            Answer::Done(Outcome::Cancel) => load.on_cancel(),
            Answer::Done(Outcome::Fail) | Answer::Refused(_) => load.on_refusal(now),
        }
    }

    /// Decides what follows from an answer.
    pub(super) fn after(
        &mut self,
        now: Instant,
        id: RequestId,
        call: &Call,
        endpoint: usize,
        answer: Answer,
    ) -> Next {
        let (advice, rejection) = match answer {
            Answer::Refused(rejection) => (rejection.advice, rejection),
            Answer::Done(Outcome::Fail) if self.config.retry.failures => {
                (Advice::Later(Span::ZERO), Rejection::new(Reason::Budget, 0.0, 0.0, Advice::Never))
            }
            Answer::Done(_) => return Next::Over(answer),
        };
        let attempt = call.context.attempt.saturating_add(1);
        let pause = match advice {
            Advice::Never => return Next::Over(answer),
            Advice::Elsewhere => Span::ZERO,
            Advice::Later(asked) => self.config.retry.pause(attempt, asked, &mut self.cx.rng),
        };
        let may = attempt < self.config.retry.attempts
            && pause <= LONGEST_PAUSE
            && now + pause < call.context.deadline
            && self.budget.withdraw();
        self.cx.events.push(now, || Event::Retry { attempt, allowed: may });
        if !may {
            // No second layer may retry what this one gave up on.
            let spent = Rejection { advice: Advice::Never, ..rejection };
            return Next::Over(match answer {
                Answer::Refused(_) => Answer::Refused(spent),
                done @ Answer::Done(_) => done,
            });
        }
        let until = now + pause;
        if let Some(call) = self.calls.get_mut(id) {
            call.context.attempt = attempt;
            call.state = State::Pausing { until, avoid: endpoint };
        }
        if pause == Span::ZERO {
            self.again(now, id, endpoint);
        } else {
            self.pauses.insert((until, id));
        }
        Next::Retry
    }

    /// Another attempt at a call that keeps its id. What this layer gives up on, no other may retry.
    pub(super) fn again(&mut self, now: Instant, id: RequestId, avoid: usize) {
        let Some(context) = self.calls.get(id).map(|call| call.context) else { return };
        if context.deadline <= now {
            return self.fail(id, expired(now, &context));
        }
        match self.route(now, &context, Some(avoid)) {
            Route::Send(endpoint) => self.transmit(now, id, endpoint),
            // A retry does not queue for credits before first attempts.
            Route::Hold => self.fail(id, no_credit(self.holding.len() + 1, Advice::Never)),
            Route::Reject(rejection) => {
                self.fail(id, Rejection { advice: Advice::Never, ..rejection });
            }
        }
    }
}
