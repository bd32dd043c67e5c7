//! Exponentially weighted moving average.

/// A mean in which each new sample has weight `gain` and older ones fade geometrically.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ewma {
    gain: f64,
    value: Option<f64>,
}

impl Ewma {
    /// No samples yet; `gain` in `(0, 1]`.
    pub const fn new(gain: f64) -> Self {
        Self { gain, value: None }
    }

    /// Takes a sample. The first one is the mean; what is not a number is ignored.
    pub fn add(&mut self, sample: f64) {
        if !sample.is_finite() {
            return;
        }
        self.value = Some(self.value.map_or(sample, |value| value + self.gain * (sample - value)));
    }

    /// The mean, none before the first sample.
    pub const fn get(&self) -> Option<f64> {
        self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_at_the_first_sample_and_follows() {
        let mut mean = Ewma::new(0.25);
        assert_eq!(mean.get(), None);
        mean.add(8.0);
        mean.add(f64::NAN);
        assert_eq!(mean.get(), Some(8.0));
        mean.add(16.0);
        assert_eq!(mean.get(), Some(10.0));
    }
}
