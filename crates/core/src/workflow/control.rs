//! Rate adaptation (Wisp §4.1, Algorithm 1): how many requests of each workflow may come in per second.
//!
//! Every period, for each workflow:
//!
//! 1. The local policy says what this process can take (`local`).
//! 2. For each downstream service, each of its processes' grants is divided by the calls that one request
//!    makes to it (`downstream`).
//! 3. The q-quantile over the processes of a service is what the service allows.
//! 4. The rate is the least of all these.
//! 5. Callers are told their part of it, in proportion to their demand (`upstream`).
//!
//! A workflow that nothing limits has no rate, and its callers are told none: only the path that leads to
//! a bottleneck is throttled. Rates travel with responses instead of being asked for (Wisp §5 leaves that
//! open), so they go up one hop per round trip and period.
//!
//! Periods end when the gate next hears of anything; one that was missed is part of a longer one, which
//! costs no more.
//!
//! Where we deviate: callers are told a little less while a line stands at our limiter, or it would stand for
//! ever, and what waits too long in it was worked for in vain further up.

use super::config::WorkflowConfig;
use super::downstream::Downstream;
use super::limiter::Limiter;
use super::local::{Local, ResourceId};
use super::progress::Totals;
use super::upstream::Upstream;
use crate::context::{CallerId, Context, Workflow};
use crate::feedback::Feedback;
use crate::gate::CalleeId;
use crate::meter::Cost;
use crate::time::{Instant, Span};

/// Least rate announced, per second: with none at all nothing would ever come to be measured.
const FLOOR: f64 = 1.0;
/// Over how many lives of a grant the parts of callers, and those of processes behind, are averaged: on both sides
/// alike, since a grant is divided by both. With periods of 100 ms and grants of a second, one call in five periods
/// is known to within a third.
const LIVES: f64 = 2.0;
/// Periods within which a line at the limiter is to be worked off.
const LINE: f64 = 10.0;
/// Least part of a rate that callers are told, however long the line.
const LEAST: f64 = 0.2;

/// Rates by workflow.
#[derive(Clone, Debug)]
pub struct RateControl {
    config: WorkflowConfig,
    local: Local,
    downstream: Downstream,
    upstream: Upstream,
    /// Keeps to the rates at the door.
    pub(crate) limiter: Limiter,
    /// Service that requests of each workflow take in all.
    pub(crate) totals: Totals,
    /// When the period that runs began.
    began: Instant,
    /// Requests per second by workflow, infinity for no limit.
    rates: Vec<f64>,
}

impl RateControl {
    /// Nothing is limited yet.
    pub fn new(config: &WorkflowConfig, now: Instant) -> Self {
        Self {
            config: config.clone(),
            local: Local::new(config),
            downstream: Downstream::default(),
            upstream: Upstream::new(config.period.as_secs_f64(), gain(config, config.period)),
            limiter: Limiter::new(config),
            totals: Totals::default(),
            began: now,
            rates: Vec::new(),
        }
    }

    /// Takes new parameters in place.
    pub fn reconfigure(&mut self, config: &WorkflowConfig) {
        self.local.reconfigure(config);
        self.limiter.reconfigure(config);
        self.config = config.clone();
    }

    /// Tells the numbers of the workflows that the parameters name.
    pub fn name_workflows(&mut self, number: &mut dyn FnMut(&str) -> Workflow) {
        self.config.name_workflows(number);
    }

    /// The parameters in force.
    pub fn config(&self) -> &WorkflowConfig {
        &self.config
    }

    /// Adds a resource that can be held `capacity` times at once. What is no number above zero is taken
    /// as zero: not counted.
    pub fn add_resource(&mut self, capacity: f64) -> ResourceId {
        self.local.add_resource(if capacity.is_finite() { capacity.max(0.0) } else { 0.0 })
    }

    // === facts ===

    /// A request has come, whether or not it will be let in.
    pub fn on_arrival(&mut self, context: &Context) {
        self.local.on_arrival(context.workflow);
        self.upstream.add(context.workflow, context.caller, context.demand);
    }

