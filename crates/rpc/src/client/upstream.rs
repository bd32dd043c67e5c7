//! The gate of the service that makes the calls: what it hears from further down, and what it knows of the
//! requests that calls are made for.

use tidegate_core::context::{Sheds, Workflow};
use tidegate_core::gate::{CalleeId, Gate};
use tidegate_core::{Feedback, Instant, Progress};
use tidegate_driver::SharedGate;
use tidegate_driver::context::Parent;

/// A gate that calls are made behind: it hears what the callee tells.
pub trait Upstream: Send + Sync + 'static {
    /// A call is about to be made for `workflow`. What the gate refused in the callee's name since the last
    /// one.
    fn on_call(&self, callee: CalleeId, workflow: Workflow) -> Sheds;
    /// How far a request has come that a call is made for, none if it is none of this gate's.
    fn progress(&self, parent: &Parent) -> Option<Progress>;
    /// The callee has told its state, with the answer to a call made for `workflow` and for `parent`.
    fn on_downstream(
        &self,
        callee: CalleeId,
        workflow: Workflow,
        parent: Option<&Parent>,
        feedback: &Feedback,
    );
}

impl Upstream for SharedGate {
    fn on_call(&self, callee: CalleeId, workflow: Workflow) -> Sheds {
        self.input(|gate, now| call(gate, now, callee, workflow))
    }

    fn progress(&self, parent: &Parent) -> Option<Progress> {
        let now = self.now();
        self.read(|gate| parent.progress(gate, now))
    }

    fn on_downstream(
        &self,
        callee: CalleeId,
        workflow: Workflow,
        parent: Option<&Parent>,
        feedback: &Feedback,
    ) {
        self.input(|gate, now| hear(gate, now, callee, workflow, parent, feedback));
    }
}

/// Tells a gate of a call.
pub(crate) fn call(gate: &mut Gate, now: Instant, callee: CalleeId, workflow: Workflow) -> Sheds {
    gate.on_call(now, callee, workflow);
    gate.take_sheds(callee)
}

/// Tells a gate what a callee lets in, and what it has done for a request. Of calls at the same time each
/// counts in full: nobody says here which are.
pub(crate) fn hear(
    gate: &mut Gate,
    now: Instant,
    callee: CalleeId,
    workflow: Workflow,
    parent: Option<&Parent>,
    feedback: &Feedback,
) {
    gate.on_downstream(now, callee, workflow, feedback);
    if let Some(parent) = parent.filter(|parent| parent.is_in(gate)) {
        gate.on_child(now, parent.request, &feedback.progress, 1);
    }
}
