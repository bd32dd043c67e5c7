//! [`Caller`]: the client side, one process's calls to one service. Every driver runs it unchanged.
//!
//! **Any number of inputs, then drain [`poll`](Caller::poll), then wait for an input or for
//! [`next_wakeup`](Caller::next_wakeup).**
//!
//! ```text
//!            ┌──────── reject ────────┐
//! submit ────┤                        │         ┌── retry: at once elsewhere, or after a pause ──┐
//!            ├─► Sent ──respond──► (done) ──────┘                                               │
//!            └─► Held ──credit──► Sent                                                  Pausing ─┘
//!                  └─ too late, or pushed out by something more important: fail
//! ```
//!
//! The holding queue is bounded, first come first served, and loses its least important when full.
//! What is rejected here is counted and reported, so that the callee knows what was offered.

use std::collections::{BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use crate::balance::{Load, two_choices};
use crate::config::{self, ConfigError, Problems};
use crate::context::{CallerId, Context, Sheds};
use crate::event::{Event, Events, Misuse};
use crate::feedback::{Feedback, GateId};
use crate::list::{Links, List};
use crate::rank::Rank;
use crate::request::{Cx, RequestId};
use crate::retry::{Budget, RetryConfig};
use crate::rng::{Rng, mix};
use crate::signal::Ewma;
use crate::slab::Slab;
use crate::throttle::{Answer, Response, Throttle, ThrottleConfig};
use crate::time::{Instant, Span};
use crate::verdict::{Advice, Outcome, Passage, Reason, Rejection};

/// What a driver must do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CallAction {
    /// Send this call to this endpoint with this context.
    Transmit {
        /// Which call.
        id: RequestId,
        /// Index of the endpoint.
        endpoint: usize,
        /// What travels with it.
        context: Context,
    },
    /// Tell the application that this call was rejected here; its id has ended.
    Fail {
        /// Which call.
        id: RequestId,
        /// Why.
        rejection: Rejection,
    },
    /// Tell this endpoint that demand has vanished, if the driver can; otherwise drop it.
    Report {
        /// Index of the endpoint.
        endpoint: usize,
        /// A context without a request: caller, demand and sheds.
        context: Context,
    },
}

/// What follows from a response.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Next {
    /// The call is over; this is what the application should be told.
    Over(Answer),
    /// Another attempt will be made; the call keeps its id.
    Retry,
}

/// Throttle, holding queue, retries and replica choice as one state machine.
#[derive(Clone, Debug)]
pub struct Caller {
    id: CallerId,
    config: CallerConfig,
    now: Instant,
    endpoints: Vec<Endpoint>,
    calls: Slab<Call>,
    /// Held calls in order of arrival.
    held: List,
    links: Links,
    held_count: usize,
    /// Held calls by rank, to find the least important.
    by_rank: BTreeSet<(Rank, RequestId)>,
    /// When held calls give up and paused retries go out.
    timers: BTreeSet<(Instant, RequestId)>,
    sheds: Sheds,
    budget: Budget,
    /// Mean and mean deviation of latency: how long an answer takes.
    latency: Ewma,
    deviation: Ewma,
    actions: VecDeque<CallAction>,
    rng: Rng,
    events: Events,
}

#[derive(Clone, Debug)]
struct Endpoint {
    throttle: Box<dyn Throttle>,
    load: Load,
    /// Highest sequence heard from each gate behind this endpoint.
    gates: Vec<(GateId, u64)>,
    /// Demand last told to this endpoint.
    told_demand: u32,
}

/// Gates remembered behind one endpoint.
const GATES: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Call {
    context: Context,
    state: State,
    /// When it was sent or held, as its state says.
    since: Instant,
    /// Its entry in `timers`, [`Instant::FAR`] when it has none.
    timer: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Held,
    Sent {
        endpoint: usize,
    },
    /// Waits out its pause before another attempt, somewhere else than at `avoid` if possible.
    Pausing {
        avoid: usize,
    },
}

