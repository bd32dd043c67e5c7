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

mod breaker;
mod config;
mod ejection;
mod endpoint;
mod health;
mod holding;
mod sheds;

use std::collections::{BTreeSet, VecDeque};

use crate::balance::two_choices;
use crate::config::ConfigError;
use crate::context::{CallerId, Context, Sheds, Workflow};
use crate::event::{Event, Events, Misuse};
use crate::feedback::Feedback;
use crate::rank::Rank;
use crate::request::{Cx, RequestId};
use crate::retry::{Budget, HedgeDelay};
use crate::rng::{Rng, mix};
use crate::signal::Ewma;
use crate::slab::Slab;
use crate::throttle::{Answer, Response};
use crate::time::{Instant, Span};
use crate::verdict::{Advice, Outcome, Passage, Reason, Rejection};

use breaker::Breaker;
use endpoint::Endpoint;
use holding::Holding;
use sheds::ShedLog;

pub use breaker::BreakerConfig;
pub use config::CallerConfig;
pub use ejection::EjectionConfig;

/// Longest pause before another attempt, whatever the callee asks for: a call without a deadline must
/// not hang on somebody's `Retry-After` for a year.
const LONGEST_PAUSE: Span = Span::from_secs(60);

/// What a driver of a caller must do.
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
    /// Tell this endpoint what waits here, if the driver can; otherwise drop it.
    Report {
        /// Index of the endpoint.
        endpoint: usize,
        /// A context without a request: caller, demand and sheds.
        context: Context,
    },
}

/// What follows from a response: the call is over, or is tried again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Next {
    /// The call is over; this is what the application should be told.
    Over(Answer),
    /// Another attempt is under way or will be made; the call keeps its id. If that attempt may not
    /// leave after all, a [`CallAction::Fail`] follows.
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
    /// Calls that wait for a credit or token.
    holding: Holding,
    /// When paused retries go out.
    pauses: BTreeSet<(Instant, RequestId)>,
    /// What was shed since the last request or report left.
    sheds: ShedLog,
    budget: Budget,
    hedge: HedgeDelay,
    /// When the present interval of outlier ejection ends.
    ejection_ends: Instant,
    /// Mean and mean deviation of latency: how long an answer takes.
    latency: Ewma,
    deviation: Ewma,
    actions: VecDeque<CallAction>,
    rng: Rng,
    events: Events,
}

#[derive(Clone, Copy, Debug)]
struct Call {
    context: Context,
    state: State,
    /// When it was last sent.
    sent: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Held,
    Sent {
        endpoint: usize,
    },
    /// Waits until then for another attempt, somewhere else than at `avoid` if possible.
    Pausing {
        until: Instant,
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
            holding: Holding::default(),
            pauses: BTreeSet::new(),
            sheds: ShedLog::new(now),
            budget: Budget::new(config.retry.share, config.retry.reserve),
            hedge: HedgeDelay::default(),
            ejection_ends: now,
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
        let now = self.advance(now);
        let seed = self.rng.next_u64();
        let throttle = self.config.throttle.build(now, seed);
        self.endpoints.push(Endpoint::new(throttle, now));
        let endpoint = self.endpoints.len() - 1;
        self.release(now, endpoint, false);
        endpoint
    }

    /// The application makes a call. It is rejected at once, sent, or held.
    pub fn submit(&mut self, now: Instant, context: &Context) -> Result<RequestId, Rejection> {
        let now = self.advance(now);
        self.budget.deposit();
        if context.deadline <= now && !self.config.soft_deadlines {
            return Err(expired(now, context));
        }
        // An endpoint that was left out may be back, which nothing tells; who waits comes first.
        if self.config.breaker.is_some() || self.config.ejection.is_some() {
            self.reroute_held(now);
            self.report_demand();
        }
        match self.route(now, context, None) {
            Route::Send(endpoint) => {
                let id = self.insert(now, context, State::Sent { endpoint });
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
            // A second answer to an attempt does not end a call that waits for its next one.
            let alive = self.calls.get(id).is_some();
            return if alive { Next::Retry } else { Next::Over(answer) };
        };
        let latency = now.since(call.sent);
        self.count_answer(now, endpoint, latency, answer);
        let mut cx = Cx { now, rng: &mut self.rng, events: &mut self.events };
        let response = Response { context: call.context, latency, answer };
        self.endpoints[endpoint].throttle.on_response(&mut cx, &response);
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
            self.events.push(now, || Event::Ignore(Misuse::UnknownId));
        }
    }

