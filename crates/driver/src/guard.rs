//! Guards: what a task holds of the gate, given back when it is dropped.
//!
//! ```text
//! arrive ─► Ticket ──await──► Slot ──serve, fail, finish──► (gone)
//!              │  ▲             │ pause        ▲
//!              │  └── resume ─ Paused           │
//!              └── Rejection
//!                       Slot ── abandon ─► Abandoned ── finish ─► (gone)
//! ```
//!
//! A guard dropped at any point cancels: place, slot and credit are free at once, the gate
//! dispatches, and whoever gets the slot is woken. That holds as well for a ticket whose request
//! was started and whose task has not been polled since.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{self, Poll};

use tidegate_core::gate::{Gate, Gone};
use tidegate_core::{Cost, Feedback, Instant, Outcome, Progress, Rejection, RequestId, Span};

use crate::context::Parent;
use crate::shared::Shared;
use crate::sync::Arc;
use crate::waiters::{Fate, WaiterId, Waiters};

/// The place of a request in the gate.
struct Claim {
    shared: Arc<Shared>,
    request: RequestId,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Its ticket has not heard what became of it.
    Waiting(WaiterId),
    /// It has a slot, or is paused.
    Held,
    /// The gate has forgotten it.
    Over,
}

impl Fate {
    /// What a request with this fate still has of the gate.
    fn phase(&self) -> Phase {
        match self {
            Self::Start { .. } => Phase::Held,
            Self::Refuse(_) => Phase::Over,
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let request = self.request;
        match self.phase {
            Phase::Over => {}
            Phase::Held => self.shared.step(|state, now| state.gate.cancel(now, request)),
            Phase::Waiting(waiter) => {
                let waker = self.shared.step(|state, now| match state.waiters.remove(waiter) {
                    Ok(Fate::Refuse(_)) => None,
                    Ok(Fate::Start { .. }) => {
                        state.gate.cancel(now, request);
                        None
                    }
                    Err(waker) => {
                        state.gate.cancel(now, request);
                        waker
                    }
                });
                // Here, after the lock: dropping a waker may drop a task, and that a ticket.
                drop(waker);
            }
        }
    }
}

/// A request that was let in: a future of its [`Slot`], or of the refusal it met while it waited.
#[must_use = "a ticket that is dropped cancels its request"]
pub struct Ticket {
    /// None once it has resolved.
    claim: Option<Claim>,
    /// What became of it, where that is known without asking, and since when.
    told: Option<(Fate, Instant)>,
}

impl Ticket {
    pub(crate) fn new(shared: &Arc<Shared>, request: RequestId, waiter: WaiterId) -> Self {
        let phase = Phase::Waiting(waiter);
        Self { claim: Some(Claim { shared: Arc::clone(shared), request, phase }), told: None }
    }

    /// The same for a request whose fate is known since `now`.
    pub(crate) fn told(shared: &Arc<Shared>, request: RequestId, fate: Fate, now: Instant) -> Self {
        let phase = fate.phase();
        let claim = Some(Claim { shared: Arc::clone(shared), request, phase });
        Self { claim, told: Some((fate, now)) }
    }

    /// The slot, for a request that was started as it arrived; else the ticket.
    pub fn slot_at_once(mut self) -> Result<Slot, Self> {
        match (self.told, self.claim.take()) {
            (Some((Fate::Start { degraded }, started)), Some(claim)) => {
                Ok(Slot { claim, started, degraded, step: Span::ZERO, charge: Charge::Measured })
            }
            (told, claim) => Err(Self { claim, told }),
        }
    }

    /// After a dispatch and still under the lock: what the ticket can be told at once spares it
    /// one lock when it is polled.
    pub(crate) fn learn(&mut self, waiters: &mut Waiters, now: Instant) {
        let Some(claim) = &mut self.claim else { return };
        let Phase::Waiting(waiter) = claim.phase else { return };
        let Some(fate) = waiters.take_fate(waiter) else { return };
        claim.phase = fate.phase();
        self.told = Some((fate, now));
    }
}

impl Future for Ticket {
    type Output = Result<Slot, Rejection>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let claim = this.claim.as_ref().expect("a ticket is not polled after it has resolved");
        let (fate, started) = match (this.told, claim.phase) {
            (None, Phase::Waiting(waiter)) => task::ready!(claim.shared.poll(waiter, cx)),
            (told, _) => told.expect("a ticket either waits or was told"),
        };
        let mut claim = this.claim.take().expect("looked at above");
        Poll::Ready(match fate {
            Fate::Start { degraded } => {
                claim.phase = Phase::Held;
                Ok(Slot { claim, started, degraded, step: Span::ZERO, charge: Charge::Measured })
            }
            Fate::Refuse(rejection) => {
                claim.phase = Phase::Over;
                Err(rejection)
            }
        })
    }
}

