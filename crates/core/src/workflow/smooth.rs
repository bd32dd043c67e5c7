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

    pub(super) fn add(&mut self, amount: f64) {
        self.count += amount;
    }

    /// A period of `seconds` ends.
    pub(super) fn close(&mut self, seconds: f64) {
        self.close_by(seconds, Self::GAIN);
    }

    /// A period of `seconds` ends, and weighs `gain`.
    pub(super) fn close_by(&mut self, seconds: f64, gain: f64) {
        self.rate = self.so_far(seconds, gain);
        self.count = 0.0;
        self.periods = self.periods.saturating_add(1);
        // Below one in a million seconds it is over.
        if self.rate < 1e-6 {
            self.rate = 0.0;
        }
    }

    /// What the rate will be if the period of `seconds` that runs ends without another.
    pub(super) fn so_far(&self, seconds: f64, gain: f64) -> f64 {
        let gain = gain.max(1.0 / f64::from(self.periods.saturating_add(1)));
        self.rate + gain * (self.count / seconds - self.rate)
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
