//! When to look at which queue again: of any number, the next is found at once.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::Instant;

/// A topic at a broker.
pub(super) type Cell = (usize, usize);

/// Each cell at most once.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    by_cell: BTreeMap<Cell, Instant>,
    by_time: BTreeSet<(Instant, Cell)>,
}

impl Agenda {
    /// Looks at a cell then, and not before.
    pub(super) fn set(&mut self, cell: Cell, at: Instant) {
        if let Some(before) = self.by_cell.insert(cell, at) {
            self.by_time.remove(&(before, cell));
        }
        self.by_time.insert((at, cell));
    }

    /// Does not look at it any more.
    pub(super) fn clear(&mut self, cell: Cell) {
        if let Some(before) = self.by_cell.remove(&cell) {
            self.by_time.remove(&(before, cell));
        }
    }

    /// Looks at all of them now.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.by_time = self.by_cell.keys().map(|cell| (now, *cell)).collect();
        self.by_cell.values_mut().for_each(|at| *at = now);
    }

    /// When the first is due.
    pub(super) fn first(&self) -> Instant {
        self.by_time.first().map_or(Instant::FAR, |(at, _)| *at)
    }

    /// Takes out a cell that is due.
    pub(super) fn take(&mut self, now: Instant) -> Option<Cell> {
        let (at, cell) = *self.by_time.first()?;
        if at > now {
            return None;
        }
        self.clear(cell);
        Some(cell)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_list_that_is_searched(ops in prop::collection::vec((0..6u8, 0..5usize, 0..50u64), 0..60)) {
            let (mut agenda, mut list) = (Agenda::default(), BTreeMap::new());
            for (op, cell, at) in ops {
                let (cell, at) = ((cell, 0), Instant::from_nanos(at));
                match op {
                    0..3 => {
                        agenda.set(cell, at);
                        list.insert(cell, at);
                    }
                    3 => {
                        agenda.clear(cell);
                        list.remove(&cell);
                    }
                    4 => {
                        agenda.hurry(at);
                        list.values_mut().for_each(|one| *one = at);
                    }
                    _ => {
                        let first = list.iter().map(|(cell, at)| (*at, *cell)).min();
                        let due = first.filter(|first| first.0 <= at).map(|first| first.1);
                        prop_assert_eq!(agenda.take(at), due);
                        if let Some(cell) = due {
                            list.remove(&cell);
                        }
                    }
                }
                prop_assert_eq!(agenda.first(), list.values().min().copied().unwrap_or(Instant::FAR));
            }
        }
    }
}
