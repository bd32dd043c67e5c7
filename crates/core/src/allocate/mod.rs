//! Dividing what there is: how much does each workflow get of resources that all of them want?
//!
//! An [`Allocator`] takes capacities and what each claimant asks for, and answers with a grant for
//! each. It keeps no state: the same question gets the same answer. One algorithm per file;
//! [`AllocatorConfig`] lists them all.
//!
//! Grants are in the claimant's own unit (requests per second, say), and what one unit uses of each
//! resource is part of the [`Ask`]. Two things hold for every allocator:
//!
//! - **Feasible**: no resource gives more than it has, nobody gets more than asked for.
//! - **Nothing is left over in vain**: with one resource, whoever got less than asked for finds it used up.

mod banded;
mod bottleneck;
mod dominant;
mod max_min;
mod proportional;
#[cfg(test)]
mod tests;
mod weighted;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::config::Problems;

pub use banded::{Banded, BandedConfig};
pub use bottleneck::Bottleneck;
pub use dominant::Dominant;
pub use max_min::MaxMin;
pub use proportional::{Proportional, ProportionalConfig};
pub use weighted::Weighted;

/// What one claimant wants.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// Units wanted, zero or more; infinity means all that can be had.
    pub demand: f64,
    /// Its weight, above zero; only some allocators heed it.
    pub weight: f64,
    /// Its priority band, 0 the most important; only [`Banded`] heeds it.
    pub band: u8,
    /// What one unit uses of each resource, zero or more, one number per resource.
    pub uses: Vec<f64>,
}

impl Ask {
    /// Wants `demand` units of the only resource there is.
    pub fn of_one(demand: f64) -> Self {
        Self { demand, weight: 1.0, band: 0, uses: vec![1.0] }
    }
}

/// A way to divide resources.
pub trait Allocator: fmt::Debug + Send {
    /// The name used in configuration and figures.
    fn name(&self) -> &'static str;

    /// Divides `capacity`, one number per resource, among claimants: units granted to each.
    ///
    /// Both have been checked by [`allocate`]: numbers are zero or more, weights above zero, demands
    /// finite, and every ask says what it uses of every resource.
    fn divide(&self, capacity: &[f64], asks: &[Ask]) -> Vec<f64>;

    /// A copy.
    fn clone_box(&self) -> Box<dyn Allocator>;
}

impl Clone for Box<dyn Allocator> {
    fn clone(&self) -> Self {
        self.clone_box()
    }
}

/// Divides `capacity` among `asks`, or says what is wrong with the question.
///
/// A demand of infinity is taken to be what the claimant could use if it were alone; one that uses
/// nothing of any resource gets what it asks for.
pub fn allocate(
    allocator: &dyn Allocator,
    capacity: &[f64],
    asks: &[Ask],
) -> Result<Vec<f64>, AllocateError> {
    check(capacity, asks)?;
    let bounded: Vec<Ask> = asks
        .iter()
        .map(|ask| {
            let all = ask.demand.is_infinite().then(|| alone(capacity, &ask.uses));
            Ask { demand: all.unwrap_or(ask.demand), ..ask.clone() }
        })
        .collect();
    let mut grants = allocator.divide(capacity, &bounded);
    for (grant, ask) in grants.iter_mut().zip(asks) {
        if ask.uses.iter().all(|used| *used == 0.0) {
            *grant = ask.demand;
        }
    }
    Ok(grants)
}

/// Units a claimant could have if it were alone; zero if it uses nothing, since then it takes no part.
fn alone(capacity: &[f64], uses: &[f64]) -> f64 {
    let limits = capacity.iter().zip(uses).filter(|(_, used)| **used > 0.0);
    let least = limits.map(|(there, used)| there / used).fold(f64::INFINITY, f64::min);
    if least.is_finite() { least } else { 0.0 }
}

fn check(capacity: &[f64], asks: &[Ask]) -> Result<(), AllocateError> {
    for (resource, there) in capacity.iter().enumerate() {
        if !(there.is_finite() && *there >= 0.0) {
            return Err(AllocateError::Capacity { resource, value: *there });
        }
    }
    for (claimant, ask) in asks.iter().enumerate() {
        if ask.demand.is_nan() || ask.demand < 0.0 {
            return Err(AllocateError::Demand { claimant, value: ask.demand });
        }
        if !(ask.weight.is_finite() && ask.weight > 0.0) {
            return Err(AllocateError::Weight { claimant, value: ask.weight });
        }
        if ask.uses.len() != capacity.len() {
            let (named, there) = (ask.uses.len(), capacity.len());
            return Err(AllocateError::Resources { claimant, named, there });
        }
        for (resource, used) in ask.uses.iter().enumerate() {
            if !(used.is_finite() && *used >= 0.0) {
                return Err(AllocateError::Use { claimant, resource, value: *used });
            }
        }
    }
    Ok(())
}

