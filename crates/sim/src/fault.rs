//! What goes wrong, when, and for how long.

use tidegate_core::{Instant, Span};

/// One fault.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// When it begins.
    pub at: Instant,
    /// How long it lasts.
    pub lasts: Span,
    /// Which service has it, by number.
    pub service: usize,
    /// Which replica, all of them if none.
    pub replica: Option<u32>,
    /// What it is.
    pub kind: FaultKind,
}

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FaultKind {
    /// Everything takes this many times as long.
    Slow(f64),
    /// Nothing goes on, as in a long garbage collection; afterwards everything does.
    Pause,
    /// The process is gone with all that was inside; at the end an empty one starts.
    Crash,
    /// The cache is emptied.
    ColdCache,
    /// So many cores are left.
    Cores(u32),
    /// A share of the responses loses its feedback.
    LoseFeedback(f64),
    /// A share of the callers cannot reach it, nor it them.
    Partition(f64),
    /// A share of all messages is lost, everywhere.
    Loss(f64),
    /// All messages take up to this much longer, everywhere.
    Jitter(Span),
}
