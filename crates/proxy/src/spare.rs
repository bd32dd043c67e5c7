//! Refusals are answered last: when their thread has nothing else to do.
//!
//! A refused client that does not wait asks again at once. With enough of them a thread that answers
//! everybody in turn does little but refuse, and what was let in waits for its turn in the loop: the
//! upstream idles while the proxy is busy saying no. So on a thread that has not been idle for
//! [`BUSY`], refusals stand in a line. Whenever all other work is done a few of them go out; on a
//! thread that is never done, one every [`PACE`]. On a thread that is idle now and then, as nearly all
//! are, nobody stands there at all.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::time::timeout_at;

/// Since when a thread must have been idle to count as one that has time. Below any objective over
/// HTTP, and longer than a turn of the loop at moderate load.
const BUSY: Duration = Duration::from_millis(2);
/// Time between two refusals of a thread that has no time. One costs it some 10 to 15 µs, and as much
/// again for the request that follows: an eighth to a quarter of its time.
const PACE: Duration = Duration::from_micros(100);
/// Refusals that go out before sockets are looked at again.
const AT_ONCE: usize = 8;

#[derive(Debug)]
struct Line {
    /// Who stands there, by number.
    waiting: VecDeque<(u64, Waker)>,
    next: u64,
    /// When the thread last had nothing to do.
    idle: Option<Instant>,
    /// When the last one goes out even if the thread has no time.
    due: Option<Instant>,
    /// Time between two of these: [`PACE`].
    pace: Duration,
}

thread_local! {
    static LINE: RefCell<Line> = const {
        RefCell::new(Line { waiting: VecDeque::new(), next: 0, idle: None, due: None, pace: PACE })
    };
}

/// To be called whenever the thread is about to sleep; it does not if this finds work for it.
pub(crate) fn on_idle() {
    LINE.with_borrow_mut(|line| {
        let few = line.waiting.len().min(AT_ONCE);
        line.waiting.drain(..few).for_each(|(_, waker)| waker.wake());
        line.idle = Some(Instant::now());
        if line.waiting.is_empty() {
            line.due = None;
        }
    });
}

/// Resolves when the thread has time for what is not urgent, or when it is its turn all the same.
pub(crate) async fn time() {
    if let Some(due) = LINE.with_borrow_mut(Line::enter) {
        let _ = timeout_at(due.into(), Turn(None)).await;
    }
}

/// A place in the line of the thread on which it is polled, given up when it is dropped there.
struct Turn(Option<u64>);

impl Future for Turn {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        LINE.with_borrow_mut(|line| match self.0 {
            None => {
                self.0 = Some(line.next);
                line.waiting.push_back((line.next, cx.waker().clone()));
                line.next += 1;
                Poll::Pending
            }
            Some(number) if line.place(number).is_some() => Poll::Pending,
            Some(_) => Poll::Ready(()),
        })
    }
}

impl Line {
    /// When it is the turn of who comes now; none if that is at once.
    fn enter(&mut self) -> Option<Instant> {
        let now = Instant::now();
        if self.idle.is_some_and(|idle| now.duration_since(idle) < BUSY) {
            return None;
        }
        self.due = Some(self.due.map_or(now, |due| due.max(now)) + self.pace);
        self.due
    }

    fn place(&self, number: u64) -> Option<usize> {
        self.waiting.binary_search_by_key(&number, |(number, _)| *number).ok()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(number) = self.0 else { return };
        LINE.with_borrow_mut(|line| {
            if let Some(place) = line.place(number) {
                line.waiting.remove(place);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .on_thread_park(on_idle)
            .build()
            .expect("a runtime")
    }

    #[test]
    fn what_is_not_urgent_comes_after_all_that_is() {
        let order = Arc::new(Mutex::new(Vec::new()));
        let note = |word: &'static str| {
            let order = Arc::clone(&order);
            move || order.lock().unwrap().push(word)
        };
        runtime().block_on(async {
            // However slow the machine is, its turn does not come before it is idle.
            LINE.with_borrow_mut(|line| line.pace = Duration::from_secs(3600));
            let refused = note("refused");
            let refusal = tokio::spawn(async move {
                time().await;
                refused();
            });
            let worked = note("worked");
            let work = tokio::spawn(async move {
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                    worked();
                }
            });
            let _ = tokio::join!(work, refusal);
        });
        let order = order.lock().unwrap();
        assert_eq!((order.len(), order[100]), (101, "refused"));
    }

    #[test]
    fn nobody_waits_for_ever_and_nothing_is_left_in_line() {
        runtime().block_on(async {
            LINE.with_borrow_mut(|line| line.idle = None);
            let refusal = tokio::spawn(time());
            // Never idle until it is answered.
            while !refusal.is_finished() {
                tokio::task::yield_now().await;
            }
            let dropped = tokio::spawn(time());
            tokio::task::yield_now().await;
            dropped.abort();
            while !dropped.is_finished() {
                tokio::task::yield_now().await;
            }
        });
        assert!(LINE.with_borrow(|line| line.waiting.is_empty()));
    }

    #[test]
    fn a_thread_that_has_just_been_idle_answers_at_once() {
        runtime().block_on(async {
            LINE.with_borrow_mut(|line| line.idle = Some(Instant::now()));
            let mut answer = std::pin::pin!(time());
            let mut cx = Context::from_waker(Waker::noop());
            assert_eq!(answer.as_mut().poll(&mut cx), Poll::Ready(()));
        });
    }
}
