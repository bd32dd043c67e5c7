//! A connection as everybody sees it: its socket, what is to be written to it, and which of its
//! requests are in the gate.
//!
//! Whoever finishes a request writes its answer, from whatever thread; so a connection has a lock of
//! its own. It may be taken under the lock of the gate, never the other way round.

use std::collections::VecDeque;
use std::io::{ErrorKind, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mio::net::TcpStream;
use tidegate_core::{Context, Cursor, Feedback, RequestId};

/// Buffers larger than this are given back when they are empty.
const KEPT: usize = 4 << 10;

#[derive(Debug)]
pub(super) struct Conn {
    pub(super) stream: TcpStream,
    state: Mutex<State>,
    gone: AtomicBool,
}

/// What the lock of a connection protects.
#[derive(Debug, Default)]
pub(super) struct State {
    /// What is to be written, of which the first `written` bytes have been.
    out: Vec<u8>,
    written: usize,
    /// Whether somebody has it on a list of connections to flush.
    dirty: bool,
    /// Whether the socket is full: it will tell when it is not.
    blocked: bool,
    /// Requests in the gate, in the order of their numbers; those that ended are none.
    calls: VecDeque<(u64, Option<RequestId>)>,
    /// How many of them have not ended.
    open: usize,
    told: Told,
    /// How often the peer sent what it was not allowed to.
    strikes: u32,
}

/// What the peer was told it may have outstanding.
#[derive(Clone, Copy, Debug)]
struct Told {
    /// No less than any window it may still go by; none before the first. It falls by one at most
    /// with each message, and so does what a peer that listens has outstanding.
    ceiling: Option<u32>,
    free: Cursor,
}

impl Default for Told {
    fn default() -> Self {
        Self { ceiling: None, free: Cursor::OPEN }
    }
}

/// What a peer may have outstanding beyond its window before it is taken for one that ignores it.
const GRACE: u32 = 64;

impl Conn {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { stream, state: Mutex::default(), gone: AtomicBool::default() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Nothing more can be read or written.
    pub(super) fn end(&self) {
        self.gone.store(true, Ordering::Relaxed);
        // The reader hears of it by an event, if it does not know already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Writes as much as the socket takes.
    pub(super) fn flush(&self) {
        let mut state = self.lock();
        state.dirty = false;
        state.blocked = false;
        while state.written < state.out.len() {
            match (&self.stream).write(&state.out[state.written..]) {
                Ok(0) => return self.end(),
                Ok(count) => state.written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    state.blocked = true;
                    break;
                }
                Err(_) => return self.end(),
            }
        }
        state.tidy();
    }
}

impl State {
    /// Appends frames. True if the connection was clean: then whoever wrote must flush it.
    pub(super) fn write(&mut self, frames: impl FnOnce(&mut Vec<u8>)) -> bool {
        frames(&mut self.out);
        // A full socket tells when it can take more.
        !std::mem::replace(&mut self.dirty, true) && !self.blocked
    }

    /// Bytes that wait to be written.
    pub(super) fn unwritten(&self) -> usize {
        self.out.len() - self.written
    }

    /// Whether everything was written.
    pub(super) fn is_clean(&self) -> bool {
        self.written == self.out.len()
    }

    /// Whether the peer waits for nothing.
    pub(super) fn is_idle(&self) -> bool {
        self.open == 0 && self.is_clean()
    }

    /// Requests of this connection that have not ended.
    pub(super) fn open(&self) -> usize {
        self.open
    }

    pub(super) fn begin(&mut self, call: u64, id: RequestId) {
        self.calls.push_back((call, Some(id)));
        self.open += 1;
    }

    /// A call has ended: its request, if it has not ended before.
    pub(super) fn finish(&mut self, call: u64) -> Option<RequestId> {
        let place = self.calls.binary_search_by_key(&call, |(number, _)| *number).ok()?;
        let id = self.calls[place].1.take()?;
        self.open -= 1;
        while let Some((_, None)) = self.calls.front() {
            self.calls.pop_front();
        }
        Some(id)
    }

    /// All requests that have not ended.
    pub(super) fn finish_all(&mut self) -> Vec<RequestId> {
        self.open = 0;
        std::mem::take(&mut self.calls).into_iter().filter_map(|(_, id)| id).collect()
    }

    /// The peer is told what it may send.
    pub(super) fn tell(&mut self, feedback: &Feedback) {
        self.told.ceiling = feedback.window.map(|window| {
            window.max(self.told.ceiling.map_or(0, |ceiling| ceiling.saturating_sub(1)))
        });
        self.told.free = feedback.free.unwrap_or(Cursor::CLOSED);
    }

    /// Counts a violation: how many there were.
    pub(super) fn strike(&mut self) -> u32 {
        self.strikes = self.strikes.saturating_add(1);
        self.strikes
    }

    /// Whether a request is beyond what any client that listens could send: how many it has out, and
    /// how many it may have.
    pub(super) fn violates(&self, context: &Context) -> Option<(u32, u32)> {
        let window = self.told.ceiling?.saturating_add(GRACE);
        let open = u32::try_from(self.open).unwrap_or(u32::MAX);
        (open >= window && !self.told.free.admits(context.rank)).then_some((open, window))
    }

    /// Gives memory back.
    pub(super) fn tidy(&mut self) {
        if self.is_clean() {
            self.out.clear();
            self.written = 0;
            if self.out.capacity() > KEPT {
                self.out = Vec::new();
            }
        } else if self.written > KEPT {
            self.out.drain(..self.written);
            self.written = 0;
        }
    }

    /// Gives all memory back that is not in use: the connection has been idle.
    pub(super) fn rest(&mut self) {
        if self.is_clean() {
            (self.out, self.written) = (Vec::new(), 0);
        }
        if self.open == 0 {
            self.calls = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::slab::Slab;
    use tidegate_core::{GateId, Rank};

    use super::*;

    #[test]
    fn calls_end_once_in_any_order() {
        let mut slab = Slab::default();
        let mut state = State::default();
        let ids: Vec<RequestId> = (0..4).map(|_| slab.insert_with(|_| ())).collect();
        for (call, id) in ids.iter().enumerate() {
            state.begin(10 + call as u64, *id);
        }
        assert_eq!(state.finish(12), Some(ids[2]));
        assert_eq!((state.finish(12), state.finish(99)), (None, None));
        assert_eq!(state.finish(10), Some(ids[0]));
        assert_eq!(state.open(), 2);
        assert_eq!(state.finish_all(), [ids[1], ids[3]]);
        assert_eq!((state.open(), state.finish(11)), (0, None));
    }

    #[test]
    fn only_what_exceeds_window_and_free_cursor_violates() {
        let mut slab = Slab::default();
        let mut state = State::default();
        let ranked = |business| Context { rank: Rank::new(business, 0), ..Context::default() };
        for call in 0..200 {
            state.begin(call, slab.insert_with(|_| ()));
        }
        assert_eq!(state.violates(&ranked(30)), None, "told nothing yet");
        let feedback = |window| Feedback {
            window: Some(window),
            free: Some(Cursor::at(Rank::new(20, 0))),
            ..Feedback::silent(GateId(1), 1)
        };
        state.tell(&feedback(200));
        state.tell(&feedback(5));
        assert_eq!(state.violates(&ranked(30)), None, "may not know of the last window yet");
        (0..100).for_each(|_| state.tell(&feedback(5)));
        assert_eq!(state.violates(&ranked(30)), Some((200, 99 + GRACE)));
        assert_eq!(state.violates(&ranked(10)), None, "free");
    }
}
