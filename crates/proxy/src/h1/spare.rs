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

/// Gives a buffer back if nothing is in it. What was cut out of it and is still on its way keeps the bytes, and
/// the next to take it gets others.
pub(super) fn give(buffer: &mut BytesMut, spare: &'static LocalKey<Cell<BytesMut>>) {
    if buffer.is_empty() && buffer.capacity() > 0 {
        spare.set(std::mem::take(buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One buffer goes round, however often it is given back and by whom.
    #[test]
    fn one_buffer_goes_round() {
        let (mut one, mut other) = (BytesMut::new(), BytesMut::new());
        take(&mut one, &INPUT, 100);
        one.extend_from_slice(b"some");
        let place = one.as_ptr();
        give(&mut one, &INPUT);
        assert_eq!(&one[..], b"some", "not while there is something in it");
        one.clear();
        give(&mut one, &INPUT);
        give(&mut one, &INPUT);
        take(&mut other, &INPUT, 100);
        assert_eq!((other.as_ptr(), one.capacity()), (place, 0));
    }

    /// What is on its way is never written over.
    #[test]
    fn what_was_cut_out_stays() {
        let mut buffer = BytesMut::new();
        take(&mut buffer, &OUTPUT, 100);
        buffer.extend_from_slice(b"answer");
        let answer = buffer.split_to(6).freeze();
        give(&mut buffer, &OUTPUT);
        take(&mut buffer, &OUTPUT, 100);
        buffer.extend_from_slice(b"others");
        assert_eq!((&answer[..], &buffer[..]), (&b"answer"[..], &b"others"[..]));
    }
}
