//! When a request that has a slot may run its handler: [`Drive`].

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// What happens between the start of a request and its handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drive {
    /// The handler runs in the poll that finds the slot. Blind under load; to compare with.
    Inline,
    /// Once to the back of the run queue, so that tasks that are ready come before.
    Park,
    /// Once around the loop: every ready task is polled and then the I/O driver.
    Yield,
    /// As [`Yield`](Self::Yield), but only if this thread has not been around the loop for this
    /// long. More saves a microsecond per request and leaves arrivals unread for longer.
    Fresh(Duration),
}

impl Default for Drive {
    /// 200 µs: far below any objective over HTTP, and long enough that a busy service with short
    /// handlers goes round once for many requests.
    fn default() -> Self {
        Self::Fresh(Duration::from_micros(200))
    }
}

thread_local! {
    /// When a task of this thread last came back from the I/O driver.
    static LAST_ROUND: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Where a request is between its start and its handler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Has just got its slot.
    #[default]
    Before,
    /// Waits for the loop to come round.
    Going,
    /// May run.
    Done,
}

impl Turn {
    /// Ready when the handler may run.
    pub(crate) fn poll(&mut self, drive: Drive, cx: &mut Context<'_>) -> Poll<()> {
        match (*self, drive) {
            (Self::Before, Drive::Inline) => {}
            (Self::Before, Drive::Park) => {
                *self = Self::Going;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            (Self::Before, Drive::Fresh(limit)) if is_fresh(limit) => {}
            (Self::Before, Drive::Yield | Drive::Fresh(_)) => {
                *self = Self::Going;
                // Its first poll hands the waker to the runtime, which wakes after it has polled
                // the I/O driver. All that is left of it then is to be ready.
                return pin!(tokio::task::yield_now()).poll(cx);
            }
            (Self::Going, Drive::Fresh(_)) => LAST_ROUND.set(Some(Instant::now())),
            (Self::Going | Self::Done, _) => {}
        }
        *self = Self::Done;
        Poll::Ready(())
    }
}

fn is_fresh(limit: Duration) -> bool {
    LAST_ROUND.get().is_some_and(|round| round.elapsed() < limit)
}
