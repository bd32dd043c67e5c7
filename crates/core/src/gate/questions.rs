//! What can be asked of a gate.

use super::{Gate, GateConfig, State};
use crate::admission::Admission;
use crate::event::Events;
use crate::feedback::GateId;
use crate::limit::Limits;
use crate::objective::{Because, Learner};
use crate::request::{Request, RequestId};
use crate::signal::{Backlog, DelaySignal};
use crate::time::{Instant, Span};

impl Gate {
    /// Who this gate is.
    pub fn id(&self) -> GateId {
        self.id
    }

    /// The facts of a request that has not ended.
    pub fn request(&self, id: RequestId) -> Option<&Request> {
        self.entries.get(id).map(|entry| &entry.request)
    }

    /// Whether a request holds a place, of an agreement on how many there are in flight, that is no longer this
    /// process's: its driver is to abort it.
    pub fn is_overdue(&self, now: Instant, id: RequestId) -> bool {
        let (Some(limits), Some(entry)) = (&self.limits, self.entries.get(id)) else {
            return false;
        };
        limits.is_overdue(now, id, &entry.request.context)
    }

    /// The configuration in force.
    pub fn config(&self) -> &GateConfig {
        &self.config
    }

    /// Slots that are taken: requests that execute, and [abandoned](Self::abandoned) ones.
    pub fn running(&self) -> u32 {
        self.running
    }

    /// Requests that wait for a slot, or for their turn at the limiter.
    pub fn waiting(&self) -> usize {
        self.backlog.waiting() + self.control.as_ref().map_or(0, |control| control.limiter.len())
    }

    /// Slots there are, with those for what hangs.
    pub fn slots(&self) -> u32 {
        self.limit + self.standstill.slots()
    }

    /// The delay at `now`.
    pub fn delay(&self, now: Instant) -> Span {
        self.backlog.delay(now.max(self.cx.now), DelaySignal::Drain)
    }

    /// How full the gate is: what runs and waits, by slots. 1 is full, more is a queue.
    pub fn busy(&self) -> f64 {
        (f64::from(self.running) + self.backlog.waiting() as f64) / f64::from(self.slots())
    }

    /// How full the machine is, as the driver last told; 0 if it never did.
    pub fn utilization(&self) -> f64 {
        self.utilization
    }

    /// The latency objective in force, and why it is that. None if the policy has no objective.
    pub fn objective(&self) -> Option<(Span, Because)> {
        let objective = self.admission.objective()?;
        Some(match &self.objective {
            Some(learner) => (objective, learner.current().1),
            None => (objective, Because::Given),
        })
    }

    /// What waits, and how fast it drains.
    pub fn backlog(&self) -> &Backlog {
        &self.backlog
    }

    /// The policy in force.
    pub fn admission(&self) -> &dyn Admission {
        &*self.admission
    }

    /// The limits, if there are any.
    pub fn limits(&self) -> Option<&Limits> {
        self.limits.as_deref()
    }

    /// Events, for whoever calls [`Events::keep`] first.
    pub fn events(&mut self) -> &mut Events {
        &mut self.cx.events
    }

    /// Panics if the state contradicts itself.
    pub fn invariants(&self) {
        let count = |state| self.entries.iter().filter(|(_, entry)| entry.state == state).count();
        assert_eq!(
            count(State::Waiting),
            self.schedule.len(),
            "everything that waits is scheduled"
        );
        assert_eq!(
            count(State::Waiting),
            self.backlog.waiting(),
            "everything that waits is counted"
        );
        let taken = count(State::Running) + count(State::Abandoned);
        assert_eq!(taken, self.running as usize, "running counts slots in use");
        assert_eq!(count(State::Abandoned), self.abandoned.held(), "the book is kept");
        if let Some(control) = &self.control {
            assert_eq!(count(State::Limited), control.limiter.len(), "turns are counted");
            control.limiter.invariants();
        }
        self.backlog.invariants();
        self.admission.invariants();
        self.limits.iter().for_each(|limits| limits.invariants());
        self.slots.invariants();
        self.objective.iter().for_each(Learner::invariants);
    }
}
