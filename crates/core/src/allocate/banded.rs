//! Bands of priority: what the important leave, the others divide.
//!
//! 1. The band with the smallest number is served first, all of it, by the allocator inside.
//! 2. What it leaves of each resource goes to the next band, and so on.
//!
//! A band gets nothing only when those before it want everything: give guarantees by quotas, not by
//! bands, where that must not happen.

use serde::{Deserialize, Serialize};

use super::{Allocator, AllocatorConfig, Ask};
use crate::config::Problems;

/// One band after the other.
#[derive(Clone, Debug)]
pub struct Banded {
    within: Box<dyn Allocator>,
}

impl Banded {
    /// Bands that are divided as `config` says.
    pub fn new(config: &BandedConfig) -> Self {
        Self { within: config.within.build() }
    }
}

impl Allocator for Banded {
    fn name(&self) -> &'static str {
        "banded"
    }

    fn divide(&self, capacity: &[f64], asks: &[Ask]) -> Vec<f64> {
        let mut left = capacity.to_vec();
        let mut grants = vec![0.0; asks.len()];
        let mut bands: Vec<u8> = asks.iter().map(|ask| ask.band).collect();
        bands.sort_unstable();
        bands.dedup();
        for band in bands {
            let members: Vec<usize> =
                (0..asks.len()).filter(|claimant| asks[*claimant].band == band).collect();
            let theirs: Vec<Ask> = members.iter().map(|member| asks[*member].clone()).collect();
            for (member, grant) in members.iter().zip(self.within.divide(&left, &theirs)) {
                grants[*member] = grant;
                for (left, used) in left.iter_mut().zip(&asks[*member].uses) {
                    *left = (*left - grant * used).max(0.0);
                }
            }
        }
        grants
    }

    fn clone_box(&self) -> Box<dyn Allocator> {
        Box::new(self.clone())
    }
}

/// Parameters of [`Banded`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BandedConfig {
    /// How a band is divided among its members; not by bands again. Default max-min.
    pub within: Box<AllocatorConfig>,
}

impl BandedConfig {
    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        let nested = matches!(*self.within, AllocatorConfig::Banded(_));
        problems.check("within", "banded", !nested, "any allocator but banded");
        problems.within("within", |problems| self.within.validate(problems));
    }
}
