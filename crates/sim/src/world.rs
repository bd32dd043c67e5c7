//! One run: everything there is, and the loop that lets it happen.

use std::ops::Range;
use std::rc::Rc;

use tidegate_core::caller::CallerConfig;
use tidegate_core::config::ConfigError;
use tidegate_core::gate::GateConfig;
use tidegate_core::throttle::ThrottleConfig;
use tidegate_core::{Caller, Gate, Instant, Reason, RequestId, Span, Workflow};

use crate::client::{Client, ClientSpec, End, Ended, NewCall};
use crate::engine::Engine;
use crate::fault::{Fault, FaultKind};
use crate::measure::{Fact, Kind, Measure};
use crate::network::{Body, MessageId, Messages, Network, NetworkSpec};
use crate::node::{Node, Process};
use crate::random::{stream, stream_seed};
use crate::shared::{Event, Shared};
use crate::told::{Told, ToldSpec};
use crate::topology::{ServiceSpec, Topology};
use crate::workload::{Offer, Tenant, Workload, WorkloadSpec};

/// Everything that decides a run, except its seed.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The run ends then.
    pub duration: Span,
    /// Nothing before is measured.
    pub warmup: Span,
    /// An answer later than this is worthless.
    pub slo: Span,
    /// How many callers there are.
    pub callers: u32,
    /// Share of the callers that ignore windows and cursors: the first ones.
    pub ignoring: f64,
    /// Share of the callers that lie about what they shed: the last ones.
    pub liars: f64,
    /// The services.
    pub topology: Topology,
    /// What is between them.
    pub network: NetworkSpec,
    /// What is offered, unless there are tenants.
    pub workload: WorkloadSpec,
    /// Names of the workflows by number, for limits that name them.
    pub workflows: Vec<String>,
    /// What each of several groups of callers offers.
    pub tenants: Vec<Tenant>,
    /// Whether requests carry their deadline, or are only measured by it.
    pub deadlines: bool,
    /// Policies of the servers, by service.
    pub gates: Vec<GateConfig>,
    /// The callers' policy, and that of servers that call others.
    pub caller: CallerConfig,
    /// An attempt not answered after this has failed.
    pub timeout: Option<Span>,
    /// Requests that may be in the system at once, for the `ideal` yardstick: more are turned away
    /// at no cost.
    pub window: Option<u32>,
    /// What is chosen for the `told` yardstick.
    pub told: Option<ToldSpec>,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// Length of a step of the series, if one is wanted.
    pub series: Option<Span>,
}

impl Scenario {
    /// Everything that is offered: what the tenants do, or the one workload there is.
    pub fn workloads(&self) -> Vec<&WorkloadSpec> {
        if self.tenants.is_empty() {
            return vec![&self.workload];
        }
        self.tenants.iter().map(|tenant| &tenant.spec).collect()
    }

    /// Requests per second that can be answered if nothing is done in vain.
    pub fn capacity(&self) -> f64 {
        self.topology.capacity(&self.workload.mix)
    }

    /// How many of the callers ignore windows and cursors.
    pub fn ignoring_callers(&self) -> u32 {
        (f64::from(self.callers) * self.ignoring).round() as u32
    }

    /// The first of the callers that lie, who are the last.
    fn first_liar(&self) -> u32 {
        self.callers - (f64::from(self.callers) * self.liars).round() as u32
    }

    /// Simulates the scenario and returns what was measured.
    pub fn simulate(&self, seed: u64) -> Result<Measure, ConfigError> {
        let mut world = World::new(self, seed)?;
        world.start();
        // What was submitted just before the end may still be answered in time.
        let end = Instant::ZERO + self.duration;
        while let Some(event) = world.shared.engine.next_before(end + self.slo) {
            world.happen(event, end);
        }
        world.assert_conservation();
        Ok(world.shared.measure)
    }
}

/// All nodes and callers of a run.
struct World<'a> {
    scenario: &'a Scenario,
    seed: u64,
    sources: Vec<Client>,
    nodes: Vec<Node>,
    /// The node that each client beyond the sources belongs to.
    owners: Vec<u32>,
    sources_of_load: Vec<Load>,
    /// Requests submitted and not ended.
    in_system: u32,
    /// How many of those were lost on their way or in a crash: they hold no place of `ideal`'s window.
    lost: u32,
    /// Which faults of the network are on.
    active: Vec<bool>,
    shared: Shared,
}

