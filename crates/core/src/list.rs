//! Doubly linked lists threaded through a table of places: constant-time push, pop and removal of
//! any member, no allocation once the table has grown.

use crate::table;

const NONE: u32 = u32::MAX;

/// The links of all places; several [`List`]s may share one table, a place being in at most one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Links(Vec<Link>);

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
    member: bool,
}

/// One list in a [`Links`] table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    head: u32,
    tail: u32,
}

impl Default for List {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl List {
    pub(crate) const EMPTY: Self = Self { head: NONE, tail: NONE };

    pub(crate) fn front(&self) -> Option<usize> {
        (self.head != NONE).then_some(self.head as usize)
    }

    pub(crate) fn back(&self) -> Option<usize> {
        (self.tail != NONE).then_some(self.tail as usize)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head == NONE
    }
}

impl Links {
    pub(crate) fn contains(&self, place: usize) -> bool {
        self.0.get(place).is_some_and(|link| link.member)
    }

    /// Appends `place` to `list`. It must not be in any list.
    #[inline]
    pub(crate) fn push_back(&mut self, list: &mut List, place: usize) {
        let link =
            table::at(&mut self.0, place, || Link { before: NONE, after: NONE, member: false });
        debug_assert!(!link.member, "a place is in one list at a time");
        *link = Link { before: list.tail, after: NONE, member: true };
        match list.back() {
            Some(tail) => self.0[tail].after = place as u32,
            None => list.head = place as u32,
        }
        list.tail = place as u32;
    }

    /// Takes `place` out of `list`; false if it is in none.
    #[inline]
    pub(crate) fn remove(&mut self, list: &mut List, place: usize) -> bool {
        if !self.contains(place) {
            return false;
        }
        let Link { before, after, .. } = self.0[place];
        match before {
            NONE => list.head = after,
            before => self.0[before as usize].after = after,
        }
        match after {
            NONE => list.tail = before,
            after => self.0[after as usize].before = before,
        }
        self.0[place].member = false;
        true
    }

    /// Takes the first of `list` out of it.
    #[inline]
    pub(crate) fn pop_front(&mut self, list: &mut List) -> Option<usize> {
        let place = list.front()?;
        let link = &mut self.0[place];
        link.member = false;
        list.head = link.after;
        match list.front() {
            Some(head) => self.0[head].before = NONE,
            None => list.tail = NONE,
        }
        Some(place)
    }

    /// The member after `place` in its list.
    pub(crate) fn after(&self, place: usize) -> Option<usize> {
        let after = self.0[place].after;
        (after != NONE).then_some(after as usize)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn equals_a_deque(ops in prop::collection::vec((0..3u8, 0..8usize), 0..200)) {
            let (mut links, mut list, mut model) = (Links::default(), List::EMPTY, VecDeque::new());
            for (op, place) in ops {
                match op {
                    0 if !model.contains(&place) => {
                        links.push_back(&mut list, place);
                        model.push_back(place);
                    }
                    1 => prop_assert_eq!(links.pop_front(&mut list), model.pop_front()),
                    _ => {
                        let at = model.iter().position(|p| *p == place);
                        prop_assert_eq!(links.remove(&mut list, place), at.is_some());
                        at.map(|at| model.remove(at));
                    }
                }
                prop_assert_eq!((list.front(), list.back()), (model.front().copied(), model.back().copied()));
                prop_assert_eq!(list.is_empty(), model.is_empty());
            }
        }
    }
}
