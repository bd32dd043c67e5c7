//! Quantiles of a bounded sample.

/// Up to a fixed number of samples, collected and then read at once.
#[derive(Clone, Debug)]
pub struct Quantile {
    samples: Vec<u64>,
    /// Samples after which it is full, at least one.
    limit: usize,
}

impl Quantile {
    /// Room for `limit` samples.
    pub fn new(limit: usize) -> Self {
        let limit = limit.max(1);
        Self { samples: Vec::with_capacity(limit), limit }
    }

    /// Takes a sample and tells whether it is full now. A full one takes no more.
    pub fn add(&mut self, sample: u64) -> bool {
        if self.samples.len() < self.limit {
            self.samples.push(sample);
        }
        self.samples.len() == self.limit
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// The smallest sample that at least a share `q` of all samples do not exceed (nearest rank),
    /// and an empty sample afterwards. None if there was none.
    pub fn take(&mut self, q: f64) -> Option<u64> {
        let last = self.samples.len().checked_sub(1)?;
        let rank = (q * self.samples.len() as f64).ceil() as usize;
        let (_, sample, _) = self.samples.select_nth_unstable(rank.saturating_sub(1).min(last));
        let sample = *sample;
        self.samples.clear();
        Some(sample)
    }

    /// Panics if the state contradicts itself.
    pub fn invariants(&self) {
        assert!(self.samples.len() <= self.limit, "the sample is bounded");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nearest_rank_of_a_hundred() {
        for (q, expected) in [(0.0, 1), (0.5, 50), (0.9, 90), (0.99, 99), (1.0, 100)] {
            let mut quantile = Quantile::new(100);
            let full = (1..=100).rev().map(|sample| quantile.add(sample)).collect::<Vec<_>>();
            assert_eq!(full.iter().position(|full| *full), Some(99));
            quantile.add(1_000);
            assert_eq!(quantile.take(q), Some(expected), "{q}");
            assert_eq!(quantile.take(q), None);
        }
    }

    proptest! {
        #[test]
        fn enough_samples_do_not_exceed_it(
            samples in prop::collection::vec(0..50u64, 1..60), q in 0.0..=1.0f64,
        ) {
            let mut quantile = Quantile::new(60);
            samples.iter().for_each(|sample| { quantile.add(*sample); });
            let found = quantile.take(q).unwrap();
            let share = |bound: &dyn Fn(u64) -> bool| {
                samples.iter().filter(|sample| bound(**sample)).count() as f64 / samples.len() as f64
            };
            prop_assert!(samples.contains(&found));
            prop_assert!(share(&|sample| sample <= found) >= q - 1e-12);
            prop_assert!(share(&|sample| sample < found) <= q);
        }
    }
}
