//! Virtual time: a queue of what will happen, in the order in which it will.
//!
//! Two events of the same nanosecond happen in the order in which they were scheduled, so a run is
//! the same on every machine and every day.

use tidegate_core::{Instant, Span};

/// Something that will happen.
#[derive(Clone, Copy, Debug)]
struct Entry<E> {
    /// When, and below that the order of scheduling, the tie-break: one number, which is compared without a branch.
    key: u128,
    event: E,
}

impl<E> Entry<E> {
    fn new(at: Instant, sequence: u64, event: E) -> Self {
        Self { key: u128::from(at.as_nanos()) << 64 | u128::from(sequence), event }
    }

    fn at(&self) -> Instant {
        Instant::from_nanos((self.key >> 64) as u64)
    }
}

/// A queue of events: a heap with four children per node, which is shallow and touches few cache
/// lines.
#[derive(Clone, Debug)]
pub struct Engine<E> {
    now: Instant,
    sequence: u64,
    heap: Vec<Entry<E>>,
}

const CHILDREN: usize = 4;

impl<E: Copy> Engine<E> {
    /// Nothing will happen; it is the epoch.
    pub fn new() -> Self {
        Self { now: Instant::ZERO, sequence: 0, heap: Vec::new() }
    }

    /// The present moment: that of the last event taken.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// `event` will happen at `at`, or now if that has passed.
    pub fn at(&mut self, at: Instant, event: E) {
        self.sequence += 1;
        self.heap.push(Entry::new(at.max(self.now), self.sequence, event));
        self.sift_up(self.heap.len() - 1);
    }

    /// `event` will happen when `delay` has passed.
    pub fn after(&mut self, delay: Span, event: E) {
        self.at(self.now + delay, event);
    }

    /// Moves to the next event, if there is one before `end`.
    pub fn next_before(&mut self, end: Instant) -> Option<E> {
        let at = self.heap.first()?.at();
        if at >= end {
            return None;
        }
        let first = self.heap.swap_remove(0);
        if !self.heap.is_empty() {
            self.sift_down();
        }
        debug_assert!(at >= self.now, "time goes forward");
        self.now = at;
        Some(first.event)
    }

    fn sift_up(&mut self, mut place: usize) {
        let entry = self.heap[place];
        while place > 0 {
            let parent = (place - 1) / CHILDREN;
            if entry.key > self.heap[parent].key {
                break;
            }
            self.heap[place] = self.heap[parent];
            place = parent;
        }
        self.heap[place] = entry;
    }

    fn sift_down(&mut self) {
        let (mut place, entry) = (0, self.heap[0]);
        while let Some(least) = self.least_child(place) {
            if self.heap[least].key > entry.key {
                break;
            }
            self.heap[place] = self.heap[least];
            place = least;
        }
        self.heap[place] = entry;
    }

    /// The earliest child of a place. Which one it is nobody can predict, so it is found without branches.
    #[inline]
    fn least_child(&self, place: usize) -> Option<usize> {
        let first = place * CHILDREN + 1;
        if let Some([a, b, c, d]) = self.heap.get(first..first + CHILDREN) {
            let (left, right) = (usize::from(b.key < a.key), 2 + usize::from(d.key < c.key));
            let later = a.key.min(b.key) > c.key.min(d.key);
            return Some(first + if later { right } else { left });
        }
        (first..self.heap.len()).min_by_key(|child| self.heap[*child].key)
    }
}

/// The wake-ups of one state machine that are scheduled. A state machine that keeps changing its
/// mind between something soon and something far away must not fill the queue with the latter.
#[derive(Clone, Debug, Default)]
pub struct Alarm {
    /// Each earlier than the one before.
    set: Vec<Instant>,
}

impl Alarm {
    /// The machine wants to be woken at `at`: whether that has to be scheduled, because nothing
    /// earlier is.
    pub fn set(&mut self, at: Instant) -> bool {
        let news = self.set.last().is_none_or(|earliest| at < *earliest);
        if news {
            self.set.push(at);
        }
        news
    }

    /// A wake-up has come: whether it is one that was set.
    pub fn rings(&mut self, now: Instant) -> bool {
        let rings = self.set.last() == Some(&now);
        if rings {
            self.set.pop();
        }
        rings
    }

    /// All wake-ups are off; those that come all the same do not ring.
    pub fn clear(&mut self) {
        self.set.clear();
    }
}

impl<E: Copy> Default for Engine<E> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever is scheduled and taken, the order is that of a stable sort by time.
        #[test]
        fn events_come_in_order_of_time_then_of_scheduling(
            ops in prop::collection::vec(prop::option::weighted(0.7, 0u64..20), 1..200)
        ) {
            let mut engine = Engine::new();
            let mut model: Vec<(u64, usize)> = Vec::new();
            for (n, op) in ops.into_iter().enumerate() {
                match op {
                    Some(delay) => {
                        engine.after(Span::from_nanos(delay), n);
                        model.push((engine.now().as_nanos() + delay, n));
                        model.sort();
                    }
                    None => {
                        let expected = (!model.is_empty()).then(|| model.remove(0));
                        let taken = engine.next_before(Instant::FAR);
                        prop_assert_eq!(taken, expected.map(|(_, n)| n));
                        if let Some((at, _)) = expected {
                            prop_assert_eq!(engine.now().as_nanos(), at);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn an_alarm_is_scheduled_only_if_nothing_earlier_is() {
        let at = Instant::from_nanos;
        let mut alarm = Alarm::default();
        assert!(alarm.set(at(100)));
        for now in 0..5 {
            assert!(alarm.set(at(now + 1)));
            assert!(!alarm.set(at(now + 1)));
            assert!(alarm.rings(at(now + 1)));
            // The far one is still there.
            assert!(!alarm.set(at(101 + now)));
        }
        assert!(!alarm.rings(at(50)));
        assert!(alarm.rings(at(100)));
        assert!(!alarm.rings(at(100)));
    }

    #[test]
    fn nothing_happens_at_or_after_the_end() {
        let mut engine = Engine::new();
        engine.at(Instant::from_nanos(5), 'a');
        assert_eq!(engine.next_before(Instant::from_nanos(5)), None);
        assert_eq!(engine.next_before(Instant::from_nanos(6)), Some('a'));
        assert_eq!(engine.next_before(Instant::FAR), None);
    }
}
