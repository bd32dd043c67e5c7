//! A calling process: a [`Caller`] and what its calls are about.

use tidegate_core::caller::{CallAction, Next};
use tidegate_core::throttle::Answer;
use tidegate_core::{
    Caller, Context, Feedback, Instant, Outcome, Rank, Reason, Rejection, RequestId, Span,
};

use crate::measure::Fact;
use crate::network::{Body, MessageId};
use crate::world::{Event, Shared};

/// A calling process under simulation.
#[derive(Debug)]
pub(crate) struct Client {
    index: u32,
    pub(crate) caller: Caller,
    /// The first replica of the service it calls; endpoint n is node `first_node + n`.
    first_node: u32,
    /// What the caller's calls are, by the place of their id.
    calls: Vec<Call>,
    /// Calls that have not ended.
    outstanding: u64,
    /// The wake-up that is scheduled.
    armed: Instant,
}

/// One call.
#[derive(Clone, Copy, Debug)]
struct Call {
    submitted: Instant,
    rank: Rank,
    service: Span,
}

impl Client {
    pub(crate) fn new(index: u32, caller: Caller, first_node: u32) -> Self {
        Self { index, caller, first_node, calls: Vec::new(), outstanding: 0, armed: Instant::FAR }
    }

    /// The application submits a request that takes `service` to serve.
    pub(crate) fn submit(&mut self, shared: &mut Shared, context: &Context, service: Span) {
        let now = shared.now();
        shared.measure.offered(now, context.rank);
        let call = Call { submitted: now, rank: context.rank, service };
        match self.caller.submit(now, context) {
            Ok(id) => {
                if id.index() >= self.calls.len() {
                    self.calls.resize(id.index() + 1, call);
                }
                self.calls[id.index()] = call;
                self.outstanding += 1;
            }
            Err(rejection) => self.rejected(shared, &rejection),
        }
        self.act(shared);
    }

    /// A message has arrived; its last response brings the feedback, so that the throttle knows
    /// all of what came back when it hears it.
    pub(crate) fn deliver(&mut self, shared: &mut Shared, message: MessageId) {
        let now = shared.now();
        let place = shared.messages.get(message).node - self.first_node;
        let Body::Replies { feedback } = shared.messages.get(message).body else {
            unreachable!("only replies go to clients")
        };
        let count = shared.messages.get(message).replies.len();
        for n in 0..count {
            let reply = shared.messages.get(message).replies[n];
            let feedback = feedback.as_ref().filter(|_| n + 1 == count);
            self.respond(shared, reply.call, reply.answer, feedback);
        }
        if let (0, Some(feedback)) = (count, feedback) {
            self.caller.notice(now, place as usize, &feedback);
        }
        shared.messages.free(message);
        self.act(shared);
    }

    /// The moment the caller asked for has come.
    pub(crate) fn wake(&mut self, shared: &mut Shared) {
        if self.armed != shared.now() {
            return;
        }
        self.armed = Instant::FAR;
        self.caller.dispatch(shared.now());
        self.act(shared);
    }

    /// Calls that have not ended: held, under way, or pausing before another attempt.
    pub(crate) fn outstanding(&self) -> u64 {
        self.caller.invariants();
        self.outstanding
    }

    fn respond(
        &mut self,
        shared: &mut Shared,
        id: RequestId,
        answer: Answer,
        feedback: Option<&Feedback>,
    ) {
        let now = shared.now();
        let call = self.calls[id.index()];
        let next = self.caller.respond(now, id, answer, feedback);
        self.outstanding -= u64::from(next != Next::Retry);
        match next {
            Next::Retry => {}
            Next::Over(Answer::Done(Outcome::Serve)) => {
                shared.measure.answered(now, call.submitted, call.rank, self.index as usize);
            }
            Next::Over(Answer::Done(_)) => shared.count(Fact::Failed),
            Next::Over(Answer::Refused(rejection)) => {
                if rejection.reason == Reason::Expired {
                    shared.count(Fact::Expired);
                } else {
                    shared.measure.refused(now, call.submitted);
                }
            }
        }
    }

    fn rejected(&self, shared: &mut Shared, rejection: &Rejection) {
        let expired = rejection.reason == Reason::Expired;
        shared.count(if expired { Fact::Expired } else { Fact::Rejected });
    }

    /// Does what the caller wants done.
    fn act(&mut self, shared: &mut Shared) {
        while let Some(action) = self.caller.poll() {
            match action {
                CallAction::Transmit { id, endpoint, context } => {
                    let service = self.calls[id.index()].service;
                    let body = Body::Request { call: id, context, service };
                    self.launch(shared, endpoint, body);
                }
                CallAction::Report { endpoint, context } => {
                    self.launch(shared, endpoint, Body::Report { context });
                }
                CallAction::Fail { id: _, rejection } => {
                    self.outstanding -= 1;
                    self.rejected(shared, &rejection);
                }
            }
        }
        if let Some(at) = self.caller.next_wakeup().filter(|at| *at < self.armed) {
            self.armed = at.max(shared.now());
            shared.engine.at(self.armed, Event::Client { client: self.index });
        }
    }

    fn launch(&self, shared: &mut Shared, endpoint: usize, body: Body) {
        let node = self.first_node + endpoint as u32;
        let message = shared.messages.put(self.index, node, body);
        shared.launch_to_node(message);
    }
}
