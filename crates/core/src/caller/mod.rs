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

mod action;
mod answers;
mod breaker;
mod config;
mod ejection;
mod endpoint;
mod health;
mod hedges;
mod holding;
mod routing;
mod sheds;
mod waiting;

use std::collections::{BTreeSet, VecDeque};

use crate::config::ConfigError;
use crate::context::{CallerId, Context, Sheds};
use crate::event::{Event, Events, Misuse};
use crate::rank::Rank;
use crate::request::{Cx, RequestId};
use crate::retry::{Budget, HedgeDelay};
use crate::rng::mix;
use crate::signal::Ewma;
use crate::slab::Slab;
use crate::throttle::Answer;
use crate::time::Instant;
use crate::verdict::{Advice, Outcome, Reason, Rejection};

use breaker::Breaker;
use endpoint::Endpoint;
use holding::Holding;
use routing::Route;
use sheds::ShedLog;

pub use action::{CallAction, Next};
pub use breaker::BreakerConfig;
pub use config::CallerConfig;
pub use ejection::EjectionConfig;

/// Throttle, holding queue, retries and replica choice as one state machine.
#[derive(Clone, Debug)]
pub struct Caller {
    id: CallerId,
    config: CallerConfig,
    /// What throttles are lent; its moment is the latest heard of.
    cx: Cx,
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
            cx: Cx::new(now, seed),
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
        let seed = self.cx.rng.next_u64();
        let throttle = self.config.throttle.build(now, seed);
        self.endpoints.push(Endpoint::new(throttle, now));
        let endpoint = self.endpoints.len() - 1;
        self.release(now, endpoint, false);
        endpoint
    }

    /// The application makes a call. It is rejected at once, sent, or held.
    pub fn submit(&mut self, now: Instant, context: &Context) -> Result<RequestId, Rejection> {
        let now = self.advance(now);
        let context = &context.draw(&mut self.cx.rng);
        self.budget.deposit();
        if context.deadline <= now && !self.config.soft_deadlines {
            return Err(expired(now, context));
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

    /// How busy an endpoint is by its own report, 1 being full, where feedback does not say.
    pub fn on_load(&mut self, now: Instant, endpoint: usize, utilization: f32) {
        let now = self.advance(now);
        match self.endpoints.get_mut(endpoint) {
            Some(endpoint) => endpoint.load.on_utilization(utilization),
            None => self.cx.events.push(now, || Event::Ignore(Misuse::UnknownId)),
        }
    }

    /// The application has given up on a call.
    pub fn cancel(&mut self, now: Instant, id: RequestId) {
        let now = self.advance(now);
        match self.calls.get(id).map(|call| call.state) {
            None => self.cx.events.push(now, || Event::Ignore(Misuse::UnknownId)),
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
        self.sheds.merge(sheds, &mut self.cx.rng);
    }

    /// Changes the configuration. Parameters change in place; another throttle starts anew, with
    /// what is in flight.
    pub fn reconfigure(&mut self, now: Instant, config: &CallerConfig) -> Result<(), ConfigError> {
        config.check()?;
        let now = self.advance(now);
        for endpoint in &mut self.endpoints {
            if !endpoint.throttle.reconfigure(&config.throttle) {
                endpoint.throttle = config.throttle.build(now, self.cx.rng.next_u64());
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
        let back = self.back_after(self.cx.now).filter(|_| self.held() > 0);
        throttles.chain(give_up).chain(pause).chain(back).min().filter(|at| *at < Instant::FAR)
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
        &mut self.cx.events
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
        let before = self.cx.now;
        self.cx.now = before.max(now);
        let now = self.cx.now;
        while let Some((_, id)) = self.holding.first_to_give_up().filter(|(at, _)| *at <= now) {
            self.drop_held(id, no_credit(self.holding.len(), Advice::Elsewhere));
            self.report_demand();
        }
        for index in 0..self.endpoints.len() {
            let throttle = &mut self.endpoints[index].throttle;
            let woke = throttle.next_wakeup().is_some_and(|at| at <= now);
            throttle.settle(&mut self.cx);
            if woke {
                self.release(now, index, false);
            }
        }
        // A circuit may be tried again, which nothing else tells.
        if self.held() > 0 && self.back_after(before).is_some_and(|at| at <= now) {
            self.reroute_held(now);
            self.report_demand();
        }
        while let Some((at, id)) = self.pauses.first().copied().filter(|(at, _)| *at <= now) {
            self.pauses.remove(&(at, id));
            if let Some(Call { state: State::Pausing { avoid, .. }, .. }) = self.calls.get(id) {
                self.again(now, id, *avoid);
            }
        }
        now
    }

    fn insert(&mut self, now: Instant, context: &Context, state: State) -> RequestId {
        self.calls.insert_with(|_| Call { context: *context, state, sent: now })
    }

    /// Ends a call that never left, or may not leave again.
    fn fail(&mut self, id: RequestId, rejection: Rejection) {
        if let Some(call) = self.calls.remove(id) {
            self.shed(call.context.rank);
            self.actions.push_back(CallAction::Fail { id, rejection });
        }
    }

    fn shed(&mut self, rank: Rank) {
        self.sheds.add(self.cx.now, rank, &mut self.cx.rng);
    }

    fn sent(&self, id: RequestId) -> Option<(Call, usize)> {
        let call = *self.calls.get(id)?;
        match call.state {
            State::Sent { endpoint } => Some((call, endpoint)),
            State::Held | State::Pausing { .. } => None,
        }
    }
}

/// A rejection because `held` requests, this one included, want a credit and none is there.
fn no_credit(held: usize, advice: Advice) -> Rejection {
    Rejection::new(Reason::Credit, held as f64, 0.0, advice)
}

fn expired(now: Instant, context: &Context) -> Rejection {
    let late = now.since(context.deadline).as_nanos_f64();
    Rejection::new(Reason::Expired, late, 0.0, Advice::Never)
}
