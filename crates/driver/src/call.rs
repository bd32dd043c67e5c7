//! [`SharedCaller`]: one caller for all tasks of a process, and the guard of one [`Call`].
//!
//! ```text
//! submit ─► Call ──leave──► Departure: send it ──respond──► over, or leave again
//!             └── Rejection
//! ```
//!
//! As with gates, each method is one step: read the clock, lock, give the caller its inputs, drain
//! its actions, unlock, wake. A call that is dropped at any point is cancelled.

use std::fmt;
use std::future::poll_fn;
use std::task::{self, Poll};

use tidegate_core::caller::{CallAction, CallerConfig, Next};
use tidegate_core::config::ConfigError;
use tidegate_core::throttle::Answer;
use tidegate_core::{Caller, Context, Feedback, Instant, Rejection, RequestId};

use crate::clock::{Clock, Monotonic, random_seed};
use crate::sync::{Arc, Mutex, lock};
use crate::waiters::{WaiterId, Waiters, Wakers};

/// A caller that any number of tasks on any number of threads use. Clones are the same caller.
///
/// Whoever waits for a call to leave must see to it that [`dispatch`](Self::dispatch) is called at
/// [`next_wakeup`](Self::next_wakeup).
#[derive(Clone)]
pub struct SharedCaller {
    shared: Arc<Shared>,
}

impl SharedCaller {
    /// Builds a caller of a service with so many `endpoints` and shares it, with a seed drawn by the
    /// operating system.
    pub fn build(config: &CallerConfig, endpoints: usize) -> Result<Self, ConfigError> {
        let clock = Monotonic::process();
        let caller = Caller::new(config, endpoints, clock.now(), random_seed())?;
        Ok(Self::with_clock(caller, clock))
    }

    /// Shares `caller`, with the clock of the process.
    pub fn new(caller: Caller) -> Self {
        Self::with_clock(caller, Monotonic::process())
    }

    /// Shares `caller`, with the clock that its process uses.
    pub fn with_clock(caller: Caller, clock: impl Clock + 'static) -> Self {
        let state = State { caller, waiters: Waiters::default() };
        let (clock, reports) = (Box::new(clock), None);
        Self { shared: Arc::new(Shared { clock, reports, state: Mutex::new(state) }) }
    }

    /// The same for a transport that can tell an endpoint what waits here without a request: `send`
    /// is called with the endpoint and what to tell it, after the lock.
    pub fn with_reports(
        caller: Caller,
        clock: impl Clock + 'static,
        send: impl Fn(usize, &Context) + Send + Sync + 'static,
    ) -> Self {
        let state = State { caller, waiters: Waiters::default() };
        let (clock, reports) = (Box::new(clock), Some(Box::new(send) as Box<SendReport>));
        Self { shared: Arc::new(Shared { clock, reports, state: Mutex::new(state) }) }
    }

    // === inputs ===

    /// The application makes a call: it is rejected at once, or may leave now or later.
    pub fn submit(&self, context: &Context) -> Result<Call, Rejection> {
        self.shared.locked(|state, now, after| {
            let submitted = state.caller.submit(now, context);
            let fate = state.drain(submitted.ok(), after);
            let request = submitted?;
            let phase = state.phase(request, fate);
            Ok(Call { shared: Arc::clone(&self.shared), request, phase })
        })
    }

    /// Any other input: an endpoint more, a notice, sheds, a new configuration.
    pub fn input<R>(&self, input: impl FnOnce(&mut Caller, Instant) -> R) -> R {
        self.shared.locked(|state, now, after| {
            let result = input(&mut state.caller, now);
            state.drain(None, after);
            result
        })
    }

    /// Lets time pass: held calls give up, paused retries leave, tokens come due.
    pub fn dispatch(&self) {
        self.input(|caller, now| caller.dispatch(now));
    }

    // === questions ===

    /// The present moment in this caller's clock.
    pub fn now(&self) -> Instant {
        self.shared.clock.now()
    }

    /// When to dispatch even if nothing comes in.
    pub fn next_wakeup(&self) -> Option<Instant> {
        self.read(Caller::next_wakeup)
    }

    /// Calls whose tasks have not yet heard whether they may leave.
    pub fn waiting(&self) -> usize {
        lock(&self.shared.state).waiters.len()
    }

    /// Looks at the caller.
    pub fn read<R>(&self, look: impl FnOnce(&Caller) -> R) -> R {
        look(&lock(&self.shared.state).caller)
    }
}

impl fmt::Debug for SharedCaller {
    /// Without the lock, so that a caller can be shown from anywhere.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedCaller").field("clock", &self.shared.clock).finish_non_exhaustive()
    }
}

/// A call may leave: where to, and what travels with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Departure {
    /// Index of the endpoint.
    pub endpoint: usize,
    /// Rank, deadline, attempt, demand and sheds.
    pub context: Context,
}

/// One call, through all its attempts. Dropped before it is over it counts as cancelled.
#[must_use = "a call that is dropped is cancelled"]
pub struct Call {
    shared: Arc<Shared>,
    request: RequestId,
    phase: Phase,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Held for a credit, or pausing before a retry.
    Waiting(WaiterId),
    /// Its task has not asked yet, and will be told this.
    Told(Fate),
    /// An attempt is under way.
    Sent,
    /// The caller has forgotten it.
    Over,
}

#[derive(Clone, Copy, Debug)]
enum Fate {
    Send(Departure),
    Fail(Rejection),
}