/// A question that has no answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AllocateError {
    /// A capacity that is negative, infinite or no number.
    Capacity {
        /// Which resource.
        resource: usize,
        /// Its capacity.
        value: f64,
    },
    /// A demand that is negative or no number.
    Demand {
        /// Whose.
        claimant: usize,
        /// What it asked for.
        value: f64,
    },
    /// A weight that is not a number above zero.
    Weight {
        /// Whose.
        claimant: usize,
        /// The weight.
        value: f64,
    },
    /// An ask that names more or fewer resources than there are.
    Resources {
        /// Whose.
        claimant: usize,
        /// How many it names.
        named: usize,
        /// How many there are.
        there: usize,
    },
    /// A use of a resource that is negative, infinite or no number.
    Use {
        /// Whose.
        claimant: usize,
        /// Of which resource.
        resource: usize,
        /// How much.
        value: f64,
    },
}

impl fmt::Display for AllocateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Capacity { resource, value } => {
                write!(f, "capacity {value} of resource {resource} is not a number from 0 up")
            }
            Self::Demand { claimant, value } => {
                write!(f, "demand {value} of claimant {claimant} is not a number from 0 up")
            }
            Self::Weight { claimant, value } => {
                write!(f, "weight {value} of claimant {claimant} is not a number above 0")
            }
            Self::Resources { claimant, named, there } => {
                write!(f, "claimant {claimant} names {named} resources, there are {there}")
            }
            Self::Use { claimant, resource, value } => write!(
                f,
                "use {value} of resource {resource} by claimant {claimant} is not a number from 0 up"
            ),
        }
    }
}

impl std::error::Error for AllocateError {}

/// For allocators of one resource: divides each resource by itself, and grants what the scarcest of
/// those a claimant uses leaves it.
fn each_alone(
    capacity: &[f64],
    asks: &[Ask],
    divide: impl Fn(f64, &[Want]) -> Vec<f64>,
) -> Vec<f64> {
    let mut grants: Vec<f64> = asks.iter().map(|ask| ask.demand).collect();
    for (resource, there) in capacity.iter().enumerate() {
        let users: Vec<usize> =
            (0..asks.len()).filter(|user| asks[*user].uses[resource] > 0.0).collect();
        let want = |user: &usize| Want {
            amount: asks[*user].demand * asks[*user].uses[resource],
            weight: asks[*user].weight,
        };
        let wants: Vec<Want> = users.iter().map(want).collect();
        for (user, share) in users.iter().zip(divide(*there, &wants)) {
            grants[*user] = grants[*user].min(share / asks[*user].uses[resource]);
        }
    }
    grants
}

/// What one claimant wants of one resource.
#[derive(Clone, Copy, Debug)]
struct Want {
    amount: f64,
    weight: f64,
}

/// Every allocator with its parameters; in TOML the key `allocator` chooses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "allocator", rename_all = "kebab-case")]
pub enum AllocatorConfig {
    /// The smallest demands first, the rest alike.
    #[default]
    MaxMin,
    /// The same by weight.
    Weighted,
    /// In proportion to demand.
    Proportional(ProportionalConfig),
    /// Equal shares of what each needs most.
    Dominant,
    /// Max-min where it is scarce, freely elsewhere.
    Bottleneck,
    /// The most important first.
    Banded(BandedConfig),
}

impl AllocatorConfig {
    /// Builds the allocator.
    pub fn build(&self) -> Box<dyn Allocator> {
        match self {
            Self::MaxMin => Box::new(MaxMin),
            Self::Weighted => Box::new(Weighted),
            Self::Proportional(config) => Box::new(Proportional::new(config)),
            Self::Dominant => Box::new(Dominant),
            Self::Bottleneck => Box::new(Bottleneck),
            Self::Banded(config) => Box::new(Banded::new(config)),
        }
    }

    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        match self {
            Self::Banded(config) => config.validate(problems),
            Self::MaxMin
            | Self::Weighted
            | Self::Proportional(_)
            | Self::Dominant
            | Self::Bottleneck => {}
        }
    }
}