/// The right to be executing. Dropped without a word it counts as cancelled, which says nothing
/// about load.
#[must_use = "a slot that is dropped cancels its request"]
pub struct Slot {
    claim: Claim,
    started: Instant,
    degraded: bool,
    /// Service time that the gate has not been told of.
    step: Span,
    charge: Charge,
}

/// What a request is taken to have cost when it ends by [`Slot::serve`] or [`Slot::fail`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Charge {
    /// The time for which it had its slot.
    #[default]
    Measured,
    /// As estimated when it came: what others of its workflow have cost.
    Estimated,
    /// What somebody who knows has said.
    Told(Cost),
}

impl Slot {
    /// A step of the request has taken so much service time of its own. The gate hears of it with the next word.
    pub fn step(&mut self, time: Span) {
        self.step += time;
    }

    /// What to tell the caller in the answer, with what was done for the request here and below.
    pub fn feedback(&mut self) -> Option<Feedback> {
        let (request, step) = (self.claim.request, std::mem::take(&mut self.step));
        self.claim.shared.locked(|state, now, _| {
            let context = state.gate.request(request)?.context;
            state.gate.on_step(now, request, step);
            let progress = state.gate.done(request).unwrap_or_default();
            let feedback = state.gate.feedback(now, context.caller, context.workflow);
            Some(Feedback { progress, ..feedback })
        })
    }

    /// Whose progress the calls belong to that are made for the request, which goes on at `since` after it has
    /// `worked` for so long, beside the [steps](Self::step) it was told of.
    pub fn parent(&self, worked: Span, since: Instant) -> Parent {
        let worked = self.step + worked;
        Parent { gate: self.claim.shared.id(), request: self.claim.request, worked, since }
    }

    /// What it will be taken to have cost.
    pub fn charge(&mut self, charge: Charge) {
        self.charge = charge;
    }

    /// What it is taken to have cost if it has had its slot for so long.
    pub fn cost(&self, held: Span) -> Cost {
        match self.charge {
            Charge::Measured => held.into(),
            Charge::Told(cost) => cost,
            Charge::Estimated => {
                let request = self.claim.request;
                let estimate = |gate: &Gate| gate.request(request).map_or(Cost(0), |it| it.cost);
                self.claim.shared.locked(|state, _, _| estimate(&state.gate))
            }
        }
    }

    /// The request was served; unless [told](Self::charge) otherwise, its cost is the time since its task learned that it may start.
    pub fn serve(self) {
        self.finish_measured(Outcome::Serve);
    }

    /// The request failed; its cost is measured likewise.
    pub fn fail(self) {
        self.finish_measured(Outcome::Fail);
    }

    /// The request has ended, at a cost that the driver knows better.
    pub fn finish(mut self, outcome: Outcome, cost: Cost) {
        self.claim.phase = Phase::Over;
        let (request, step) = (self.claim.request, self.step);
        self.claim.shared.step(|state, now| state.end(now, request, step, outcome, cost));
    }

    /// The same for a request that ended at `then`, a moment ago by the gate's clock: saves to read the clock where nobody
    /// waits.
    pub fn finish_as_of(mut self, then: Instant, outcome: Outcome, cost: Cost) {
        self.claim.phase = Phase::Over;
        let (request, step) = (self.claim.request, self.step);
        self.claim.shared.step_as_of(then, |state| state.end(then, request, step, outcome, cost));
    }

    /// The same, together with what to tell the caller in the answer.
    pub fn answer(mut self, outcome: Outcome, cost: Cost) -> Option<Feedback> {
        self.claim.phase = Phase::Over;
        let (request, step) = (self.claim.request, self.step);
        self.claim.shared.step(|state, now| {
            let context = state.gate.request(request)?.context;
            state.end(now, request, step, outcome, cost);
            Some(state.gate.feedback(now, context.caller, context.workflow))
        })
    }

    /// The request waits for a call of its own and gives up its slot meanwhile.
    pub fn pause(self) -> Paused {
        let (request, step) = (self.claim.request, self.step);
        self.claim.shared.step(|state, now| {
            state.gate.on_step(now, request, step);
            state.gate.pause(now, request);
        });
        Paused { claim: self.claim }
    }

