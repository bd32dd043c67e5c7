//! One process's calls to one service: a [`Caller`] and what its calls are about.
//!
//! A client neither sends nor judges: what leaves it is put into [`Shared`], for its owner to deal
//! with. The owner is a source of load, or a node that makes calls to serve its own requests.

use tidegate_core::caller::{CallAction, Next};
use tidegate_core::throttle::Answer;
use tidegate_core::{
    Caller, Context, Feedback, Instant, Outcome, Progress, Rank, Rejection, RequestId, Sheds, Span,
    Workflow,
};

use crate::engine::Alarm;
use crate::network::{Body, MessageId, Reply};
use crate::shared::{Event, Shared};

/// A [`Caller`] under simulation.
#[derive(Debug)]
pub(crate) struct Client {
    spec: ClientSpec,
    caller: Caller,
    /// What the caller's calls are, by the place of their id.
    calls: Vec<Call>,
    /// Calls that have not ended.
    outstanding: u64,
    alarm: Alarm,
}

/// Who calls whom.
#[derive(Clone, Debug)]
pub(crate) struct ClientSpec {
    /// Its number among all clients.
    pub(crate) index: u32,
    /// How often its process had crashed when it was made.
    pub(crate) life: u16,
    /// Number of the service it calls.
    pub(crate) callee: u32,
    /// The first node of that service.
    pub(crate) service_node: u32,
    /// The first replica that it calls; endpoint n is node `first_node + n`.
    pub(crate) first_node: u32,
    /// How many there are.
    pub(crate) endpoints: usize,
    /// An attempt not answered after this has failed.
    pub(crate) timeout: Option<Span>,
    /// Whether it says with every message that it has shed as much of the first rank as can be said.
    pub(crate) lies: bool,
}

const LIE: Sheds = Sheds { count: u32::MAX, sample: Rank::FIRST };

/// One call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    /// Its id while it lives; [`RequestId::NOWHERE`] when it has ended.
    id: RequestId,
    /// When the application made it.
    pub(crate) submitted: Instant,
    pub(crate) rank: Rank,
    pub(crate) workflow: Workflow,
    /// The request it is made for, if the owner is a node.
    pub(crate) parent: RequestId,
    /// How long serving it takes.
    service: Span,
    /// The attempt that is under way, and since when. A reply to an earlier one comes too late: it
    /// was given up.
    attempt: Option<u8>,
    sent: Instant,
    /// The replica it was sent to.
    endpoint: usize,
    /// Whether an attempt at it was lost on its way.
    pub(crate) lost: bool,
}

/// A call that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) client: u32,
    pub(crate) call: Call,
    pub(crate) end: End,
    /// What was done for it, if the answer says.
    pub(crate) progress: Progress,
}

/// How a call ended, as the application sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Answer,
    /// The server's refusal.
    Refuse(Rejection),
    /// The caller's own.
    Reject(Rejection),
    /// Timeout or a broken server.
    Fail,
}

/// A call in the making.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewCall {
    pub(crate) context: Context,
    pub(crate) service: Span,
    pub(crate) parent: RequestId,
}

impl Client {
    pub(crate) fn new(spec: ClientSpec, caller: Caller) -> Self {
        Self { spec, caller, calls: Vec::new(), outstanding: 0, alarm: Alarm::default() }
    }

    /// Its number among all clients.
    pub(crate) fn index(&self) -> u32 {
        self.spec.index
    }

    /// Number of the service it calls.
    pub(crate) fn callee(&self) -> u32 {
        self.spec.callee
    }

    /// The replicas it calls.
    pub(crate) fn endpoints(&self) -> std::ops::Range<u32> {
        let first = self.spec.first_node - self.spec.service_node;
        first..first + self.spec.endpoints as u32
    }

    /// Whether it calls any of `nodes`.
    pub(crate) fn reaches(&self, nodes: &std::ops::Range<u32>) -> bool {
        let end = self.spec.first_node + self.spec.endpoints as u32;
        self.spec.first_node < nodes.end && nodes.start < end
    }

