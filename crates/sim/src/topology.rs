//! Services, their replicas, and who calls whom.

use std::ops::Range;

use tidegate_core::{Span, Workflow};

use crate::dist::Service;
use crate::node::{CacheSpec, MessageCost};

/// All services of a scenario. The number of a service is its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    /// The services.
    pub services: Vec<ServiceSpec>,
    /// Where requests enter.
    pub entry: usize,
}

/// One service.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceSpec {
    /// What it is called.
    pub name: String,
    /// Machines that serve it.
    pub replicas: u32,
    /// Cores of each.
    pub cores: u32,
    /// Requests that each can have begun at once: slots of its gate, unless the policy says otherwise.
    pub threads: u32,
    /// Core time of a request before it makes calls.
    pub time: Service,
    /// The same of some workflows.
    pub time_of: Vec<(Workflow, Service)>,
    /// Time that requests of some workflows hold their thread after that, without a core.
    pub hold_of: Vec<(Workflow, Service)>,
    /// How many can hold something at once on each machine, beside their thread; 0 for no bound but the threads.
    pub pool: u32,
    /// Replicas that requests of some workflows go to, instead of any.
    pub partition_of: Vec<(Workflow, Range<u32>)>,
    /// Whether a request keeps its thread while it waits for calls.
    pub blocking: bool,
    /// The cache it looks into, if it has one.
    pub cache: Option<CacheSpec>,
    /// Core time after the last call was answered.
    pub after: Span,
    /// The same of some workflows.
    pub after_of: Vec<(Workflow, Span)>,
    /// What messages cost.
    pub messages: MessageCost,
    /// How often the gate is told the utilization of the cores.
    pub sample: Span,
    /// Whether a request that fails because a call of it failed leaves its caller free to retry:
    /// every layer retries then, not only the one right above the refusal.
    pub retry_above: bool,
    /// The calls that every request makes, unless its workflow is listed.
    pub calls: Calls,
    /// The calls that requests of a workflow make.
    pub calls_of: Vec<(Workflow, Calls)>,
}

/// Stages one after the other, the calls of each at the same time.
pub type Calls = Vec<Vec<Target>>;

/// Whom a call goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// Number of the service.
    pub service: usize,
    /// One of its replicas, if it must be that one.
    pub replica: Option<u32>,
}

impl From<usize> for Target {
    fn from(service: usize) -> Self {
        Self { service, replica: None }
    }
}

impl ServiceSpec {
    /// The calls that a request of `workflow` makes.
    pub fn calls_for(&self, workflow: Workflow) -> &Calls {
        let own = self.calls_of.iter().find(|(name, _)| *name == workflow);
        own.map_or(&self.calls, |(_, calls)| calls)
    }

    /// Core time of a request of `workflow` before it makes calls.
    pub fn time_for(&self, workflow: Workflow) -> &Service {
        find(&self.time_of, workflow).unwrap_or(&self.time)
    }

    /// Core time of a request of `workflow` after its last call was answered.
    pub fn after_for(&self, workflow: Workflow) -> Span {
        find(&self.after_of, workflow).copied().unwrap_or(self.after)
    }

    /// How long a request of `workflow` holds its thread without a core, if it does.
    pub fn hold_for(&self, workflow: Workflow) -> Option<&Service> {
        find(&self.hold_of, workflow)
    }

    /// The replicas that serve `workflow`.
    pub fn partition_for(&self, workflow: Workflow) -> Range<u32> {
        find(&self.partition_of, workflow).cloned().unwrap_or(0..self.replicas)
    }

    /// The replicas among which a call of `workflow` to `target`, which is this service, may choose.
    pub fn choice(&self, target: Target, workflow: Workflow) -> Range<u32> {
        target.replica.map_or_else(|| self.partition_for(workflow), |one| one..one + 1)
    }

    /// Every service it ever calls, once each, in order.
    pub fn callees(&self) -> Vec<usize> {
        let mut callees: Vec<usize> = self.targets().iter().map(|target| target.service).collect();
        callees.dedup();
        callees
    }

    /// Everything it ever calls, once each, in order of the service.
    pub fn targets(&self) -> Vec<Target> {
        let all = self.calls_of.iter().map(|(_, calls)| calls).chain([&self.calls]);
        let mut targets: Vec<Target> = all.flatten().flatten().copied().collect();
        targets.sort_unstable();
        targets.dedup();
        targets
    }

    /// Core time of one request of `workflow`, messages included.
    fn core_time(&self, workflow: Workflow) -> f64 {
        let MessageCost { receive, send, .. } = self.messages;
        let calls = self.calls_for(workflow).iter().flatten().count();
        let messages = (receive + send).scale((1 + calls) as f64);
        let misses = self.cache.map_or(Span::ZERO, |cache| cache.mean_miss());
        (self.time_for(workflow).mean + misses + self.after_for(workflow) + messages).as_secs_f64()
    }
}

