//! Busy time of one resource by workflow: who held how much of it, for how long.
//!
//! Time is counted while it passes, not when a holder leaves: a thread held for longer than a control
//! period is busy in all of them (Wisp §5: service time for thread pools, hold time for semaphores).

use crate::context::{Workflow, Workflows};
use crate::table;
use crate::time::{Instant, Span};

/// Holders of a resource by workflow, and the time they have had.
#[derive(Clone, Debug, Default)]
pub(super) struct Usage {
    flows: Vec<Busy>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Busy {
    holders: u32,
    /// Busy time is counted up to here.
    at: Instant,
    /// Busy time since it was last taken, in nanoseconds; two holders count twice.
    time: u64,
}

impl Busy {
    fn advance(&mut self, now: Instant) {
        let passed = now.since(self.at).as_nanos();
        self.time = self.time.saturating_add(passed.saturating_mul(u64::from(self.holders)));
        self.at = self.at.max(now);
    }
}

impl Usage {
    /// A request of `workflow` begins to hold the resource.
    pub(super) fn begin(&mut self, now: Instant, workflow: Workflow) {
        let busy = self.flow(workflow);
        busy.advance(now);
        busy.holders += 1;
    }

    /// It no longer does.
    pub(super) fn end(&mut self, now: Instant, workflow: Workflow) {
        let busy = self.flow(workflow);
        busy.advance(now);
        assert!(busy.holders > 0, "who ends has begun");
        busy.holders -= 1;
    }

    /// Workflows seen so far: their numbers are below this.
    pub(super) fn len(&self) -> usize {
        self.flows.len()
    }

    /// Busy time of a workflow since the last time it was taken.
    pub(super) fn take(&mut self, now: Instant, workflow: Workflow) -> Span {
        let busy = self.flow(workflow);
        busy.advance(now);
        Span::from_nanos(std::mem::take(&mut busy.time))
    }

    fn flow(&mut self, workflow: Workflow) -> &mut Busy {
        let place = usize::from(workflow.0).min(Workflows::LIMIT);
        table::at(&mut self.flows, place, Busy::default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_hold_is_busy_in_every_period() {
        let at = |millis: u64| Instant::ZERO + Span::from_millis(millis);
        let (mut usage, w) = (Usage::default(), Workflow(3));
        usage.begin(at(50), w);
        usage.begin(at(90), w);
        assert_eq!(usage.take(at(100), w), Span::from_millis(60));
        assert_eq!(usage.take(at(200), w), Span::from_millis(200));
        usage.end(at(210), w);
        assert_eq!(usage.take(at(300), w), Span::from_millis(110));
        assert_eq!(usage.take(at(300), Workflow(0)), Span::ZERO);
    }
}
