//! What requests cost: estimated before, settled after.

use crate::context::{Workflow, Workflows};
use crate::signal::Ewma;
use crate::table;
use crate::time::{Span, float, whole};

/// Work a request takes. The unit is the driver's choice as long as it is one: nanoseconds of CPU
/// or service time unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(pub u64);

impl From<Span> for Cost {
    fn from(span: Span) -> Self {
        Self(span.as_nanos())
    }
}

/// A cost in mean costs of its time, in units of 1/1024: how much of a queue a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Weight(pub(crate) u32);

impl Weight {
    /// Of a request that costs what requests do.
    pub(crate) const ONE: Self = Self(1024);
}

/// Mean cost per workflow, learned from what finished.
#[derive(Clone, Debug)]
pub struct CostTable {
    workflows: Vec<Ewma>,
    all: Ewma,
}

impl CostTable {
    /// Weight of a new sample. 1/32 smooths exponential service times to about 12 % and follows a
    /// change of mix within some fifty requests.
    const GAIN: f64 = 1.0 / 32.0;
    /// Estimate before anything has finished. Only its being the same for all matters.
    const FIRST_GUESS: Cost = Cost(1_000);

    /// Nothing learned yet.
    pub fn new() -> Self {
        Self { workflows: Vec::new(), all: Ewma::new(Self::GAIN) }
    }

    /// The expected cost of a request of `workflow`: its own mean, else that of all.
    pub fn estimate(&self, workflow: Workflow) -> Cost {
        let own = self.workflows.get(usize::from(workflow.0)).and_then(Ewma::get);
        own.or(self.all.get()).map_or(Self::FIRST_GUESS, |mean| Cost(whole(mean).max(1)))
    }

    /// How much of a queue a request of this cost is.
    pub(crate) fn weight(&self, cost: Cost) -> Weight {
        let Some(mean) = self.all.get() else { return Weight::ONE };
        // Bounds: a request weighs something, and a million mean ones are enough.
        let weight = f64::from(Weight::ONE.0) * float(cost.0) / mean.max(1.0);
        Weight(weight.clamp(1.0, 1e9) as u32)
    }

    /// Learns from a finished request.
    #[inline]
    pub fn settle(&mut self, workflow: Workflow, cost: Cost) {
        let index = usize::from(workflow.0).min(Workflows::LIMIT);
        let cost = float(cost.0);
        table::at(&mut self.workflows, index, || Ewma::new(Self::GAIN)).add(cost);
        self.all.add(cost);
    }
}

impl Default for CostTable {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_workflows_cost_what_all_cost() {
        let mut costs = CostTable::new();
        assert_eq!(costs.estimate(Workflow(3)), CostTable::FIRST_GUESS);
        costs.settle(Workflow(3), Cost(500));
        assert_eq!(costs.estimate(Workflow(3)), Cost(500));
        assert_eq!(costs.estimate(Workflow(9)), Cost(500));
    }

    /// The unit drifts; what is like the others weighs one all the same.
    #[test]
    fn a_weight_is_relative_to_the_mean_of_its_time() {
        let mut costs = CostTable::new();
        assert_eq!(costs.weight(costs.estimate(Workflow(3))), Weight::ONE);
        for cost in [500, 4_000, 100_000] {
            costs.settle(Workflow(3), Cost(cost));
            assert!(costs.weight(costs.estimate(Workflow(3))).0.abs_diff(Weight::ONE.0) <= 2);
        }
        let double = Cost(costs.estimate(Workflow(3)).0 * 2);
        assert!(costs.weight(double).0.abs_diff(2 * Weight::ONE.0) <= 2);
        assert_eq!(costs.weight(Cost(0)), Weight(1));
    }
}
