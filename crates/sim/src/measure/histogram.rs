//! A histogram whose memory does not grow with what it counts.

use tidegate_core::Span;

use super::ratio;

/// Counts by logarithmic bucket: every value is known to less than one percent.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    sum: u128,
}

/// Each doubling is cut into 128 buckets.
const FINE: u32 = 7;

impl Histogram {
    /// Counts one value.
    pub fn add(&mut self, value: Span) {
        let bucket = bucket(value.as_nanos());
        if bucket >= self.counts.len() {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.total += 1;
        self.sum += u128::from(value.as_nanos());
    }

    /// Counts a latency as a share of its deadline, one being a second, if there is a deadline.
    pub(super) fn add_normalised(&mut self, latency: Span, deadline: Option<Span>) {
        if let Some(deadline) = deadline.filter(|deadline| *deadline > Span::ZERO) {
            self.add(Span::from_secs(1).scale(latency.as_secs_f64() / deadline.as_secs_f64()));
        }
    }

    /// How many values there are.
    pub fn len(&self) -> u64 {
        self.total
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// Mean in nanoseconds, zero when empty. Exact.
    pub fn mean(&self) -> f64 {
        ratio(self.sum as f64, self.total as f64)
    }

    /// The value that a share `q` of all values do not exceed, zero when empty.
    pub fn quantile(&self, q: f64) -> Span {
        let wanted = (q * self.total as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Span::from_nanos(middle(bucket));
            }
        }
        Span::ZERO
    }

    pub(super) fn clear(&mut self) {
        self.counts.fill(0);
        (self.total, self.sum) = (0, 0);
    }
}

fn bucket(nanos: u64) -> usize {
    if nanos < 1 << (FINE + 1) {
        return nanos as usize;
    }
    let shift = nanos.ilog2() - FINE;
    ((shift as usize) << FINE) + (nanos >> shift) as usize
}

fn middle(bucket: usize) -> u64 {
    if bucket < 1 << (FINE + 1) {
        return bucket as u64;
    }
    let shift = (bucket >> FINE) - 1;
    let low = ((bucket - (shift << FINE)) as u64) << shift;
    low + (1 << (shift - 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn quantiles_are_within_one_percent(mut values in prop::collection::vec(0u64..1 << 40, 1..300), q in 0.01f64..1.0) {
            let mut histogram = Histogram::default();
            for value in &values {
                histogram.add(Span::from_nanos(*value));
            }
            values.sort_unstable();
            let exact = values[((q * values.len() as f64).ceil() as usize).max(1) - 1];
            let found = histogram.quantile(q).as_nanos();
            prop_assert!(found.abs_diff(exact) as f64 <= exact as f64 * 0.01, "{found} {exact}");
        }
    }
}
