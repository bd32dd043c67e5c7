//! [`Rarely`]: a future that is polled only if it was woken itself.
//!
//! A task that waits for several things polls all of them whenever one is woken. Beside a connection,
//! which is woken twice for each request, its timeouts and the end of the process are waited for: to
//! look at timers and channels that nobody has touched would cost each request a thousand instructions.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// A future that is seldom ready, beside one that often is.
pub(crate) struct Rarely<F> {
    future: F,
    note: Arc<Note>,
    waker: Waker,
}

struct Note {
    woken: AtomicBool,
    /// Whom to wake.
    task: Mutex<Option<Waker>>,
}

impl<F: Future + Unpin> Rarely<F> {
    pub(crate) fn new(future: F) -> Self {
        let note = Arc::new(Note { woken: AtomicBool::new(true), task: Mutex::new(None) });
        Self { future, waker: Waker::from(Arc::clone(&note)), note }
    }
}

impl<F: Future + Unpin> Future for Rarely<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let me = self.get_mut();
        let mut task = lock(&me.note.task);
        if !task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
            *task = Some(cx.waker().clone());
        }
        drop(task);
        // Whoever wakes it after this finds the task above.
        if !me.note.woken.swap(false, Ordering::AcqRel) {
            return Poll::Pending;
        }
        Pin::new(&mut me.future).poll(&mut Context::from_waker(&me.waker))
    }
}

impl Wake for Note {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        let task = lock(&self.task).clone();
        task.into_iter().for_each(Waker::wake);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::future::poll_fn;

    #[tokio::test]
    async fn it_is_polled_when_it_was_woken_and_not_otherwise() {
        let (polls, kept) = (Cell::new(0), Cell::new(None));
        let mut rare = Rarely::new(poll_fn(|cx| {
            polls.set(polls.get() + 1);
            kept.set(Some(cx.waker().clone()));
            if polls.get() == 2 { Poll::Ready("now") } else { Poll::Pending }
        }));
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..3 {
            assert!(Pin::new(&mut rare).poll(&mut cx).is_pending());
        }
        assert_eq!(polls.get(), 1);
        // It wakes the task that polled it last.
        let waker: Waker = kept.take().expect("polled once");
        let woken = async { waker.wake() };
        assert_eq!(tokio::join!(rare, woken).0, "now");
        assert_eq!(polls.get(), 2);
    }
}