/// A workload and the callers it comes from.
struct Load {
    workload: Workload,
    first: u32,
    callers: u32,
    from: Instant,
    until: Instant,
}

fn loads(scenario: &Scenario, seed: u64) -> Vec<Load> {
    let entry = &scenario.topology.services[scenario.topology.entry];
    if scenario.tenants.is_empty() {
        let (time, callers) = (entry.time.clone(), scenario.callers);
        let workload = Workload::new(scenario.workload.clone(), time, callers, seed);
        let (from, until) = (Instant::ZERO, Instant::FAR);
        return vec![Load { workload, first: 0, callers, from, until }];
    }
    let mut first = 0;
    let load = |(n, tenant): (usize, &Tenant)| {
        let Tenant { callers, spec, from, until } = tenant.clone();
        let time = entry.time_for(spec.mix[0].0).clone();
        let seed = stream_seed(seed, &format!("tenant {n}"));
        let workload = Workload::new(spec, time, callers, seed);
        first += callers;
        Load { workload, first: first - callers, callers, from, until }
    };
    scenario.tenants.iter().enumerate().map(load).collect()
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario, seed: u64) -> Result<Self, ConfigError> {
        let topology = &scenario.topology;
        let sources = sources(scenario, seed)?;
        let (mut nodes, mut owners) = (Vec::new(), Vec::new());
        let mut ids: Vec<_> = sources.iter().map(|c| (c.caller().id(), c.index())).collect();
        let services: Rc<[ServiceSpec]> = topology.services.iter().cloned().collect();
        for (service, spec) in topology.services.iter().enumerate() {
            let shared_spec = Rc::new(spec.clone());
            for _ in 0..spec.replicas {
                let index = nodes.len() as u32;
                let first = scenario.callers + owners.len() as u32;
                let process = process(scenario, Instant::ZERO, seed, service, index, first, 0)?;
                ids.extend(process.clients.iter().map(|c| (c.caller().id(), c.index())));
                owners.extend(process.clients.iter().map(|_| index));
                let rng = |what: &str| stream(seed, &format!("{what} of {index}"));
                let (spec, services) = (shared_spec.clone(), services.clone());
                nodes.push(Node::new(index, service, spec, process, services, &rng));
            }
        }
        ids.sort_unstable();
        let workflows = scenario.workload.mix.iter().map(|(workflow, _)| workflow.0).max();
        let measure = Measure::new(
            Instant::ZERO + scenario.warmup,
            Instant::ZERO + scenario.duration,
            scenario.slo,
        )
        .of(sources.len(), usize::from(workflows.unwrap_or(0)) + 1, topology.services.len())
        .with_deadlines(&scenario.workloads())
        .with_series(scenario.series);
        Ok(Self {
            scenario,
            seed,
            sources,
            nodes,
            owners,
            sources_of_load: loads(scenario, seed),
            in_system: 0,
            lost: 0,
            active: vec![false; scenario.faults.len()],
            shared: Shared {
                engine: Engine::new(),
                messages: Messages::default(),
                measure,
                network: Network::new(scenario.network, stream(seed, "network")),
                outgoing: Default::default(),
                ended: Default::default(),
                lost: Vec::new(),
                told: Told::new(scenario),
                ids,
            },
        })
    }

    fn start(&mut self) {
        for node in &mut self.nodes {
            node.start(&mut self.shared);
        }
        for (fault, place) in self.scenario.faults.iter().zip(0..) {
            let (begins, ends) = (fault.at, fault.at + fault.lasts);
            self.shared.engine.at(begins, Event::Fault { fault: place, begins: true });
            self.shared.engine.at(ends, Event::Fault { fault: place, begins: false });
        }
        if self.shared.told.is_some() {
            for at in self.scenario.workload.profile.changes() {
                self.shared.engine.at(at, Event::Change);
            }
        }
        for source in 0..self.sources_of_load.len() {
            let load = &mut self.sources_of_load[source];
            let first = load.workload.next_arrival();
            self.shared.engine.at(first, Event::Offer { source: source as u16 });
            for client in load.first..load.first + load.callers {
                for _ in 0..load.workload.outstanding() {
                    if let Some(think) = load.workload.think() {
                        self.shared.engine.at(load.from + think, Event::Again { client });
                    }
                }
            }
        }
    }

    fn happen(&mut self, event: Event, end: Instant) {
        let shared = &mut self.shared;
        match event {
            Event::Offer { source } => {
                let load = &mut self.sources_of_load[usize::from(source)];
                let offer = load.workload.draw(shared.now(), None);
                let (first, end) = (load.first, end.min(load.until));
                let next = load.workload.next_arrival();
                self.offer(&Offer { client: first + offer.client, ..offer });
                if next < end {
                    self.shared.engine.at(next, Event::Offer { source });
                }
            }
            Event::Again { client } => {
                let now = shared.now();
                let load = self.load_of(client);
                if now < end.min(load.until) {
                    let offer = load.workload.draw(now, Some(client));
                    self.offer(&offer);
                }
            }
            Event::Held { node, request, life } => {
                self.nodes[node as usize].held(shared, request, life);
            }
            Event::ToNode { message } => {
                let node = shared.messages.get(message).node;
                self.nodes[node as usize].deliver(shared, message);
            }
            Event::ToClient { message } => {
                let client = shared.messages.get(message).client;
                match self.owner(client) {
                    Some(node) => self.nodes[node].deliver(&mut self.shared, message),
                    None => {
                        self.hear(client, message);
                        self.sources[client as usize].receive(&mut self.shared, message);
                        self.settle();
                    }
                }
            }
            Event::Core { node, core, life } => {
                self.nodes[node as usize].core_done(shared, core, life);
            }
            Event::Sample { node } => self.nodes[node as usize].sample(shared),
            Event::Gate { node } => self.nodes[node as usize].wake(shared),
            Event::Client { client } => match self.owner(client) {
                Some(node) => self.nodes[node].wake_client(&mut self.shared, client),
                None => {
                    self.sources[client as usize].wake(&mut self.shared);
                    self.settle();
                }
            },
            Event::Timeout { client, call } => match self.owner(client) {
                Some(node) => self.nodes[node].time_out(&mut self.shared, client, call),
                None => {
                    self.sources[client as usize].time_out(&mut self.shared, call);
                    self.settle();
                }
            },
            Event::Change => self.tell(),
            Event::Fault { fault, begins } => {
                self.fault(usize::from(fault), begins);
                self.tell();
            }
        }
        for (client, call, attempt) in std::mem::take(&mut self.shared.lost) {
            // What a node calls is part of what was submitted, and that is where it waits.
            if let Some(source) = self.sources.get_mut(client as usize) {
                self.lost += u32::from(source.lose(call, attempt));
            }
        }
        debug_assert!(self.shared.outgoing.is_empty() && self.shared.ended.is_empty());
    }

    /// The workload that a caller belongs to.
    fn load_of(&mut self, client: u32) -> &mut Load {
        let place = self.sources_of_load.partition_point(|load| load.first <= client);
        &mut self.sources_of_load[place - 1]
    }

    /// The node that a client belongs to, none if it is a source.
    fn owner(&self, client: u32) -> Option<usize> {
        let beyond = (client as usize).checked_sub(self.sources.len())?;
        Some(self.owners[beyond] as usize)
    }

    /// The application submits a request.
    fn offer(&mut self, offer: &Offer) {
        let Offer { client, place, mut context, service } = *offer;
        if !self.scenario.deadlines {
            context.deadline = Instant::FAR;
        }
        let kind = Kind { rank: context.rank, caller: client, workflow: context.workflow };
        let now = self.shared.now();
        self.shared.measure.offered(now, &kind);
        let (rank, workflow) = (context.rank.key().into(), context.workflow.0.into());
        let request = [now.as_nanos(), client.into(), rank, workflow, service.as_nanos()];
        self.shared.measure.offers.feed(request);
        let mut rejected = self.scenario.window.is_some_and(|w| self.in_system - self.lost >= w);
        if let Some(told) = &self.shared.told {
            rejected = !told.sends(client, place);
            // It does not begin what cannot be in time.
            context.deadline = now + self.scenario.slo;
        }
        if rejected {
            self.shared.count(Fact::Rejected);
            return self.think(client);
        }
        self.in_system += 1;
        let new = NewCall { context, service, parent: RequestId::NOWHERE };
        self.sources[client as usize].submit(&mut self.shared, &new);
        self.settle();
    }

    /// With the yardstick `told`, a caller knows what is right now if a message brings feedback.
    fn hear(&mut self, client: u32, message: MessageId) {
        let now = self.shared.now();
        let speaks =
            matches!(self.shared.messages.get(message).body, Body::Replies { feedback: Some(_) });
        if let Some(told) = self.shared.told.as_mut().filter(|_| speaks) {
            told.hear(now, client);
        }
    }

    /// Demand or capacity has changed: the yardstick `told` knows at once, and may tell.
    fn tell(&mut self) {
        let Some(told) = &mut self.shared.told else { return };
        let node = &mut self.nodes[0];
        if told.change(node.health()) {
            node.tell_all(&mut self.shared, self.scenario.callers);
        }
    }

    /// Sends what a source wants sent and books what has ended.
    fn settle(&mut self) {
        while let Some(message) = self.shared.outgoing.pop_front() {
            self.shared.launch_to_node(message);
        }
        while let Some(ended) = self.shared.ended.pop_front() {
            self.in_system -= 1;
            self.lost -= u32::from(ended.call.lost);
            self.book(&ended);
            self.think(ended.client);
        }
    }

    fn book(&mut self, ended: &Ended) {
        let Ended { client, call, end, .. } = ended;
        let now = self.shared.now();
        match end {
            End::Answer => {
                let kind = Kind { rank: call.rank, caller: *client, workflow: call.workflow };
                self.shared.measure.answered(now, call.submitted, &kind);
            }
            End::Refuse(rejection) | End::Reject(rejection) if is_late(rejection.reason) => {
                self.shared.count(Fact::Expired);
            }
            End::Refuse(_) => self.shared.measure.refused(now, call.submitted),
            End::Reject(_) => self.shared.count(Fact::Rejected),
            End::Fail => {
                self.shared.count(Fact::Failed);
                self.shared.measure.failed(now, call.submitted, call.workflow);
            }
        }
        if matches!(end, End::Refuse(_) | End::Reject(_)) {
            self.shared.measure.turned_away(now, call.workflow);
        }
    }

    /// In a closed loop, the caller's next request follows after a while.
    fn think(&mut self, client: u32) {
        if let Some(think) = self.load_of(client).workload.think() {
            self.shared.engine.after(think, Event::Again { client });
        }
    }

    fn fault(&mut self, place: usize, begins: bool) {
        let fault = &self.scenario.faults[place];
        let first = self.scenario.topology.first_node(fault.service);
        let nodes = match fault.replica {
            Some(replica) => first + replica..first + replica + 1,
            None => first..first + self.scenario.topology.services[fault.service].replicas,
        };
        match fault.kind {
            FaultKind::Loss(_) | FaultKind::Jitter(_) => {
                self.active[place] = begins;
                *self.shared.network.spec() = self.network_now();
            }
            FaultKind::Partition(share) => {
                let clients = self.cut_below(&nodes, share);
                self.shared.network.cut(clients, nodes, begins);
            }
            kind => {
                for node in nodes {
                    let (shared, target) = (&mut self.shared, &mut self.nodes[node as usize]);
                    if begins {
                        target.suffer(shared, kind, fault.at + fault.lasts);
                        if kind == FaultKind::Crash {
                            let lost = self.sources.iter_mut().map(|s| s.lose_all_at(node));
                            self.lost += lost.sum::<u32>();
                        }
                        continue;
                    }
                    let (first, life) = (target.first_client(), target.life());
                    let (now, service) = (shared.now(), fault.service);
                    let again = process(self.scenario, now, self.seed, service, node, first, life);
                    target.recover(shared, kind, again.expect("it was built before"));
                }
            }
        }
    }

    /// A share of the clients that call `nodes` have numbers below this: callers outside, or clients of the
    /// nodes above. Nobody else has anything to say to them.
    fn cut_below(&self, nodes: &Range<u32>, share: f64) -> u32 {
        let inside = self.nodes.iter().flat_map(Node::clients);
        let calling = self.sources.iter().chain(inside).filter(|client| client.reaches(nodes));
        let calling: Vec<u32> = calling.map(Client::index).collect();
        let cut = (calling.len() as f64 * share).round() as usize;
        cut.checked_sub(1).map_or(0, |last| calling[last] + 1)
    }

    /// The network as all active faults together make it.
    fn network_now(&self) -> NetworkSpec {
        let mut network = self.scenario.network;
        for (fault, _) in self.scenario.faults.iter().zip(&self.active).filter(|(_, on)| **on) {
            match fault.kind {
                FaultKind::Loss(share) => network.loss = network.loss.max(share),
                FaultKind::Jitter(most) => network.jitter = network.jitter.max(most),
                _ => {}
            }
        }
        network
    }

    /// Nothing is lost and nothing comes from nowhere: what was offered was answered, refused,
    /// rejected, expired or failed, or is still held or under way; what arrived at a gate was
    /// served, refused, expired or abandoned, or is still inside.
    fn assert_conservation(&self) {
        let total = &self.shared.measure.total;
        let outstanding: u64 = self.sources.iter().map(Client::outstanding).sum();
        let ends = [Fact::Answered, Fact::Refused, Fact::Rejected, Fact::Expired, Fact::Failed];
        let ended: u64 = ends.iter().map(|fact| total.get(*fact)).sum();
        assert_eq!(
            total.get(Fact::Offered),
            ended + outstanding,
            "offered = ended + outstanding; {total:?}"
        );
        assert_eq!(outstanding, u64::from(self.in_system));
        let inside: u64 = self.nodes.iter().map(Node::inside).sum();
        let left = [Fact::Served, Fact::Dropped, Fact::DroppedLate, Fact::Abandoned];
        let left: u64 = left.iter().map(|fact| total.get(*fact)).sum();
        assert_eq!(total.get(Fact::Arrived), left + inside, "arrived = left + inside; {total:?}");
        for client in &self.sources {
            client.assert_agreement();
        }
    }
}

