//! What a server keeps for its peers, and how much of it.
//!
//! Three kinds of bytes wait for somebody: payloads for a slot, answers for a peer that does not take
//! them, beginnings of frames for their ends. They have one bound, of which the last two may have half:
//! peers that do not go on must not keep the payloads of others out. A payload beyond it is refused; of
//! the others somebody is parted with.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use mio::Waker;

#[derive(Debug)]
pub(super) struct Bounds {
    /// Bytes of answers that may wait for one connection.
    pub(super) unwritten: usize,
    /// Requests of one connection that may be open.
    pub(super) open: usize,
    /// Bytes of all three kinds.
    pub(super) held: usize,
    /// Payloads, changed under the lock of the gate only.
    payloads: AtomicUsize,
    /// Answers and beginnings of frames.
    buffers: AtomicUsize,
    /// Whether a connection that is not read may be read again.
    room: AtomicBool,
    /// Wakes the thread that waits for sockets.
    waker: Waker,
}

impl Bounds {
    pub(super) fn new(unwritten: usize, open: usize, held: usize, waker: Waker) -> Self {
        Self {
            unwritten,
            open,
            held,
            payloads: AtomicUsize::default(),
            buffers: AtomicUsize::default(),
            room: AtomicBool::default(),
            waker,
        }
    }

    /// Bytes that are kept.
    pub(super) fn kept(&self) -> usize {
        self.payloads.load(Ordering::Relaxed) + self.buffers.load(Ordering::Relaxed)
    }

    /// Whether answers and beginnings of frames are more than the part of `held` that they may have.
    pub(super) fn is_crowded(&self) -> bool {
        self.buffers.load(Ordering::Relaxed) > self.held / 2
    }

    /// Whether they leave room for more.
    pub(super) fn has_room(&self) -> bool {
        self.buffers.load(Ordering::Relaxed) <= self.held / 8 * 3
    }

    /// A payload waits.
    pub(super) fn hold(&self, bytes: usize) {
        self.payloads.store(self.payloads.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    }

    /// A payload waits no longer.
    pub(super) fn let_go(&self, bytes: usize) {
        self.payloads.store(self.payloads.load(Ordering::Relaxed) - bytes, Ordering::Relaxed);
    }

    /// A buffer of which `counted` bytes were counted has `bytes` now.
    pub(super) fn count(&self, counted: &mut usize, bytes: usize) {
        if bytes > *counted {
            self.buffers.fetch_add(bytes - *counted, Ordering::Relaxed);
        } else if bytes < *counted {
            self.buffers.fetch_sub(*counted - bytes, Ordering::Relaxed);
        }
        *counted = bytes;
    }

    /// A connection that had too much open or unwritten has no longer: it may be read again.
    pub(super) fn make_room(&self) {
        self.room.store(true, Ordering::Relaxed);
        self.wake();
    }

    /// Whether that has happened since this was last asked.
    pub(super) fn take_room(&self) -> bool {
        self.room.load(Ordering::Relaxed) && self.room.swap(false, Ordering::Relaxed)
    }

    /// The thread that waits for sockets is to look at the rest.
    pub(super) fn wake(&self) {
        let _ = self.waker.wake();
    }

    /// So many of everything.
    #[cfg(test)]
    pub(super) fn for_tests(most: usize) -> Self {
        let poll = mio::Poll::new().expect("a poll");
        let waker = Waker::new(poll.registry(), mio::Token(0)).expect("a waker");
        Self::new(most, most, most, waker)
    }
}
