//! When what was read of a connection arrived: a table from its bytes to the kernel's stamps (SRTM §V-B).
//!
//! A client may be read and not acted upon for a while, and a message may come in several reads. Each arrived when its own
//! last byte did, and not when the last of all that was read did, which with pipelining is another message's. How fine the
//! table is, is the kernel's doing: a read has the stamp of its last packet.

use std::collections::VecDeque;

use tidegate_core::Instant;

/// Of one connection.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// Bytes read so far, and of these, those acted upon.
    read: u64,
    used: u64,
    /// Up to which byte each read went, and its stamp; of reads that are not all used.
    reads: VecDeque<(u64, Instant)>,
}

impl Arrivals {
    /// So many more bytes were read.
    pub(super) fn on_read(&mut self, count: usize, arrived: Instant) {
        self.read += count as u64;
        match self.reads.back_mut() {
            Some((end, at)) if *at == arrived => *end = self.read,
            _ => self.reads.push_back((self.read, arrived)),
        }
    }

    /// When the last of the next `count` bytes arrived; none if they were not all read.
    pub(super) fn of(&self, count: usize) -> Option<Instant> {
        let last = self.used + count as u64;
        self.reads.iter().find(|(end, _)| *end >= last).map(|(_, at)| *at)
    }

    /// So many were acted upon.
    pub(super) fn on_used(&mut self, count: usize) {
        self.used += count as u64;
        while self.reads.front().is_some_and(|(end, _)| *end <= self.used) {
            self.reads.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_core::Span;

    use super::*;

    proptest! {
        /// Against a list with a stamp for every byte.
        #[test]
        fn every_message_has_the_stamp_of_its_last_byte(
            reads in prop::collection::vec((1..20usize, 0..3u64), 1..20),
            sizes in prop::collection::vec(1..30usize, 1..40),
        ) {
            let (mut table, mut stamps, mut now) = (Arrivals::default(), Vec::new(), Instant::ZERO);
            for (count, later) in reads {
                now += Span::from_nanos(later);
                table.on_read(count, now);
                stamps.resize(stamps.len() + count, now);
            }
            let mut used = 0;
            for size in sizes {
                prop_assert_eq!(table.of(size), stamps.get(used + size - 1).copied());
                if used + size > stamps.len() {
                    break;
                }
                used += size;
                table.on_used(size);
            }
        }
    }
}