    /// The workflow of the call that `reply` answers, if it lives.
    pub(crate) fn workflow_of(&self, reply: &Reply) -> Option<Workflow> {
        self.living(reply).map(|call| call.workflow)
    }

    /// The state machine it drives.
    pub(crate) fn caller(&self) -> &Caller {
        &self.caller
    }

    /// The application makes a call.
    pub(crate) fn submit(&mut self, shared: &mut Shared, new: &NewCall) {
        let now = shared.now();
        let mut call = Call {
            id: RequestId::NOWHERE,
            submitted: now,
            rank: new.context.rank,
            workflow: new.context.workflow,
            parent: new.parent,
            service: new.service,
            attempt: None,
            sent: now,
            endpoint: 0,
            lost: false,
        };
        self.outstanding += 1;
        match self.caller.submit(now, &new.context) {
            Ok(id) => {
                call.id = id;
                if id.index() >= self.calls.len() {
                    self.calls.resize(id.index() + 1, Call { id: RequestId::NOWHERE, ..call });
                }
                // Its place may have been that of a call that was given up just now.
                let before = std::mem::replace(&mut self.calls[id.index()], call);
                self.act(shared, Some(&before));
            }
            Err(rejection) => {
                self.end(shared, call, End::Reject(rejection), Progress::default());
                self.act(shared, None);
            }
        }
    }

    /// A message has been received; its last response brings the feedback, so that the throttle
    /// knows all of what came back when it hears it.
    pub(crate) fn receive(&mut self, shared: &mut Shared, message: MessageId) {
        let now = shared.now();
        let endpoint = (shared.messages.get(message).node - self.spec.first_node) as usize;
        let Body::Replies { mut feedback } = shared.messages.get(message).body else {
            unreachable!("only replies go to clients")
        };
        let count = shared.messages.get(message).replies.len();
        for n in 0..count {
            let reply = shared.messages.get(message).replies[n];
            if self.living(&reply).is_some() {
                let last = if n + 1 == count { feedback.take() } else { None };
                self.respond(shared, reply.call, reply.answer, last.as_ref(), reply.progress);
            }
        }
        if let Some(feedback) = feedback {
            // Unasked, a rate would be for all workflows.
            let feedback = Feedback { rate: None, ..feedback };
            self.caller.notice(now, endpoint, &feedback);
        }
        shared.messages.free(message);
        self.act(shared, None);
    }

    /// The moment the caller asked for has come.
    pub(crate) fn wake(&mut self, shared: &mut Shared) {
        if !self.alarm.rings(shared.now()) {
            return;
        }
        self.caller.dispatch(shared.now());
        self.act(shared, None);
    }

    /// An attempt at `id` may have been under way for too long.
    pub(crate) fn time_out(&mut self, shared: &mut Shared, id: RequestId) {
        let Some(call) = self.calls.get(id.index()).copied() else { return };
        let late = self.spec.timeout.is_some_and(|timeout| call.sent + timeout <= shared.now());
        if call.id == id && call.attempt.is_some() && late {
            let nothing = Progress::default();
            self.respond(shared, id, Answer::Done(Outcome::Fail), None, nothing);
            self.act(shared, None);
        }
    }

    /// This attempt was lost on its way. Returns whether that is new; a call stays lost if it is sent
    /// again.
    pub(crate) fn lose(&mut self, id: RequestId, attempt: u8) -> bool {
        let living = |call: &&mut Call| call.id == id && call.attempt == Some(attempt);
        let call = self.calls.get_mut(id.index()).filter(living);
        call.is_some_and(|call| !std::mem::replace(&mut call.lost, true))
    }

    /// Everything sent to this node was lost there. Returns how many calls that is new for.
    pub(crate) fn lose_all_at(&mut self, node: u32) -> u32 {
        let first = self.spec.first_node;
        let there =
            |call: &&mut Call| call.attempt.is_some() && first + call.endpoint as u32 == node;
        let calls = self.calls.iter_mut().filter(there);
        calls.map(|call| u32::from(!std::mem::replace(&mut call.lost, true))).sum()
    }