    /// The caller has left, and the service goes on with the request. What it holds of the gate is told of by
    /// [`Abandoned::finish`] when the service is done, and free when that is dropped.
    pub fn abandon(self) -> Abandoned {
        let (request, step) = (self.claim.request, self.step);
        self.claim.shared.step(|state, now| {
            state.gate.on_step(now, request, step);
            state.gate.abandon(now, request, Gone::Kept);
        });
        Abandoned { claim: self.claim }
    }

    /// The caller has left, and the request can be ended at the service. Nothing if it shall be, else what it holds until
    /// the service is done: the gate [finds out](Gate::leave_or_end) which is better.
    pub fn leave_or_end(mut self) -> Option<Abandoned> {
        let (request, step) = (self.claim.request, self.step);
        let ended = self.claim.shared.step(|state, now| {
            state.gate.on_step(now, request, step);
            state.gate.leave_or_end(now, request)
        });
        if ended {
            self.claim.phase = Phase::Over;
            return None;
        }
        Some(Abandoned { claim: self.claim })
    }

    /// The caller has left, the service may go on with the request, and nobody will hear when it is done: the
    /// slot is free after as long as requests take.
    pub fn lose(mut self) {
        self.claim.phase = Phase::Over;
        let (request, step) = (self.claim.request, self.step);
        self.claim.shared.step(|state, now| {
            state.gate.on_step(now, request, step);
            state.gate.abandon(now, request, Gone::Lost);
        });
    }

    /// Whether the gate asks for a cheaper answer.
    pub fn degraded(&self) -> bool {
        self.degraded
    }

    /// When its task learned that it may start, in the gate's clock.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Who it is in the gate.
    pub fn request(&self) -> RequestId {
        self.claim.request
    }

    fn finish_measured(mut self, outcome: Outcome) {
        self.claim.phase = Phase::Over;
        let (request, started) = (self.claim.request, self.started);
        let known = match self.charge {
            Charge::Measured => None,
            Charge::Told(_) | Charge::Estimated => Some(self.cost(Span::ZERO)),
        };
        self.claim.shared.step(|state, now| {
            let held = now.since(started).max(Span::from_nanos(1));
            state.end(now, request, held, outcome, known.unwrap_or(held.into()));
        });
    }
}

/// A request whose caller has left, while the service works on it.
#[must_use = "abandoned work that is dropped frees its slot"]
pub struct Abandoned {
    claim: Claim,
}

impl Abandoned {
    /// The service is done with it.
    pub fn finish(mut self, outcome: Outcome, cost: Cost) {
        self.claim.phase = Phase::Over;
        let request = self.claim.request;
        self.claim.shared.step(|state, now| state.end(now, request, Span::ZERO, outcome, cost));
    }
}

/// A request between two of its steps, without a slot.
#[must_use = "a paused request that is dropped is cancelled"]
pub struct Paused {
    claim: Claim,
}

impl Paused {
    /// The request has ended between two steps, at the cost of those it had.
    pub fn finish(mut self, outcome: Outcome) {
        self.claim.phase = Phase::Over;
        let request = self.claim.request;
        self.claim.shared.step(|state, now| {
            let had = state.gate.request(request).map_or(Span::ZERO, |request| request.attained);
            state.end(now, request, Span::ZERO, outcome, had.max(Span::from_nanos(1)).into());
        });
    }

    /// The next step joins the schedule. It was let in once and is not asked again.
    pub fn resume(self, progress: Progress) -> Ticket {
        let mut claim = self.claim;
        let shared = Arc::clone(&claim.shared);
        shared.locked(|state, now, wakers| {
            claim.phase = Phase::Waiting(state.waiters.add(claim.request));
            state.gate.resume(now, claim.request, progress);
            state.dispatch(now, wakers);
            let mut ticket = Ticket { claim: Some(claim), told: None };
            ticket.learn(&mut state.waiters, now);
            ticket
        })
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = self.claim.as_ref().map(|claim| claim.phase);
        f.debug_struct("Ticket").field("phase", &phase).finish_non_exhaustive()
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot")
            .field("request", &self.claim.request)
            .field("started", &self.started)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Abandoned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Abandoned").field("request", &self.claim.request).finish_non_exhaustive()
    }
}

impl fmt::Debug for Paused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Paused").field("request", &self.claim.request).finish_non_exhaustive()
    }
}
