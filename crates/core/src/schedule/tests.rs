//! Every order against a naive model: a list, searched from end to end for what is next.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::context::{Context, Progress, Workflow};
use crate::gate::{Action, Gate, GateConfig};
use crate::meter::Cost;
use crate::slab::{Key, Slab};
use crate::slots::SlotsConfig;
use crate::time::Span;
use crate::verdict::Outcome;

pub(super) fn at(millis: u64) -> Instant {
    Instant::ZERO + Span::from_millis(millis)
}

/// A request at `place` about which nothing is known.
pub(super) fn request(place: u32) -> Request {
    Request {
        id: Key::from_u64(u64::from(place)),
        context: Context::default(),
        arrived: Instant::ZERO,
        enqueued: Instant::ZERO,
        cost: Cost(1),
        attained: Span::ZERO,
    }
}

/// What waits, in the order it joined, with the moment the queue was last empty.
#[derive(Default)]
struct Model {
    waiting: Vec<Request>,
    empty_until: Instant,
    deficits: BTreeMap<u16, u64>,
    ring: Vec<u16>,
    granted: bool,
}

impl Model {
    fn push(&mut self, now: Instant, request: Request) {
        if self.waiting.is_empty() {
            self.empty_until = now;
        }
        let workflow = request.context.workflow.0;
        if !self.ring.contains(&workflow) {
            self.ring.push(workflow);
        }
        self.waiting.push(request);
    }

    fn pop(&mut self, now: Instant, config: &ScheduleConfig) -> Option<RequestId> {
        if self.waiting.is_empty() {
            return None;
        }
        let at = match config {
            ScheduleConfig::Fifo => 0,
            ScheduleConfig::AdaptiveLifo(config) => self.next_in_lifo(now, config.interval),
            ScheduleConfig::Drr(config) => self.next_in_drr(config),
            ScheduleConfig::Edf => self.least(|r| r.context.deadline.as_nanos().into()),
            ScheduleConfig::Lstf => self.least(|r| match r.context.deadline {
                Instant::FAR => i128::MAX,
                deadline => (i128::from(deadline.as_nanos()) - remaining(r)).max(0),
            }),
            ScheduleConfig::Sjf => {
                self.least(|r| i128::from(r.cost.0) + i128::from(r.attained.as_nanos()))
            }
            ScheduleConfig::Srtf => self.least(remaining),
            ScheduleConfig::Lasf => self
                .least(|r| r.attained.as_nanos().max(r.context.progress.elapsed.as_nanos()).into()),
        };
        let id = self.waiting[at].id;
        self.remove(id);
        Some(id)
    }

    fn remove(&mut self, id: RequestId) -> bool {
        let Some(at) = self.waiting.iter().position(|request| request.id == id) else {
            return false;
        };
        let workflow = self.waiting.remove(at).context.workflow;
        if !self.waiting.iter().any(|request| request.context.workflow == workflow) {
            self.granted &= self.ring.first() != Some(&workflow.0);
            self.ring.retain(|number| *number != workflow.0);
            self.deficits.remove(&workflow.0);
        }
        true
    }

    /// The first of those with the least key.
    fn least(&self, key: impl Fn(&Request) -> i128) -> usize {
        let places = 0..self.waiting.len();
        places.min_by_key(|at| (key(&self.waiting[*at]), *at)).expect("not empty")
    }

    fn next_in_lifo(&self, now: Instant, interval: Span) -> usize {
        let expired = self.waiting[0].context.deadline <= now;
        if expired || now.since(self.empty_until) < interval { 0 } else { self.waiting.len() - 1 }
    }

    /// The paper's loop, round after round.
    fn next_in_drr(&mut self, config: &DrrConfig) -> usize {
        loop {
            let workflow = self.ring[0];
            let weight = config.weights.get(&numeral(workflow)).copied().unwrap_or(1);
            let deficit = self.deficits.entry(workflow).or_default();
            if !std::mem::replace(&mut self.granted, true) {
                *deficit += config.quantum * u64::from(weight);
            }
            let mut queue = self.waiting.iter();
            let head = queue.position(|r| r.context.workflow.0 == workflow).expect("in the ring");
            let cost = self.waiting[head].cost.0;
            if cost <= *deficit {
                *deficit -= cost;
                return head;
            }
            self.ring.rotate_left(1);
            self.granted = false;
        }
    }
}

