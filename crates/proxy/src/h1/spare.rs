//! A buffer that the connections of a thread take turns with: warm in the processor's caches, which a
//! thousand of their own would not be, and nothing that a free connection holds.

use std::cell::Cell;
use std::thread::LocalKey;

use bytes::BytesMut;

thread_local! {
    /// For what is read.
    pub(super) static INPUT: Cell<BytesMut> = Cell::default();
    /// For what is written.
    pub(super) static OUTPUT: Cell<BytesMut> = Cell::default();
}

/// Takes the thread's buffer, if there is none yet, and makes room for `more`.
pub(super) fn take(buffer: &mut BytesMut, spare: &'static LocalKey<Cell<BytesMut>>, more: usize) {
    if buffer.capacity() == 0 {
        *buffer = spare.take();
    }
    buffer.reserve(more);
}

/// Gives an empty buffer back. What was cut out of it and is still on its way keeps the bytes, and
/// the next to take it gets others.
pub(super) fn give(buffer: &mut BytesMut, spare: &'static LocalKey<Cell<BytesMut>>) {
    if buffer.is_empty() {
        spare.set(std::mem::take(buffer));
    }
}
