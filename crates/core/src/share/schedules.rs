//! Shares under adversarial schedules: messages lost, repeated, late and out of order, nodes and
//! granters that crash, clocks that differ, agreements that change. At no moment do the shares in use
//! exceed the whole, or what is committed of a larger one before it, and in no stretch of time do all
//! nodes together take more tokens than the bound says.
//!
//! Granters are elected: one that was cut off from whoever elects them goes on answering until its
//! authority is over, and its successor begins no earlier, by true time.

use proptest::prelude::*;

use super::{
    AdaptorConfig, Grant, Granter, HistoryConfig, Holder, HolderId, LeaseConfig, OnLoss, Rate,
    Report, Share,
};
use crate::time::{Instant, Span};

const NODES: usize = 3;
/// How long a granter that is cut off goes on.
const AUTHORITY: Span = Span::from_secs(1);

/// What an adversary may do.
#[derive(Clone, Debug)]
enum Op {
    /// True time passes, in milliseconds.
    Pass(u64),
    /// A message under way arrives, stays under way as well, or is lost.
    Deliver(prop::sample::Index),
    Repeat(prop::sample::Index),
    Lose(prop::sample::Index),
    /// A node's messages arrive, so many.
    Load(usize, u64),
    /// A node crashes, and another process starts in its place.
    Crash(usize),
    /// The granter crashes, and another starts without its memory.
    Forget,
    /// The granter ends and leaves all it knows to another.
    Bequeath,
    /// The granter is cut off from whoever elects granters, and goes on by itself.
    Elect,
    /// Another agreement: rate and burst.
    Whole(u32, u64),
    /// Everything that is under way arrives, in order.
    Calm,
}

fn op() -> impl Strategy<Value = Op> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        6 => (0..400u64).prop_map(Op::Pass),
        1 => (0..6_000u64).prop_map(Op::Pass),
        8 => index().prop_map(Op::Deliver),
        2 => index().prop_map(Op::Repeat),
        2 => index().prop_map(Op::Lose),
        6 => (0..NODES, 0..300u64).prop_map(|(node, count)| Op::Load(node, count)),
        1 => (0..NODES).prop_map(Op::Crash),
        1 => Just(Op::Forget),
        1 => Just(Op::Bequeath),
        1 => Just(Op::Elect),
        1 => (10..3_000u32, NODES as u64..90).prop_map(|(rate, burst)| Op::Whole(rate, burst)),
        3 => Just(Op::Calm),
    ]
}

#[derive(Clone, Copy, Debug)]
enum Message {
    Up(Report),
    Down(Grant),
}

/// A clock that starts anywhere and runs fast or slow.
#[derive(Clone, Copy, Debug)]
struct Clock {
    offset: Span,
    speed: f64,
}

impl Clock {
    fn read(self, now: Instant) -> Instant {
        Instant::ZERO + self.offset + now.since(Instant::ZERO).scale(self.speed)
    }
}

struct World {
    whole: Share,
    /// What every other process is started with: the first agreement that not everybody knew to be over.
    known: Share,
    /// The largest agreement since.
    largest: Share,
    config: LeaseConfig,
    now: Instant,
    granter: Granter,
    epoch: u64,
    /// When the next granter is elected, once this one is cut off.
    election: Option<Instant>,
    /// The one before, which still hears reports.
    past: Option<Granter>,
    nodes: Vec<Holder>,
    /// The granter's, then each node's.
    clocks: Vec<Clock>,
    under_way: Vec<Message>,
    next_id: u64,
    /// Tokens of a bucket as the bound allows it, which sees all that is taken.
    allowed: f64,
}

impl World {
    fn new(config: LeaseConfig, speeds: &[f64]) -> Self {
        let whole = Share::new(Rate::per_second(1_000.0).unwrap(), 40);
        let clock = |(n, speed): (usize, &f64)| Clock {
            offset: Span::from_secs(1_000 * n as u64),
            speed: 1.0 + speed * config.drift,
        };
        let clocks: Vec<Clock> = speeds.iter().enumerate().map(clock).collect();
        let granter = Granter::new(whole, config, AdaptorConfig::default()).unwrap();
        let mut world = Self {
            whole,
            known: whole,
            largest: whole,
            config,
            now: Instant::ZERO,
            granter,
            epoch: 0,
            election: None,
            past: None,
            nodes: Vec::new(),
            clocks,
            under_way: Vec::new(),
            next_id: 0,
            allowed: whole.burst as f64,
        };
        world.nodes = (0..NODES).map(|node| world.start(node)).collect();
        world
    }

    fn start(&mut self, node: usize) -> Holder {
        self.next_id += 1;
        let now = self.clocks[node + 1].read(self.now);
        let history = HistoryConfig::default();
        let whole = if self.next_id.is_multiple_of(2) { self.known } else { self.whole };
        Holder::new(now, HolderId(self.next_id), whole, self.config, history).unwrap()
    }

