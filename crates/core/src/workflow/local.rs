//! The local policy: what this process can take of each workflow (Wisp §4.3, line 1 of Algorithm 1).
//!
//! Resources are the gate's slots (threads), the cores if their number is known, and whatever pools the
//! driver reports. Each workflow's use of each is measured as busy time per request.
//!
//! 1. A resource is overloaded when it is busy for more than `target` of its capacity.
//! 2. If one is, the allocator divides what there is among the workflows that contend for it. Who asks for
//!    more than its grant gets it as its limit; who does not has none. Workflows that do not use the
//!    resource are not touched.
//! 3. If none is, limits rise by `probe` × (rate at which the workflow alone would fill the process) ×
//!    (spare capacity): quickly while there is room, carefully when there is little. A limit that has
//!    risen to that rate is none any more.
//!
//! Where we deviate:
//!
//! - A workflow whose arrivals come up to its limit is held back by it, so what it would want is not
//!   known: it counts as wanting all. Otherwise the limit would look like demand, others would be
//!   given the rest, and shares would wander.
//! - Of the slots, what is divided is `target` less what it takes to work off the queue within `drain`: without
//!   that, a queue built up before the limits came would stand for ever at a utilization of one.
//! - All local limits rise, not only those of leaves: a process in the middle whose own limit ended with
//!   its overload would swing between none and a limit. What is downstream limits it all the same.

use super::config::WorkflowConfig;
use super::smooth::Smooth;
use super::usage::Usage;
use crate::allocate::{Allocator, Ask, allocate};
use crate::context::{Workflow, Workflows};
use crate::meter::Cost;
use crate::table;
use crate::time::{Instant, Span};

/// A resource of this process, numbered in the order they were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceId(pub u16);

impl ResourceId {
    /// The gate's slots.
    pub const SLOTS: Self = Self(0);
    /// The cores, counted by what requests cost when they finish.
    pub const CORES: Self = Self(1);
}

/// A limit is reached from this part of it on: arrivals are counted over short periods.
const REACHED: f64 = 0.85;
/// Least part of the capacity that is divided, however long the queue: who is served nothing cannot
/// be measured.
const LEAST: f64 = 0.2;

/// Load by workflow and resource, and the limits that follow from it.
#[derive(Clone, Debug)]
pub(super) struct Local {
    allocator: Box<dyn Allocator>,
    /// Capacity of each resource, in busy seconds per second; one of zero is not counted.
    capacity: Vec<f64>,
    /// Busy share of each, smoothed.
    busy: Vec<Smooth>,
    flows: Vec<Flow>,
    slots: Usage,
}

#[derive(Clone, Debug, Default)]
struct Flow {
    /// Requests that came, let in or not.
    arrivals: Smooth,
    /// Requests that started.
    started: Smooth,
    /// Busy time by resource, in seconds.
    busy: Vec<Smooth>,
    /// Requests per second, if limited.
    limit: Option<f64>,
}

impl Flow {
    /// Busy seconds per request.
    fn uses(&self, resource: usize) -> f64 {
        let busy = self.busy.get(resource).map_or(0.0, Smooth::rate);
        if self.started.rate() > 0.0 { busy / self.started.rate() } else { 0.0 }
    }

    /// What it wants: what comes, or all if its limit holds it back.
    fn demand(&self) -> f64 {
        match self.limit {
            Some(limit) if self.arrivals.rate() >= REACHED * limit => f64::INFINITY,
            _ => self.arrivals.rate(),
        }
    }
}

impl Local {
    pub(super) fn new(config: &WorkflowConfig) -> Self {
        Self {
            allocator: config.allocator.build(),
            capacity: vec![0.0, config.cores],
            busy: vec![Smooth::default(); 2],
            flows: Vec::new(),
            slots: Usage::default(),
        }
    }

    pub(super) fn reconfigure(&mut self, config: &WorkflowConfig) {
        self.allocator = config.allocator.build();
        self.capacity[usize::from(ResourceId::CORES.0)] = config.cores;
    }