    /// A request has got its first slot.
    pub fn on_start(&mut self, workflow: Workflow) {
        self.local.on_start(workflow);
    }

    /// A request holds a slot from now on.
    pub fn take_slot(&mut self, now: Instant, workflow: Workflow) {
        self.local.take_slot(now, workflow);
    }

    /// It no longer does.
    pub fn free_slot(&mut self, now: Instant, workflow: Workflow) {
        self.local.free_slot(now, workflow);
    }

    /// A request has ended at this cost, so long after it was let in.
    pub fn on_finish(&mut self, workflow: Workflow, cost: Cost, latency: Span) {
        self.local.on_finish(workflow, cost);
        self.limiter.on_finish(workflow, latency);
    }

    /// A request of `workflow` wants to call `callee`.
    pub fn on_call(&mut self, callee: CalleeId, workflow: Workflow) {
        self.downstream.on_call(callee, workflow);
    }

    /// A process of `callee` has answered a call. False if its grant is no rate.
    pub fn on_answer(
        &mut self,
        now: Instant,
        callee: CalleeId,
        workflow: Workflow,
        feedback: &Feedback,
    ) -> bool {
        let max_age = self.config.max_age;
        self.downstream.on_answer(now, callee, workflow, feedback, max_age)
    }

    /// A request of `workflow` has kept a resource busy for so long.
    pub fn on_use(&mut self, resource: ResourceId, workflow: Workflow, time: Span) {
        self.local.on_use(resource, workflow, time);
    }

    // === the step ===

    /// When the period ends.
    pub fn period_ends(&self) -> Instant {
        self.began + self.config.period
    }

    /// Ends the period if it is over: works out all rates anew, with `slots` slots and a queue that takes
    /// `delay` to work off. Whether it did.
    pub fn settle(&mut self, now: Instant, slots: u32, delay: Span) -> bool {
        let passed = now.since(self.began);
        if passed < self.config.period {
            return false;
        }
        let seconds = passed.as_secs_f64();
        self.began = now;
        self.local.close(now, seconds);
        let gain = gain(&self.config, passed);
        self.downstream.close(seconds, gain);
        self.upstream.close(seconds, gain);
        self.local.limit(&self.config, slots, delay);
        self.rates.resize(self.local.len(), f64::INFINITY);
        for place in 0..self.rates.len() {
            let workflow = Workflow(place as u16);
            let rate = self.work_out(now, workflow);
            self.rates[place] = rate;
            self.limiter.set_rate(now, workflow, rate);
        }
        self.limiter.end_period();
        true
    }

    /// Algorithm 1 for one workflow.
    fn work_out(&self, now: Instant, workflow: Workflow) -> f64 {
        let q = |callee| self.config.quantile_of(callee, workflow);
        let behind = self.downstream.allows(now, workflow, self.local.started(workflow), q);
        self.local.limit_of(workflow).min(behind).max(FLOOR)
    }

    // === answers ===

    /// Requests of `workflow` per second that may come in, if they are limited.
    pub fn rate(&self, workflow: Workflow) -> Option<f64> {
        self.rates.get(usize::from(workflow.0)).copied().filter(|rate| rate.is_finite())
    }

    /// What `caller` may send of it: its part, less what it takes to work off the line at the limiter within
    /// ten periods. Nobody knows how many the unknown are: they are told nothing.
    pub fn granted(&self, workflow: Workflow, caller: CallerId) -> Option<f64> {
        if caller == CallerId::UNKNOWN {
            return None;
        }
        let line =
            self.limiter.wait(workflow).as_secs_f64() / (LINE * self.config.period.as_secs_f64());
        let part = (1.0 - line).max(LEAST) * self.upstream.share(workflow, caller);
        self.rate(workflow).map(|rate| rate * part)
    }

    /// Whether requests of `workflow` end here: this process is its leaf.
    pub fn is_leaf(&self, workflow: Workflow) -> bool {
        !self.downstream.is_called_by(workflow)
    }

    /// Busy share of the fullest resource, 1 being all of it.
    pub fn utilization(&self) -> f64 {
        self.local.utilization()
    }