impl Caller {
    /// A caller of a service with `endpoints` replicas. `seed` decides all its random choices and
    /// its identity.
    pub fn new(
        config: &CallerConfig,
        endpoints: usize,
        now: Instant,
        seed: u64,
    ) -> Result<Self, ConfigError> {
        config.check()?;
        let mut caller = Self {
            // Never UNKNOWN: the lowest bit is set.
            id: CallerId(mix(seed ^ 0x6361_6c6c) | 1),
            config: config.clone(),
            now,
            endpoints: Vec::new(),
            calls: Slab::default(),
            held: List::EMPTY,
            links: Links::default(),
            held_count: 0,
            by_rank: BTreeSet::new(),
            timers: BTreeSet::new(),
            sheds: Sheds::NONE,
            budget: Budget::new(config.retry.share, config.retry.reserve),
            latency: Ewma::new(1.0 / 16.0),
            deviation: Ewma::new(1.0 / 16.0),
            actions: VecDeque::new(),
            rng: Rng::new(seed),
            events: Events::default(),
        };
        for _ in 0..endpoints {
            caller.add_endpoint(now);
        }
        Ok(caller)
    }

    // === inputs ===

    /// Adds a replica and returns its index.
    pub fn add_endpoint(&mut self, now: Instant) -> usize {
        let seed = self.rng.next_u64();
        self.endpoints.push(Endpoint {
            throttle: self.config.throttle.build(now, seed),
            load: Load::new(now),
            gates: Vec::new(),
            told_demand: 0,
        });
        self.endpoints.len() - 1
    }

