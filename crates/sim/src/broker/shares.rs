//! Nodes that enforce one limit together: holders and a granter as they are, with a network and faults
//! between them.
//!
//! Each node has Poisson arrivals that wait in order for its tokens. Reports and grants take a constant
//! time; a node can crash and come back, as a new holder, and can be cut off from the granter.

use tidegate_core::rng::Rng;
use tidegate_core::share::{
    AdaptorConfig, Grant, Granter, HistoryConfig, Holder, HolderId, LeaseConfig, Message, Report,
    Room, Shaper, Share,
};
use tidegate_core::{Instant, Rank, Span};

use crate::engine::Engine;
use crate::random::{exponential, stream};

/// What is tried.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The limit.
    pub whole: Share,
    /// Terms of leases.
    pub lease: LeaseConfig,
    /// What nodes remember.
    pub history: HistoryConfig,
    /// When targets move.
    pub adaptor: AdaptorConfig,
    /// Arrivals per second at each node.
    pub loads: Vec<f64>,
    /// From when on the loads are others.
    pub shift: Option<(Instant, Vec<f64>)>,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// How long it takes.
    pub span: Span,
    /// What is before is not counted in the delay.
    pub warm: Span,
    /// Of all randomness.
    pub seed: u64,
}

/// Something that goes wrong with a node.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Which node.
    pub node: usize,
    /// From when.
    pub from: Instant,
    /// Until when.
    pub until: Instant,
    /// Whether it is down; otherwise it is cut off from the granter.
    pub down: bool,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Mean delay of messages that arrived after the warm-up, in seconds.
    pub mean_delay: f64,
    /// Most tokens taken beyond the bound, in any stretch of time; zero or less keeps it.
    pub beyond: f64,
    /// Every tenth of a second: messages that passed.
    pub passed: Vec<u32>,
    /// Every tenth of a second: the rate of each node's share.
    pub rates: Vec<Vec<f64>>,
}

/// How often is looked.
const STEP: Span = Span::from_millis(100);
/// One way between a node and the granter.
const WAY: Span = Span::from_millis(1);

#[derive(Clone, Copy, Debug)]
enum Event {
    Arrive(usize),
    Token(usize),
    Poll(usize),
    Up(usize, Report),
    Down(usize, Grant),
    Crash(usize),
    Return(usize),
    Look,
}

struct Node {
    /// What waits for the tokens of its holder; none while it is down.
    shaper: Option<Shaper<(), (), Holder>>,
    rng: Rng,
    /// A token event is under way.
    alarmed: bool,
}

struct World<'a> {
    scenario: &'a Scenario,
    engine: Engine<Event>,
    granter: Granter,
    nodes: Vec<Node>,
    next_id: u64,
    out: Outcome,
    delays: (f64, u64),
    /// A bucket as the bound allows it, which all that passes is taken from.
    allowed: f64,
    at: Instant,
}

impl Scenario {
    /// Plays it.
    ///
    /// # Panics
    ///
    /// If the limit is too small for the nodes.
    pub fn run(&self) -> Outcome {
        let granter = Granter::new(self.whole, self.lease, self.adaptor).expect("enough tokens");
        let mut world = World {
            scenario: self,
            engine: Engine::new(),
            granter,
            nodes: Vec::new(),
            next_id: 0,
            out: Outcome { beyond: f64::MIN, ..Outcome::default() },
            delays: (0.0, 0),
            allowed: self.whole.burst as f64,
            at: Instant::ZERO,
        };
        world.begin();
        while let Some(event) = world.engine.next_before(Instant::ZERO + self.span) {
            world.act(event);
        }
        world.out.mean_delay = world.delays.0 / world.delays.1.max(1) as f64;
        world.out
    }
}