    /// Weights by workflow number for fair turns, 10,000 in all; empty while fewer than two contend.
    pub fn weights(&self) -> Vec<u32> {
        let shares = self.local.entitlements(&self.config);
        let total: f64 = shares.iter().sum();
        if total <= 0.0 {
            return Vec::new();
        }
        shares.iter().map(|share| ((share / total * 10_000.0).round() as u32).max(1)).collect()
    }
}

/// What a period weighs in the parts of callers and processes.
fn gain(config: &WorkflowConfig, period: Span) -> f64 {
    (period.as_secs_f64() / (LIVES * config.max_age.as_secs_f64())).min(1.0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::feedback::GateId;

    /// Wisp's Figure 3: processes by name, who calls whom, one core of 500 requests per second each.
    struct Graph {
        processes: BTreeMap<&'static str, RateControl>,
        now: Instant,
        sequence: u64,
        /// Calls of w1 to e2.
        to_e2: u64,
    }

    /// Requests of w1 call b1 twice; b1 calls c1 and c2, which call e1 and e2 each. w2 takes one way, w3
    /// goes from b1 to e2.
    fn calls(workflow: u16, process: &str) -> &'static [&'static str] {
        match (workflow, process) {
            (1, "a1") => &["b1", "b1"],
            (1, "b1") => &["c1", "c2"],
            (1, "c1" | "c2") | (2, "c1") => &["e1", "e2"],
            (2 | 3, "a1") => &["b1"],
            (2, "b1") => &["c1"],
            (3, "b1") => &["e2"],
            _ => &[],
        }
    }

    fn service(process: &str) -> CalleeId {
        CalleeId(u32::from(process.as_bytes()[0]))
    }

    fn id(process: &str) -> u64 {
        u64::from(process.as_bytes()[0]) * 10 + u64::from(process.as_bytes()[1])
    }

    impl Graph {
        fn new(q: f64) -> Self {
            let config = WorkflowConfig {
                cores: 1.0,
                target: 1.0,
                quantile: super::super::Knob { q: Some(q), beta: None },
                ..WorkflowConfig::default()
            };
            let names = ["a1", "b1", "c1", "c2", "e1", "e2"];
            let control = |name| (name, RateControl::new(&config, Instant::ZERO));
            let processes = names.into_iter().map(control).collect();
            Self { processes, now: Instant::ZERO, sequence: 0, to_e2: 0 }
        }

        fn get(&mut self, process: &str) -> &mut RateControl {
            self.processes.get_mut(process).expect("a process of the figure")
        }

        /// A request at `process` and all that follow from it. Served if `works`.
        fn request(&mut self, workflow: u16, process: &'static str, from: &str, works: bool) {
            let caller = CallerId(id(from));
            let w = Workflow(workflow);
            let context = Context { workflow: w, caller, ..Context::default() };
            let now = self.now;
            self.get(process).on_arrival(&context);
            if works {
                self.get(process).on_start(w);
                self.get(process).on_finish(w, Cost::from(Span::from_millis(2)), Span::ZERO);
            }
            for callee in calls(workflow, process) {
                self.get(process).on_call(service(callee), w);
                // e2 is full: a quarter of what w1 sends there is dropped.
                self.to_e2 += u64::from(workflow == 1 && *callee == "e2");
                let dropped = workflow == 1 && *callee == "e2" && self.to_e2.is_multiple_of(4);
                self.request(workflow, callee, process, !dropped);
                self.sequence += 1;
                let sequence = self.sequence;
                let rate = self.get(callee).granted(w, CallerId(id(process)));
                let feedback = Feedback { rate, ..Feedback::silent(GateId(id(callee)), sequence) };
                assert!(self.get(process).on_answer(now, service(callee), w, &feedback));
            }
        }

        /// Seconds at 100 requests per second of each workflow.
        fn run(&mut self, seconds: u32) {
            for _ in 0..seconds * 10 {
                for workflow in [1, 2, 3] {
                    for _ in 0..10 {
                        self.request(workflow, "a1", "x0", true);
                    }
                }
                self.now += Span::from_millis(100);
                let now = self.now;
                for control in self.processes.values_mut() {
                    control.settle(now, 0, Span::ZERO);
                }
            }
        }
    }

    /// Wisp §4.1.2, Figure 3: q = 0 limits w1 at a1 to 75 per second, which leaves e1 100 to spare; q =
    /// 1 leaves it at the 100 that are offered, and e2 has to drop 100. The others are not throttled.
    #[test]
    fn wisps_figure_3() {
        let mut careful = Graph::new(0.0);
        careful.run(30);
        let rate = careful.get("a1").rate(Workflow(1)).expect("w1 is limited");
        assert!((rate - 75.0).abs() < 1e-6, "{rate}");
        for process in ["c1", "c2"] {
            let rate = careful.get(process).rate(Workflow(1)).expect("on the way to e2");
            assert!((rate - 150.0).abs() < 1e-6, "{process} {rate}");
        }
        let e2 = careful.get("e2").rate(Workflow(1)).expect("the bottleneck");
        assert!((e2 - 300.0).abs() < 1e-6, "{e2}");
        assert_eq!(careful.get("e1").rate(Workflow(1)), None, "not on the path to the bottleneck");
        for workflow in [2, 3] {
            assert_eq!(careful.get("a1").rate(Workflow(workflow)), None, "within its share");
        }
        let mut bold = Graph::new(1.0);
        bold.run(30);
        assert_eq!(bold.get("a1").rate(Workflow(1)), None, "100 per second come, 100 may");
        let e2 = bold.get("e2").rate(Workflow(1)).expect("which e2 drops");
        assert!((e2 - 300.0).abs() < 1e-6, "{e2}");
    }

    #[test]
    fn leaves_are_told_from_processes_that_call() {
        let mut graph = Graph::new(0.5);
        graph.run(2);
        assert!(graph.get("e2").is_leaf(Workflow(1)) && !graph.get("a1").is_leaf(Workflow(1)));
        assert!(graph.get("c1").is_leaf(Workflow(3)), "w3 does not go there");
    }

    #[test]
    fn shares_of_callers_sum_to_the_rate() {
        let mut graph = Graph::new(0.0);
        graph.run(30);
        let e2 = graph.get("e2");
        let part = |e2: &RateControl, name| e2.granted(Workflow(1), CallerId(id(name))).unwrap();
        let sum = part(e2, "c1") + part(e2, "c2");
        assert!((sum - 300.0).abs() < 1e-6, "{sum}");
        assert_eq!(e2.granted(Workflow(1), CallerId::UNKNOWN), None);
    }

    #[test]
    fn a_resource_without_a_capacity_limits_nobody() {
        for capacity in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
            let mut control = RateControl::new(&WorkflowConfig::default(), Instant::ZERO);
            let resource = control.add_resource(capacity);
            control.on_use(resource, Workflow(1), Span::from_secs(5));
            assert!(control.settle(Instant::ZERO + Span::from_secs(1), 1, Span::ZERO));
            assert_eq!((control.utilization(), control.rate(Workflow(1))), (0.0, None));
        }
    }

    /// A period that was missed is part of a longer one.
    #[test]
    fn a_late_settlement_counts_the_time_that_passed() {
        let config = WorkflowConfig { cores: 1.0, target: 1.0, ..WorkflowConfig::default() };
        let mut control = RateControl::new(&config, Instant::ZERO);
        let w = Workflow(1);
        for _ in 0..1000 {
            control.on_arrival(&Context { workflow: w, ..Context::default() });
            control.on_start(w);
            control.on_finish(w, Cost::from(Span::from_millis(2)), Span::ZERO);
        }
        assert!(!control.settle(Instant::ZERO + Span::from_millis(99), 1, Span::ZERO));
        assert!(control.settle(Instant::ZERO + Span::from_secs(10), 1, Span::ZERO));
        assert!((control.utilization() - 0.2).abs() < 1e-9);
        assert_eq!(control.rate(w), None);
    }
}
