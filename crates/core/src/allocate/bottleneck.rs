//! Bottleneck fairness (Retro, NSDI 2015; Wisp §4.3): fair where it is scarce, free where it is not.
//!
//! Max-min over all resources would hold back a workflow for its use of something there is plenty of.
//! Here only a resource that cannot meet its demand is divided, and only among those who use it.
//!
//! 1. Everybody is given its demand.
//! 2. The resource that is exceeded most is the bottleneck: its users are cut to max-min shares of it.
//!    This is repeated while a resource is exceeded; cuts only ever free others, so once for each
//!    resource is enough.
//! 3. A cut at a later bottleneck may leave room at an earlier one: 1 and 2 are repeated with what is
//!    left and with what is still wanted. Each round fills one more resource to the brim or meets all
//!    demands, so there are at most as many rounds as resources.

use super::max_min::max_min;
use super::{Allocator, Ask, Want};

/// Max-min at each bottleneck.
#[derive(Clone, Copy, Debug)]
pub struct Bottleneck;

/// A resource counts as exceeded beyond rounding only.
const EXCEEDED: f64 = 1.0 + 1e-9;

impl Allocator for Bottleneck {
    fn name(&self) -> &'static str {
        "bottleneck"
    }

    fn divide(&self, capacity: &[f64], asks: &[Ask]) -> Vec<f64> {
        let mut grants = vec![0.0; asks.len()];
        let mut left = capacity.to_vec();
        for _ in capacity {
            let wanted = |(ask, grant): (&Ask, &f64)| (ask.demand - grant).max(0.0);
            let mut more: Vec<f64> = asks.iter().zip(&grants).map(wanted).collect();
            cut(&left, asks, &mut more);
            for (grant, more) in grants.iter_mut().zip(&more) {
                *grant += more;
            }
            for (resource, left) in left.iter_mut().enumerate() {
                let rest = *left - load(asks, &more, resource);
                *left = if rest <= capacity[resource] * 1e-9 { 0.0 } else { rest };
            }
        }
        grants
    }

    fn clone_box(&self) -> Box<dyn Allocator> {
        Box::new(*self)
    }
}

/// Cuts `grants` until no resource is exceeded, the worst first.
fn cut(capacity: &[f64], asks: &[Ask], grants: &mut [f64]) {
    for _ in capacity {
        let excess = |resource: usize| {
            let load = load(asks, grants, resource);
            if load > 0.0 { load / capacity[resource] } else { 0.0 }
        };
        let worst =
            (0..capacity.len()).max_by(|one, other| excess(*one).total_cmp(&excess(*other)));
        let Some(resource) = worst.filter(|resource| excess(*resource) > EXCEEDED) else { return };
        let users: Vec<usize> =
            (0..asks.len()).filter(|user| asks[*user].uses[resource] > 0.0).collect();
        let want =
            |user: &usize| Want { amount: grants[*user] * asks[*user].uses[resource], weight: 1.0 };
        let wants: Vec<Want> = users.iter().map(want).collect();
        for (user, share) in users.iter().zip(max_min(capacity[resource], &wants)) {
            grants[*user] = grants[*user].min(share / asks[*user].uses[resource]);
        }
    }
}

fn load(asks: &[Ask], grants: &[f64], resource: usize) -> f64 {
    asks.iter().zip(grants).map(|(ask, grant)| ask.uses[resource] * grant).sum()
}
