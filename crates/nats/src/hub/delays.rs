//! Delays counted in eight steps per doubling: percentiles are right to 9 %.

use tidegate_core::Span;

/// Steps per doubling.
const STEPS: f64 = 8.0;
/// From a microsecond to an hour.
const COUNT: usize = 32 * STEPS as usize;

/// A histogram.
#[derive(Clone, Debug)]
pub(super) struct Delays {
    counts: Vec<u64>,
    /// How many.
    pub(super) count: u64,
    /// Their sum, in seconds.
    pub(super) sum: f64,
    /// The longest.
    pub(super) most: Span,
}

impl Default for Delays {
    fn default() -> Self {
        Self { counts: vec![0; COUNT], count: 0, sum: 0.0, most: Span::ZERO }
    }
}

impl Delays {
    /// One more.
    pub(super) fn add(&mut self, delay: Span) {
        let micros = delay.as_micros_f64();
        let step = if micros < 1.0 { 0 } else { (micros.log2() * STEPS) as usize + 1 };
        self.counts[step.min(COUNT - 1)] += 1;
        self.count += 1;
        self.sum += delay.as_secs_f64();
        self.most = self.most.max(delay);
    }

    /// The delay that this share of all do not exceed, to a step; zero if there are none.
    pub(super) fn quantile(&self, share: f64) -> Span {
        let rank = (share * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (step, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                // The lowest step is "no delay that matters".
                let micros = if step == 0 { 0.0 } else { (step as f64 / STEPS).exp2() };
                return Span::from_nanos_f64(micros * 1e3).min(self.most);
            }
        }
        Span::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_right_to_a_tenth() {
        let mut delays = Delays::default();
        assert_eq!(delays.quantile(0.99), Span::ZERO);
        for micros in 1..=10_000 {
            delays.add(Span::from_micros(micros));
        }
        for (share, micros) in [(0.5, 5_000.0), (0.95, 9_500.0), (0.99, 9_900.0), (1.0, 10_000.0)] {
            let told = delays.quantile(share).as_micros_f64();
            assert!((told / micros - 1.0).abs() < 0.1, "{share}: {told}");
        }
        assert_eq!((delays.count, delays.most), (10_000, Span::from_millis(10)));
        delays.add(Span::from_secs(100_000));
        assert_eq!(delays.quantile(1.0), Span::from_secs(100_000).min(delays.quantile(1.0)));
    }
}