    /// Another resource that can be held `capacity` times at once.
    pub(super) fn add_resource(&mut self, capacity: f64) -> ResourceId {
        self.capacity.push(capacity);
        self.busy.push(Smooth::default());
        ResourceId(u16::try_from(self.capacity.len() - 1).expect("a process has few resources"))
    }

    pub(super) fn on_arrival(&mut self, workflow: Workflow) {
        self.flow(workflow).arrivals.add(1.0);
    }

    pub(super) fn on_start(&mut self, workflow: Workflow) {
        self.flow(workflow).started.add(1.0);
    }

    pub(super) fn take_slot(&mut self, now: Instant, workflow: Workflow) {
        self.slots.begin(now, workflow);
    }

    pub(super) fn free_slot(&mut self, now: Instant, workflow: Workflow) {
        self.slots.end(now, workflow);
    }

    pub(super) fn on_finish(&mut self, workflow: Workflow, cost: Cost) {
        self.on_use(ResourceId::CORES, workflow, Span::from_nanos(cost.0));
    }

    /// A request of `workflow` has kept a resource busy for so long.
    pub(super) fn on_use(&mut self, resource: ResourceId, workflow: Workflow, time: Span) {
        let place = usize::from(resource.0);
        let flow = self.flow(workflow);
        table::at(&mut flow.busy, place, Smooth::default).add(time.as_secs_f64());
    }

    /// A period of `seconds` ends.
    pub(super) fn close(&mut self, now: Instant, seconds: f64) {
        for place in 0..self.slots.len() {
            let workflow = Workflow(place as u16);
            let time = self.slots.take(now, workflow);
            self.on_use(ResourceId::SLOTS, workflow, time);
        }
        for flow in &mut self.flows {
            for (total, own) in self.busy.iter_mut().zip(&mut flow.busy) {
                total.add(own.counted());
                own.close(seconds);
            }
            flow.arrivals.close(seconds);
            flow.started.close(seconds);
        }
        for total in &mut self.busy {
            total.close(seconds);
        }
    }

    /// Sets limits anew, with `slots` slots and a queue that takes `delay` to work off.
    pub(super) fn limit(&mut self, config: &WorkflowConfig, slots: u32, delay: Span) {
        self.capacity[0] = f64::from(slots);
        let fullest = self.utilization();
        // Beyond rounding: sums of many small times.
        if fullest >= config.target * (1.0 - 1e-9) {
            let queue = delay.as_secs_f64() / config.drain.as_secs_f64();
            // What waits in the gate waits for slots; other resources have queues of their own.
            let slots = (config.target - queue).max(LEAST * config.target);
            self.divide(config, slots);
        } else {
            self.probe(config.probe * (1.0 - fullest / config.target));
        }
    }

    /// Busy share of the fullest resource.
    pub(super) fn utilization(&self) -> f64 {
        let counted = self.busy.iter().zip(&self.capacity).filter(|(_, there)| **there > 0.0);
        counted.map(|(busy, there)| busy.rate() / there).fold(0.0, f64::max)
    }

    /// Gives everybody its share of the capacities: of `slots` of the slots, of the target of the others.
    fn divide(&mut self, config: &WorkflowConfig, slots: f64) {
        let mut there: Vec<f64> = self.capacity.iter().map(|all| all * config.target).collect();
        there[0] = self.capacity[0] * slots;
        let asks: Vec<Ask> = (0..self.flows.len()).map(|place| self.ask(config, place)).collect();
        // Our own numbers are finite and not negative, so there is an answer.
        let Ok(grants) = allocate(&*self.allocator, &there, &asks) else { return };
        for ((flow, ask), grant) in self.flows.iter_mut().zip(&asks).zip(grants) {
            let cut = grant < ask.demand * (1.0 - 1e-9);
            flow.limit = (cut && ask.uses.iter().any(|used| *used > 0.0)).then_some(grant);
        }
    }