    /// When to ask for a [`hedge`](Self::hedge) of a call that was sent; none if it gets none.
    pub fn hedge_at(&self, id: RequestId) -> Option<Instant> {
        let (call, _) = self.sent(id)?;
        let delay = self.hedge.delay(self.config.hedge.as_ref()?)?;
        let at = call.sent + delay;
        (call.context.attempt == 0 && at < call.context.deadline).then_some(at)
    }

    /// Sends a call once more, elsewhere, while it is not answered, as a call of its own: the first
    /// answer is taken, and the other call cancelled. None if that may not be, because the budget of
    /// retries is spent or no other endpoint would take it now.
    pub fn hedge(&mut self, now: Instant, of: RequestId) -> Option<RequestId> {
        let now = self.advance(now);
        let (call, first) = self.sent(of)?;
        self.config.hedge?;
        let attempt = call.context.attempt.saturating_add(1);
        let may = attempt < self.config.retry.attempts
            && now < call.context.deadline
            && self.endpoints.len() > 1
            && self.budget.withdraw();
        self.events.push(now, || Event::Retry { attempt, allowed: may });
        if !may {
            return None;
        }
        let context = Context { attempt, ..call.context };
        match self.route(now, &context, Some(first)) {
            Route::Send(endpoint) => {
                let id = self.insert(now, &context, State::Sent { endpoint });
                self.transmit(now, id, endpoint);
                Some(id)
            }
            // Where a first attempt would have to wait, a second one has no place.
            Route::Hold | Route::Reject(_) => {
                self.budget.refund();
                None
            }
        }
    }

    /// How busy an endpoint is by its own report, 1 being full, where feedback does not say.
    pub fn on_load(&mut self, now: Instant, endpoint: usize, utilization: f32) {
        let now = self.advance(now);
        match self.endpoints.get_mut(endpoint) {
            Some(endpoint) => endpoint.load.on_utilization(utilization),
            None => self.events.push(now, || Event::Ignore(Misuse::UnknownId)),
        }
    }