    /// The application makes a call. It is rejected at once, sent, or held.
    pub fn submit(&mut self, now: Instant, context: &Context) -> Result<RequestId, Rejection> {
        let now = self.advance(now);
        self.budget.deposit();
        if context.deadline <= now {
            let late = now.since(context.deadline).as_nanos() as f64;
            return Err(Rejection::new(Reason::Expired, late, 0.0, Advice::Never));
        }
        match self.route(now, context, None) {
            Route::Send(endpoint) => {
                let state = State::Sent { endpoint };
                let id = self.calls.insert_with(|_| Call {
                    context: *context,
                    state,
                    since: now,
                    timer: Instant::FAR,
                });
                self.transmit(now, id, endpoint);
                Ok(id)
            }
            Route::Hold => self.hold_new(now, context),
            Route::Reject(rejection) => {
                self.shed(context.rank);
                Err(rejection)
            }
        }
    }

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
            self.events.push(now, || Event::Ignore(Misuse::NeverSent));
            return Next::Over(answer);
        };
        let latency = now.since(call.since);
        let target = &mut self.endpoints[endpoint];
        match answer {
            Answer::Done(Outcome::Serve) => {
                target.load.on_answer(latency);
                let nanos = latency.as_nanos() as f64;
                self.deviation.add((nanos - self.latency.get().unwrap_or(nanos)).abs());
                self.latency.add(nanos);
            }
            Answer::Done(Outcome::Cancel) => target.load.on_cancel(),
            Answer::Done(Outcome::Fail) | Answer::Refused(_) => target.load.on_refusal(now),
        }
        let mut cx = Cx { now, rng: &mut self.rng, events: &mut self.events };
        target.throttle.on_response(&mut cx, &Response { context: call.context, latency, answer });
        let next = self.after(now, id, &call, endpoint, answer);
        if next != Next::Retry {
            self.calls.remove(id);
        }
        match feedback {
            Some(feedback) => self.hear(now, endpoint, feedback),
            // A credit may have come back all the same.
            None => self.release(now, endpoint, false),
        }
        next
    }

    /// An endpoint tells its state unasked.
    pub fn notice(&mut self, now: Instant, endpoint: usize, feedback: &Feedback) {
        let now = self.advance(now);
        if endpoint < self.endpoints.len() {
            self.hear(now, endpoint, feedback);
        } else {
            self.events.push(now, || Event::Ignore(Misuse::UnknownId));
        }
    }

    /// The application has given up on a call.
    pub fn cancel(&mut self, now: Instant, id: RequestId) {
        let now = self.advance(now);
        match self.calls.get(id).map(|call| call.state) {
            None => self.events.push(now, || Event::Ignore(Misuse::UnknownId)),
            Some(State::Held) => {
                self.unhold(id);
                self.calls.remove(id);
                self.report_vanished_demand();
            }
            Some(State::Pausing { .. }) => {
                self.disarm(id);
                self.calls.remove(id);
            }
            Some(State::Sent { .. }) => {
                self.respond(now, id, Answer::Done(Outcome::Cancel), None);
            }
        }
    }

    /// Sheds that a gate of ours made in the callee's name, to be reported with the next call.
    pub fn note_sheds(&mut self, sheds: Sheds) {
        self.sheds.merge(sheds, &mut self.rng);
    }

    /// Changes the configuration. Parameters change in place; another throttle starts anew.
    pub fn reconfigure(&mut self, now: Instant, config: &CallerConfig) -> Result<(), ConfigError> {
        config.check()?;
        let now = self.advance(now);
        for endpoint in &mut self.endpoints {
            if !endpoint.throttle.reconfigure(&config.throttle) {
                endpoint.throttle = config.throttle.build(now, self.rng.next_u64());
            }
        }
        self.budget = Budget::new(config.retry.share, config.retry.reserve);
        self.config = config.clone();
        Ok(())
    }

    /// Lets time pass: held calls give up, paused retries go out, tokens come due.
    pub fn dispatch(&mut self, now: Instant) {
        let now = self.advance(now);
        for endpoint in 0..self.endpoints.len() {
            self.release(now, endpoint, false);
        }
    }

    /// The next thing to do, none when all is done.
    pub fn poll(&mut self) -> Option<CallAction> {
        self.actions.pop_front()
    }

    /// When to dispatch even if nothing comes in.
    pub fn next_wakeup(&self) -> Option<Instant> {
        let throttles =
            self.endpoints.iter().filter_map(|endpoint| endpoint.throttle.next_wakeup());
        throttles.chain(self.timers.first().map(|(at, _)| *at)).min()
    }

    // === questions ===

    /// Who this caller is.
    pub fn id(&self) -> CallerId {
        self.id
    }

    /// Calls that wait here for a credit or token.
    pub fn held(&self) -> usize {
        self.held_count
    }

    /// Calls outstanding at `endpoint`.
    pub fn in_flight(&self, endpoint: usize) -> u32 {
        self.endpoints.get(endpoint).map_or(0, |endpoint| endpoint.load.in_flight())
    }

    /// Whether the retry budget is spent: then this process should tell its own callers not to
    /// retry either.
    pub fn budget_spent(&self) -> bool {
        self.budget.spent()
    }

    /// Events, for whoever calls [`Events::keep`] first.
    pub fn events(&mut self) -> &mut Events {
        &mut self.events
    }

    /// Panics if the state contradicts itself.
    pub fn invariants(&self) {
        let held = self.calls.iter().filter(|(_, call)| call.state == State::Held).count();
        assert_eq!(held, self.held_count);
        assert_eq!(held, self.by_rank.len());
        assert!(held <= self.config.hold_limit, "the holding queue is bounded");
        let timers = self.calls.iter().filter(|(_, call)| call.timer < Instant::FAR).count();
        assert_eq!(timers, self.timers.len(), "one timer per call that has one");
        for (index, endpoint) in self.endpoints.iter().enumerate() {
            let sent = self
                .calls
                .iter()
                .filter(|(_, call)| call.state == State::Sent { endpoint: index })
                .count();
            assert_eq!(sent, endpoint.load.in_flight() as usize);
            endpoint.throttle.invariants();
        }
        self.budget.invariants();
    }

    // === inside ===

    fn advance(&mut self, now: Instant) -> Instant {
        self.now = self.now.max(now);
        let now = self.now;
        let mut cx = Cx { now, rng: &mut self.rng, events: &mut self.events };
        for endpoint in &mut self.endpoints {
            endpoint.throttle.settle(&mut cx);
        }
        while let Some((at, id)) = self.timers.first().copied() {
            if at > now {
                break;
            }
            self.disarm(id);
            match self.calls.get(id).map(|call| (call.state, call.context)) {
                Some((State::Held, context)) => {
                    self.unhold(id);
                    let waited = now.since(self.calls.get(id).map_or(now, |call| call.since));
                    self.fail(id, &context, Reason::Credit, waited.as_nanos() as f64, 0.0);
                    self.report_vanished_demand();
                }
                Some((State::Pausing { avoid }, context)) => self.again(now, id, &context, avoid),
                Some((State::Sent { .. }, _)) | None => {}
            }
        }
        now
    }

    /// Where a request may go: the less loaded of two endpoints, else the other.
    fn route(&mut self, now: Instant, context: &Context, avoid: Option<usize>) -> Route {
        let Some((first, second)) = two_choices(&mut self.rng, self.endpoints.len()) else {
            return Route::Reject(Rejection::new(Reason::Draining, 0.0, 1.0, Advice::Never));
        };
        let score = |index: usize| {
            let endpoint = &self.endpoints[index];
            // After a refusal, replicas with a laxer cursor are better, and the same one is last.
            let refuses = !endpoint.throttle.cursor(now).admits(context.rank);
            (Some(index) == avoid, refuses, endpoint.load.score(now))
        };
        let (mut best, mut other) = (first, second);
        if first != second && score(second) < score(first) {
            (best, other) = (second, first);
        }
        let mut outcome =
            Route::Reject(Rejection::new(Reason::Credit, 0.0, 0.0, Advice::Elsewhere));
        for index in [best, other] {
            let mut cx = Cx { now, rng: &mut self.rng, events: &mut self.events };
            match self.endpoints[index].throttle.on_submit(&mut cx, context) {
                Passage::Send => return Route::Send(index),
                Passage::Hold => outcome = Route::Hold,
                Passage::Reject(rejection) => {
                    if !matches!(outcome, Route::Hold) {
                        outcome = Route::Reject(rejection);
                    }
                }
            }
            if first == second {
                break;
            }
        }
        outcome
    }

    fn transmit(&mut self, now: Instant, id: RequestId, endpoint: usize) {
        let demand = self.demand();
        let Some(call) = self.calls.get_mut(id) else { return };
        call.state = State::Sent { endpoint };
        call.since = now;
        let context = Context {
            caller: self.id,
            demand,
            sheds: std::mem::take(&mut self.sheds),
            ..call.context
        };
        let target = &mut self.endpoints[endpoint];
        target.load.on_send();
        target.told_demand = demand;
        self.actions.push_back(CallAction::Transmit { id, endpoint, context });
    }

    /// What to tell an endpoint: its part of what waits here.
    fn demand(&self) -> u32 {
        let endpoints = self.endpoints.len().max(1);
        self.held_count.div_ceil(endpoints) as u32
    }

    fn hold_new(&mut self, now: Instant, context: &Context) -> Result<RequestId, Rejection> {
        let give_up = self.hold_until(now, context);
        let reject =
            |held: usize| Rejection::new(Reason::Credit, held as f64, 0.0, Advice::Elsewhere);
        if give_up <= now {
            self.shed(context.rank);
            return Err(reject(self.held_count));
        }
        if self.held_count >= self.config.hold_limit {
            // Full: the least important goes, be it the newcomer.
            let least = self.by_rank.last().copied().filter(|(rank, _)| *rank > context.rank);
            let Some((rank, victim)) = least else {
                self.shed(context.rank);
                return Err(reject(self.held_count));
            };
            let victims_context = Context { rank, ..*context };
            self.unhold(victim);
            self.fail(
                victim,
                &victims_context,
                Reason::PushedOut,
                f64::from(rank.key()),
                f64::from(context.rank.key()),
            );
        }
        let id = self.calls.insert_with(|_| Call {
            context: *context,
            state: State::Held,
            since: now,
            timer: Instant::FAR,
        });
        self.links.push_back(&mut self.held, id.index());
        self.held_count += 1;
        self.by_rank.insert((context.rank, id));
        self.arm(id, give_up);
        Ok(id)
    }

    /// When a held request gives up: after the holding limit, and in time for an answer to come
    /// before its deadline.
    fn hold_until(&self, now: Instant, context: &Context) -> Instant {
        let by_limit = now + self.config.hold_time;
        if context.deadline == Instant::FAR {
            return by_limit;
        }
        // RTT, wait and service as TCP estimates a timeout: mean plus four deviations.
        let answer = self.latency.get().unwrap_or(0.0) + 4.0 * self.deviation.get().unwrap_or(0.0);
        by_limit.min(context.deadline - Span::from_nanos(answer as u64))
    }

    fn unhold(&mut self, id: RequestId) {
        let Some(call) = self.calls.get(id) else { return };
        self.by_rank.remove(&(call.context.rank, id));
        self.links.remove(&mut self.held, id.index());
        self.held_count -= 1;
        self.disarm(id);
    }

    fn fail(
        &mut self,
        id: RequestId,
        context: &Context,
        reason: Reason,
        measured: f64,
        limit: f64,
    ) {
        self.calls.remove(id);
        self.shed(context.rank);
        let rejection = Rejection::new(reason, measured, limit, Advice::Elsewhere);
        self.actions.push_back(CallAction::Fail { id, rejection });
    }

    fn shed(&mut self, rank: Rank) {
        self.sheds.merge(Sheds { count: 1, sample: rank }, &mut self.rng);
    }

    fn hear(&mut self, now: Instant, endpoint: usize, feedback: &Feedback) {
        let target = &mut self.endpoints[endpoint];
        match target.gates.iter_mut().find(|(gate, _)| *gate == feedback.gate) {
            Some((_, sequence)) if *sequence >= feedback.sequence => {
                self.events.push(now, || Event::Ignore(Misuse::Overtaken));
                return self.release(now, endpoint, false);
            }
            Some((_, sequence)) => *sequence = feedback.sequence,
            None => {
                if target.gates.len() >= GATES {
                    target.gates.remove(0);
                }
                target.gates.push((feedback.gate, feedback.sequence));
            }
        }
        if let Some(utilization) = feedback.utilization {
            target.load.on_utilization(utilization);
        }
        let mut cx = Cx { now, rng: &mut self.rng, events: &mut self.events };
        let relaxed = target.throttle.on_feedback(&mut cx, feedback);
        self.release(now, endpoint, relaxed);
    }

    /// Sends held calls to `endpoint` in order of arrival, as far as its throttle lets them. When
    /// cursors were relaxed, later ones may go although an earlier one must still wait.
    fn release(&mut self, now: Instant, endpoint: usize, look_at_all: bool) {
        let mut place = self.held.front();
        while let Some(at) = place {
            place = self.links.after(at);
            let Some(id) = self.calls.key_at(at) else { break };
            let Some(call) = self.calls.get(id).copied() else { break };
            let mut cx = Cx { now, rng: &mut self.rng, events: &mut self.events };
            match self.endpoints[endpoint].throttle.on_submit(&mut cx, &call.context) {
                Passage::Send => {
                    self.unhold(id);
                    self.transmit(now, id, endpoint);
                }
                Passage::Hold if look_at_all => {}
                Passage::Hold => break,
                Passage::Reject(rejection) if self.endpoints.len() == 1 => {
                    self.unhold(id);
                    self.calls.remove(id);
                    self.shed(call.context.rank);
                    self.actions.push_back(CallAction::Fail { id, rejection });
                }
                // Another endpoint may still take it.
                Passage::Reject(_) => {}
            }
        }
        self.report_vanished_demand();
    }

    /// papers.md trap 8: a caller whose held requests have gone must say so, or its credits are
    /// stranded until its next request.
    fn report_vanished_demand(&mut self) {
        if self.held_count > 0 {
            return;
        }
        for index in 0..self.endpoints.len() {
            let endpoint = &mut self.endpoints[index];
            if endpoint.told_demand > 0 && endpoint.load.in_flight() == 0 {
                endpoint.told_demand = 0;
                let sheds = std::mem::take(&mut self.sheds);
                let context = Context { caller: self.id, sheds, ..Context::default() };
                self.actions.push_back(CallAction::Report { endpoint: index, context });
            }
        }
    }

    /// Decides what follows from an answer.
    fn after(
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
            Advice::Later(asked) => self.config.retry.pause(attempt, asked, &mut self.rng),
        };
        let may = attempt < self.config.retry.attempts
            && now + pause < call.context.deadline
            && self.budget.withdraw();
        self.events.push(now, || Event::Retry { attempt, allowed: may });
        if !may {
            // No second layer may retry what this one gave up on.
            let spent = Rejection { advice: Advice::Never, ..rejection };
            return Next::Over(match answer {
                Answer::Refused(_) => Answer::Refused(spent),
                done @ Answer::Done(_) => done,
            });
        }
        if let Some(call) = self.calls.get_mut(id) {
            call.context.attempt = attempt;
            call.state = State::Pausing { avoid: endpoint };
        }
        if pause == Span::ZERO {
            let context = Context { attempt, ..call.context };
            self.again(now, id, &context, endpoint);
        } else {
            self.arm(id, now + pause);
        }
        Next::Retry
    }

    /// Another attempt at a call that keeps its id.
    fn again(&mut self, now: Instant, id: RequestId, context: &Context, avoid: usize) {
        match self.route(now, context, Some(avoid)) {
            Route::Send(endpoint) => self.transmit(now, id, endpoint),
            // A retry does not queue for credits before first attempts.
            Route::Hold => self.fail(id, context, Reason::Credit, self.held_count as f64, 0.0),
            Route::Reject(rejection) => {
                self.calls.remove(id);
                self.shed(context.rank);
                self.actions.push_back(CallAction::Fail {
                    id,
                    rejection: Rejection { advice: Advice::Never, ..rejection },
                });
            }
        }
    }

    fn sent(&self, id: RequestId) -> Option<(Call, usize)> {
        let call = *self.calls.get(id)?;
        match call.state {
            State::Sent { endpoint } => Some((call, endpoint)),
            State::Held | State::Pausing { .. } => None,
        }
    }

    fn arm(&mut self, id: RequestId, at: Instant) {
        if let Some(call) = self.calls.get_mut(id).filter(|_| at < Instant::FAR) {
            call.timer = at;
            self.timers.insert((at, id));
        }
    }

    fn disarm(&mut self, id: RequestId) {
        if let Some(call) = self.calls.get_mut(id) {
            self.timers.remove(&(call.timer, id));
            call.timer = Instant::FAR;
        }
    }
}

