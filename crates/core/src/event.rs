//! What happened, as a closed list: metrics, traces, dashboard and figures are all fed from it.

use crate::context::{CallerId, Workflow};
use crate::rank::{Cursor, Rank};
use crate::time::{Instant, Span};
use crate::verdict::{Outcome, Rejection};

/// One thing that happened in a `Gate` or `Caller`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// A request was let in and waits.
    Admit {
        /// Its rank.
        rank: Rank,
        /// Its workflow.
        workflow: Workflow,
        /// Its label.
        label: u16,
    },
    /// A request was turned away, at arrival or later.
    Refuse {
        /// Its rank.
        rank: Rank,
        /// Its workflow.
        workflow: Workflow,
        /// Its label.
        label: u16,
        /// Whether it had been let in before, and waited: it was told as [`Admit`](Event::Admit) then.
        admitted: bool,
        /// Why.
        rejection: Rejection,
    },
    /// A request got a slot.
    Start {
        /// Its rank.
        rank: Rank,
        /// How long it waited for this slot.
        sojourn: Span,
    },
    /// A request gave its slot back for good.
    Finish {
        /// Its rank.
        rank: Rank,
        /// Its workflow.
        workflow: Workflow,
        /// Its label.
        label: u16,
        /// How it ended.
        outcome: Outcome,
        /// From arrival to end.
        latency: Span,
    },
    /// A caller got or lost credits.
    Window {
        /// Whose.
        caller: CallerId,
        /// Its window now.
        credits: u32,
    },
    /// The pool of credits changed.
    Pool {
        /// Its size now.
        credits: u32,
        /// The delay that decided it.
        delay: Span,
    },
    /// The cursors moved.
    Cursors {
        /// Ranks that need no credit.
        free: Cursor,
        /// Ranks let in at all.
        last: Cursor,
    },
    /// The number of slots changed.
    Slots {
        /// How many there are now.
        slots: u32,
    },
    /// The learned objective changed.
    Objective {
        /// What it is now.
        objective: Span,
    },
    /// A caller retries, or a budget forbade it.
    Retry {
        /// The attempt that follows, or would have.
        attempt: u8,
        /// Whether it was allowed.
        allowed: bool,
    },
    /// An endpoint is left out, or back: by circuit breaking, or as an outlier.
    Endpoint {
        /// Its index.
        endpoint: usize,
        /// Whether calls may be sent there.
        up: bool,
    },
    /// An input made no sense and was ignored.
    Ignore(Misuse),
}

/// Inputs that are ignored with an event, never a panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misuse {
    /// An id that never was, or has ended already.
    UnknownId,
    /// The request is not in a state for that (a start of what runs, a resume of what waits).
    WrongState,
    /// Feedback or a response for a call never sent.
    NeverSent,
    /// Feedback older than what is known of that gate.
    Overtaken,
    /// A value that is not a number, or out of range.
    BadValue,
}

/// Collects events for whoever asked; costs one branch when nobody did.
#[derive(Clone, Debug, Default)]
pub struct Events {
    log: Option<Vec<(Instant, Event)>>,
    lost: u64,
}

impl Events {
    /// Events kept between two drains. A driver drains after every dispatch; one that forgets
    /// loses the newest and is told how many.
    pub const LIMIT: usize = 65_536;

    /// Starts or stops keeping events.
    pub fn keep(&mut self, keep: bool) {
        self.log = keep.then(Vec::new);
    }

    /// Whether anybody listens.
    pub fn kept(&self) -> bool {
        self.log.is_some()
    }

    /// Appends what `event` returns, if anybody listens.
    pub fn push(&mut self, now: Instant, event: impl FnOnce() -> Event) {
        if let Some(log) = &mut self.log {
            if log.len() < Self::LIMIT {
                log.push((now, event()));
            } else {
                self.lost += 1;
            }
        }
    }

    /// All events since the last call, oldest first.
    pub fn drain(&mut self) -> impl Iterator<Item = (Instant, Event)> {
        self.log.iter_mut().flat_map(|log| log.drain(..))
    }

    /// How many events were lost because nobody drained them.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}
