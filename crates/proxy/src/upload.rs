//! [`Upload`]: a request's body on its way to an upstream.
//!
//! A body that breaks off or is too slow never ends in an error while its answer is awaited: it stands still, and
//! whoever awaits the answer is told ([`Flow`]) and ends the call. Over HTTP/2 an error would be a reset at once, and
//! those are to be [few](crate::resets).

use std::error::Error;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::inbound::Inbound;

/// Bytes per second that an upload must have on the whole, apart from the time it has anyway: what
/// the slowest modem had. Who is slower holds a slot to no use.
const SLOWEST: u64 = 1_000;

/// A body that may be as long as it likes, but not as slow until it is answered.
#[derive(Debug)]
pub(crate) struct Upload {
    body: Inbound,
    /// None where there is nothing to pass on.
    flow: Option<Arc<Flow>>,
    patience: Duration,
    begun: Option<Instant>,
    bytes: u64,
    /// Set while something is awaited.
    timer: Option<Pin<Box<Sleep>>>,
}

/// Why an upload does not go on.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// It is too slow.
    Slow,
    /// The client broke it off, or sent what is no body.
    Broken(io::Error),
}

/// What is told of an upload while it is under way.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    /// Set whenever a piece was passed on.
    moved: AtomicBool,
    /// Whether all of it was passed on.
    done: AtomicBool,
    /// Whether nothing more of it is to be passed on.
    given_up: AtomicBool,
    /// Whether the answer has begun.
    answered: AtomicBool,
    /// Whether an error would be a reset.
    shared: AtomicBool,
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Told {
    trouble: Option<Trouble>,
    /// Whoever waits for the answer.
    waker: Option<Waker>,
}

impl Flow {
    /// Whether anything was passed on since the last call.
    pub(crate) fn moved(&self) -> bool {
        self.moved.swap(false, Ordering::Relaxed)
    }

    /// Whether all of it was passed on.
    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }

    /// Nobody is to take the rest for the end: from now on nothing is passed on.
    pub(crate) fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// It goes by a connection that others have too.
    pub(crate) fn share(&self) {
        self.shared.store(true, Ordering::Relaxed);
    }

    /// The answer has begun: from now on both sides may take the time they like, as where they talk to each other.
    pub(crate) fn on_answer(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }

    /// Ready once it does not go on.
    pub(crate) fn poll_trouble(&self, cx: &mut Context<'_>) -> Poll<Trouble> {
        let mut told = self.lock();
        if let Some(trouble) = told.trouble.take() {
            return Poll::Ready(trouble);
        }
        told.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn tell(&self, trouble: Trouble) {
        self.give_up();
        let mut told = self.lock();
        told.trouble = Some(trouble);
        let waker = told.waker.take();
        drop(told);
        waker.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Upload {
    /// A body that may take `patience` and a second for every thousand bytes.
    pub(crate) fn new(body: Inbound, patience: Duration) -> Self {
        let flow = (!body.is_end_stream()).then(Arc::default);
        Self { body, flow, patience, begun: None, bytes: 0, timer: None }
    }

    /// Nothing.
    pub(crate) fn empty() -> Self {
        let patience = Duration::ZERO;
        Self { body: Inbound::Nothing, flow: None, patience, begun: None, bytes: 0, timer: None }
    }

    /// What is told of it.
    pub(crate) fn flow(&self) -> Option<Arc<Flow>> {
        self.flow.clone()
    }

    /// When it must have come further.
    fn due(&mut self) -> Instant {
        let begun = *self.begun.get_or_insert_with(Instant::now);
        begun + self.patience + Duration::from_millis(self.bytes * 1_000 / SLOWEST)
    }

    /// Whether time is up. Otherwise the task is woken when it will be.
    fn is_late(&mut self, cx: &mut Context<'_>) -> bool {
        let due = self.due();
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if timer.deadline() != due {
            timer.as_mut().reset(due);
        }
        timer.as_mut().poll(cx).is_ready()
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Some(flow) = self.flow.clone() else { return Poll::Ready(None) };
        if flow.given_up.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(piece))) => {
                flow.moved.store(true, Ordering::Relaxed);
                self.bytes += piece.data_ref().map_or(0, |data| data.len() as u64);
                flow.done.store(self.body.is_end_stream(), Ordering::Relaxed);
                Poll::Ready(Some(Ok(piece)))
            }
            Poll::Ready(None) => {
                flow.done.store(true, Ordering::Relaxed);
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(error))) => {
                if flow.answered.load(Ordering::Relaxed) && !flow.shared.load(Ordering::Relaxed) {
                    return Poll::Ready(Some(Err(error.into())));
                }
                flow.tell(Trouble::Broken(error));
                Poll::Pending
            }
            Poll::Pending => {
                if !flow.answered.load(Ordering::Relaxed) && self.is_late(cx) {
                    flow.tell(Trouble::Slow);
                }
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
