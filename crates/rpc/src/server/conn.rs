//! A connection as everybody sees it: its socket, what is to be written to it, and which of its
//! requests are in the gate.
//!
//! Whoever finishes a request writes its answer, from whatever thread; so a connection has a lock of
//! its own. It may be taken under the lock of the gate, never the other way round.

use std::collections::VecDeque;
use std::io::{ErrorKind, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mio::net::TcpStream;
use tidegate_core::{CallerId, Context, Cursor, Feedback, Instant, RequestId, Span};

use super::bounds::Bounds;
use crate::wire::{self, Goodbye};

/// Calls that ended stay behind an older one that has not, as many as are open and so many besides.
const ENDED: usize = 64;

/// Buffers larger than this are given back when they are empty.
const KEPT: usize = 4 << 10;

#[derive(Debug)]
pub(super) struct Conn {
    pub(super) stream: TcpStream,
    state: Mutex<State>,
    gone: AtomicBool,
    /// Whether more answers wait than may, and the socket takes none: nothing new is worked on for it.
    full: AtomicBool,
    /// The caller it speaks for, as the gate knows it.
    caller: AtomicU64,
}

/// What the lock of a connection protects.
#[derive(Debug)]
pub(super) struct State {
    bounds: Arc<Bounds>,
    /// What is to be written, of which the first `written` bytes have been.
    out: Vec<u8>,
    written: usize,
    /// How many of these bytes are counted as kept.
    counted: usize,
    /// Whether somebody has it on a list of connections to flush.
    dirty: bool,
    /// Whether the socket is full: it will tell when it is not.
    blocked: bool,
    /// Since when it was seen to be so without having taken anything.
    stuck: Option<Instant>,
    /// Requests in the gate, in the order of their numbers; those that ended are none.
    calls: VecDeque<(u64, Option<RequestId>)>,
    /// How many of them have not ended.
    open: usize,
    told: Told,
    /// How often the peer sent what it was not allowed to, and since when that is counted.
    strikes: u32,
    struck: Instant,
}

/// What the peer was told it may have outstanding.
#[derive(Clone, Copy, Debug)]
struct Told {
    /// No less than any window it may still go by; none before the first. It falls by one at most
    /// with each message, and so does what a peer that listens has outstanding.
    ceiling: Option<u32>,
    /// The last free cursor, and the laxest told since `since` and in the period before: a peer may
    /// still go by them.
    free: Cursor,
    recent: Cursor,
    former: Cursor,
    since: Instant,
}

impl Default for Told {
    fn default() -> Self {
        let (free, recent, former) = (Cursor::CLOSED, Cursor::CLOSED, Cursor::CLOSED);
        Self { ceiling: None, free, recent, former, since: Instant::ZERO }
    }
}

/// What a peer may have outstanding beyond its window before it is taken for one that ignores it.
const GRACE: u32 = 64;
/// Longer than a message to a peer and a request from it are under way.
const UNDER_WAY: Span = Span::from_secs(1);
/// How long violations are remembered.
const REMEMBERED: Span = Span::from_secs(60);

impl Conn {
    pub(super) fn new(stream: TcpStream, bounds: Arc<Bounds>) -> Self {
        Self {
            stream,
            state: Mutex::new(State::new(bounds)),
            gone: AtomicBool::default(),
            full: AtomicBool::default(),
            caller: AtomicU64::new(CallerId::UNKNOWN.0),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Whether more answers wait than may.
    pub(super) fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    /// The caller it speaks for.
    pub(super) fn caller(&self) -> CallerId {
        CallerId(self.caller.load(Ordering::Relaxed))
    }

    pub(super) fn speak_for(&self, caller: CallerId) {
        self.caller.store(caller.0, Ordering::Relaxed);
    }

    /// Nothing more can be read or written.
    pub(super) fn end(&self) {
        self.gone.store(true, Ordering::Relaxed);
        // The reader hears of it by an event, if it does not know already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Says why, and ends it.
    pub(super) fn part(&self, why: Goodbye) {
        self.lock().append(|out| wire::write_goodbye(out, why));
        self.flush();
        self.end();
    }

    /// Appends frames. True if whoever wrote must flush it: the connection was clean, or so much waits that it
    /// cannot wait for whoever else is to.
    pub(super) fn write(&self, state: &mut State, frames: impl FnOnce(&mut Vec<u8>)) -> bool {
        let clean = state.append(frames);
        self.weigh(state);
        clean || !state.blocked && state.is_over()
    }

    /// Writes as much as the socket takes.
    pub(super) fn flush(&self) {
        let mut state = self.lock();
        state.dirty = false;
        state.blocked = false;
        while state.written < state.out.len() {
            match (&self.stream).write(&state.out[state.written..]) {
                Ok(0) => return self.end(),
                Ok(count) => {
                    state.written += count;
                    state.stuck = None;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    state.blocked = true;
                    break;
                }
                Err(_) => return self.end(),
            }
        }
        state.tidy();
        self.weigh(&mut state);
    }

    /// Notes how much there is to be written. What a socket takes at once is not worth counting.
    fn weigh(&self, state: &mut State) {
        // What was not offered to the socket yet says nothing about the peer.
        let full = state.blocked && state.is_over();
        if full != self.is_full() {
            self.full.store(full, Ordering::Relaxed);
            if !full {
                state.bounds.make_room();
            }
        }
        let kept = if state.blocked { state.unwritten() } else { 0 };
        let State { bounds, counted, .. } = state;
        bounds.count(counted, kept);
        if state.blocked && state.bounds.kept() > state.bounds.held {
            // Somebody has to go at once, and this one does not take what it asked for.
            self.end();
        }
    }
}

impl State {
    fn new(bounds: Arc<Bounds>) -> Self {
        Self {
            bounds,
            out: Vec::new(),
            written: 0,
            counted: 0,
            dirty: false,
            blocked: false,
            stuck: None,
            calls: VecDeque::new(),
            open: 0,
            told: Told::default(),
            strikes: 0,
            struck: Instant::ZERO,
        }
    }

    /// Appends frames that are flushed at once, or else weighed. True if the connection was clean.
    pub(super) fn append(&mut self, frames: impl FnOnce(&mut Vec<u8>)) -> bool {
        frames(&mut self.out);
        // A full socket tells when it can take more.
        !std::mem::replace(&mut self.dirty, true) && !self.blocked
    }

    /// Bytes that wait to be written.
    fn unwritten(&self) -> usize {
        self.out.len() - self.written
    }

    /// Whether they are more than may wait.
    fn is_over(&self) -> bool {
        self.unwritten() > self.bounds.unwritten
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
        if self.open + 1 == self.bounds.open {
            self.bounds.make_room();
        }
        while let Some((_, None)) = self.calls.front() {
            self.calls.pop_front();
        }
        if self.calls.len() > 2 * self.open + ENDED {
            self.calls.retain(|(_, id)| id.is_some());
        }
        Some(id)
    }

    /// All requests that have not ended.
    pub(super) fn finish_all(&mut self) -> Vec<RequestId> {
        self.open = 0;
        std::mem::take(&mut self.calls).into_iter().filter_map(|(_, id)| id).collect()
    }

    /// The peer is told what it may send.
    pub(super) fn tell(&mut self, now: Instant, feedback: &Feedback) {
        let told = &mut self.told;
        told.ceiling = feedback
            .window
            .map(|window| window.max(told.ceiling.map_or(0, |ceiling| ceiling.saturating_sub(1))));
        if now.since(told.since) >= UNDER_WAY {
            (told.former, told.recent, told.since) = (told.recent, told.free, now);
        }
        told.free = feedback.free.unwrap_or(Cursor::CLOSED);
        told.recent = told.recent.max(told.free);
    }

    /// Counts a violation: how many there were lately. Here and not for the caller, who may call itself
    /// another after each connection; and to accept the next one costs more than to refuse a request.
    pub(super) fn strike(&mut self, now: Instant) -> u32 {
        if now.since(self.struck) >= REMEMBERED {
            (self.strikes, self.struck) = (0, now);
        }
        self.strikes = self.strikes.saturating_add(1);
        self.strikes
    }

    /// Whether a request is beyond what any client that listens could send: how many it has out, and
    /// how many it may have.
    pub(super) fn violates(&self, context: &Context) -> Option<(u32, u32)> {
        let window = self.told.ceiling?.saturating_add(GRACE);
        let open = u32::try_from(self.open).unwrap_or(u32::MAX);
        let free = self.told.recent.max(self.told.former);
        (open >= window && !free.admits(context.rank)).then_some((open, window))
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

    /// Since when its peer takes nothing, as far as that is seen now.
    pub(super) fn stuck(&mut self, now: Instant) -> Option<Instant> {
        self.blocked.then(|| *self.stuck.get_or_insert(now))
    }

    /// Forgets what is to be written: the connection has ended.
    pub(super) fn abandon(&mut self) {
        (self.out, self.written, self.blocked) = (Vec::new(), 0, false);
        self.bounds.count(&mut self.counted, 0);
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

impl Drop for State {
    fn drop(&mut self) {
        self.bounds.count(&mut self.counted, 0);
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::slab::Slab;
    use tidegate_core::{GateId, Rank};

    use super::*;

    fn state() -> State {
        State::new(Arc::new(Bounds::for_tests(1000)))
    }

    fn ranked(business: u8) -> Context {
        Context { rank: Rank::new(business, 0), ..Context::default() }
    }

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Span::from_millis(millis)
    }

    #[test]
    fn calls_end_once_in_any_order() {
        let mut slab = Slab::default();
        let mut state = state();
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

    /// A call that stays open for long, as one that waits for news, does not keep those that ended after it.
    #[test]
    fn calls_that_ended_are_forgotten_while_an_older_one_is_open() {
        let mut slab = Slab::default();
        let mut state = state();
        let oldest = slab.insert_with(|_| ());
        state.begin(1, oldest);
        for call in 2..100_000 {
            let id = slab.insert_with(|_| ());
            state.begin(call, id);
            assert_eq!(state.finish(call), Some(id));
            slab.remove(id);
        }
        assert!(state.calls.len() <= 2 * ENDED, "{} are kept", state.calls.len());
        assert_eq!((state.finish(99_999), state.open()), (None, 1));
        assert_eq!(state.finish(1), Some(oldest));
    }

    #[test]
    fn only_what_exceeds_window_and_free_cursor_violates() {
        let mut slab = Slab::default();
        let mut state = state();
        for call in 0..200 {
            state.begin(call, slab.insert_with(|_| ()));
        }
        assert_eq!(state.violates(&ranked(30)), None, "told nothing yet");
        let feedback = |window| Feedback {
            window: Some(window),
            free: Some(Cursor::at(Rank::new(20, 0))),
            ..Feedback::silent(GateId(1), 1)
        };
        state.tell(at(0), &feedback(200));
        state.tell(at(0), &feedback(5));
        assert_eq!(state.violates(&ranked(30)), None, "may not know of the last window yet");
        (0..100).for_each(|_| state.tell(at(0), &feedback(5)));
        assert_eq!(state.violates(&ranked(30)), Some((200, 99 + GRACE)));
        assert_eq!(state.violates(&ranked(10)), None, "free");
    }

    /// A request that was free when it left is no violation when it comes, soon after the cursor
    /// closed; later it is.
    #[test]
    fn a_peer_may_go_by_what_it_was_told_a_moment_ago() {
        let mut slab = Slab::default();
        let mut state = state();
        (0..200).for_each(|call| state.begin(call, slab.insert_with(|_| ())));
        let feedback = |business| Feedback {
            window: Some(1),
            free: Some(Cursor::at(Rank::new(business, 0))),
            ..Feedback::silent(GateId(1), 1)
        };
        state.tell(at(10_000), &feedback(30));
        assert_eq!(state.violates(&ranked(20)), None, "free");
        state.tell(at(10_100), &feedback(10));
        state.tell(at(10_200), &feedback(5));
        assert_eq!(state.violates(&ranked(20)), None, "was free when it left");
        assert!(state.violates(&ranked(40)).is_some(), "was never free");
        state.tell(at(11_300), &feedback(5));
        state.tell(at(12_400), &feedback(5));
        assert!(state.violates(&ranked(20)).is_some(), "has heard by now");
    }

    #[test]
    fn violations_are_forgotten() {
        let mut state = state();
        assert_eq!((1..=3).map(|_| state.strike(at(100_000))).max(), Some(3));
        assert_eq!(state.strike(at(159_000)), 4);
        assert_eq!(state.strike(at(161_000)), 1);
    }

    fn connection() -> (Conn, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let peer = std::net::TcpStream::connect(listener.local_addr().expect("bound"));
        let (stream, _) = listener.accept().expect("connected");
        stream.set_nonblocking(true).expect("can be set");
        let bounds = Arc::clone(&state().bounds);
        (Conn::new(TcpStream::from_std(stream), bounds), peer.expect("listens"))
    }

    /// A large answer is offered to the socket before anybody is taken not to read.
    #[test]
    fn what_was_not_offered_yet_fills_nothing() {
        let (conn, _peer) = connection();
        let write = |bytes| conn.write(&mut conn.lock(), |out| out.extend(vec![0; bytes]));
        assert!(write(600), "it was clean");
        assert!(!write(100), "whoever wrote first flushes");
        assert!(write(600), "too much to wait for that");
        assert!(!conn.is_full());
        conn.flush();
        assert!(conn.lock().is_clean() && !conn.is_full());
    }

    /// What is kept for a connection is counted while its socket takes nothing, and never after.
    #[test]
    fn what_is_not_taken_is_counted() {
        let (conn, peer) = connection();
        let bounds = Arc::clone(&conn.lock().bounds);
        conn.lock().append(|out| out.extend([0; 100]));
        conn.flush();
        assert_eq!((bounds.kept(), conn.is_full()), (0, false));
        conn.lock().append(|out| out.resize(64 << 20, 0));
        conn.flush();
        assert!(bounds.kept() > 0 && conn.is_full());
        assert!(conn.is_gone(), "more than may be kept for all");
        drop((peer, conn));
        assert_eq!(bounds.kept(), 0);
    }
}
