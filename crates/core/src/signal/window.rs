//! Counts over the recent past: a ring of time buckets with their running sums.

use crate::time::{Instant, Span};

/// Counts of `N` kinds of things over a window that slides bucket by bucket, so that it never
/// forgets everything at once. The newest bucket is still filling: the window covers between
/// `buckets − 1` and `buckets` bucket widths.
#[derive(Clone, Debug)]
pub struct Window<const N: usize> {
    /// Counts by time; the bucket of period `p` is at `p mod len`.
    buckets: Vec<[u64; N]>,
    /// Sum over all buckets, kept exact.
    sums: [u64; N],
    /// Length of one bucket, at least a nanosecond.
    width: Span,
    /// The moment period 0 began.
    start: Instant,
    /// The period of the newest bucket.
    period: u64,
}

impl<const N: usize> Window<N> {
    /// An empty window of `length`, in `buckets` (at least one) buckets.
    pub fn new(now: Instant, length: Span, buckets: usize) -> Self {
        let buckets = buckets.max(1);
        let width = Span::from_nanos((length.as_nanos() / buckets as u64).max(1));
        Self { buckets: vec![[0; N]; buckets], sums: [0; N], width, start: now, period: 0 }
    }

    /// Forgets what has left the window. Costs at most one step per bucket, however long ago the
    /// last call was.
    pub fn settle(&mut self, now: Instant) {
        let period = self.period_of(now);
        let passed = period.saturating_sub(self.period).min(self.buckets.len() as u64);
        for n in 1..=passed {
            let place = self.place(period - passed + n);
            for (sum, count) in self.sums.iter_mut().zip(self.buckets[place]) {
                *sum -= count;
            }
            self.buckets[place] = [0; N];
        }
        self.period = self.period.max(period);
    }

    /// Counts one thing of `kind` at `now`.
    pub fn add(&mut self, now: Instant, kind: usize) {
        self.settle(now);
        let place = self.place(self.period);
        self.buckets[place][kind] += 1;
        self.sums[kind] += 1;
    }

    /// Takes back one thing of `kind` counted at `then`, if that is still in the window.
    pub fn take_back(&mut self, then: Instant, kind: usize) {
        let period = self.period_of(then);
        if period > self.period || self.period - period >= self.buckets.len() as u64 {
            return;
        }
        let place = self.place(period);
        if self.buckets[place][kind] > 0 {
            self.buckets[place][kind] -= 1;
            self.sums[kind] -= 1;
        }
    }

    /// Counts by kind, as of the last [`settle`](Self::settle) or [`add`](Self::add).
    pub fn sums(&self) -> [u64; N] {
        self.sums
    }

    /// Panics if the state contradicts itself.
    pub fn invariants(&self) {
        for kind in 0..N {
            let sum = self.buckets.iter().map(|bucket| bucket[kind]).sum::<u64>();
            assert_eq!(sum, self.sums[kind], "the sum is that of the buckets");
        }
    }

    fn period_of(&self, at: Instant) -> u64 {
        at.since(self.start).as_nanos() / self.width.as_nanos()
    }

    fn place(&self, period: u64) -> usize {
        (period % self.buckets.len() as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    #[test]
    fn forgets_bucket_by_bucket() {
        let mut window = Window::<1>::new(at(0), Span::from_nanos(40), 4);
        for t in [5, 15, 25, 35] {
            window.add(at(t), 0);
        }
        for (t, left) in [(39, 4), (40, 3), (59, 2), (60, 1), (70, 0), (u64::MAX, 0)] {
            window.settle(at(t));
            assert_eq!(window.sums(), [left], "{t}");
        }
    }

    proptest! {
        /// Equal to a list of everything that ever happened, looked through from the start.
        #[test]
        fn equals_a_list(
            ops in prop::collection::vec((0..4u8, 0..50u64, 0..2usize, 0..100u64), 0..200),
            buckets in 1..7usize,
        ) {
            let width = 10;
            let mut window =
                Window::<2>::new(at(0), Span::from_nanos(width * buckets as u64), buckets);
            let mut all: Vec<(u64, usize)> = Vec::new();
            let mut now = 0;
            for (op, step, kind, back) in ops {
                now += step;
                if op == 0 {
                    // Taking back acts on what was settled last, so settle first.
                    window.settle(at(now));
                    let then = now.saturating_sub(back);
                    window.take_back(at(then), kind);
                    let same = |(t, k): &(u64, usize)| t / width == then / width && *k == kind;
                    if let Some(found) = all.iter().position(same) {
                        all.remove(found);
                    }
                } else {
                    window.add(at(now), kind);
                    all.push((now, kind));
                }
                let first = (now / width + 1).saturating_sub(buckets as u64);
                let count = |kind| {
                    all.iter().filter(|(t, k)| t / width >= first && *k == kind).count() as u64
                };
                prop_assert_eq!(window.sums(), [count(0), count(1)]);
                window.invariants();
            }
        }
    }
}
