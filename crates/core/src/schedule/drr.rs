//! Deficit round robin over workflows, by cost (Shreedhar and Varghese, SIGCOMM 1995; used for
//! fairness between workflows in Wisp §4.3).
//!
//! First come, first served gives each workflow what it asks for: who sends most gets most. Round
//! robin by requests favours those with dear requests. So turns are counted in cost:
//!
//! 1. Workflows with something waiting stand in a ring. A workflow that becomes busy joins at the
//!    end, with no deficit.
//! 2. At the beginning of its turn a workflow's deficit grows by quantum × weight.
//! 3. While its oldest request costs no more than the deficit, that request is served and its cost
//!    taken off.
//! 4. Otherwise the turn passes on and what is left of the deficit is kept.
//! 5. A workflow with nothing waiting leaves the ring and loses its deficit: nobody saves up.
//!
//! While two workflows of equal weight are both backlogged, the cost served to one since they
//! became so exceeds the other's by at most quantum + the largest cost; over an interval that
//! begins anywhere, by at most quantum + twice the largest cost.
//!
//! Costs are estimates, charged when a request starts: within a workflow errors even out, because
//! an estimate is the mean of what its requests did cost. A step that returns is charged again for
//! what it still needs.
//!
//! Deviation: with a quantum below the cost of a request the paper's loop goes round many times
//! before anything can be served. Here a round in which nobody could be served is followed by as
//! many rounds at once as it takes until somebody can: the same result, in one pass over the ring.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Scheduler;
use crate::config::Problems;
use crate::context::{Workflow, Workflows};
use crate::list::{Links, List};
use crate::meter::Cost;
use crate::request::{Request, RequestId};
use crate::table;
use crate::time::Instant;

/// Turns of equal cost for every workflow. With a quantum not below the largest cost, everything
/// takes constant time; otherwise a pop takes at most two passes over the workflows that wait.
#[derive(Clone, Debug)]
pub struct Drr {
    config: DrrConfig,
    /// Weights configured, by number; missing ones are 1.
    weights: Vec<u32>,
    /// Shares by workflow that an allocator worked out, and the largest; zero if none does.
    allotted: Vec<u32>,
    largest: u32,
    /// Deficit granted per turn and weight. Follows the largest cost when none is configured.
    quantum: u64,
    /// Busy workflows by number; the front has the turn.
    ring: List,
    ring_links: Links,
    ring_len: usize,
    /// Whether the front has got its quantum for this turn.
    granted: bool,
    flows: Vec<Flow>,
    /// Requests of all workflows; each place is in the queue of one.
    links: Links,
    waiting: Vec<Option<Waiting>>,
    len: usize,
}

/// What a workflow has waiting, in order of arrival, and may still spend.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    queue: List,
    deficit: u64,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    id: RequestId,
    flow: usize,
    cost: u64,
}

impl Drr {
    /// Nobody waits.
    pub fn new(config: &DrrConfig) -> Self {
        Self {
            quantum: config.quantum.max(1),
            config: config.clone(),
            weights: Vec::new(),
            allotted: Vec::new(),
            largest: 0,
            ring: List::EMPTY,
            ring_links: Links::default(),
            ring_len: 0,
            granted: false,
            flows: Vec::new(),
            links: Links::default(),
            waiting: Vec::new(),
            len: 0,
        }
    }

    /// What `flow` gets per turn.
    fn grant(&self, flow: usize) -> u64 {
        if self.largest > 0 {
            // The largest share has one quantum, so that turns stay short.
            let share = self.allotted.get(flow).copied().unwrap_or(self.largest);
            let grant = u128::from(self.quantum) * u128::from(share) / u128::from(self.largest);
            return u64::try_from(grant).unwrap_or(u64::MAX).max(1);
        }
        let weight = self.weights.get(flow).copied().unwrap_or(1);
        self.quantum.saturating_mul(u64::from(weight))
    }

    /// Cost of the oldest request of a busy workflow.
    fn head_cost(&self, flow: usize) -> u64 {
        let head = self.flows[flow].queue.front().and_then(|place| self.waiting[place]);
        head.expect("workflows in the ring have something waiting").cost
    }

    /// Without a configured quantum: the largest cost of late, so that every turn serves at least
    /// one request. One dear request is forgotten after a few thousand.
    fn follow(&mut self, cost: Cost) {
        if self.config.quantum == 0 {
            self.quantum = (self.quantum - self.quantum / 1_024).max(cost.0).max(1);
        }
    }

