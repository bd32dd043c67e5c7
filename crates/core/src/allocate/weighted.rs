//! Weighted max-min: equal parts per unit of weight, except for those who want less.
//!
//! A claimant of weight 2 counts as two claimants who share what they get: the level to which all are
//! filled is an amount per weight.
//!
//! 1. Claimants stand in order of demand ÷ weight.
//! 2. Each in turn is offered its part by weight of what is left among those still standing.
//! 3. It takes the lesser of that and its demand.

use super::{Allocator, Ask, Want, each_alone};

/// Parts by weight, except for those who want less.
#[derive(Clone, Copy, Debug)]
pub struct Weighted;

/// Weighted max-min shares of `there` of one resource.
pub(super) fn fill(there: f64, wants: &[Want]) -> Vec<f64> {
    let level = |want: &Want| want.amount / want.weight;
    let mut order: Vec<usize> = (0..wants.len()).collect();
    order.sort_by(|one, other| level(&wants[*one]).total_cmp(&level(&wants[*other])));
    // Summed from the back, so that rounding cannot leave the last one a weight of nothing.
    let mut weights = vec![0.0; wants.len()];
    let mut sum = 0.0;
    for (place, claimant) in order.iter().enumerate().rev() {
        sum += wants[*claimant].weight;
        weights[place] = sum;
    }
    let (mut left, mut shares) = (there, vec![0.0; wants.len()]);
    for (place, claimant) in order.into_iter().enumerate() {
        let want = wants[claimant];
        let share = want.amount.min(left * (want.weight / weights[place]));
        shares[claimant] = share;
        left = (left - share).max(0.0);
    }
    shares
}

impl Allocator for Weighted {
    fn name(&self) -> &'static str {
        "weighted"
    }

    fn divide(&self, capacity: &[f64], asks: &[Ask]) -> Vec<f64> {
        each_alone(capacity, asks, fill)
    }

    fn clone_box(&self) -> Box<dyn Allocator> {
        Box::new(*self)
    }
}
