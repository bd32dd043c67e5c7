//! Time for calls, by tokio: one timer for all that wait, and the deadline of each.
//!
//! Whatever comes due in a caller, one task sees to it.
//! Each call could keep a timer of its own for the caller's next wake-up; then a thousand calls that
//! wait would all wake for each credit that expires.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;

use tidegate_core::{Instant, Rejection};
use tokio::sync::Notify;
use tokio::time::{Sleep, sleep};

use crate::{Call, Departure, SharedCaller};

/// Keeps the time of one caller. The task runs in the runtime of the first call that waits.
#[derive(Debug, Default)]
pub struct Timer {
    running: Arc<AtomicBool>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// When the task will next look, in nanoseconds; the end of time while it does not know.
    next: AtomicU64,
    /// Something is due sooner, or the timer is gone.
    sooner: Notify,
    over: AtomicBool,
}

impl Default for Shared {
    fn default() -> Self {
        let next = AtomicU64::new(u64::MAX);
        Self { next, sooner: Notify::new(), over: AtomicBool::new(false) }
    }
}

impl Timer {
    /// Waits until an attempt of `call` may leave, and sees meanwhile to whatever comes due in `caller`.
    pub async fn leave(
        &self,
        caller: &SharedCaller,
        call: &mut Call,
    ) -> Result<Departure, Rejection> {
        poll_fn(|cx| {
            let departure = call.poll_leave(cx);
            if departure.is_pending() {
                self.wait_for(caller);
            }
            departure
        })
        .await
    }

    /// A call waits: sees to it that the caller's next wake-up is kept.
    fn wait_for(&self, caller: &SharedCaller) {
        if !self.running.swap(true, Ordering::SeqCst) {
            let running = Running(Arc::clone(&self.running));
            tokio::spawn(keep(caller.clone(), Arc::clone(&self.shared), running));
        }
        let due = caller.next_wakeup().map_or(u64::MAX, Instant::as_nanos);
        if due < self.shared.next.load(Ordering::SeqCst) {
            self.shared.sooner.notify_one();
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        self.shared.sooner.notify_one();
    }
}

/// Says that the task is gone, also when its runtime is: then the next call that waits starts another.
struct Running(Arc<AtomicBool>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

async fn keep(caller: SharedCaller, shared: Arc<Shared>, _running: Running) {
    while !shared.over.load(Ordering::SeqCst) {
        // Told before it is looked up, so that whoever makes it sooner meanwhile notifies.
        shared.next.store(u64::MAX, Ordering::SeqCst);
        match caller.next_wakeup() {
            None => shared.sooner.notified().await,
            Some(due) => {
                shared.next.store(due.as_nanos(), Ordering::SeqCst);
                let mut slept = pin!(until(&caller, due));
                let mut sooner = pin!(shared.sooner.notified());
                let is_due = poll_fn(|cx| match slept.as_mut().poll(cx) {
                    Poll::Ready(()) => Poll::Ready(true),
                    Poll::Pending => sooner.as_mut().poll(cx).map(|()| false),
                });
                if is_due.await {
                    caller.dispatch();
                }
            }
        }
    }
}

/// What `future` gives, none if the deadline passes before.
pub async fn before<F: Future>(
    caller: &SharedCaller,
    deadline: Instant,
    future: F,
) -> Option<F::Output> {
    if deadline == Instant::FAR {
        return Some(future.await);
    }
    let (mut future, mut timer) = (pin!(future), pin!(until(caller, deadline)));
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => timer.as_mut().poll(cx).map(|()| None),
    })
    .await
}

/// Sleeps until then.
pub fn until(caller: &SharedCaller, moment: Instant) -> Sleep {
    sleep(moment.since(caller.now()).into())
}
