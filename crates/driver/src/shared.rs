//! [`SharedGate`]: one gate for all tasks of a process.
//!
//! Every call is one step of the loop that all drivers run: read the clock, lock, give the gate its
//! inputs, dispatch, drain its actions, unlock, and only then wake. One mutex is enough: a step
//! takes a fraction of a microsecond, and requests that are worth gating take many.

use std::fmt;
use std::task::{self, Poll};

use tidegate_core::config::ConfigError;
use tidegate_core::feedback::GateId;
use tidegate_core::gate::{Action, Gate, GateConfig};
use tidegate_core::{
    CallerId, Context, Cost, Feedback, Instant, Outcome, Rejection, RequestId, Span, Workflow,
};

use crate::clock::{Clock, Monotonic, random_seed, unix_time};
use crate::guard::Ticket;
use crate::notice::{Notices, Outbox};
use crate::sync::{Arc, Mutex, lock};
use crate::waiters::{Fate, WaiterId, Waiters, Wakers};

/// A gate that any number of tasks on any number of threads use. Clones are the same gate.
#[derive(Clone)]
pub struct SharedGate {
    pub(crate) shared: Arc<Shared>,
}

impl SharedGate {
    /// Builds a gate and shares it, with a seed drawn by the operating system.
    pub fn build(config: &GateConfig) -> Result<Self, ConfigError> {
        let clock = Monotonic::process();
        let mut gate = Gate::new(config, clock.now(), random_seed())?;
        gate.on_calendar(clock.now(), unix_time());
        Ok(Self::with_clock(gate, clock))
    }

    /// Shares `gate`, with the clock of the process.
    pub fn new(gate: Gate) -> Self {
        Self::with_clock(gate, Monotonic::process())
    }

    /// Shares `gate`, with the clock that its process uses.
    pub fn with_clock(mut gate: Gate, clock: impl Clock + 'static) -> Self {
        // Until somebody listens for them.
        gate.set_notifies(false);
        let state = State { gate, waiters: Waiters::default(), outbox: Outbox::default() };
        let (id, clock) = (state.gate.id(), Box::new(clock));
        Self { shared: Arc::new(Shared { id, clock, state: Mutex::new(state) }) }
    }

    // === inputs ===

    /// A request has arrived: it is refused at once, or has a ticket from now on. If a slot is free
    /// the ticket is ready, and polling it takes no lock.
    pub fn arrive(&self, context: &Context) -> Result<Ticket, Rejection> {
        self.arrive_at(self.now(), context)
    }

    /// The same for a driver that has read the clock already, say to work out the deadline.
    pub fn arrive_at(&self, now: Instant, context: &Context) -> Result<Ticket, Rejection> {
        self.shared.with_lock(|state, wakers| {
            let entered = state.gate.arrive_stamped(now, now, context);
            // The newcomer may have pushed somebody out and be in its place: tell that one first.
            state.drain(wakers);
            state.gate.dispatch(now);
            let request = entered.inspect_err(|_| state.drain(wakers))?;
            Ok(match state.drain_but(request, wakers) {
                Some(fate) => Ticket::told(&self.shared, request, fate, now),
                None => Ticket::new(&self.shared, request, state.waiters.add(request)),
            })
        })
    }

    /// The same for a driver that knows when the request reached the machine, in this gate's clock,
    /// and that dispatches itself once it has read everything that was ready.
    pub fn enter(&self, arrived: Instant, context: &Context) -> Result<Ticket, Rejection> {
        self.shared.locked(|state, now, wakers| {
            let (request, waiter) = state.enter(now, arrived, context, wakers)?;
            Ok(Ticket::new(&self.shared, request, waiter))
        })
    }

    /// Everything that was ready in one read has arrived: one clock read, one lock, one dispatch
    /// for all of it. The answers are added to `answers` in the same order.
    pub fn arrive_all<'a>(
        &self,
        contexts: impl IntoIterator<Item = &'a Context>,
        answers: &mut Vec<Result<Ticket, Rejection>>,
    ) {
        self.shared.locked(|state, now, wakers| {
            let first = answers.len();
            for context in contexts {
                let entered = state.enter(now, now, context, wakers);
                answers.push(
                    entered.map(|(request, waiter)| Ticket::new(&self.shared, request, waiter)),
                );
            }
            state.dispatch(now, wakers);
            for ticket in answers[first..].iter_mut().flatten() {
                ticket.learn(&mut state.waiters, now);
            }
        });
    }

    /// Any other input: utilization, stage delay, a downstream's feedback, a new configuration.
    /// Requests arrive through [`arrive`](Self::arrive), so that somebody waits for them.
    pub fn input<R>(&self, input: impl FnOnce(&mut Gate, Instant) -> R) -> R {
        self.shared.step(|state, now| input(&mut state.gate, now))
    }

    /// Starts what can start. Due at [`next_wakeup`](Self::next_wakeup), and after
    /// [`enter`](Self::enter); everything else dispatches by itself.
    pub fn dispatch(&self) {
        self.shared.step(|_, _| ());
    }

    // === questions ===

    /// The present moment in this gate's clock.
    pub fn now(&self) -> Instant {
        self.shared.clock.now()
    }

    /// When to dispatch even if nothing comes in, for a runtime's timer. A late wake-up is settled
    /// as of the moment it was due.
    pub fn next_wakeup(&self) -> Option<Instant> {
        self.read(Gate::next_wakeup)
    }

    /// What to tell `caller` with a response to a request of `workflow`. Ask once per message.
    pub fn feedback(&self, caller: CallerId, workflow: Workflow) -> Feedback {
        self.shared.locked(|state, now, _| state.gate.feedback(now, caller, workflow))
    }

    /// Messages for callers to whom no response is due. Until somebody listens none are kept.
    pub fn notices(&self) -> Notices {
        Notices::new(&self.shared)
    }

    /// Requests that wait for a slot.
    pub fn waiting(&self) -> usize {
        self.read(Gate::waiting)
    }

    /// Requests that execute, or have a slot and will be polled soon.
    pub fn running(&self) -> u32 {
        self.read(Gate::running)
    }

    /// Tickets that have not resolved. Each belongs to a request that waits, that has a slot its
    /// task does not yet know of, or that was refused without its task knowing.
    pub fn tickets(&self) -> usize {
        lock(&self.shared.state).waiters.len()
    }

    /// Looks at the gate.
    pub fn read<R>(&self, look: impl FnOnce(&Gate) -> R) -> R {
        look(&lock(&self.shared.state).gate)
    }
}

