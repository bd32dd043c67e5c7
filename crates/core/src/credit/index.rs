//! Where callers are: a table from their ids to the keys of their entries, looked into for every request that comes and
//! goes. Open addressing, at most half full; the next free place is the one behind.

use crate::context::CallerId;
use crate::slab::Key;

/// Ids and keys; at [`CallerId::UNKNOWN`], of whom there are no entries, a place is free.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    /// As many as a power of two.
    places: Vec<(CallerId, Key)>,
    len: usize,
}

const FREE: (CallerId, Key) = (CallerId::UNKNOWN, Key::NOWHERE);

impl Index {
    pub(crate) fn new() -> Self {
        Self { places: vec![FREE; 16], len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The key of a caller, [`Key::NOWHERE`] if it has none.
    #[inline]
    pub(crate) fn get(&self, caller: CallerId) -> Key {
        let mask = self.places.len() - 1;
        let mut at = mixed(caller) as usize & mask;
        while let Some((id, key)) = self.places.get(at) {
            if *id == caller || *id == CallerId::UNKNOWN {
                return *key;
            }
            at = (at + 1) & mask;
        }
        Key::NOWHERE
    }

    /// Adds a caller that has no key yet.
    pub(crate) fn insert(&mut self, caller: CallerId, key: Key) {
        if 2 * (self.len + 1) > self.places.len() {
            let larger = vec![FREE; 2 * self.places.len()];
            let places = std::mem::replace(&mut self.places, larger);
            for place in places.into_iter().filter(|place| *place != FREE) {
                let at = self.find(place.0);
                self.places[at] = place;
            }
        }
        let at = self.find(caller);
        debug_assert_eq!(self.places[at], FREE, "a caller is added once");
        self.places[at] = (caller, key);
        self.len += 1;
    }

    /// Takes a caller out and returns its key. Those behind it move up as far as they may, or would not be found.
    pub(crate) fn remove(&mut self, caller: CallerId) -> Key {
        let mask = self.places.len() - 1;
        let mut hole = self.find(caller);
        let key = std::mem::replace(&mut self.places[hole], FREE).1;
        if key == Key::NOWHERE {
            return key;
        }
        self.len -= 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let place = self.places[at];
            if place == FREE {
                return key;
            }
            let from_home = at.wrapping_sub(mixed(place.0) as usize) & mask;
            if from_home >= at.wrapping_sub(hole) & mask {
                self.places.swap(hole, at);
                hole = at;
            }
        }
    }

    /// Where `caller` is, or would be.
    fn find(&self, caller: CallerId) -> usize {
        let mask = self.places.len() - 1;
        let mut at = mixed(caller) as usize & mask;
        while self.places[at].0 != caller && self.places[at].0 != CallerId::UNKNOWN {
            at = (at + 1) & mask;
        }
        at
    }
}

/// Caller ids are random numbers already; mixing them once keeps chosen ones from piling up.
#[inline]
const fn mixed(caller: CallerId) -> u64 {
    (caller.0 ^ caller.0 >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::collections::btree_map::Entry;

    use proptest::prelude::*;

    use super::*;

    /// Ids that all begin their search at the same of the first sixteen places.
    fn crowded() -> Vec<CallerId> {
        (1..).map(CallerId).filter(|id| mixed(*id) & 15 == 3).take(5).collect()
    }

    proptest! {
        #[test]
        fn equals_a_map(ops in prop::collection::vec((any::<bool>(), 0..40usize), 0..300)) {
            let ids: Vec<CallerId> = crowded().into_iter().chain((100..135).map(CallerId)).collect();
            let (mut index, mut model) = (Index::new(), BTreeMap::<CallerId, Key>::new());
            for (n, (insert, which)) in ops.into_iter().enumerate() {
                let (id, key) = (ids[which], Key::from_u64(n as u64));
                if !insert {
                    prop_assert_eq!(index.remove(id), model.remove(&id).unwrap_or(Key::NOWHERE));
                } else if let Entry::Vacant(vacant) = model.entry(id) {
                    vacant.insert(key);
                    index.insert(id, key);
                }
                for id in &ids {
                    prop_assert_eq!(index.get(*id), model.get(id).copied().unwrap_or(Key::NOWHERE));
                }
                prop_assert_eq!(index.len(), model.len());
            }
            prop_assert_eq!(index.get(CallerId::UNKNOWN), Key::NOWHERE);
        }
    }
}
