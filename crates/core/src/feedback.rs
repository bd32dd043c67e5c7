//! What a gate tells its callers: [`Feedback`].
//!
//! Values are absolute and the latest wins, so a lost, repeated or overtaken message does no harm
//! (research on Breakwater's code: the window on the wire is absolute and includes in-flight work).

use crate::context::{Progress, Workflow};
use crate::rank::Cursor;
use crate::time::Span;

/// State of one gate as one caller should see it. Absent parts say nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Feedback {
    /// The gate that speaks; behind one address there may be many.
    pub gate: GateId,
    /// Grows with every message of that gate: the highest wins.
    pub sequence: u64,
    /// The workflow that cursors and rate are for. It does not travel: the caller fills in the
    /// workflow of the request answered. None when the gate speaks unasked: then they are for all.
    pub workflow: Option<Workflow>,
    /// Requests this caller may have outstanding, in flight included.
    pub window: Option<u32>,
    /// Ranks that may be sent without a credit.
    pub free: Option<Cursor>,
    /// The last rank let in at all.
    pub last: Option<Cursor>,
    /// How long window and cursors hold after receipt.
    pub holds: Span,
    /// Requests per second granted to the workflow.
    pub rate: Option<f64>,
    /// How busy the gate is, 1 being full; weighs replicas in `balance`.
    pub utilization: Option<f32>,
    /// Work done so far for the request answered.
    pub progress: Progress,
}

impl Feedback {
    /// A message that says nothing.
    pub const fn silent(gate: GateId, sequence: u64) -> Self {
        Self {
            gate,
            sequence,
            workflow: None,
            window: None,
            free: None,
            last: None,
            holds: Span::MAX,
            rate: None,
            utilization: None,
            progress: Progress { elapsed: Span::ZERO, total: Span::ZERO, work: 0, total_work: 0 },
        }
    }
}

/// One gate: random per process, so that a restarted replica is a new one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GateId(pub u64);
