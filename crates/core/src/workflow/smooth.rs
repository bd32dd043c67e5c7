//! A count per second, smoothed over control periods.

/// Counts during a period; at its end the rate moves towards what was counted.
///
/// The first periods are averaged plainly: a mean that starts at its first sample would take the
/// first, perhaps short or odd, period for the truth.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Smooth {
    count: f64,
    rate: f64,
    periods: u32,
}

impl Smooth {
    /// Weight of the newest period. 0.3 follows a step to 83 % within five periods, half a second, and
    /// halves the noise of a single one.
    const GAIN: f64 = 0.3;
    /// Events that a share is measured over, if they come within [`SLOWEST`](Self::SLOWEST): one in three of them
    /// more or less.
    const EVENTS: f64 = 10.0;
    /// The least weight of a period: a hundred of them, ten seconds.
    const SLOWEST: f64 = 0.01;

    pub(super) fn add(&mut self, amount: f64) {
        self.count += amount;
    }

    /// A period of `seconds` ends.
    pub(super) fn close(&mut self, seconds: f64) {
        self.end(seconds, Self::GAIN);
    }

    /// The same for what is compared with others of its kind: the fewer there are, the longer the time they are
    /// counted over, so that who came last does not look like who comes most.
    pub(super) fn close_slowly(&mut self, seconds: f64) {
        let events = (self.rate * seconds).max(if self.count >= 5.0 { self.count } else { 0.0 });
        self.end(seconds, (events / Self::EVENTS).clamp(Self::SLOWEST, Self::GAIN));
    }

    fn end(&mut self, seconds: f64, gain: f64) {
        let sample = self.count / seconds;
        self.count = 0.0;
        self.periods = self.periods.saturating_add(1);
        let gain = gain.max(1.0 / f64::from(self.periods));
        self.rate += gain * (sample - self.rate);
        // Below one in a million seconds it is over.
        if self.rate < 1e-6 {
            self.rate = 0.0;
        }
    }

    /// Whether there was less than one in a hundred seconds: too little to be compared with others.
    pub(super) fn is_over(&self) -> bool {
        self.rate < 0.01
    }

    /// Per second, as of the last period.
    pub(super) fn rate(&self) -> f64 {
        self.rate
    }

    /// Counted in the period that runs.
    pub(super) fn counted(&self) -> f64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two events per second in turn with somebody who has as many: neither looks like more.
    #[test]
    fn few_events_are_counted_over_a_longer_time() {
        let (mut quick, mut slow) = (Smooth::default(), Smooth::default());
        let (mut swings, mut calm) = (0.0f64, 0.0f64);
        for period in 0..600 {
            for smooth in [&mut quick, &mut slow] {
                smooth.add(if period % 5 == 0 { 1.0 } else { 0.0 });
            }
            quick.close(0.1);
            slow.close_slowly(0.1);
            if period > 300 {
                swings = swings.max((quick.rate() - 2.0).abs());
                calm = calm.max((slow.rate() - 2.0).abs());
            }
        }
        assert!(swings > 1.0 && calm < 0.2, "{swings} {calm}");
        // A burst is seen at once all the same.
        slow.add(50.0);
        slow.close_slowly(0.1);
        assert!(slow.rate() > 100.0, "{}", slow.rate());
    }

    #[test]
    fn follows_a_step_and_ends_at_zero() {
        let mut smooth = Smooth::default();
        for _ in 0..5 {
            smooth.add(10.0);
            smooth.close(0.1);
        }
        assert!((smooth.rate() - 100.0).abs() < 1e-9);
        for _ in 0..5 {
            smooth.close(0.1);
        }
        assert!((10.0..20.0).contains(&smooth.rate()), "{}", smooth.rate());
        for _ in 0..100 {
            smooth.close(0.1);
        }
        assert_eq!(smooth.rate(), 0.0);
    }
}
