//! How many per second.

use crate::time::{Instant, Span};

/// Events per second over a sliding window, in slices: the window is at least 15/16 of what was
/// asked and at most all of it. Before it has filled, the rate is over the time there was.
#[derive(Clone, Debug)]
pub struct RateMeter {
    slice: Span,
    counts: [u64; Self::SLICES],
    /// Number of the slice that takes events now; the ones before it in the ring are older.
    current: u64,
    /// When counting began.
    since: Instant,
}

impl RateMeter {
    /// Slices per window.
    pub const SLICES: usize = 16;

    /// Counts from `now` on over `window`.
    pub fn new(window: Span, now: Instant) -> Self {
        let slice = Span::from_nanos((window.as_nanos() / Self::SLICES as u64).max(1));
        let current = now.as_nanos() / slice.as_nanos();
        Self { slice, counts: [0; Self::SLICES], current, since: now }
    }

    /// Counts `events` at `now`; time going backwards counts as no time.
    pub fn add(&mut self, now: Instant, events: u64) {
        self.advance(now);
        let count = &mut self.counts[self.current as usize % Self::SLICES];
        *count = count.saturating_add(events);
    }

    /// Events in the window that ends at `now`.
    pub fn count(&self, now: Instant) -> u64 {
        let slice = self.slice_of(now);
        // Slices that have left the window since the last event are not counted.
        let kept = (Self::SLICES as u64).saturating_sub(slice - self.current);
        (0..kept.min(self.current.saturating_add(1)))
            .map(|back| self.counts[(self.current - back) as usize % Self::SLICES])
            .fold(0, u64::saturating_add)
    }

    /// Events per second in the window that ends at `now`, zero before any time has passed.
    pub fn rate(&self, now: Instant) -> f64 {
        let oldest = self.slice_of(now).saturating_sub(Self::SLICES as u64 - 1);
        let begin = Instant::from_nanos(oldest.saturating_mul(self.slice.as_nanos()));
        let time = now.since(begin.max(self.since)).as_secs_f64();
        if time > 0.0 { self.count(now) as f64 / time } else { 0.0 }
    }

    fn advance(&mut self, now: Instant) {
        let slice = self.slice_of(now);
        let new = (slice - self.current).min(Self::SLICES as u64);
        for back in 0..new {
            self.counts[(slice - back) as usize % Self::SLICES] = 0;
        }
        self.current = slice;
    }

    fn slice_of(&self, now: Instant) -> u64 {
        (now.as_nanos() / self.slice.as_nanos()).max(self.current)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_steady_stream_reads_as_its_rate_from_the_start() {
        let start = Instant::ZERO + Span::from_secs(7);
        let mut meter = RateMeter::new(Span::from_secs(1), start);
        assert_eq!(meter.rate(start), 0.0);
        for n in 1..=5_000u64 {
            let now = start + Span::from_millis(n);
            meter.add(now, 2);
            let rate = meter.rate(now);
            assert!((rate - 2_000.0).abs() < 5.0, "{rate} after {n} ms");
        }
        // Then silence: the rate falls, and is zero after a window.
        let end = start + Span::from_secs(5);
        assert!(meter.rate(end + Span::from_millis(500)) < 1_200.0);
        assert_eq!(meter.rate(end + Span::from_millis(1_100)), 0.0);
    }

    proptest! {
        #[test]
        fn equals_a_list_of_all_events(
            steps in prop::collection::vec((0..400u64, 0..9u64), 1..200),
        ) {
            let mut meter = RateMeter::new(Span::from_nanos(160), Instant::ZERO);
            let (mut now, mut all) = (Instant::ZERO, Vec::new());
            for (step, events) in steps {
                now += Span::from_nanos(step);
                meter.add(now, events);
                all.push((now.as_nanos() / 10, events));
                for later in [now, now + Span::from_nanos(step)] {
                    let slice = later.as_nanos() / 10;
                    let recent = all.iter().filter(|(at, _)| slice - at < 16);
                    prop_assert_eq!(meter.count(later), recent.map(|(_, n)| n).sum::<u64>());
                }
            }
        }
    }

    #[test]
    fn time_going_backwards_is_no_time() {
        let mut meter = RateMeter::new(Span::ZERO, Instant::FAR);
        meter.add(Instant::ZERO, 3);
        assert_eq!(meter.count(Instant::ZERO), 3);
        assert_eq!(meter.count(Instant::FAR), 3);
    }
}