    fn pass_turn(&mut self, flow: usize) {
        self.ring_links.remove(&mut self.ring, flow);
        self.ring_links.push_back(&mut self.ring, flow);
        self.granted = false;
    }

    /// Nobody could be served in a whole round: lets pass all rounds but the last before somebody
    /// can.
    fn skip_rounds(&mut self) {
        let short = |flow: usize| {
            let missing = self.head_cost(flow).saturating_sub(self.flows[flow].deficit);
            missing.div_ceil(self.grant(flow)).saturating_sub(1)
        };
        let rounds = self.busy().map(short).min().unwrap_or(0);
        let mut next = self.ring.front();
        while let Some(flow) = next {
            let granted = self.grant(flow).saturating_mul(rounds);
            self.flows[flow].deficit = self.flows[flow].deficit.saturating_add(granted);
            next = self.ring_links.after(flow);
        }
    }

    fn busy(&self) -> impl Iterator<Item = usize> {
        std::iter::successors(self.ring.front(), |flow| self.ring_links.after(*flow))
    }

    fn take(&mut self, place: usize) -> Option<RequestId> {
        let Waiting { id, flow, .. } = self.waiting[place].take()?;
        self.links.remove(&mut self.flows[flow].queue, place);
        self.len -= 1;
        if self.flows[flow].queue.is_empty() {
            self.granted &= self.ring.front() != Some(flow);
            self.ring_links.remove(&mut self.ring, flow);
            self.ring_len -= 1;
            self.flows[flow].deficit = 0;
        }
        Some(id)
    }
}

impl Scheduler for Drr {
    fn name(&self) -> &'static str {
        "drr"
    }

    fn push(&mut self, _now: Instant, request: &Request) {
        self.follow(request.cost);
        let (place, flow) = (request.id.index(), usize::from(request.context.workflow.0));
        // Numbers beyond the table's limit do not occur; if one does, it shares the last.
        let flow = flow.min(Workflows::LIMIT);
        if table::at(&mut self.flows, flow, Flow::default).queue.is_empty() {
            self.ring_links.push_back(&mut self.ring, flow);
            self.ring_len += 1;
        }
        let waiting = Waiting { id: request.id, flow, cost: request.cost.0 };
        *table::at(&mut self.waiting, place, || None) = Some(waiting);
        self.links.push_back(&mut self.flows[flow].queue, place);
        self.len += 1;
    }

    fn pop(&mut self, _now: Instant) -> Option<RequestId> {
        let mut turns = 0;
        loop {
            let flow = self.ring.front()?;
            if !self.granted {
                self.granted = true;
                self.flows[flow].deficit =
                    self.flows[flow].deficit.saturating_add(self.grant(flow));
            }
            let cost = self.head_cost(flow);
            if cost <= self.flows[flow].deficit {
                self.flows[flow].deficit -= cost;
                let place = self.flows[flow].queue.front()?;
                return self.take(place);
            }
            self.pass_turn(flow);
            turns += 1;
            if turns == self.ring_len {
                self.skip_rounds();
            }
        }
    }

    fn remove(&mut self, id: RequestId) -> bool {
        let place = id.index();
        if self.waiting.get(place).copied().flatten().is_none_or(|other| other.id != id) {
            return false;
        }
        self.take(place).is_some()
    }

    fn len(&self) -> usize {
        self.len
    }

    fn name_workflows(&mut self, number: &mut dyn FnMut(&str) -> Workflow) {
        self.weights.clear();
        for (name, weight) in &self.config.weights {
            let workflow = number(name);
            // A name that got no number is that of nobody in particular.
            if name.is_empty() || workflow != Workflow::NONE {
                *table::at(&mut self.weights, usize::from(workflow.0), || 1) = *weight;
            }
        }
    }

    /// Shares of the allocator replace the weights configured; without any, those come back. Who has no share
    /// is new, and gets as much as the largest.
    fn set_weights(&mut self, weights: &[u32]) {
        self.allotted.clear();
        self.allotted.extend_from_slice(weights);
        self.largest = weights.iter().copied().max().unwrap_or(0);
    }

    fn clone_box(&self) -> Box<dyn Scheduler> {
        Box::new(self.clone())
    }
}

/// Parameters of [`Drr`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DrrConfig {
    /// Cost a workflow of weight 1 may spend per turn, in the driver's unit of cost (nanoseconds
    /// unless it chose another). More serves longer runs of one workflow; less is fairer over short
    /// times, and below the cost of a request saves nothing more. Default 0: the largest cost seen
    /// of late, the smallest quantum that serves somebody in every turn, in whatever unit costs are.
    pub quantum: u64,
    /// Weight by name of the workflow, an empty one being that of requests without; missing ones are 1. Twice
    /// the weight gets twice the cost per round. Default: none, all are equal.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub weights: BTreeMap<String, u32>,
}