fn is_late(reason: Reason) -> bool {
    reason == Reason::Expired
}

/// The callers outside.
fn sources(scenario: &Scenario, seed: u64) -> Result<Vec<Client>, ConfigError> {
    let topology = &scenario.topology;
    let entry = &topology.services[topology.entry];
    let ignoring = CallerConfig { throttle: ThrottleConfig::Open, ..scenario.caller.clone() };
    let mut seeds = stream(seed, "callers' choices");
    (0..scenario.callers)
        .map(|index| {
            let ignores = index < scenario.ignoring_callers();
            let config = if ignores { &ignoring } else { &scenario.caller };
            let replicas = entry.replicas as usize;
            let caller = Caller::new(config, replicas, Instant::ZERO, seeds.next_u64())?;
            let lies = index >= scenario.first_liar();
            let spec = ClientSpec { lies, ..client_spec(scenario, index, 0, topology.entry) };
            Ok(Client::new(spec, caller))
        })
        .collect()
}

/// What runs on a node, in its first life or a later one.
fn process(
    scenario: &Scenario,
    now: Instant,
    seed: u64,
    service: usize,
    node: u32,
    first_client: u32,
    life: u16,
) -> Result<Process, ConfigError> {
    let seed_of = |what: &str| stream_seed(seed, &format!("{what} {node} {life}"));
    let mut gate = Gate::new(&scenario.gates[service], now, seed_of("gate"))?;
    // A workflow that is not offered has no number.
    gate.name_workflows(|name| {
        let number = scenario.workflows.iter().position(|known| known == name);
        Workflow(number.and_then(|number| u16::try_from(number).ok()).unwrap_or(0))
    });
    let parts = parts_called(&scenario.topology, service).into_iter();
    let clients = parts.zip(first_client..).map(|((callee, part), index)| {
        let whole = part.len() == scenario.topology.services[callee].replicas as usize;
        let which = if whole { String::new() } else { format!(" {part:?}") };
        let seed = seed_of(&format!("caller of {callee}{which} on"));
        let caller = Caller::new(&scenario.caller, part.len(), now, seed)?;
        let mut spec = client_spec(scenario, index, life, callee);
        (spec.first_node, spec.endpoints) = (spec.service_node + part.start, part.len());
        Ok(Client::new(spec, caller))
    });
    Ok(Process { gate, clients: clients.collect::<Result<_, ConfigError>>()? })
}

/// Which replicas of which services are called from `service`: a client for each such choice.
fn parts_called(topology: &Topology, service: usize) -> Vec<(usize, Range<u32>)> {
    let mut parts = Vec::new();
    for target in topology.services[service].targets() {
        let callee = &topology.services[target.service];
        let workflows = callee.partition_of.iter().map(|(workflow, _)| *workflow);
        // A workflow without a partition of its own may choose among all.
        let choices = workflows.chain([Workflow::NONE]).map(|name| callee.choice(target, name));
        for choice in choices {
            if !parts.contains(&(target.service, choice.clone())) {
                parts.push((target.service, choice));
            }
        }
    }
    parts
}

fn client_spec(scenario: &Scenario, index: u32, life: u16, callee: usize) -> ClientSpec {
    ClientSpec {
        index,
        life,
        callee: callee as u32,
        service_node: scenario.topology.first_node(callee),
        first_node: scenario.topology.first_node(callee),
        endpoints: scenario.topology.services[callee].replicas as usize,
        timeout: scenario.timeout,
        lies: false,
    }
}