impl World<'_> {
    fn begin(&mut self) {
        for node in 0..self.scenario.loads.len() {
            let rng = stream(self.scenario.seed, &format!("node {node}"));
            self.nodes.push(Node { shaper: None, rng, alarmed: false });
            self.engine.at(Instant::ZERO, Event::Return(node));
            self.schedule_arrival(node);
        }
        for fault in self.scenario.faults.iter().filter(|fault| fault.down) {
            self.engine.at(fault.from, Event::Crash(fault.node));
            self.engine.at(fault.until, Event::Return(fault.node));
        }
        self.engine.at(Instant::ZERO + STEP, Event::Look);
        self.out.passed.push(0);
    }

    fn act(&mut self, event: Event) {
        let now = self.engine.now();
        match event {
            Event::Arrive(node) => {
                self.schedule_arrival(node);
                if let Some(shaper) = &mut self.nodes[node].shaper {
                    shaper.tokens_mut().on_arrival(now, 1);
                    let message = Message { arrived: now, bytes: 0, what: () };
                    shaper.restore((), Rank::UNRANKED, message);
                    self.serve(node);
                }
                if let Some(shaper) = &mut self.nodes[node].shaper {
                    let waiting = shaper.waiting() as u64;
                    shaper.tokens_mut().on_waiting(now, waiting);
                }
            }
            Event::Token(node) => {
                self.nodes[node].alarmed = false;
                self.serve(node);
            }
            Event::Poll(node) => self.poll(node),
            Event::Up(node, report) => {
                if let Some(grant) = self.granter.on_report(now, &report)
                    && !self.cut_off(node)
                {
                    self.engine.after(WAY, Event::Down(node, grant));
                }
            }
            Event::Down(node, grant) => {
                let shaper = self.nodes[node].shaper.as_mut();
                if shaper.is_some_and(|at| at.tokens_mut().on_grant(now, &grant)) {
                    self.serve(node);
                    self.poll(node);
                }
            }
            Event::Crash(node) => {
                self.nodes[node].shaper = None;
            }
            Event::Return(node) => {
                self.next_id += 1;
                let Scenario { whole, lease, history, .. } = *self.scenario;
                let holder = Holder::new(now, HolderId(self.next_id), whole, lease, history);
                let shaper = |holder| Shaper::new(holder, Room::ENDLESS);
                self.nodes[node].shaper = holder.ok().map(shaper);
                self.poll(node);
            }
            Event::Look => {
                let rate = |node: &Node| {
                    node.shaper.as_ref().map_or(0.0, |at| at.tokens().share(now).rate.as_f64())
                };
                self.out.rates.push(self.nodes.iter().map(rate).collect());
                self.out.passed.push(0);
                self.engine.after(STEP, Event::Look);
            }
        }
    }

    fn schedule_arrival(&mut self, node: usize) {
        let now = self.engine.now();
        let load = match &self.scenario.shift {
            Some((at, loads)) if *at <= now => loads[node],
            _ => self.scenario.loads[node],
        };
        // An idle node looks again once in a while, for it may not stay idle.
        let gap = exponential(&mut self.nodes[node].rng) / load.max(1e-3);
        self.engine.after(Span::from_nanos((gap * 1e9) as u64), Event::Arrive(node));
    }

    /// Whoever waits and has a token passes.
    fn serve(&mut self, node: usize) {
        let now = self.engine.now();
        let warm = Instant::ZERO + self.scenario.warm;
        let at = &mut self.nodes[node];
        let Some(shaper) = &mut at.shaper else { return };
        let mut passed = 0;
        loop {
            match shaper.pop(now) {
                Ok(Some(turn)) => {
                    passed += 1;
                    let arrived = turn.message.arrived;
                    if arrived >= warm {
                        self.delays.0 += now.since(arrived).as_secs_f64();
                        self.delays.1 += 1;
                    }
                }
                Ok(None) => break,
                Err(due) => {
                    if due < Instant::FAR && !at.alarmed {
                        at.alarmed = true;
                        self.engine.at(due, Event::Token(node));
                    }
                    break;
                }
            }
        }
        self.count(passed);
    }

    fn count(&mut self, passed: u32) {
        if let Some(last) = self.out.passed.last_mut() {
            *last += passed;
        }
        let now = self.engine.now();
        let bound = self.scenario.lease.bound(self.scenario.whole);
        let burst = self.scenario.whole.burst as f64;
        let earned = bound.most(now.since(self.at)) - burst;
        self.allowed = (self.allowed + earned).min(burst) - f64::from(passed);
        self.at = now;
        self.out.beyond = self.out.beyond.max(-self.allowed);
    }

    fn poll(&mut self, node: usize) {
        let now = self.engine.now();
        let cut_off = self.cut_off(node);
        let Some(shaper) = &mut self.nodes[node].shaper else { return };
        let holder = shaper.tokens_mut();
        if let Some(report) = holder.poll(now)
            && !cut_off
        {
            self.engine.after(WAY, Event::Up(node, report));
        }
        self.engine.at(holder.next_wakeup(), Event::Poll(node));
    }

    fn cut_off(&self, node: usize) -> bool {
        let now = self.engine.now();
        let is = |fault: &&Fault| !fault.down && fault.node == node;
        self.scenario.faults.iter().filter(is).any(|at| at.from <= now && now < at.until)
    }
}