    fn ask(&self, config: &WorkflowConfig, place: usize) -> Ask {
        let flow = &self.flows[place];
        let (weight, band) = config.share_of(Workflow(place as u16));
        let uses = (0..self.capacity.len())
            .map(|resource| if self.capacity[resource] > 0.0 { flow.uses(resource) } else { 0.0 })
            .collect();
        Ask { demand: flow.demand(), weight, band, uses }
    }

    /// Raises limits by a part of what each workflow could have if it were alone.
    fn probe(&mut self, part: f64) {
        for flow in &mut self.flows {
            let Some(limit) = flow.limit else { continue };
            let alone = self
                .capacity
                .iter()
                .enumerate()
                .filter(|(resource, there)| **there > 0.0 && flow.uses(*resource) > 0.0)
                .map(|(resource, there)| there / flow.uses(resource))
                .fold(f64::INFINITY, f64::min);
            let raised = limit + part * alone;
            flow.limit = (raised < alone).then_some(raised);
        }
    }

    /// The limit of a workflow, infinity for none.
    pub(super) fn limit_of(&self, workflow: Workflow) -> f64 {
        self.get(workflow).and_then(|flow| flow.limit).unwrap_or(f64::INFINITY)
    }

    /// Requests of a workflow started per second.
    pub(super) fn started(&self, workflow: Workflow) -> f64 {
        self.get(workflow).map_or(0.0, |flow| flow.started.rate())
    }

    /// Workflows seen so far: their numbers are below this.
    pub(super) fn len(&self) -> usize {
        self.flows.len()
    }

    /// What part of the capacity each workflow may count on when all want everything: turns of `drr`.
    /// Empty when fewer than two are there.
    pub(super) fn entitlements(&self, config: &WorkflowConfig) -> Vec<f64> {
        let greedy = |place| {
            let ask = self.ask(config, place);
            let active = ask.demand > 0.0 && ask.uses.iter().any(|used| *used > 0.0);
            Ask { demand: if active { f64::INFINITY } else { 0.0 }, ..ask }
        };
        let asks: Vec<Ask> = (0..self.flows.len()).map(greedy).collect();
        if asks.iter().filter(|ask| ask.demand > 0.0).count() < 2 {
            return Vec::new();
        }
        let Ok(grants) = allocate(&*self.allocator, &self.capacity, &asks) else {
            return Vec::new();
        };
        // In cost, as turns are counted: core time if that is known, else time in slots.
        let cost = |ask: &Ask| if ask.uses[1] > 0.0 { ask.uses[1] } else { ask.uses[0] };
        let part = |(ask, grant): (&Ask, f64)| if grant > 0.0 { cost(ask) * grant } else { 0.0 };
        asks.iter().zip(grants).map(part).collect()
    }

    fn flow(&mut self, workflow: Workflow) -> &mut Flow {
        let place = usize::from(workflow.0).min(Workflows::LIMIT);
        table::at(&mut self.flows, place, Flow::default)
    }

