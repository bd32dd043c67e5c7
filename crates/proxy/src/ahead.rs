//! [`Ahead`]: the rest of an answer, read before its client takes it.
//!
//! A slot is for work, and a client that reads slowly is none. So what comes in more than one piece is read ahead of its
//! client, up to [`AHEAD`] bytes, and with the last byte the upstream and its slot are free, whoever reads.
//!
//! What is longer waits for its reader, and so does the service. A reader that has taken nothing for [`STILL`] is *behind*:
//! its answer no longer holds a slot. While more of them are behind than there are slots, those that take nothing for
//! [`STALE`] are cut off: the connection to the upstream is closed, and the client finds its answer broken.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::timeout;

use crate::abandoned;
use crate::body::Held;
use crate::leash;
use crate::upstream::Source;

/// Most bytes that are kept of one answer.
const AHEAD: usize = 256 * 1024;
/// And of all of them: 64 MB.
const ALL_AHEAD: usize = 64 << 20;
/// How long a reader of a longer one may take nothing while it holds a slot.
const STILL: Duration = Duration::from_millis(20);
/// How long it may take nothing where many do.
const STALE: Duration = Duration::from_secs(1);

/// An answer between the upstream and its client.
#[derive(Debug)]
pub(crate) struct Ahead {
    readers: Arc<Readers>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    pieces: VecDeque<Frame<Bytes>>,
    bytes: usize,
    /// How much the client will still get, if that is known.
    left: Option<u64>,
    /// How it has ended.
    end: Option<io::Result<()>>,
    /// Whether nobody reads any more, or is to.
    over: bool,
    /// Who waits for a piece, and who for room.
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// All answers that are read ahead.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    /// Bytes that are kept.
    bytes: AtomicUsize,
    /// Those whose clients are behind.
    behind: AtomicUsize,
}

impl Readers {
    /// How many clients are behind.
    pub(crate) fn behind(&self) -> usize {
        self.behind.load(Ordering::Relaxed)
    }
}

impl Ahead {
    /// Reads on in a task of its own; `left` is what the client will get.
    pub(crate) fn begin(source: Source, held: Held, left: SizeHint) -> Arc<Self> {
        let readers = Arc::clone(&held.worker.counters.readers);
        let state = State {
            pieces: VecDeque::new(),
            bytes: 0,
            left: left.exact(),
            end: None,
            over: false,
            reader: None,
            writer: None,
        };
        let ahead = Arc::new(Self { readers, state: Mutex::new(state) });
        tokio::spawn(read(Arc::clone(&ahead), source, held));
        ahead
    }

    /// The next piece, for the client.
    pub(crate) fn poll_frame(
        &self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let mut state = lock(&self.state);
        if let Some(piece) = state.pieces.pop_front() {
            let length = piece.data_ref().map_or(0, Bytes::len);
            state.bytes -= length;
            state.left = state.left.map(|left| left.saturating_sub(length as u64));
            self.readers.bytes.fetch_sub(length, Ordering::Relaxed);
            let writer = state.writer.take();
            drop(state);
            writer.into_iter().for_each(Waker::wake);
            return Poll::Ready(Some(Ok(piece)));
        }
        if let Some(end) = state.end.take() {
            let again = if end.is_ok() { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) };
            state.end = Some(again);
            return Poll::Ready(end.err().map(Err));
        }
        if state.over {
            return Poll::Ready(Some(Err(io::ErrorKind::TimedOut.into())));
        }
        state.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Whether the client has all of it: after the last byte that was announced trailers may come.
    pub(crate) fn is_at_end(&self) -> bool {
        let state = lock(&self.state);
        state.pieces.is_empty() && matches!(state.end, Some(Ok(())))
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        lock(&self.state).left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }

    /// Nobody reads it any more, or is to.
    pub(crate) fn end_early(&self) {
        let mut state = lock(&self.state);
        state.over = true;
        let wakers = (state.reader.take(), state.writer.take());
        drop(state);
        wakers.0.into_iter().chain(wakers.1).for_each(Waker::wake);
    }

    fn push(&self, piece: Frame<Bytes>) {
        let length = piece.data_ref().map_or(0, Bytes::len);
        self.readers.bytes.fetch_add(length, Ordering::Relaxed);
        let mut state = lock(&self.state);
        state.bytes += length;
        state.pieces.push_back(piece);
        let reader = state.reader.take();
        drop(state);
        reader.into_iter().for_each(Waker::wake);
    }

    fn end(&self, end: io::Result<()>) {
        let mut state = lock(&self.state);
        state.end = Some(end);
        let reader = state.reader.take();
        drop(state);
        reader.into_iter().for_each(Waker::wake);
    }

    /// Whether there is no room for more, and somebody may still make some.
    fn is_full(&self) -> bool {
        let state = lock(&self.state);
        let all = self.readers.bytes.load(Ordering::Relaxed);
        !state.over && state.bytes > 0 && (state.bytes >= AHEAD || all >= ALL_AHEAD)
    }

    /// Ready once there is room for more, or nobody reads any more.
    fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.is_full() {
            return Poll::Ready(());
        }
        let mut state = lock(&self.state);
        state.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Ready once nobody reads any more.
    fn poll_over(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = lock(&self.state);
        if state.over {
            return Poll::Ready(());
        }
        state.writer = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.readers.bytes.fetch_sub(lock(&self.state).bytes, Ordering::Relaxed);
    }
}

/// Reads an answer to its end, or until nobody wants it.
async fn read(ahead: Arc<Ahead>, mut source: Source, mut held: Held) {
    let mut is_behind = false;
    loop {
        let room = poll_fn(|cx| ahead.poll_room(cx));
        if is_behind {
            let slots = || held.worker.gate.read(tidegate_core::Gate::slots) as usize;
            // One after the other, until there are no more than that.
            if timeout(STALE, room).await.is_err() && ahead.readers.behind() > slots() {
                ahead.end_early();
            }
            if ahead.is_full() {
                continue;
            }
        } else if timeout(STILL, room).await.is_err() {
            is_behind = true;
            held.give_back();
            ahead.readers.behind.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        let piece = poll_fn(|cx| {
            if ahead.poll_over(cx).is_ready() {
                return Poll::Ready(None);
            }
            if held.poll_over(cx).is_ready() {
                return Poll::Ready(Some(Some(Err(leash::cut()))));
            }
            source.poll_frame(Some(&mut held.call), cx).map(Some)
        });
        match piece.await {
            Some(Some(Ok(mut piece))) => {
                held.hear(&mut piece);
                ahead.push(piece);
            }
            Some(end) => {
                match end {
                    Some(Err(error)) => {
                        held.broken();
                        ahead.end(Err(error));
                    }
                    _ => {
                        held.end();
                        ahead.end(Ok(()));
                    }
                }
                break;
            }
            None => {
                let begun = (source, held.head, held.verdict);
                abandoned::leave(&held.worker, held.call, held.entry, Some(begun));
                break;
            }
        }
    }
    if is_behind {
        ahead.readers.behind.fetch_sub(1, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
