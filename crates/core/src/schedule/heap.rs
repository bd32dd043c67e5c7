//! A binary heap of request ids from which any id can be taken out.
//!
//! Beside the heap lies a table from a request's place to its position in the heap, so a cancelled
//! or pushed-out request leaves in O(log n) instead of waiting as a tombstone until it reaches the
//! top. Equal keys leave in the order they were pushed: the order is total, so the same inputs give
//! the same starts on every machine. Both tables are as large as their peak and never shrink: no
//! allocation in steady state.

use crate::request::RequestId;
use crate::table;

const ABSENT: u32 = u32::MAX;

/// Ids by key, smallest first. Push, pop and removal take O(log n).
#[derive(Clone, Debug, Default)]
pub(super) struct Heap {
    /// Every parent sorts before its children; the children of `i` are `2i + 1` and `2i + 2`.
    entries: Vec<Entry>,
    /// Position in `entries` by [`RequestId::index`], [`ABSENT`] where nothing waits.
    positions: Vec<u32>,
    /// Pushes so far: the tie-break.
    pushes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u64,
    push: u64,
    id: RequestId,
}

impl Entry {
    fn before(&self, other: &Self) -> bool {
        (self.key, self.push) < (other.key, other.push)
    }
}

impl Heap {
    /// Adds `id`, which must not be in the heap.
    pub(super) fn push(&mut self, key: u64, id: RequestId) {
        let at = self.entries.len();
        let position = table::at(&mut self.positions, id.index(), || ABSENT);
        debug_assert_eq!(*position, ABSENT, "a place is in the heap once");
        *position = at as u32;
        self.entries.push(Entry { key, push: self.pushes, id });
        self.pushes += 1;
        self.rise(at);
    }

    /// Takes the id with the smallest key.
    pub(super) fn pop(&mut self) -> Option<RequestId> {
        let id = self.entries.first()?.id;
        self.take(0);
        Some(id)
    }

    /// Takes `id` out; false if it is not in the heap.
    pub(super) fn remove(&mut self, id: RequestId) -> bool {
        let Some(at) = self.positions.get(id.index()).copied().filter(|at| *at != ABSENT) else {
            return false;
        };
        // The place may be in use by a later request.
        if self.entries[at as usize].id != id {
            return false;
        }
        self.take(at as usize);
        true
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    fn take(&mut self, at: usize) {
        let gone = self.entries.swap_remove(at);
        self.positions[gone.id.index()] = ABSENT;
        if let Some(moved) = self.entries.get(at) {
            self.positions[moved.id.index()] = at as u32;
            // What came from the end may belong further up or further down, never both.
            self.rise(at);
            self.sink(at);
        }
    }

    fn rise(&mut self, mut at: usize) {
        while at > 0 {
            let parent = (at - 1) / 2;
            if !self.entries[at].before(&self.entries[parent]) {
                break;
            }
            self.swap(at, parent);
            at = parent;
        }
    }

    fn sink(&mut self, mut at: usize) {
        loop {
            let (left, right) = (2 * at + 1, 2 * at + 2);
            let Some(mut least) = self.entries.get(left).map(|_| left) else { break };
            if self.entries.get(right).is_some_and(|r| r.before(&self.entries[left])) {
                least = right;
            }
            if !self.entries[least].before(&self.entries[at]) {
                break;
            }
            self.swap(at, least);
            at = least;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.entries.swap(a, b);
        self.positions[self.entries[a].id.index()] = a as u32;
        self.positions[self.entries[b].id.index()] = b as u32;
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> (usize, usize) {
        (self.entries.capacity(), self.positions.capacity())
    }

    /// Panics if the state contradicts itself.
    #[cfg(test)]
    pub(super) fn invariants(&self) {
        for (at, entry) in self.entries.iter().enumerate() {
            assert_eq!(self.positions[entry.id.index()] as usize, at, "positions mirror entries");
            assert!(at == 0 || !entry.before(&self.entries[(at - 1) / 2]), "parents first");
        }
        let present = self.positions.iter().filter(|at| **at != ABSENT).count();
        assert_eq!(present, self.entries.len(), "nothing else has a position");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(place: u32, generation: u32) -> RequestId {
        RequestId::from_u64(u64::from(generation) << 32 | u64::from(place))
    }

    proptest! {
        #[test]
        fn equals_a_sorted_list(ops in prop::collection::vec((0..3u8, 0..24u32, 0..9u64), 0..400)) {
            let (mut heap, mut model) = (Heap::default(), Vec::<(u64, usize, u32)>::new());
            for (n, (op, place, key)) in ops.into_iter().enumerate() {
                let at = model.iter().position(|entry| entry.2 == place);
                match op {
                    0 if at.is_none() => {
                        heap.push(key, id(place, 0));
                        model.push((key, n, place));
                        model.sort_unstable();
                    }
                    1 => {
                        let first = (!model.is_empty()).then(|| model.remove(0));
                        prop_assert_eq!(heap.pop(), first.map(|entry| id(entry.2, 0)));
                    }
                    _ => {
                        prop_assert!(!heap.remove(id(place, 1)), "an ended id finds nothing");
                        prop_assert_eq!(heap.remove(id(place, 0)), at.is_some());
                        at.map(|at| model.remove(at));
                    }
                }
                prop_assert_eq!(heap.len(), model.len());
                heap.invariants();
            }
        }
    }

    #[test]
    fn does_not_allocate_once_it_has_been_full() {
        let mut heap = Heap::default();
        for place in 0..100 {
            heap.push(u64::from(place * 37 % 100), id(place, 0));
        }
        let full = heap.capacity();
        for round in 0..1_000u64 {
            let popped = heap.pop().expect("full");
            heap.push(round * 31 % 97, popped);
        }
        assert_eq!(heap.capacity(), full);
    }
}