impl fmt::Debug for SharedGate {
    /// Without the lock, so that a gate can be shown from anywhere.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedGate").field("clock", &self.shared.clock).finish_non_exhaustive()
    }
}

/// What all clones and guards of one gate have in common.
pub(crate) struct Shared {
    id: GateId,
    clock: Box<dyn Clock>,
    state: Mutex<State>,
}

impl Shared {
    /// Who the gate is.
    pub(crate) fn id(&self) -> GateId {
        self.id
    }

    /// Inputs, then one dispatch.
    pub(crate) fn step<R>(&self, inputs: impl FnOnce(&mut State, Instant) -> R) -> R {
        self.locked(|state, now, wakers| {
            let result = inputs(state, now);
            state.dispatch(now, wakers);
            result
        })
    }

    /// Inputs as of a moment ago, then one dispatch, for which the clock is read only if somebody waits.
    pub(crate) fn step_as_of<R>(&self, then: Instant, inputs: impl FnOnce(&mut State) -> R) -> R {
        self.with_lock(|state, wakers| {
            let result = inputs(state);
            let now = if state.gate.waiting() > 0 { self.clock.now() } else { then };
            state.dispatch(now, wakers);
            result
        })
    }

    /// One clock read, one lock; then, without the lock, wakes whoever was collected.
    pub(crate) fn locked<R>(&self, work: impl FnOnce(&mut State, Instant, &mut Wakers) -> R) -> R {
        let now = self.clock.now();
        self.with_lock(|state, wakers| work(state, now, wakers))
    }

    fn with_lock<R>(&self, work: impl FnOnce(&mut State, &mut Wakers) -> R) -> R {
        let mut wakers = Wakers::default();
        let result = work(&mut lock(&self.state), &mut wakers);
        // The lock is free again; now they are woken.
        drop(wakers);
        result
    }

    /// A ticket asks for its fate.
    pub(crate) fn poll(&self, waiter: WaiterId, cx: &task::Context<'_>) -> Poll<(Fate, Instant)> {
        let answer = lock(&self.state).waiters.ask(waiter, cx.waker());
        match answer {
            Ok(fate) => Poll::Ready((fate, self.clock.now())),
            Err(_old_waker) => Poll::Pending,
        }
    }
}

/// What the lock protects.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) gate: Gate,
    pub(crate) waiters: Waiters,
    pub(crate) outbox: Outbox,
}

impl State {
    fn enter(
        &mut self,
        now: Instant,
        arrived: Instant,
        context: &Context,
        wakers: &mut Wakers,
    ) -> Result<(RequestId, WaiterId), Rejection> {
        let answer = self.gate.arrive_stamped(now, arrived, context);
        // The newcomer may have pushed somebody out and be in its place: tell that one first.
        self.drain(wakers);
        let request = answer?;
        Ok((request, self.waiters.add(request)))
    }

    pub(crate) fn dispatch(&mut self, now: Instant, wakers: &mut Wakers) {
        self.gate.dispatch(now);
        self.drain(wakers);
    }

    /// A request has ended, after a last step of its own.
    pub(crate) fn end(
        &mut self,
        now: Instant,
        request: RequestId,
        step: Span,
        outcome: Outcome,
        cost: Cost,
    ) {
        if step > Span::ZERO {
            self.gate.on_step(now, request, step);
        }
        if outcome == Outcome::Serve {
            self.gate.learn_total(request);
        }
        self.gate.finish(now, request, outcome, cost);
    }

    /// Tells everybody concerned what the gate has decided.
    fn drain(&mut self, wakers: &mut Wakers) {
        self.drain_but(RequestId::NOWHERE, wakers);
    }

    /// The same but for a newcomer that nobody waits for yet: returns its fate, if it has one.
    fn drain_but(&mut self, newcomer: RequestId, wakers: &mut Wakers) -> Option<Fate> {
        let mut its_own = None;
        while let Some(action) = self.gate.poll() {
            let (id, fate) = match action {
                Action::Start { id, degraded } => (id, Fate::Start { degraded }),
                Action::Refuse { id, rejection } => (id, Fate::Refuse(rejection)),
                Action::Notify { caller, feedback } => {
                    wakers.extend(self.outbox.push(caller, feedback));
                    continue;
                }
            };
            if id == newcomer {
                its_own = Some(fate);
            } else {
                wakers.extend(self.waiters.tell(id, fate));
            }
        }
        its_own
    }
}
