//! In proportion to demand: who wants twice as much gets twice as much.
//!
//! Right where claimants are parts of one owner, such as the replicas of a service that share its rate
//! (Wisp §4.1.1 hands rates to callers so). Between rivals it rewards those who ask for more than they
//! need; hence the second form, which is Doorman's proportional share:
//!
//! 1. Everybody is guaranteed an equal part, or its demand if that is less.
//! 2. What the small ones leave is divided among the others in proportion to what they want beyond it.

use serde::{Deserialize, Serialize};

use super::{Allocator, Ask, Want, each_alone};

/// Parts by demand.
#[derive(Clone, Copy, Debug)]
pub struct Proportional {
    guarantee: bool,
}

impl Proportional {
    /// One of the two forms.
    pub fn new(config: &ProportionalConfig) -> Self {
        Self { guarantee: config.guarantee }
    }
}

impl Allocator for Proportional {
    fn name(&self) -> &'static str {
        "proportional"
    }

    fn divide(&self, capacity: &[f64], asks: &[Ask]) -> Vec<f64> {
        each_alone(capacity, asks, |there, wants| {
            let guarantee = if self.guarantee { there / wants.len() as f64 } else { 0.0 };
            top_up(there, guarantee, wants)
        })
    }

    fn clone_box(&self) -> Box<dyn Allocator> {
        Box::new(*self)
    }
}

/// Everybody gets up to `guarantee`; what is left goes by what is wanted beyond it.
fn top_up(there: f64, guarantee: f64, wants: &[Want]) -> Vec<f64> {
    let base = |want: &Want| want.amount.min(guarantee);
    let left = (there - wants.iter().map(base).sum::<f64>()).max(0.0);
    let beyond: f64 = wants.iter().map(|want| want.amount - base(want)).sum();
    let part = if beyond > left { left / beyond } else { 1.0 };
    wants.iter().map(|want| base(want) + (want.amount - base(want)) * part).collect()
}

/// Parameters of [`Proportional`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProportionalConfig {
    /// Whether an equal part is guaranteed first, so that asking for more gains little. Default
    /// false: Wisp's callers are parts of one workflow. Doorman's form is true.
    pub guarantee: bool,
}