    /// The application has given up on a call.
    pub fn cancel(&mut self, now: Instant, id: RequestId) {
        let now = self.advance(now);
        match self.calls.get(id).map(|call| call.state) {
            None => self.events.push(now, || Event::Ignore(Misuse::UnknownId)),
            Some(State::Held) => {
                self.holding.remove(id);
                self.calls.remove(id);
                self.report_demand();
            }
            Some(State::Pausing { until, .. }) => {
                self.pauses.remove(&(until, id));
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

    /// Changes the configuration. Parameters change in place; another throttle starts anew, with
    /// what is in flight.
    pub fn reconfigure(&mut self, now: Instant, config: &CallerConfig) -> Result<(), ConfigError> {
        config.check()?;
        let now = self.advance(now);
        for endpoint in &mut self.endpoints {
            if !endpoint.throttle.reconfigure(&config.throttle) {
                endpoint.throttle = config.throttle.build(now, self.rng.next_u64());
                endpoint.throttle.adopt(endpoint.load.in_flight());
            }
        }
        if config.breaker.is_none() {
            self.endpoints.iter_mut().for_each(|it| it.breaker = Breaker::default());
        }
        self.budget.reconfigure(config.retry.share, config.retry.reserve);
        self.config = config.clone();
        self.reroute_held(now);
        let limit = self.config.hold_limit;
        while let Some((_, id)) = self.holding.least().filter(|_| self.holding.len() > limit) {
            let held = self.holding.len() as f64;
            self.drop_held(id, Rejection::new(Reason::Full, held, limit as f64, Advice::Elsewhere));
        }
        self.report_demand();
        Ok(())
    }

    /// Lets time pass: held calls give up, paused retries go out, tokens come due.
    pub fn dispatch(&mut self, now: Instant) {
        self.advance(now);
    }

    /// The next thing to do, none when all is done.
    pub fn poll(&mut self) -> Option<CallAction> {
        self.actions.pop_front()
    }

    /// When to dispatch even if nothing comes in.
    pub fn next_wakeup(&self) -> Option<Instant> {
        let throttles =
            self.endpoints.iter().filter_map(|endpoint| endpoint.throttle.next_wakeup());
        let give_up = self.holding.first_to_give_up().map(|(at, _)| at);
        let pause = self.pauses.first().map(|(at, _)| *at);
        throttles.chain(give_up).chain(pause).min().filter(|at| *at < Instant::FAR)
    }

    // === questions ===

    /// Who this caller is.
    pub fn id(&self) -> CallerId {
        self.id
    }

    /// Calls that wait here for a credit or token.
    pub fn held(&self) -> usize {
        self.holding.len()
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
        let (mut held, mut pausing) = (0, 0);
        for (_, call) in self.calls.iter() {
            match call.state {
                State::Held => held += 1,
                State::Pausing { .. } => pausing += 1,
                State::Sent { .. } => {}
            }
        }
        assert_eq!(held, self.holding.len());
        assert!(held <= self.config.hold_limit, "the holding queue is bounded");
        self.holding.invariants();
        assert_eq!(pausing, self.pauses.len(), "one timer per paused retry");
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

    /// Brings everything up to `now`, in the order in which it must count: what has waited too long
    /// goes, then what may leave now leaves in order of arrival, then retries try their luck.
    fn advance(&mut self, now: Instant) -> Instant {
        self.now = self.now.max(now);
        let now = self.now;
        while let Some((_, id)) = self.holding.first_to_give_up().filter(|(at, _)| *at <= now) {
            self.drop_held(id, no_credit(self.holding.len(), Advice::Elsewhere));
            self.report_demand();
        }
        for index in 0..self.endpoints.len() {
            let throttle = &mut self.endpoints[index].throttle;
            let woke = throttle.next_wakeup().is_some_and(|at| at <= now);
            throttle.settle(&mut Cx { now, rng: &mut self.rng, events: &mut self.events });
            if woke {
                self.release(now, index, false);
            }
        }
        while let Some((at, id)) = self.pauses.first().copied().filter(|(at, _)| *at <= now) {
            self.pauses.remove(&(at, id));
            if let Some(Call { state: State::Pausing { avoid, .. }, .. }) = self.calls.get(id) {
                self.again(now, id, *avoid);
            }
        }
        now
    }

    /// Where a request may go: the less loaded of two endpoints, else the other. Before it has to
    /// wait, all others are asked; but a rejection is believed, or a caller with many endpoints
    /// would find one that has not rejected yet every time.
    fn route(&mut self, now: Instant, context: &Context, avoid: Option<usize>) -> Route {
        let Some(pair) = two_choices(&mut self.rng, self.endpoints.len()) else {
            return Route::Reject(Rejection::new(Reason::Draining, 0.0, 1.0, Advice::Never));
        };
        let (first, second) = match self.usable(now, pair) {
            Ok(pair) => pair,
            Err(rejection) => return Route::Reject(rejection),
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
        let Route::Hold = outcome else { return outcome };
        let count = self.endpoints.len();
        let others = (1..count).map(|step| (best + step) % count).filter(|index| *index != other);
        for index in others {
            if !self.endpoints[index].breaker.allows(now) {
                continue;
            }
            let mut cx = Cx { now, rng: &mut self.rng, events: &mut self.events };
            if self.endpoints[index].throttle.on_submit(&mut cx, context) == Passage::Send {
                return Route::Send(index);
            }
        }
        Route::Hold
    }

    fn transmit(&mut self, now: Instant, id: RequestId, endpoint: usize) {
        let demand = self.demand();
        let Some(call) = self.calls.get_mut(id) else { return };
        call.state = State::Sent { endpoint };
        call.sent = now;
        let context =
            Context { caller: self.id, demand, sheds: self.sheds.take(now), ..call.context };
        let target = &mut self.endpoints[endpoint];
        target.load.on_send();
        target.breaker.on_send();
        target.told_demand = demand;
        self.actions.push_back(CallAction::Transmit { id, endpoint, context });
    }

    /// What to tell an endpoint: its part of what waits here.
    fn demand(&self) -> u32 {
        let endpoints = self.endpoints.len().max(1);
        self.holding.len().div_ceil(endpoints) as u32
    }

    fn hold_new(&mut self, now: Instant, context: &Context) -> Result<RequestId, Rejection> {
        let give_up = self.hold_until(now, context);
        let full = self.holding.len() >= self.config.hold_limit;
        // Full: the least important goes, be it the newcomer.
        let victim = self.holding.least().filter(|(least, _)| full && *least > context.rank);
        if give_up <= now || full && victim.is_none() {
            self.shed(context.rank);
            return Err(no_credit(self.holding.len() + 1, Advice::Elsewhere));
        }
        if let Some((least, id)) = victim {
            let (measured, limit) = (f64::from(least.key()), f64::from(context.rank.key()));
            let pushed = Rejection::new(Reason::PushedOut, measured, limit, Advice::Elsewhere);
            self.drop_held(id, pushed);
        }
        let id = self.insert(now, context, State::Held);
        self.holding.push(id, context.rank, give_up);
        self.report_demand();
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

    fn insert(&mut self, now: Instant, context: &Context, state: State) -> RequestId {
        self.calls.insert_with(|_| Call { context: *context, state, sent: now })
    }

    fn drop_held(&mut self, id: RequestId, rejection: Rejection) {
        self.holding.remove(id);
        self.fail(id, rejection);
    }

    /// Ends a call that never left, or may not leave again.
    fn fail(&mut self, id: RequestId, rejection: Rejection) {
        if let Some(call) = self.calls.remove(id) {
            self.shed(call.context.rank);
            self.actions.push_back(CallAction::Fail { id, rejection });
        }
    }

    fn shed(&mut self, rank: Rank) {
        self.sheds.add(self.now, rank, &mut self.rng);
    }

    fn hear(
        &mut self,
        now: Instant,
        endpoint: usize,
        workflow: Option<Workflow>,
        feedback: &Feedback,
    ) {
        let feedback = &Feedback { workflow, ..*feedback };
        let target = &mut self.endpoints[endpoint];
        if !target.is_news(feedback) {
            self.events.push(now, || Event::Ignore(Misuse::Overtaken));
            return self.release(now, endpoint, false);
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
        let look_at_all = look_at_all || !self.endpoints[endpoint].throttle.in_order();
        let mut next = self.holding.front();
        // Asked anew for each: a circuit that is tried takes one call.
        while let Some(id) = next.filter(|_| self.endpoints[endpoint].breaker.allows(now)) {
            next = self.holding.after(id);
            let Some(call) = self.calls.get(id) else { break };
            let mut cx = Cx { now, rng: &mut self.rng, events: &mut self.events };
            match self.endpoints[endpoint].throttle.on_submit(&mut cx, &call.context) {
                Passage::Send => {
                    self.holding.remove(id);
                    self.transmit(now, id, endpoint);
                }
                Passage::Hold if look_at_all => {}
                Passage::Hold => break,
                Passage::Reject(rejection) if self.endpoints.len() == 1 => {
                    self.drop_held(id, rejection);
                }
                // Another endpoint may still take it.
                Passage::Reject(_) => {}
            }
        }
        self.report_demand();
    }

    /// Asks anew about every held call, in order of arrival: everything may have changed.
    fn reroute_held(&mut self, now: Instant) {
        let mut next = self.holding.front();
        while let Some(id) = next {
            next = self.holding.after(id);
            let Some(context) = self.calls.get(id).map(|call| call.context) else { break };
            match self.route(now, &context, None) {
                Route::Send(endpoint) => {
                    self.holding.remove(id);
                    self.transmit(now, id, endpoint);
                }
                Route::Hold => {}
                Route::Reject(rejection) => self.drop_held(id, rejection),
            }
        }
    }

    /// Tells endpoints that hear of it in no other way what waits here: that nothing does any more,
    /// or its credits would be stranded until the next request; and, where the throttle synchronises
    /// demand, how much.
    fn report_demand(&mut self) {
        let demand = self.demand();
        for index in 0..self.endpoints.len() {
            let endpoint = &mut self.endpoints[index];
            let matters = demand == 0 || endpoint.throttle.synchronises();
            if matters && endpoint.told_demand != demand && endpoint.load.in_flight() == 0 {
                endpoint.told_demand = demand;
                let sheds = self.sheds.take(self.now);
                let context = Context { caller: self.id, demand, sheds, ..Context::default() };
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
            && pause <= LONGEST_PAUSE
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
    fn again(&mut self, now: Instant, id: RequestId, avoid: usize) {
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

    fn sent(&self, id: RequestId) -> Option<(Call, usize)> {
        let call = *self.calls.get(id)?;
        match call.state {
            State::Sent { endpoint } => Some((call, endpoint)),
            State::Held | State::Pausing { .. } => None,
        }
    }

    /// What an answer says about the endpoint's load and about how long answers take.
    fn count_answer(&mut self, now: Instant, endpoint: usize, latency: Span, answer: Answer) {
        self.judge(now, endpoint, &answer);
        let load = &mut self.endpoints[endpoint].load;
        match answer {
            Answer::Done(Outcome::Serve) => {
                load.on_answer(latency);
                if let Some(config) = &self.config.hedge {
                    self.hedge.on_answer(latency, config);
                }
                let nanos = latency.as_nanos() as f64;
                self.deviation.add((nanos - self.latency.get().unwrap_or(nanos)).abs());
                self.latency.add(nanos);
            }
            Answer::Done(Outcome::Cancel) => load.on_cancel(),
            Answer::Done(Outcome::Fail) | Answer::Refused(_) => load.on_refusal(now),
        }
    }
}

/// A rejection because `held` requests, this one included, want a credit and none is there.
fn no_credit(held: usize, advice: Advice) -> Rejection {
    Rejection::new(Reason::Credit, held as f64, 0.0, advice)
}

fn expired(now: Instant, context: &Context) -> Rejection {
    let late = now.since(context.deadline).as_nanos() as f64;
    Rejection::new(Reason::Expired, late, 0.0, Advice::Never)
}

enum Route {
    Send(usize),
    Hold,
    Reject(Rejection),
}