    fn act(&mut self, op: Op) {
        match op {
            Op::Pass(millis) => self.pass(Span::from_millis(millis)),
            Op::Deliver(at) => {
                if let Some(message) = self.pick(at, true) {
                    self.deliver(message);
                }
            }
            Op::Repeat(at) => {
                if let Some(message) = self.pick(at, false) {
                    self.deliver(message);
                }
            }
            Op::Lose(at) => {
                self.pick(at, true);
            }
            Op::Load(node, count) => {
                let now = self.clocks[node + 1].read(self.now);
                self.nodes[node].on_arrival(now, count);
                self.nodes[node].on_waiting(now, count);
            }
            Op::Crash(node) => self.nodes[node] = self.start(node),
            Op::Forget => self.granter = self.successor(),
            Op::Bequeath if self.election.is_none() => {
                let now = self.clocks[0].read(self.now);
                let next = match self.granter.bequeath(now) {
                    None => self.successor(),
                    Some(legacy) => {
                        self.epoch += 1;
                        let (terms, adaptor) = (self.config, AdaptorConfig::default());
                        let largest = self.largest;
                        let next = Granter::inherit(now, largest, terms, adaptor, &legacy);
                        let mut next = next.unwrap().of_epoch(self.epoch);
                        next.set_whole(self.whole).unwrap();
                        next
                    }
                };
                self.past = Some(std::mem::replace(&mut self.granter, next));
            }
            Op::Bequeath => {}
            Op::Elect if self.election.is_none() => {
                let now = self.clocks[0].read(self.now);
                self.granter.set_authority(now + AUTHORITY);
                // Whoever elects has a clock of its own, as slow as clocks may be.
                let most = (1.0 + self.config.drift) / (1.0 - self.config.drift);
                self.election = Some(self.now + AUTHORITY.scale(most));
            }
            // Nobody can make another agreement durable meanwhile.
            Op::Elect | Op::Whole(..) if self.election.is_some() => {}
            Op::Elect => unreachable!("one of the arms above"),
            Op::Whole(rate, burst) => {
                self.whole = Share::new(Rate::per_second(f64::from(rate)).unwrap(), burst);
                self.largest = self.largest.most(self.whole);
                self.granter.set_whole(self.whole).unwrap();
            }
            Op::Calm => {
                for message in std::mem::take(&mut self.under_way) {
                    self.deliver(message);
                }
            }
        }
        let safe = self.config.safe_share(self.whole).unwrap();
        if self.nodes.iter().all(|node| node.safe() == safe) {
            self.granter.settle_whole();
            self.known = self.whole;
        }
        self.allowed = self.allowed.min(self.granter.bound().whole.burst as f64);
        self.report();
        self.take_everything();
        self.check();
    }

    /// A granter without memory. It is told of the largest agreement that somebody may know of, then of
    /// the one there is.
    fn successor(&mut self) -> Granter {
        self.epoch += 1;
        let now = self.clocks[0].read(self.now);
        let (largest, adaptor) = (self.largest, AdaptorConfig::default());
        let granter = Granter::after_loss(now, largest, self.config, adaptor).unwrap();
        let mut granter = granter.of_epoch(self.epoch);
        granter.set_whole(self.whole).unwrap();
        if let Some(election) = self.election {
            granter.set_authority(now + election.since(self.now));
        }
        granter
    }

    /// Time passes in steps that are small against all terms, so that no state in between is missed.
    fn pass(&mut self, mut span: Span) {
        let step = Span::from_millis(50);
        while span > Span::ZERO {
            let part = span.min(step);
            self.now += part;
            if self.election.is_some_and(|election| election <= self.now) {
                self.election = None;
                let successor = self.successor();
                self.past = Some(std::mem::replace(&mut self.granter, successor));
            }
            let bound = self.granter.bound();
            let burst = bound.whole.burst as f64;
            self.allowed = (self.allowed + bound.most(part) - burst).min(burst);
            span = span.saturating_sub(part);
            self.report();
            self.take_everything();
            self.check();
        }
    }

    fn pick(&mut self, at: prop::sample::Index, remove: bool) -> Option<Message> {
        if self.under_way.is_empty() {
            return None;
        }
        let at = at.index(self.under_way.len());
        Some(if remove { self.under_way.remove(at) } else { self.under_way[at] })
    }

    fn deliver(&mut self, message: Message) {
        match message {
            Message::Up(report) => {
                let now = self.clocks[0].read(self.now);
                let granters = [Some(&mut self.granter), self.past.as_mut()];
                for granter in granters.into_iter().flatten() {
                    self.under_way.extend(granter.on_report(now, &report).map(Message::Down));
                }
            }
            Message::Down(grant) => {
                for (node, clock) in self.nodes.iter_mut().zip(&self.clocks[1..]) {
                    node.on_grant(clock.read(self.now), &grant);
                }
            }
        }
    }

    fn report(&mut self) {
        for (node, clock) in self.nodes.iter_mut().zip(&self.clocks[1..]) {
            self.under_way.extend(node.poll(clock.read(self.now)).map(Message::Up));
        }
        // The oldest are lost when there are too many.
        let many = self.under_way.len().saturating_sub(60);
        self.under_way.drain(..many);
    }