impl DrrConfig {
    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        problems.within("weights", |problems| {
            for (name, weight) in &self.weights {
                problems.check(name, weight, (1..=1_000_000).contains(weight), "1 to 1000000");
            }
        });
        let most = Workflows::LIMIT + 1;
        let count = self.weights.len();
        problems.check("weights", count, count <= most, &format!("at most {most} weights"));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::schedule::tests::{at, request};

    fn of(place: u32, workflow: u16, cost: u64) -> Request {
        let mut request = request(place);
        request.context.workflow = Workflow(workflow);
        request.cost = Cost(cost);
        request
    }

    #[test]
    fn dear_and_cheap_workflows_get_the_same_cost() {
        let mut order = Drr::new(&DrrConfig::default());
        for n in 0..100 {
            order.push(at(0), &of(2 * n, 1, 1_000));
            order.push(at(0), &of(2 * n + 1, 2, 100));
        }
        let mut served = [0, 0];
        for _ in 0..33 {
            let dear = order.pop(at(0)).expect("all wait").index().is_multiple_of(2);
            served[usize::from(!dear)] += if dear { 1_000 } else { 100 };
        }
        assert_eq!(served, [3_000, 3_000]);
    }

    #[test]
    fn an_idle_workflow_saves_nothing() {
        let mut order = Drr::new(&DrrConfig { quantum: 150, ..DrrConfig::default() });
        order.push(at(0), &of(0, 1, 100));
        assert!(order.pop(at(0)).is_some());
        for place in 0..8 {
            order.push(at(0), &of(place, 1 + (place % 2) as u16, 100));
        }
        // 50 left over by the first visit would have let workflow 1 begin with two.
        let first: Vec<_> = (0..3).filter_map(|_| order.pop(at(0))).map(RequestId::index).collect();
        assert_eq!(first, [0, 1, 2]);
    }

    #[test]
    fn a_tiny_quantum_serves_at_once() {
        let mut order = Drr::new(&DrrConfig { quantum: 1, ..DrrConfig::default() });
        order.push(at(0), &of(0, 1, u64::MAX / 4));
        order.push(at(0), &of(1, 2, u64::MAX / 5));
        assert_eq!(order.pop(at(0)).map(RequestId::index), Some(1));
        assert_eq!(order.pop(at(0)).map(RequestId::index), Some(0));
    }

    proptest! {
        /// Three workflows that always have something waiting: no two differ by more than the bound,
        /// per unit of weight, since the beginning and since any later moment.
        #[test]
        fn backlogged_workflows_are_served_alike(
            quantum in 1..400u64,
            weights in prop::collection::vec(1..4u32, 4),
            costs in prop::collection::vec(1..300u64, 300),
        ) {
            let named = weights.iter().enumerate().map(|(n, weight)| (format!("{n}"), *weight));
            let mut order = Drr::new(&DrrConfig { quantum, weights: named.collect() });
            order.name_workflows(&mut |name| Workflow(name.parse().expect("a number")));
            let mut waiting: Vec<(u16, u64)> = Vec::new();
            for (n, cost) in costs.iter().enumerate().take(30) {
                let workflow = 1 + (n % 3) as u16;
                order.push(at(0), &of(n as u32, workflow, *cost));
                waiting.push((workflow, *cost));
            }
            let mut served = [0.0f64; 3];
            let mut history = vec![served];
            for cost in &costs[30..] {
                let place = order.pop(at(0)).expect("backlogged").index();
                let (workflow, paid) = waiting[place];
                served[usize::from(workflow) - 1] += paid as f64 / f64::from(weights[usize::from(workflow)]);
                history.push(served);
                waiting[place].1 = *cost;
                order.push(at(0), &of(place as u32, workflow, *cost));
            }
            let (largest, quantum) = (299.0, quantum as f64);
            for (from, begin) in history.iter().enumerate() {
                let bound = quantum + if from == 0 { largest } else { 2.0 * largest };
                for end in &history[from..] {
                    for (a, b) in [(0, 1), (1, 2), (0, 2)] {
                        let apart = (end[a] - begin[a]) - (end[b] - begin[b]);
                        prop_assert!(apart.abs() <= bound + 1e-6, "{apart} apart, bound {bound}");
                    }
                }
            }
        }
    }
}