enum Route {
    Send(usize),
    Hold,
    Reject(Rejection),
}

/// Parameters of a [`Caller`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CallerConfig {
    /// Who may leave.
    pub throttle: ThrottleConfig,
    /// Who may try again.
    pub retry: RetryConfig,
    /// Most requests held for a credit or token. More smooths bursts, fewer fails sooner. Default
    /// 16 (Breakwater's code, per session).
    pub hold_limit: usize,
    /// Longest time a request is held. Less fails sooner, more serves a request that has aged.
    /// Requests with a deadline are given up in time for an answer anyway. Default 1 s;
    /// Breakwater's code has 10 µs, one round trip.
    pub hold_time: Span,
}

impl Default for CallerConfig {
    fn default() -> Self {
        Self {
            throttle: ThrottleConfig::default(),
            retry: RetryConfig::default(),
            hold_limit: 16,
            hold_time: Span::from_secs(1),
        }
    }
}

impl CallerConfig {
    /// Reads and checks a TOML block.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        config::read(text, Self::validate)
    }

    /// Writes the configuration as TOML, every parameter in full.
    pub fn to_toml(&self) -> String {
        config::print(self)
    }

    /// Everything that is wrong with it, at once.
    pub fn check(&self) -> Result<(), ConfigError> {
        let mut problems = Problems::default();
        self.validate(&mut problems);
        problems.into_result()
    }

    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        problems.within("throttle", |problems| self.throttle.validate(problems));
        problems.within("retry", |problems| self.retry.validate(problems));
        problems.check("hold_limit", self.hold_limit, self.hold_limit <= 1 << 20, "0 to 1048576");
    }
}
