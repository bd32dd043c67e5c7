//! One run: everything there is, and the loop that lets it happen.

use tidegate_core::caller::CallerConfig;
use tidegate_core::config::ConfigError;
use tidegate_core::gate::GateConfig;
use tidegate_core::{Caller, CallerId, Gate, Instant, Span};

use crate::client::Client;
use crate::dist::Service;
use crate::engine::Engine;
use crate::measure::{Fact, Measure};
use crate::network::{MessageId, Messages, Network};
use crate::node::{MessageCost, Node};
use crate::random::{stream, stream_seed};
use crate::workload::{Workload, WorkloadSpec};

/// Something that happens.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// The application submits its next request.
    Offer,
    /// A message reaches a node.
    ToNode { message: MessageId },
    /// A message reaches a client.
    ToClient { message: MessageId },
    /// A core is done.
    Core { node: u32, core: u16 },
    /// A gate's wake-up.
    Gate { node: u32 },
    /// A caller's wake-up.
    Client { client: u32 },
}

/// What nodes and clients share: time, network, and the book of what happened.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) engine: Engine<Event>,
    pub(crate) messages: Messages,
    pub(crate) measure: Measure,
    network: Network,
    /// Which client has which id, sorted by id.
    ids: Vec<(CallerId, u32)>,
}

impl Shared {
    pub(crate) fn now(&self) -> Instant {
        self.engine.now()
    }

    pub(crate) fn count(&mut self, fact: Fact) {
        self.measure.count(self.engine.now(), fact);
    }

    pub(crate) fn launch_to_node(&mut self, message: MessageId) {
        self.launch(message, Event::ToNode { message });
    }

    pub(crate) fn launch_to_client(&mut self, message: MessageId) {
        self.launch(message, Event::ToClient { message });
    }

    fn launch(&mut self, message: MessageId, arrival: Event) {
        match self.network.next() {
            Some(delay) => self.engine.after(delay, arrival),
            None => self.messages.free(message),
        }
    }

    pub(crate) fn client_of(&self, caller: CallerId) -> Option<u32> {
        let place = self.ids.binary_search_by_key(&caller, |(id, _)| *id).ok()?;
        Some(self.ids[place].1)
    }
}

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
    /// Cores of the server.
    pub cores: u32,
    /// How long serving takes.
    pub service: Service,
    /// What messages cost the server.
    pub messages: MessageCost,
    /// Time from sending to receiving and back.
    pub rtt: Span,
    /// What is offered.
    pub workload: WorkloadSpec,
    /// The server's policy.
    pub gate: GateConfig,
    /// The callers' policy.
    pub caller: CallerConfig,
    /// Length of a step of the series, if one is wanted.
    pub series: Option<Span>,
}

impl Scenario {
    /// Requests per second that the server can answer if it does nothing in vain.
    pub fn capacity(&self) -> f64 {
        let each = self.service.mean + self.messages.receive + self.messages.send;
        f64::from(self.cores) / each.as_secs_f64()
    }
}

/// All nodes and clients of a run.
struct World {
    nodes: Vec<Node>,
    clients: Vec<Client>,
    workload: Workload,
    shared: Shared,
}

/// Simulates `scenario` and returns what was measured.
pub fn simulate(scenario: &Scenario, seed: u64) -> Result<Measure, ConfigError> {
    let mut world = World::new(scenario, seed)?;
    let end = Instant::ZERO + scenario.duration;
    world.start();
    // What was submitted just before the end may still be answered in time.
    while let Some(event) = world.shared.engine.next_before(end + scenario.slo) {
        world.happen(event, end);
    }
    world.assert_conservation();
    Ok(world.shared.measure)
}

impl World {
    fn new(scenario: &Scenario, seed: u64) -> Result<Self, ConfigError> {
        let from = Instant::ZERO + scenario.warmup;
        let to = Instant::ZERO + scenario.duration;
        let callers = scenario.callers as usize;
        let gate = Gate::new(&scenario.gate, Instant::ZERO, stream_seed(seed, "gate"))?;
        let mut seeds = stream(seed, "callers' choices");
        let clients = (0..scenario.callers)
            .map(|index| {
                let caller = Caller::new(&scenario.caller, 1, Instant::ZERO, seeds.next_u64())?;
                Ok(Client::new(index, caller, 0))
            })
            .collect::<Result<Vec<_>, ConfigError>>()?;
        let mut ids: Vec<_> = clients.iter().zip(0..).map(|(c, n)| (c.caller.id(), n)).collect();
        ids.sort_unstable();
        let workload = Workload::new(
            scenario.workload.clone(),
            scenario.service.clone(),
            scenario.callers,
            seed,
        );
        Ok(Self {
            nodes: vec![Node::new(0, gate, scenario.cores, scenario.messages)],
            clients,
            workload,
            shared: Shared {
                engine: Engine::new(),
                messages: Messages::default(),
                measure: Measure::new(from, to, scenario.slo, callers, scenario.series),
                network: Network::new(scenario.rtt, Span::ZERO, 0.0, stream(seed, "network")),
                ids,
            },
        })
    }

    fn start(&mut self) {
        for node in &mut self.nodes {
            node.start(&mut self.shared);
        }
        let first = self.workload.next_arrival();
        self.shared.engine.at(first, Event::Offer);
    }

    fn happen(&mut self, event: Event, end: Instant) {
        let shared = &mut self.shared;
        match event {
            Event::Offer => {
                let offer = self.workload.draw(shared.now());
                let client = &mut self.clients[offer.client as usize];
                client.submit(shared, &offer.context, offer.service);
                let next = self.workload.next_arrival();
                if next < end {
                    shared.engine.at(next, Event::Offer);
                }
            }
            Event::ToNode { message } => {
                let node = shared.messages.get(message).node;
                self.nodes[node as usize].deliver(shared, message);
            }
            Event::ToClient { message } => {
                let client = shared.messages.get(message).client;
                self.clients[client as usize].deliver(shared, message);
            }
            Event::Core { node, core } => self.nodes[node as usize].core_done(shared, core),
            Event::Gate { node } => self.nodes[node as usize].wake(shared),
            Event::Client { client } => self.clients[client as usize].wake(shared),
        }
    }

    /// Nothing is lost and nothing comes from nowhere: what was offered was answered, refused,
    /// rejected, expired or failed, or is still held or under way; what arrived at a gate was
    /// served, refused or expired, or is still inside.
    fn assert_conservation(&self) {
        let total = &self.shared.measure.total;
        let outstanding: u64 = self.clients.iter().map(Client::outstanding).sum();
        let ends = [Fact::Answered, Fact::Refused, Fact::Rejected, Fact::Expired, Fact::Failed];
        let ended: u64 = ends.iter().map(|fact| total.get(*fact)).sum();
        assert_eq!(
            total.get(Fact::Offered),
            ended + outstanding,
            "offered = ended + outstanding; {total:?}"
        );
        let inside: u64 = self.nodes.iter().map(Node::inside).sum();
        let left = [Fact::Served, Fact::Dropped, Fact::DroppedLate, Fact::Abandoned];
        let left: u64 = left.iter().map(|fact| total.get(*fact)).sum();
        assert_eq!(total.get(Fact::Arrived), left + inside, "arrived = left + inside; {total:?}");
        for node in &self.nodes {
            node.gate.invariants();
        }
    }
}
