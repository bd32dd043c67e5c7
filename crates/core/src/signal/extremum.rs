//! Smallest or largest sample of the recent past.

use std::collections::VecDeque;

use crate::time::{Instant, Span};

/// The smallest or largest sample of a sliding window.
///
/// A monotone queue: a sample that a later one beats can never be the answer again and is dropped.
/// Samples are told apart by slice of the window, so the queue holds at most [`Self::SLICES`] of
/// them and the window is exact to one slice: at least 31/32 of what was asked, at most all of it.
#[derive(Clone, Debug)]
pub struct Extremum {
    kind: Kind,
    slice: Span,
    /// Slice number and sample, oldest first; each sample is beaten by all before it.
    queue: VecDeque<(u64, f64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Min,
    Max,
}

impl Extremum {
    /// Slices per window.
    pub const SLICES: u64 = 32;

    /// The smallest sample of the last `window`.
    pub fn min(window: Span) -> Self {
        Self::new(Kind::Min, window)
    }

    /// The largest sample of the last `window`.
    pub fn max(window: Span) -> Self {
        Self::new(Kind::Max, window)
    }

    fn new(kind: Kind, window: Span) -> Self {
        let slice = Span::from_nanos((window.as_nanos() / Self::SLICES).max(1));
        Self { kind, slice, queue: VecDeque::with_capacity(Self::SLICES as usize) }
    }

    /// Takes a sample. What is not a number is ignored; time going backwards counts as no time.
    pub fn add(&mut self, now: Instant, sample: f64) {
        if !sample.is_finite() {
            return;
        }
        let slice = self.slice_of(now).max(self.queue.back().map_or(0, |(slice, _)| *slice));
        while self.queue.front().is_some_and(|(oldest, _)| slice - oldest >= Self::SLICES) {
            self.queue.pop_front();
        }
        while self.queue.back().is_some_and(|(_, last)| !self.beats(*last, sample)) {
            self.queue.pop_back();
        }
        // A better sample of the same slice lives just as long.
        if self.queue.back().is_none_or(|(last, _)| *last < slice) {
            self.queue.push_back((slice, sample));
        }
    }

    /// The extremum at `now`, none if the window holds no sample.
    pub fn get(&self, now: Instant) -> Option<f64> {
        let slice = self.slice_of(now);
        let recent = |(at, _): &&(u64, f64)| slice.saturating_sub(*at) < Self::SLICES;
        self.queue.iter().find(recent).map(|(_, sample)| *sample)
    }

    /// Forgets all samples.
    pub fn clear(&mut self) {
        self.queue.clear();
    }

    fn slice_of(&self, now: Instant) -> u64 {
        now.as_nanos() / self.slice.as_nanos()
    }

    fn beats(&self, one: f64, other: f64) -> bool {
        match self.kind {
            Kind::Min => one < other,
            Kind::Max => one > other,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn equals_a_list_of_all_samples(
            steps in prop::collection::vec((0..200u64, -50..50i32), 1..300),
        ) {
            let window = Span::from_nanos(320);
            let (mut min, mut max) = (Extremum::min(window), Extremum::max(window));
            let (mut now, mut all) = (Instant::ZERO, Vec::new());
            for (step, sample) in steps {
                now += Span::from_nanos(step);
                let sample = f64::from(sample);
                min.add(now, sample);
                max.add(now, sample);
                all.push((now.as_nanos() / 10, sample));
                prop_assert!(min.queue.len() <= 32 && max.queue.len() <= 32);
                for later in [now, now + Span::from_nanos(step)] {
                    let slice = later.as_nanos() / 10;
                    let recent = all.iter().filter(|(at, _)| slice - at < 32).map(|(_, x)| *x);
                    prop_assert_eq!(min.get(later), recent.clone().reduce(f64::min));
                    prop_assert_eq!(max.get(later), recent.reduce(f64::max));
                }
            }
        }
    }

    #[test]
    fn odd_input_is_harmless() {
        let mut min = Extremum::min(Span::ZERO);
        min.add(Instant::FAR, f64::NAN);
        assert_eq!(min.get(Instant::FAR), None);
        min.add(Instant::FAR, 2.0);
        min.add(Instant::ZERO, 1.0);
        assert_eq!(min.get(Instant::FAR), Some(1.0));
        min.clear();
        assert_eq!(min.get(Instant::FAR), None);
    }
}
