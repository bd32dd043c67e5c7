//! The holding queue: calls that wait for a credit or token.
//!
//! First come first served. It can name its least important member, to be pushed out when it is
//! full, and the one whose time is up first.

use std::collections::BTreeSet;

use crate::list::{Links, List};
use crate::rank::Rank;
use crate::request::RequestId;
use crate::table;
use crate::time::Instant;

/// Calls in order of arrival, by importance, and by the moment they give up.
#[derive(Clone, Debug, Default)]
pub(super) struct Holding {
    order: List,
    links: Links,
    /// What is known of each member, by its place; stale where nobody is held.
    entries: Vec<Entry>,
    /// Least important last; among equals, the newest last.
    by_rank: BTreeSet<(Rank, u64, RequestId)>,
    by_time: BTreeSet<(Instant, RequestId)>,
    /// Calls ever held: orders equals by arrival.
    count: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    id: RequestId,
    rank: Rank,
    number: u64,
    give_up: Instant,
}

impl Holding {
    pub(super) fn len(&self) -> usize {
        self.by_rank.len()
    }

    /// Puts `id` at the end. It must not be held already.
    pub(super) fn push(&mut self, id: RequestId, rank: Rank, give_up: Instant) {
        let entry = Entry { id, rank, number: self.count, give_up };
        self.count += 1;
        *table::at(&mut self.entries, id.index(), || entry) = entry;
        self.links.push_back(&mut self.order, id.index());
        self.by_rank.insert((rank, entry.number, id));
        self.by_time.insert((give_up, id));
    }

    /// Takes `id` out, wherever it is; false if it is not held.
    pub(super) fn remove(&mut self, id: RequestId) -> bool {
        let Some(entry) = self.entries.get(id.index()).copied().filter(|entry| entry.id == id)
        else {
            return false;
        };
        let held = self.by_rank.remove(&(entry.rank, entry.number, id));
        if held {
            self.links.remove(&mut self.order, id.index());
            self.by_time.remove(&(entry.give_up, id));
        }
        held
    }

    /// The one that has waited longest.
    pub(super) fn front(&self) -> Option<RequestId> {
        self.order.front().map(|place| self.entries[place].id)
    }

    /// The one that came after `id`, which must be held.
    pub(super) fn after(&self, id: RequestId) -> Option<RequestId> {
        self.links.after(id.index()).map(|place| self.entries[place].id)
    }

    /// The least important one; the newest of several.
    pub(super) fn least(&self) -> Option<(Rank, RequestId)> {
        self.by_rank.last().map(|(rank, _, id)| (*rank, *id))
    }

    /// The one that gives up first, and when.
    pub(super) fn first_to_give_up(&self) -> Option<(Instant, RequestId)> {
        self.by_time.first().copied()
    }

    /// Panics if the state contradicts itself.
    pub(super) fn invariants(&self) {
        assert_eq!(self.by_rank.len(), self.by_time.len());
        let (mut found, mut next) = (0, self.front());
        let mut last_number = None;
        while let Some(id) = next {
            let number = Some(self.entries[id.index()].number);
            assert!(number > last_number, "in order of arrival");
            (found, last_number, next) = (found + 1, number, self.after(id));
        }
        assert_eq!(found, self.len());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn equals_a_list(ops in prop::collection::vec((0..5u8, 0..6u32, 0..3u16, 0..9u64), 0..200)) {
            let mut holding = Holding::default();
            let mut model: Vec<(RequestId, Rank, Instant)> = Vec::new();
            for (op, place, user, time) in ops {
                let id = RequestId::from_u64(u64::from(place));
                let (rank, give_up) = (Rank::new(0, user), Instant::from_nanos(time));
                let at = model.iter().position(|(known, ..)| *known == id);
                if op < 3 && at.is_none() {
                    holding.push(id, rank, give_up);
                    model.push((id, rank, give_up));
                } else {
                    prop_assert_eq!(holding.remove(id), at.is_some());
                    at.map(|at| model.remove(at));
                }
                holding.invariants();
                prop_assert_eq!(holding.len(), model.len());
                prop_assert_eq!(holding.front(), model.first().map(|(id, ..)| *id));
                // `max_by_key` finds the last of equals, which is the newest.
                let least = model.iter().max_by_key(|(_, rank, _)| *rank);
                prop_assert_eq!(holding.least(), least.map(|(id, rank, _)| (*rank, *id)));
                let first = model.iter().map(|(id, _, give_up)| (*give_up, *id)).min();
                prop_assert_eq!(holding.first_to_give_up(), first);
            }
        }
    }
}
