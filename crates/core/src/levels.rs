//! A coarse grid over the 4.2 million ranks, and an index of who waits on it.
//!
//! Each business rank is cut into 64 levels, 4,096 in all: enough to find the least important
//! waiting request in a handful of instructions, and to place a cursor by interpolation.

use crate::list::{Links, List};
use crate::rank::Rank;
use crate::table;

/// Number of levels.
pub(crate) const LEVELS: usize = 4096;
/// Ranks per level.
pub(crate) const LEVEL_RANKS: u32 = 1 << LEVEL_SHIFT;
const LEVEL_SHIFT: u32 = 10;

/// The level of a rank, 0 being the most important.
pub(crate) const fn level_of(rank: Rank) -> usize {
    (rank.key() / LEVEL_RANKS) as usize
}

/// Places (of a slab) by level, oldest first within a level.
#[derive(Clone, Debug)]
pub(crate) struct RankIndex {
    lists: Box<[List]>,
    links: Links,
    /// Level of each place that is in.
    levels: Vec<u16>,
    /// Bit `w` of `groups` is set when any bit of `words[w]` is; bit `b` of `words[w]` when level
    /// `64·w + b` is not empty.
    groups: u64,
    words: [u64; 64],
}

impl Default for RankIndex {
    fn default() -> Self {
        Self {
            lists: vec![List::EMPTY; LEVELS].into_boxed_slice(),
            links: Links::default(),
            levels: Vec::new(),
            groups: 0,
            words: [0; 64],
        }
    }
}

impl RankIndex {
    pub(crate) fn insert(&mut self, place: usize, rank: Rank) {
        let level = level_of(rank);
        *table::at(&mut self.levels, place, || 0) = level as u16;
        self.links.push_back(&mut self.lists[level], place);
        self.words[level / 64] |= 1 << (level % 64);
        self.groups |= 1 << (level / 64);
    }

    #[inline]
    pub(crate) fn remove(&mut self, place: usize) {
        if self.links.contains(place) {
            self.take_out(place);
        }
    }

    fn take_out(&mut self, place: usize) {
        let level = usize::from(self.levels[place]);
        self.links.remove(&mut self.lists[level], place);
        if self.lists[level].is_empty() {
            self.words[level / 64] &= !(1 << (level % 64));
            if self.words[level / 64] == 0 {
                self.groups &= !(1 << (level / 64));
            }
        }
    }

    /// The newest place of the least important level, with that level.
    pub(crate) fn least_important(&self) -> Option<(usize, usize)> {
        let group = 63usize.checked_sub(self.groups.leading_zeros() as usize)?;
        let level = group * 64 + 63 - self.words[group].leading_zeros() as usize;
        Some((self.lists[level].back()?, level))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn finds_the_least_important(ops in prop::collection::vec((any::<bool>(), 0..16usize, 0..64u8, any::<u16>()), 0..200)) {
            let mut index = RankIndex::default();
            let mut model: Vec<(usize, usize)> = Vec::new();
            for (insert, place, business, user) in ops {
                let at = model.iter().position(|(p, _)| *p == place);
                match (insert, at) {
                    (true, None) => {
                        let rank = Rank::new(business, user);
                        index.insert(place, rank);
                        model.push((place, level_of(rank)));
                    }
                    (_, Some(at)) => {
                        index.remove(place);
                        model.remove(at);
                    }
                    (false, None) => index.remove(place),
                }
                let expected = model.iter().copied().max_by_key(|(_, level)| *level);
                prop_assert_eq!(index.least_important(), expected);
            }
        }
    }
}
