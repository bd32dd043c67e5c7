//! One timer for all calls that wait: whatever comes due in a caller, one task sees to it.
//!
//! Each call could keep a timer of its own for the caller's next wake-up; then a thousand calls that
//! wait would all wake for each credit that expires.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;

use tidegate_core::Instant;
use tidegate_driver::SharedCaller;
use tokio::sync::Notify;
use tokio::time::sleep;

/// Keeps the time of one caller. The task runs in the runtime of the first call that waits.
#[derive(Debug, Default)]
pub(super) struct Timer {
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
    /// A call waits: sees to it that the caller's next wake-up is kept.
    pub(super) fn wait_for(&self, caller: &SharedCaller) {
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
                let mut slept = pin!(sleep(due.since(caller.now()).into()));
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
