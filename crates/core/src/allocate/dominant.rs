//! Dominant resource fairness (Ghodsi et al., NSDI 2011; named in Wisp §4.3 for rates and turns).
//!
//! Where claimants need several resources in different proportions, equal parts of each would leave
//! some of all unused. A claimant's *dominant* resource is the one of which it uses the largest share;
//! fair is to make those shares equal.
//!
//! 1. The share of everybody's dominant resource, per weight, rises at the same pace.
//! 2. Whoever has what it wants stops rising; when a resource is used up, so do all who use it.
//! 3. The others go on until nobody rises.
//!
//! Instead of task by task as in the paper, the level jumps to the next moment at which somebody
//! stops: exact for divisible work, and at most one jump per claimant and resource.

use super::{Allocator, Ask};

/// Equal shares of what each needs most.
#[derive(Clone, Copy, Debug)]
pub struct Dominant;

impl Allocator for Dominant {
    fn name(&self) -> &'static str {
        "dominant"
    }

    fn divide(&self, capacity: &[f64], asks: &[Ask]) -> Vec<f64> {
        let mut left = capacity.to_vec();
        let mut grants = vec![0.0; asks.len()];
        let pace: Vec<f64> = asks.iter().map(|ask| pace(capacity, ask)).collect();
        let mut rising: Vec<usize> =
            (0..asks.len()).filter(|claimant| pace[*claimant] > 0.0).collect();
        while !rising.is_empty() {
            let used = |resource: usize| -> f64 {
                rising.iter().map(|claimant| asks[*claimant].uses[resource] * pace[*claimant]).sum()
            };
            let full = (0..capacity.len()).filter_map(|resource| {
                let used = used(resource);
                (used > 0.0).then(|| left[resource] / used)
            });
            let content = rising
                .iter()
                .map(|claimant| (asks[*claimant].demand - grants[*claimant]) / pace[*claimant]);
            let jump = full.chain(content).fold(f64::INFINITY, f64::min).max(0.0);
            let spent: Vec<f64> = (0..capacity.len()).map(|n| used(n) * jump).collect();
            for (left, spent) in left.iter_mut().zip(&spent) {
                // What is left of rounding is nothing.
                let rest = *left - spent;
                *left = if rest <= *left * 1e-12 { 0.0 } else { rest };
            }
            for claimant in &rising {
                grants[*claimant] += pace[*claimant] * jump;
            }
            rising.retain(|claimant| {
                let ask = &asks[*claimant];
                let content = grants[*claimant] >= ask.demand * (1.0 - 1e-12);
                let stopped =
                    ask.uses.iter().zip(&left).any(|(used, left)| *used > 0.0 && *left <= 0.0);
                !content && !stopped
            });
        }
        for (grant, ask) in grants.iter_mut().zip(asks) {
            *grant = grant.min(ask.demand);
        }
        grants
    }

    fn clone_box(&self) -> Box<dyn Allocator> {
        Box::new(*self)
    }
}

/// Units granted while the level rises by one: weight ÷ dominant share of a unit.
fn pace(capacity: &[f64], ask: &Ask) -> f64 {
    let shares = capacity.iter().zip(&ask.uses).filter(|(_, used)| **used > 0.0);
    let dominant = shares.map(|(there, used)| used / there).fold(0.0, f64::max);
    if dominant > 0.0 && dominant.is_finite() { ask.weight / dominant } else { 0.0 }
}
