//! Storage whose ids stay valid until their entry ends, and never come back for another.

/// Identity of an entry: its place and how often that place was used before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    /// A key that is never stored.
    pub const NOWHERE: Self = Self { index: u32::MAX, generation: u32::MAX };

    /// The place: drivers keep payloads in a table of the same shape, indexed by it.
    pub const fn index(self) -> usize {
        self.index as usize
    }

    /// Both parts in one number, for wires and logs.
    pub const fn to_u64(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    /// The key behind [`Key::to_u64`].
    pub const fn from_u64(bits: u64) -> Self {
        Self { index: bits as u32, generation: (bits >> 32) as u32 }
    }
}

/// A table of entries with stable keys. Places are reused, so it stays as small as its peak.
#[derive(Clone, Debug)]
pub struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

#[derive(Clone, Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Stores what `make` builds from its own key.
    pub fn insert_with(&mut self, make: impl FnOnce(Key) -> T) -> Key {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            let key = Key { index, generation: slot.generation };
            slot.value = Some(make(key));
            return key;
        }
        let index = u32::try_from(self.slots.len()).expect("bounded far below u32::MAX");
        let key = Key { index, generation: 0 };
        self.slots.push(Slot { generation: 0, value: Some(make(key)) });
        key
    }

    /// The entry behind `key`, none if it has ended.
    pub fn get(&self, key: Key) -> Option<&T> {
        let slot = self.slots.get(key.index())?;
        if slot.generation == key.generation { slot.value.as_ref() } else { None }
    }

    /// The entry behind `key`, to change.
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index())?;
        if slot.generation == key.generation { slot.value.as_mut() } else { None }
    }

    /// The key of whatever is stored at `index` now.
    pub fn key_at(&self, index: usize) -> Option<Key> {
        let slot = self.slots.get(index)?;
        slot.value.as_ref()?;
        Some(Key { index: u32::try_from(index).ok()?, generation: slot.generation })
    }

    /// Ends the entry behind `key`.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self.slots.get_mut(key.index())?;
        if slot.generation != key.generation {
            return None;
        }
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key.index);
        Some(value)
    }

    /// All entries, in order of their place.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let key = Key { index: index as u32, generation: slot.generation };
            slot.value.as_ref().map(|value| (key, value))
        })
    }

    /// All entries, to change, in order of their place.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Key, &mut T)> {
        self.slots.iter_mut().enumerate().filter_map(|(index, slot)| {
            let key = Key { index: index as u32, generation: slot.generation };
            slot.value.as_mut().map(|value| (key, value))
        })
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_key_finds_nothing_even_when_its_place_is_used_again() {
        let mut slab = Slab::default();
        let first = slab.insert_with(|_| 'a');
        assert_eq!(slab.remove(first), Some('a'));
        let second = slab.insert_with(|_| 'b');
        assert_eq!(second.index(), first.index());
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get(second), Some(&'b'));
        assert_eq!(Key::from_u64(second.to_u64()), second);
        assert_eq!(slab.len(), 1);
    }
}