fn remaining(request: &Request) -> i128 {
    let Progress { elapsed, total, .. } = request.context.progress;
    match total {
        Span::ZERO => request.cost.0.into(),
        _ => (i128::from(total.as_nanos()) - i128::from(elapsed.as_nanos())).max(0),
    }
}

#[derive(Clone, Debug)]
enum Op {
    Push {
        workflow: u16,
        deadline: Option<u64>,
        cost: u64,
        total: u64,
    },
    Pop,
    /// Takes out what waits at a place, or fails to.
    Remove(usize),
    /// Something that was popped returns after having been served for so long.
    Resume(usize, u64),
    Wait(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let push = (0..4u16, prop::option::of(0..40u64), 1..30u64, 0..3u64).prop_map(
        |(workflow, deadline, cost, total)| Op::Push {
            workflow,
            deadline,
            cost,
            total: total * 20,
        },
    );
    prop_oneof![
        4 => push,
        3 => Just(Op::Pop),
        1 => (0..30usize).prop_map(Op::Remove),
        2 => (0..10usize, 0..20u64).prop_map(|(n, served)| Op::Resume(n, served)),
        1 => (0..20u64).prop_map(Op::Wait),
    ]
}

/// Plays `ops` through the real order and the model.
fn check(config: &ScheduleConfig, ops: &[Op]) -> Result<(), TestCaseError> {
    let (mut order, mut model) = (config.build(), Model::default());
    order.name_workflows(&mut |name| Workflow(name.parse().unwrap_or(0)));
    let mut requests = Slab::default();
    let mut popped: Vec<RequestId> = Vec::new();
    let mut now = Instant::ZERO;
    for op in ops {
        match *op {
            Op::Push { workflow, deadline, cost, total } => {
                let mut request = request(0);
                request.context.workflow = Workflow(workflow);
                request.context.deadline =
                    deadline.map_or(Instant::FAR, |d| now + Span::from_nanos(d));
                request.context.progress.total = Span::from_nanos(total);
                request.cost = Cost(cost);
                let id = requests.insert_with(|id| Request { id, ..request });
                request.id = id;
                order.push(now, &request);
                model.push(now, request);
            }
            Op::Pop => {
                let id = order.pop(now);
                prop_assert_eq!(id, model.pop(now, config), "{}", order.name());
                popped.extend(id);
            }
            Op::Remove(place) => {
                let Some(id) = requests.key_at(place) else { continue };
                let removed = model.remove(id);
                prop_assert_eq!(order.remove(id), removed);
                if removed || popped.contains(&id) {
                    popped.retain(|other| *other != id);
                    requests.remove(id);
                    prop_assert!(!order.remove(id), "an ended id finds nothing");
                }
            }
            Op::Resume(n, served) => {
                if popped.is_empty() {
                    continue;
                }
                let id = popped.swap_remove(n % popped.len());
                let request = requests.get_mut(id).expect("popped, not ended");
                request.attained += Span::from_nanos(served);
                request.context.progress.elapsed += Span::from_nanos(served);
                request.cost = Cost(request.cost.0.saturating_sub(served).max(1));
                order.push(now, request);
                model.push(now, *request);
            }
            Op::Wait(nanos) => now += Span::from_nanos(nanos),
        }
        prop_assert_eq!(order.len(), model.waiting.len());
        prop_assert_eq!(order.is_empty(), model.waiting.is_empty());
    }
    // A copy serves the rest in the same order and leaves the original as it was.
    let mut copy = order.clone();
    while let Some(id) = model.pop(now, config) {
        prop_assert_eq!(order.pop(now), Some(id));
        prop_assert_eq!(copy.pop(now), Some(id));
    }
    prop_assert_eq!(order.pop(now), None);
    Ok(())
}

fn numeral(workflow: u16) -> String {
    if workflow == 0 { String::new() } else { workflow.to_string() }
}

/// Weights by number, as names: that of requests without a workflow is the empty one.
fn numbered(weights: &[u32]) -> BTreeMap<String, u32> {
    (0..).zip(weights).map(|(n, weight)| (numeral(n), *weight)).collect()
}

proptest! {
    #[test]
    fn every_order_equals_its_model(
        ops in prop::collection::vec(op(), 0..300),
        interval in 0..60u64,
        quantum in 1..50u64,
        weights in prop::collection::vec(1..4u32, 0..4),
    ) {
        let interval = Span::from_nanos(interval);
        for config in [
            ScheduleConfig::Fifo,
            ScheduleConfig::AdaptiveLifo(AdaptiveLifoConfig { interval }),
            ScheduleConfig::Edf,
            ScheduleConfig::Lstf,
            ScheduleConfig::Sjf,
            ScheduleConfig::Srtf,
            ScheduleConfig::Lasf,
            ScheduleConfig::Drr(DrrConfig { quantum, weights: numbered(&weights) }),
        ] {
            check(&config, &ops)?;
        }
    }
}

#[test]
fn only_fifo_keeps_arrival_order_and_names_are_those_of_the_configuration() {
    for name in ["fifo", "adaptive-lifo", "edf", "lstf", "sjf", "srtf", "lasf", "drr"] {
        let text = format!("[schedule]\norder = \"{name}\"\n");
        let config = GateConfig::from_toml(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let order = config.schedule.build();
        assert_eq!(order.name(), name);
        assert_eq!(order.keeps_arrival_order(), name == "fifo");
        assert_eq!(GateConfig::from_toml(&config.to_toml()).as_ref(), Ok(&config));
    }
}

#[test]
fn bad_parameters_are_named() {
    let text = "[schedule]\norder = \"drr\"\nquantum = 5\nweights = [1, 0]";
    let error = GateConfig::from_toml(text).expect_err("a weight of zero");
    assert_eq!(error.problems()[0].field, "schedule.weights");
    let text = "[schedule]\norder = \"adaptive-lifo\"\ninterval = \"2h\"";
    let error = GateConfig::from_toml(text).expect_err("two hours");
    assert_eq!(error.problems()[0].field, "schedule.interval");
    assert!(GateConfig::from_toml("[schedule]\norder = \"drr\"\nquanta = 5").is_err());
}

/// Wisp §4.2, Figure 4: at b, w1 has deadline 10 and needs 3 there; w2 has deadline 12 and needs 3
/// there and 7 at c. By deadline w2 ends at 13, by slack both are in time.
#[test]
fn least_slack_meets_deadlines_that_earliest_deadline_misses() {
    let w1 = (10, 3, 0);
    let w2 = (12, 3, 7);
    let finish = |config: ScheduleConfig| {
        let mut order = config.build();
        for (place, (deadline, here, further)) in [w1, w2].into_iter().enumerate() {
            let mut request = request(place as u32);
            request.context.deadline = at(deadline);
            request.context.progress.total = Span::from_millis(here + further);
            order.push(at(0), &request);
        }
        let (mut free, mut ends) = (0, [0, 0]);
        while let Some(id) = order.pop(at(free)) {
            let (_, here, further) = [w1, w2][id.index()];
            free += here;
            // Nobody else is at c.
            ends[id.index()] = free + further;
        }
        ends
    };
    assert_eq!(finish(ScheduleConfig::Edf), [3, 13]);
    assert_eq!(finish(ScheduleConfig::Lstf), [6, 10]);
}

/// Each step's service is taken off the estimate once, however many steps there are.
#[test]
fn a_request_in_steps_comes_back_with_what_is_left() {
    let config = GateConfig {
        schedule: ScheduleConfig::Srtf,
        slots: SlotsConfig::fixed(1),
        ..GateConfig::default()
    };
    let mut gate = Gate::new(&config, at(0), 1).expect("valid");
    let first = gate.arrive(at(0), &Context::default()).expect("open");
    gate.dispatch(at(0));
    gate.finish(at(10), first, Outcome::Serve, Cost::from(Span::from_millis(10)));

    let long = gate.arrive(at(10), &Context::default()).expect("open");
    let mut left = Vec::new();
    for step in 0..3 {
        let now = at(10 + 3 * step);
        gate.dispatch(now);
        gate.pause(now + Span::from_millis(3), long);
        gate.resume(now + Span::from_millis(3), long, Progress::default());
        left.push(gate.request(long).expect("waits").cost);
    }
    assert_eq!(left, [7, 4, 1].map(|ms| Cost::from(Span::from_millis(ms))));

    // What is nearly done goes before what has just come.
    gate.arrive(at(19), &Context::default()).expect("open");
    while gate.poll().is_some() {}
    gate.dispatch(at(19));
    assert_eq!(gate.poll(), Some(Action::Start { id: long, degraded: false }));
}