    /// The worst that nodes can do is to take every token the moment it is there.
    fn take_everything(&mut self) {
        for (node, clock) in self.nodes.iter_mut().zip(&self.clocks[1..]) {
            while node.take(clock.read(self.now)).is_ok() {
                self.allowed -= 1.0;
            }
        }
    }

    fn in_use(&self) -> Share {
        let shares = self.nodes.iter().zip(&self.clocks[1..]);
        shares.map(|(node, clock)| node.share(clock.read(self.now))).fold(Share::NONE, Share::plus)
    }

    fn check(&self) {
        // The agreement, or what is left of a larger one.
        let (most, in_use) = (self.granter.bound().whole, self.in_use());
        assert!(most.covers(in_use), "in use {in_use} of {most} at {}", self.now);
        // Safe shares are rounded: up to a token each more.
        let rounding = Share::new(Rate::from_millionths(NODES as u64), NODES as u64);
        assert!(self.largest.plus(rounding).covers(most), "more than there ever was: {most}");
        assert!(self.allowed > -1e-6, "{} tokens too many at {}", -self.allowed, self.now);
        self.granter.invariants();
        self.nodes.iter().for_each(Holder::invariants);
    }
}

fn config() -> LeaseConfig {
    let (term, period) = (Span::from_secs(3), Span::from_millis(500));
    let on_loss = OnLoss::Safe;
    let places = None;
    LeaseConfig { nodes: NODES as u32, safe: 0.2, term, period, drift: 0.05, on_loss, places }
}

proptest! {
    #[test]
    fn shares_in_use_never_exceed_the_whole(
        speeds in prop::collection::vec(prop_oneof![Just(-1.0), Just(1.0), -1.0..1.0f64], NODES + 1),
        ops in prop::collection::vec(op(), 1..200),
    ) {
        let mut world = World::new(config(), &speeds);
        for op in ops {
            world.act(op);
        }
        // And when the trouble is over, the whole is used again, and no more than it.
        let mut used = Share::NONE;
        for round in 0..250 {
            for node in 0..NODES {
                world.act(Op::Load(node, 50));
            }
            world.act(Op::Pass(50));
            world.act(Op::Calm);
            // Two terms on, nothing of an earlier agreement is left.
            if round >= 130 {
                used = used.most(world.in_use());
            }
        }
        prop_assert_eq!(used, world.whole);
    }
}

/// A crashed node's tokens are not there again after it has restarted.
#[test]
fn restarting_mints_nothing() {
    let mut world = World::new(config(), &[0.0; NODES + 1]);
    for _ in 0..500 {
        world.act(Op::Pass(50));
        world.act(Op::Calm);
        world.act(Op::Crash(1));
    }
}

/// Kept while the lease runs, safe afterwards, back when the control plane is.
#[test]
fn without_the_control_plane_a_node_keeps_its_lease_and_then_its_safe_share() {
    let mut world = World::new(config(), &[0.0; NODES + 1]);
    let serve = |world: &mut World, millis: u64| {
        for _ in 0..millis / 50 {
            world.act(Op::Load(0, 50));
            world.act(Op::Pass(50));
            world.act(Op::Calm);
        }
    };
    serve(&mut world, 8_000);
    let share = |world: &World| world.nodes[0].share(world.clocks[1].read(world.now));
    let before = share(&world);
    assert!(before.rate.as_f64() > 800.0, "the only busy node has all that can be leased");
    let alone = |world: &mut World, millis: u64| {
        for _ in 0..millis / 50 {
            world.act(Op::Load(0, 50));
            world.act(Op::Pass(50));
            world.under_way.clear();
        }
    };
    alone(&mut world, 2_000);
    assert_eq!(share(&world), before);
    alone(&mut world, 2_000);
    assert_eq!(share(&world), world.nodes[0].safe());
    serve(&mut world, 2_000);
    assert!(share(&world).rate.as_f64() > 800.0);
}

/// A load that moves from one node to another takes its share along within two seconds.
#[test]
fn a_shift_is_followed_within_two_seconds() {
    let mut world = World::new(config(), &[0.0; NODES + 1]);
    let serve = |world: &mut World, loads: [u64; NODES], millis: u64| {
        for _ in 0..millis / 10 {
            for (node, load) in loads.into_iter().enumerate() {
                world.act(Op::Load(node, load));
            }
            world.act(Op::Pass(10));
            world.act(Op::Calm);
        }
    };
    let rate = |world: &World, node: usize| {
        world.nodes[node].share(world.clocks[node + 1].read(world.now)).rate.as_f64()
    };
    serve(&mut world, [8, 2, 1], 20_000);
    assert!((rate(&world, 0) / (66.7 + 800.0 * 8.0 / 11.0) - 1.0).abs() < 0.1);
    serve(&mut world, [1, 2, 8], 2_000);
    assert!((rate(&world, 2) / (66.7 + 800.0 * 8.0 / 11.0) - 1.0).abs() < 0.1);
}