fn find<T>(of: &[(Workflow, T)], workflow: Workflow) -> Option<&T> {
    of.iter().find(|(name, _)| *name == workflow).map(|(_, value)| value)
}

impl Topology {
    /// One service that calls nobody.
    pub fn single(service: ServiceSpec) -> Self {
        Self { services: vec![service], entry: 0 }
    }

    /// Number of the first node of `service`; nodes are numbered service by service.
    pub fn first_node(&self, service: usize) -> u32 {
        self.services[..service].iter().map(|service| service.replicas).sum()
    }

    /// Requests per second that can be answered if nothing is done in vain: what the fullest
    /// service allows. `mix` gives the share of each workflow.
    pub fn capacity(&self, mix: &[(Workflow, f64)]) -> f64 {
        let mut load = vec![0.0; self.services.len()];
        for (workflow, share) in mix {
            self.add_load(self.entry, *workflow, *share, &mut load);
        }
        let limits = self
            .services
            .iter()
            .zip(&load)
            .map(|(service, load)| f64::from(service.replicas * service.cores) / load);
        limits.fold(f64::INFINITY, f64::min)
    }

    fn add_load(&self, service: usize, workflow: Workflow, visits: f64, load: &mut [f64]) {
        let spec = &self.services[service];
        load[service] += visits * spec.core_time(workflow);
        for callee in spec.calls_for(workflow).iter().flatten() {
            self.add_load(callee.service, workflow, visits, load);
        }
    }

    /// A chain of calls that comes back to where it started, if there is one.
    pub fn cycle(&self) -> Option<Vec<usize>> {
        let mut done = vec![false; self.services.len()];
        (0..self.services.len())
            .find_map(|start| self.cycle_from(start, &mut Vec::new(), &mut done))
    }

    fn cycle_from(
        &self,
        at: usize,
        path: &mut Vec<usize>,
        done: &mut [bool],
    ) -> Option<Vec<usize>> {
        if let Some(start) = path.iter().position(|service| *service == at) {
            return Some(path[start..].iter().copied().chain([at]).collect());
        }
        if done[at] {
            return None;
        }
        path.push(at);
        let callees = self.services[at].callees();
        let found = callees.into_iter().find_map(|callee| self.cycle_from(callee, path, done));
        path.pop();
        done[at] = true;
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dist::Dist;

    fn service(millis: u64, calls: Vec<Vec<usize>>) -> ServiceSpec {
        let targets = |stage: Vec<usize>| stage.into_iter().map(Target::from).collect();
        let calls = calls.into_iter().map(targets).collect();
        ServiceSpec {
            name: String::new(),
            replicas: 2,
            cores: 3,
            threads: 3,
            time_of: Vec::new(),
            hold_of: Vec::new(),
            pool: 0,
            partition_of: Vec::new(),
            blocking: false,
            after_of: Vec::new(),
            time: Service { dist: Dist::Constant, mean: Span::from_millis(millis) },
            cache: None,
            after: Span::ZERO,
            messages: MessageCost::FREE,
            sample: Span::from_millis(10),
            retry_above: false,
            calls,
            calls_of: Vec::new(),
        }
    }

    #[test]
    fn the_fullest_service_decides_capacity() {
        let calls = vec![vec![1], vec![1, 2]];
        let services = vec![service(1, calls), service(2, vec![vec![2]]), service(1, Vec::new())];
        let topology = Topology { services, entry: 0 };
        // Per task 1 ms, 2 × 2 ms, and 3 × 1 ms on six cores each.
        assert_eq!(topology.capacity(&[(Workflow::NONE, 1.0)]).round(), 1500.0);
        assert_eq!(topology.cycle(), None);
        assert_eq!((topology.first_node(0), topology.first_node(2)), (0, 4));
    }

    #[test]
    fn workflows_may_call_otherwise() {
        let mut first = service(1, vec![vec![1]]);
        first.calls_of = vec![(Workflow(1), vec![vec![Target::from(1)]; 4])];
        let topology = Topology { services: vec![first, service(1, Vec::new())], entry: 0 };
        assert_eq!(topology.capacity(&[(Workflow(1), 1.0)]).round(), 1500.0);
        assert_eq!(topology.capacity(&[(Workflow(1), 0.5), (Workflow(2), 0.5)]).round(), 2400.0);
    }

    #[test]
    fn cycles_are_found() {
        let services =
            vec![service(1, vec![vec![1]]), service(1, vec![vec![2]]), service(1, vec![vec![1]])];
        assert_eq!(Topology { services, entry: 0 }.cycle(), Some(vec![1, 2, 1]));
    }
}
