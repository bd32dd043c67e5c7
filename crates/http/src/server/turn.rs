//! Once around the runtime's loop before a handler runs, unless that was just done: [`Turn`].
//!
//! `yield_now` resumes after every task that is ready was polled and then the I/O driver, so
//! whatever had reached the machine before stands in the gate when the handler runs. It costs one
//! more poll and a look at the I/O driver; therefore a thread that came round less than [`FRESH`]
//! ago starts at once. Under load with long handlers every start goes round, with short ones one in
//! many, and the time for which arrivals stay unread is bounded either way.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll};

use tidegate_core::{Instant, Span};

/// How long ago a thread may have come round to start a handler at once. Far below any objective
/// over HTTP, and long enough that a busy service with short handlers goes round once for many.
const FRESH: Span = Span::from_micros(200);

thread_local! {
    /// When a task of this thread last came back from the I/O driver.
    static LAST_ROUND: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Where a request is between its start and its handler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Turn {
    /// Has just got its slot.
    #[default]
    Before,
    /// Waits for the loop to come round.
    Going,
    /// May run.
    Done,
}

impl Turn {
    /// Ready when the handler may run; polled at `now`.
    pub(super) fn poll(&mut self, now: Instant, cx: &mut Context<'_>) -> Poll<()> {
        match *self {
            Self::Before if !is_fresh(now) => {
                *self = Self::Going;
                // Its first poll hands the waker to the runtime, to be woken after the round; there
                // is nothing else in it to keep.
                return pin!(tokio::task::yield_now()).poll(cx);
            }
            // Polled for another reason meanwhile, it is taken as come round too: rare, and harmless.
            Self::Going => LAST_ROUND.set(Some(now)),
            Self::Before | Self::Done => {}
        }
        *self = Self::Done;
        Poll::Ready(())
    }
}

fn is_fresh(now: Instant) -> bool {
    LAST_ROUND.get().is_some_and(|round| now.since(round) < FRESH)
}
