//! Max-min fairness: nobody can get more without somebody who has no more getting less.
//!
//! Who wants little gets it; the others share the rest alike.
//!
//! 1. Each claimant is offered an equal part of what is left.
//! 2. Whoever wants no more than that gets what it wants; what it leaves goes to the others, and 1 is
//!    repeated for them.
//! 3. When all who are left want more, each gets its part.
//!
//! In order of demand one pass does: when the smallest demand is more than an equal part, so are all.
//! With several resources each is divided by itself and the scarcest decides; see `dominant` and
//! `bottleneck` for divisions that look at all of them at once.

use super::weighted::fill;
use super::{Allocator, Ask, Want, each_alone};

/// Equal parts, except for those who want less.
#[derive(Clone, Copy, Debug)]
pub struct MaxMin;

/// Max-min shares of `there` of one resource.
pub(super) fn max_min(there: f64, wants: &[Want]) -> Vec<f64> {
    let alike: Vec<Want> = wants.iter().map(|want| Want { weight: 1.0, ..*want }).collect();
    fill(there, &alike)
}

impl Allocator for MaxMin {
    fn name(&self) -> &'static str {
        "max-min"
    }

    fn divide(&self, capacity: &[f64], asks: &[Ask]) -> Vec<f64> {
        each_alone(capacity, asks, max_min)
    }

    fn clone_box(&self) -> Box<dyn Allocator> {
        Box::new(*self)
    }
}