    /// Sheds that a gate of ours made in the callee's name.
    pub(crate) fn note_sheds(&mut self, sheds: Sheds) {
        if sheds.count > 0 {
            self.caller.note_sheds(sheds);
        }
    }

    /// Calls that have not ended: held, under way, or pausing before another attempt.
    pub(crate) fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// The caller and its driver agree on what is under way.
    pub(crate) fn assert_agreement(&self) {
        self.caller.invariants();
        let under_way: u32 = (0..self.spec.endpoints).map(|n| self.caller.in_flight(n)).sum();
        let known = self.calls.iter().filter(|call| call.attempt.is_some()).count();
        assert_eq!(under_way as usize, known, "calls under way");
    }

    /// The call that `reply` answers, unless that attempt was given up.
    fn living(&self, reply: &Reply) -> Option<&Call> {
        let call = self.calls.get(reply.call.index())?;
        let same = call.id == reply.call && call.attempt == Some(reply.attempt);
        (same && reply.life == self.spec.life).then_some(call)
    }

    /// Tells the caller what came of an attempt.
    fn respond(
        &mut self,
        shared: &mut Shared,
        id: RequestId,
        answer: Answer,
        feedback: Option<&Feedback>,
        progress: Progress,
    ) {
        self.calls[id.index()].attempt = None;
        let call = self.calls[id.index()];
        let end = match self.caller.respond(shared.now(), id, answer, feedback) {
            Next::Retry => return,
            Next::Over(Answer::Done(Outcome::Serve)) => End::Answer,
            Next::Over(Answer::Done(_)) => End::Fail,
            Next::Over(Answer::Refused(rejection)) => End::Refuse(rejection),
        };
        self.calls[id.index()].id = RequestId::NOWHERE;
        self.end(shared, call, end, progress);
    }

    fn end(&mut self, shared: &mut Shared, call: Call, end: End, progress: Progress) {
        self.outstanding -= 1;
        shared.ended.push_back(Ended { client: self.spec.index, call, end, progress });
    }

    /// Does what the caller wants done. `before` is what was in the place of a new call.
    fn act(&mut self, shared: &mut Shared, before: Option<&Call>) {
        while let Some(action) = self.caller.poll() {
            match action {
                CallAction::Transmit { id, endpoint, context } => {
                    let context = self.say(context);
                    let life = self.spec.life;
                    let call = &mut self.calls[id.index()];
                    call.attempt = Some(context.attempt);
                    (call.sent, call.endpoint) = (shared.now(), endpoint);
                    let body = Body::Request { call: id, context, service: call.service, life };
                    self.put(shared, endpoint, body);
                    if let Some(timeout) = self.spec.timeout {
                        let event = Event::Timeout { client: self.spec.index, call: id };
                        shared.engine.after(timeout, event);
                    }
                }
                CallAction::Report { endpoint, context } => {
                    let context = self.say(context);
                    self.put(shared, endpoint, Body::Report { context });
                }
                CallAction::Fail { id, rejection } => {
                    let place = &mut self.calls[id.index()];
                    let call = if place.id == id {
                        place.id = RequestId::NOWHERE;
                        *place
                    } else {
                        *before.expect("only a new call takes the place of another")
                    };
                    self.end(shared, call, End::Reject(rejection), Progress::default());
                }
            }
        }
        if let Some(at) = self.caller.next_wakeup().map(|at| at.max(shared.now()))
            && self.alarm.set(at)
        {
            shared.engine.at(at, Event::Client { client: self.spec.index });
        }
    }

    /// What it says of itself, which may be a lie.
    fn say(&self, context: Context) -> Context {
        if self.spec.lies { Context { sheds: LIE, ..context } } else { context }
    }

    fn put(&self, shared: &mut Shared, endpoint: usize, body: Body) {
        let node = self.spec.first_node + endpoint as u32;
        let message = shared.messages.put(self.spec.index, node, body);
        shared.outgoing.push_back(message);
    }
}
