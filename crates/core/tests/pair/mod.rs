//! One caller, one gate, a link and a clock that jumps to the next event.

use std::collections::BTreeMap;

use tidegate_core::caller::{CallAction, Caller, CallerConfig, Next};
use tidegate_core::gate::{Action, Gate, GateConfig};
use tidegate_core::throttle::Answer;
use tidegate_core::{Context, Cost, Feedback, Instant, Outcome, Rejection, RequestId, Span};

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum End {
    Served,
    Rejected(Rejection),
}

/// Both ends of a link.
pub(crate) struct Pair {
    pub(crate) now: Instant,
    pub(crate) caller: Caller,
    pub(crate) gate: Gate,
    pub(crate) latency: Span,
    pub(crate) service: Span,
    /// What the gate hears of requests that end, in turns.
    pub(crate) outcomes: &'static [Outcome],
    /// How many messages have reached the gate.
    pub(crate) received: usize,
    /// Calls that ended, with the moment they did.
    pub(crate) ends: Vec<(Instant, RequestId, End)>,
    /// Lose every message from the gate that is not a response.
    pub(crate) lose_notices: bool,
    events: BTreeMap<(Instant, u64), Event>,
    sequence: u64,
    /// The call behind each request in the gate.
    calls: BTreeMap<RequestId, (RequestId, Context)>,
}

enum Event {
    Request(RequestId, Context),
    Report(Context),
    Finish(RequestId),
    Response(RequestId, Answer, Feedback),
    Notice(Feedback),
}

impl Pair {
    pub(crate) fn new(caller: &CallerConfig, gate: &GateConfig, service: Span) -> Self {
        let now = Instant::ZERO;
        Self {
            now,
            caller: Caller::new(caller, 1, now, 1).unwrap(),
            gate: Gate::new(gate, now, 2).unwrap(),
            latency: Span::from_micros(5),
            service,
            outcomes: &[Outcome::Serve],
            received: 0,
            ends: Vec::new(),
            lose_notices: false,
            events: BTreeMap::new(),
            sequence: 0,
            calls: BTreeMap::new(),
        }
    }

    /// The application makes a call.
    pub(crate) fn submit(&mut self, context: &Context) -> Result<RequestId, Rejection> {
        let submitted = self.caller.submit(self.now, context);
        self.drain_caller();
        submitted
    }

    /// Lets time pass until `until`, event by event.
    pub(crate) fn run_until(&mut self, until: Instant) {
        while self.step(until) {}
        self.now = until;
    }

    fn step(&mut self, until: Instant) -> bool {
        let next_event = self.events.first_key_value().map(|((at, _), _)| *at);
        let wakeups = [self.gate.next_wakeup(), self.caller.next_wakeup()];
        let Some(at) = wakeups.into_iter().flatten().chain(next_event).min() else { return false };
        if at > until {
            return false;
        }
        self.now = self.now.max(at);
        if next_event == Some(at) {
            let ((..), event) = self.events.pop_first().unwrap();
            self.handle(event);
        }
        self.gate.dispatch(self.now);
        self.drain_gate();
        self.caller.dispatch(self.now);
        self.drain_caller();
        self.gate.invariants();
        self.caller.invariants();
        true
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Request(call, context) => {
                self.received += 1;
                match self.gate.arrive(self.now, &context) {
                    Ok(request) => drop(self.calls.insert(request, (call, context))),
                    Err(rejection) => self.answer(call, &context, Answer::Refused(rejection)),
                }
            }
            Event::Report(context) => self.gate.on_report(self.now, &context),
            Event::Finish(request) => {
                match self.outcomes[self.received % self.outcomes.len()] {
                    Outcome::Cancel => self.gate.cancel(self.now, request),
                    told => self.gate.finish(self.now, request, told, Cost::from(self.service)),
                }
                let (call, context) = self.calls.remove(&request).unwrap();
                self.answer(call, &context, Answer::Done(Outcome::Serve));
            }
            Event::Response(call, answer, feedback) => {
                if let Next::Over(answer) =
                    self.caller.respond(self.now, call, answer, Some(&feedback))
                {
                    let end = match answer {
                        Answer::Done(_) => End::Served,
                        Answer::Refused(rejection) => End::Rejected(rejection),
                    };
                    self.ends.push((self.now, call, end));
                }
            }
            Event::Notice(feedback) => self.caller.notice(self.now, 0, &feedback),
        }
    }

    fn answer(&mut self, call: RequestId, context: &Context, answer: Answer) {
        let feedback = self.gate.feedback(self.now, context.caller, context.workflow);
        self.send(self.latency, Event::Response(call, answer, feedback));
    }

    fn drain_gate(&mut self) {
        while let Some(action) = self.gate.poll() {
            match action {
                Action::Start { id, .. } => self.send(self.service, Event::Finish(id)),
                Action::Refuse { id, rejection } => {
                    let (call, context) = self.calls.remove(&id).unwrap();
                    self.answer(call, &context, Answer::Refused(rejection));
                }
                Action::Notify { caller, feedback } => {
                    assert_eq!(caller, self.caller.id());
                    if !self.lose_notices {
                        self.send(self.latency, Event::Notice(feedback));
                    }
                }
            }
        }
    }

    fn drain_caller(&mut self) {
        while let Some(action) = self.caller.poll() {
            match action {
                CallAction::Transmit { id, context, .. } => {
                    self.send(self.latency, Event::Request(id, context));
                }
                CallAction::Report { context, .. } => {
                    self.send(self.latency, Event::Report(context));
                }
                CallAction::Fail { id, rejection } => {
                    self.ends.push((self.now, id, End::Rejected(rejection)));
                }
            }
        }
    }

    fn send(&mut self, after: Span, event: Event) {
        self.sequence += 1;
        self.events.insert((self.now + after, self.sequence), event);
    }
}