    fn get(&self, workflow: Workflow) -> Option<&Flow> {
        self.flows.get(usize::from(workflow.0).min(Workflows::LIMIT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: f64 = 0.1;

    fn exact() -> WorkflowConfig {
        WorkflowConfig { cores: 1.0, target: 1.0, ..WorkflowConfig::default() }
    }

    /// Periods in which each workflow offers so many per second and each served one takes 2 ms of a core, and
    /// of a slot if there is one.
    fn play(local: &mut Local, config: &WorkflowConfig, periods: u32, rates: &[(u32, u32)]) {
        for _ in 0..periods {
            for (workflow, (offered, served)) in (1..).map(Workflow).zip(rates) {
                (0..offered / 10).for_each(|_| local.on_arrival(workflow));
                for _ in 0..served / 10 {
                    local.on_start(workflow);
                    local.on_finish(workflow, Cost::from(Span::from_millis(2)));
                }
            }
            local.close(Instant::ZERO, PERIOD);
            local.limit(config, 0, Span::ZERO);
        }
    }

    /// Wisp §4.1.2, Figure 3: at e2, 400, 100 and 100 of a capacity of 500.
    #[test]
    fn only_the_workflow_above_its_fair_share_is_limited() {
        let (config, mut local) = (exact(), Local::new(&exact()));
        play(&mut local, &config, 5, &[(400, 300), (100, 100), (100, 100)]);
        assert!((local.limit_of(Workflow(1)) - 300.0).abs() < 1e-6);
        assert_eq!(local.limit_of(Workflow(2)), f64::INFINITY);
    }

    #[test]
    fn a_workflow_at_its_limit_is_taken_to_want_more() {
        let (config, mut local) = (exact(), Local::new(&exact()));
        play(&mut local, &config, 5, &[(400, 300), (100, 100), (100, 100)]);
        // Upstreams keep to it: nothing is offered beyond 300 any more.
        play(&mut local, &config, 20, &[(300, 300), (100, 100), (100, 100)]);
        assert!((local.limit_of(Workflow(1)) - 300.0).abs() < 1e-6);
        // The others leave: it may have all, step by step.
        play(&mut local, &config, 60, &[(300, 300), (0, 0), (0, 0)]);
        assert_eq!(local.limit_of(Workflow(1)), f64::INFINITY);
    }

    #[test]
    fn a_limit_rises_faster_with_more_room() {
        let config = WorkflowConfig { probe: 0.01, ..exact() };
        let raised = |others: u32| {
            let mut local = Local::new(&config);
            play(&mut local, &config, 5, &[(400, 300), (100, 100), (100, 100)]);
            play(&mut local, &config, 20, &[(200, 200), (others, others), (0, 0)]);
            local.limit_of(Workflow(1))
        };
        assert!(raised(250) > 300.0);
        assert!(raised(50) > raised(250));
    }

    #[test]
    fn a_queue_is_worked_off() {
        let config = WorkflowConfig { cores: 0.0, ..exact() };
        let mut local = Local::new(&config);
        for _ in 0..5 {
            for workflow in [Workflow(1), Workflow(2)] {
                (0..40).for_each(|_| local.on_arrival(workflow));
                (0..25).for_each(|_| local.on_start(workflow));
                local.on_use(ResourceId::SLOTS, workflow, Span::from_millis(50));
            }
            local.close(Instant::ZERO, PERIOD);
        }
        for (queue, share, what) in
            [(0.0, 250.0, "all"), (0.1, 225.0, "a tenth less"), (50.0, 50.0, "never nothing")]
        {
            local.limit(&config, 1, config.drain.scale(queue));
            assert!((local.limit_of(Workflow(1)) - share).abs() < 1e-6, "{what}");
        }
    }

    /// Threads held long are a resource beside the cores: who holds them is limited, who only computes is
    /// not.
    #[test]
    fn the_scarce_resource_decides_whom_to_limit() {
        let config = exact();
        let mut local = Local::new(&config);
        let now = |period: u64| Instant::ZERO + Span::from_millis(100 * period);
        let (slow, quick) = (Workflow(1), Workflow(2));
        for _ in 0..4 {
            local.take_slot(now(0), slow);
        }
        for period in 1..10 {
            for _ in 0..2 {
                local.on_arrival(slow);
                local.on_start(slow);
            }
            for _ in 0..10 {
                local.on_arrival(quick);
                local.on_start(quick);
                local.on_finish(quick, Cost::from(Span::from_millis(2)));
            }
            local.close(now(period), PERIOD);
            local.limit(&config, 4, Span::from_millis(100));
        }
        assert!(local.limit_of(slow) < 20.0, "{}", local.limit_of(slow));
        assert_eq!(local.limit_of(quick), f64::INFINITY);
    }
}