impl Call {
    /// Ready when an attempt may leave, or never will: then the call is over.
    pub fn poll_leave(&mut self, cx: &task::Context<'_>) -> Poll<Result<Departure, Rejection>> {
        let fate = match self.phase {
            Phase::Told(fate) => fate,
            Phase::Waiting(waiter) => {
                let asked = lock(&self.shared.state).waiters.ask(waiter, cx.waker());
                match asked {
                    Ok(fate) => fate,
                    Err(_old_waker) => return Poll::Pending,
                }
            }
            Phase::Sent | Phase::Over => panic!("a call leaves once per attempt"),
        };
        Poll::Ready(match fate {
            Fate::Send(departure) => {
                self.phase = Phase::Sent;
                Ok(departure)
            }
            Fate::Fail(rejection) => {
                self.phase = Phase::Over;
                Err(rejection)
            }
        })
    }

    /// The same as a future.
    pub async fn leave(&mut self) -> Result<Departure, Rejection> {
        poll_fn(|cx| self.poll_leave(cx)).await
    }

    /// The attempt was answered, refused, or broke. On [`Next::Retry`] another one will
    /// [`leave`](Self::leave).
    pub fn respond(&mut self, answer: Answer, feedback: Option<&Feedback>) -> Next {
        let (request, shared) = (self.request, Arc::clone(&self.shared));
        shared.locked(|state, now, after| {
            let next = state.caller.respond(now, request, answer, feedback);
            let fate = state.drain(Some(request), after);
            self.phase = match next {
                Next::Over(_) => Phase::Over,
                Next::Retry => state.phase(request, fate),
            };
            next
        })
    }
}

impl Call {
    /// When to ask for a [`hedge`](Self::hedge) of the attempt that is under way; none if it gets none.
    pub fn hedge_at(&self) -> Option<Instant> {
        match self.phase {
            Phase::Sent => lock(&self.shared.state).caller.hedge_at(self.request),
            Phase::Waiting(_) | Phase::Told(_) | Phase::Over => None,
        }
    }

    /// A second call that may leave at once, if the caller allows it. Whichever is answered first is
    /// taken, and the other one dropped.
    pub fn hedge(&self) -> Option<Self> {
        let Phase::Sent = self.phase else { return None };
        self.shared.locked(|state, now, wakers| {
            let hedge = state.caller.hedge(now, self.request);
            let fate = state.drain(hedge, wakers);
            let request = hedge?;
            let phase = state.phase(request, fate);
            Some(Self { shared: Arc::clone(&self.shared), request, phase })
        })
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let request = self.request;
        let waiter = match self.phase {
            Phase::Over | Phase::Told(Fate::Fail(_)) => return,
            Phase::Sent | Phase::Told(Fate::Send(_)) => None,
            Phase::Waiting(waiter) => Some(waiter),
        };
        let _dropped_after_the_lock = self.shared.locked(|state, now, after| {
            let fate = waiter.map(|waiter| state.waiters.remove(waiter));
            if !matches!(fate, Some(Ok(Fate::Fail(_)))) {
                state.caller.cancel(now, request);
            }
            state.drain(None, after);
            fate
        });
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("request", &self.request)
            .field("phase", &self.phase)
            .finish_non_exhaustive()
    }
}

/// What all clones and calls of one caller have in common.
struct Shared {
    clock: Box<dyn Clock>,
    /// Where reports go, if the transport can carry them.
    reports: Option<Box<SendReport>>,
    state: Mutex<State>,
}

type SendReport = dyn Fn(usize, &Context) + Send + Sync;

/// What is done after the lock: reports are sent, then everybody collected is woken.
#[derive(Default)]
struct After {
    reports: Vec<(usize, Context)>,
    wakers: Wakers,
}

impl Shared {
    /// One clock read, one lock; then, without the lock, wakes whoever was collected.
    fn locked<R>(&self, work: impl FnOnce(&mut State, Instant, &mut After) -> R) -> R {
        let now = self.clock.now();
        let mut after = After::default();
        let result = work(&mut lock(&self.state), now, &mut after);
        // The lock is free again; now others are told.
        if let Some(send) = &self.reports {
            after.reports.iter().for_each(|(endpoint, context)| send(*endpoint, context));
        }
        drop(after);
        result
    }
}

struct State {
    caller: Caller,
    waiters: Waiters<Fate>,
}

impl State {
    /// Tells everybody concerned what the caller has decided. `own` is the call whose input this
    /// was: nobody waits for it yet, and its fate is returned.
    fn drain(&mut self, own: Option<RequestId>, after: &mut After) -> Option<Fate> {
        let mut own_fate = None;
        while let Some(action) = self.caller.poll() {
            let (id, fate) = match action {
                CallAction::Transmit { id, endpoint, context } => {
                    (id, Fate::Send(Departure { endpoint, context }))
                }
                CallAction::Fail { id, rejection } => (id, Fate::Fail(rejection)),
                // A transport that cannot carry it drops it; the next request will.
                CallAction::Report { endpoint, context } => {
                    after.reports.push((endpoint, context));
                    continue;
                }
            };
            if own == Some(id) {
                own_fate = Some(fate);
            } else {
                after.wakers.extend(self.waiters.tell(id, fate));
            }
        }
        own_fate
    }

    fn phase(&mut self, request: RequestId, fate: Option<Fate>) -> Phase {
        match fate {
            Some(fate) => Phase::Told(fate),
            None => Phase::Waiting(self.waiters.add(request)),
        }
    }
}
