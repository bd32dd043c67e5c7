//! [`Upload`]: a request's body on its way to an upstream.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
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

/// What is told of an upload while it is under way.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    /// Set whenever a piece was passed on.
    moved: AtomicBool,
    /// Whether it was given up.
    slow: AtomicBool,
    /// Whether the client broke it off, or sent what is no body.
    broken: AtomicBool,
    /// Whether the answer has begun.
    answered: AtomicBool,
}

impl Flow {
    /// Whether anything was passed on since the last call.
    pub(crate) fn moved(&self) -> bool {
        self.moved.swap(false, Ordering::Relaxed)
    }

    /// Whether it was too slow.
    pub(crate) fn is_slow(&self) -> bool {
        self.slow.load(Ordering::Relaxed)
    }

    /// Whether the client broke it off.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// The answer has begun: from now on both sides may take the time they like, as where they talk to each other.
    pub(crate) fn on_answer(&self) {
        self.answered.store(true, Ordering::Relaxed);
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

    /// What was read before, and so is never late.
    pub(crate) fn kept(body: Bytes, trailers: Option<HeaderMap>) -> Self {
        let body = match body.is_empty() && trailers.is_none() {
            true => Inbound::Nothing,
            false => Inbound::Kept(Box::new((body, trailers))),
        };
        Self { body, ..Self::empty() }
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
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        let Some(flow) = self.flow.clone() else { return frame.map_err(Into::into) };
        match &frame {
            Poll::Ready(piece) => {
                flow.moved.store(true, Ordering::Relaxed);
                match piece {
                    Some(Ok(piece)) => {
                        self.bytes += piece.data_ref().map_or(0, |data| data.len() as u64);
                    }
                    Some(Err(_)) => flow.broken.store(true, Ordering::Relaxed),
                    None => {}
                }
            }
            Poll::Pending if !flow.answered.load(Ordering::Relaxed) && self.is_late(cx) => {
                flow.slow.store(true, Ordering::Relaxed);
                return Poll::Ready(Some(Err(TooSlow.into())));
            }
            Poll::Pending => {}
        }
        frame.map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The client did not send its request in time.
#[derive(Debug)]
struct TooSlow;

impl fmt::Display for TooSlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the request did not come in time")
    }
}

impl Error for TooSlow {}
