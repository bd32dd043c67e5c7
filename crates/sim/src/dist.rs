//! Distributions of service times, all given by their mean so that capacity is plain to see.

use tidegate_core::Span;
use tidegate_core::rng::Rng;

use crate::random::{exponential, normal};

/// How long serving takes.
#[derive(Clone, Debug, PartialEq)]
pub enum Dist {
    /// Always the mean.
    Constant,
    /// Memoryless.
    Exponential,
    /// One in five takes four times the mean, the others a quarter (Breakwater §5.1).
    Bimodal,
    /// The logarithm is normal with this standard deviation.
    Lognormal {
        /// Standard deviation of the logarithm; 1 gives a p99 of about six times the mean.
        sigma: f64,
    },
    /// A power-law tail.
    Pareto {
        /// Tail exponent, above 1 so that there is a mean; at or below 2 the variance is infinite.
        shape: f64,
    },
    /// Drawn from these samples, scaled so that their mean is the mean.
    Empirical {
        /// Samples divided by their mean.
        samples: Vec<f64>,
    },
}

impl Dist {
    /// Samples of any unit, as they were measured.
    pub fn empirical(samples: &[f64]) -> Self {
        let mean = samples.iter().sum::<f64>() / samples.len() as f64;
        Self::Empirical { samples: samples.iter().map(|sample| sample / mean).collect() }
    }

    /// A sample with mean 1.
    pub fn unit(&self, rng: &mut Rng) -> f64 {
        match self {
            Self::Constant => 1.0,
            Self::Exponential => exponential(rng),
            Self::Bimodal => {
                if rng.unit() < 0.2 {
                    4.0
                } else {
                    0.25
                }
            }
            Self::Lognormal { sigma } => (sigma * normal(rng) - sigma * sigma / 2.0).exp(),
            Self::Pareto { shape } => (shape - 1.0) / shape * (1.0 - rng.unit()).powf(-1.0 / shape),
            Self::Empirical { samples } => samples[rng.below(samples.len() as u64) as usize],
        }
    }
}

/// A distribution with its mean.
#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    /// Shape.
    pub dist: Dist,
    /// Mean.
    pub mean: Span,
}

impl Service {
    /// A sample, `factor` times as long.
    pub fn sample(&self, rng: &mut Rng, factor: f64) -> Span {
        self.mean.scale(self.dist.unit(rng) * factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::stream;

    #[test]
    fn every_distribution_has_the_mean_it_is_given() {
        let dists = [
            Dist::Constant,
            Dist::Exponential,
            Dist::Bimodal,
            Dist::Lognormal { sigma: 1.0 },
            Dist::Pareto { shape: 2.5 },
            Dist::empirical(&[3.0, 5.0, 10.0]),
        ];
        for dist in dists {
            let mut rng = stream(1, "dist");
            let service = Service { dist, mean: Span::from_micros(10) };
            let n = 400_000;
            let sum: u64 = (0..n).map(|_| service.sample(&mut rng, 1.0).as_nanos()).sum();
            let mean = sum as f64 / n as f64;
            assert!((mean / 10_000.0 - 1.0).abs() < 0.01, "{service:?}: {mean}");
        }
    }
}
