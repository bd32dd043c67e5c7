//! Places under adversarial schedules, as [`schedules`](super::schedules) does with rates: at no moment are more held
//! than there are. A request of a node that has crashed, or that was aborted at the end of a lease, counts as one that goes
//! on for the whole allowance by its node's clock, which is the worst that is bounded.

use proptest::prelude::*;

use super::{
    AdaptorConfig, Grant, Granter, HolderId, LeaseConfig, OnLoss, Places, Rate, Report, Share,
};
use crate::time::{Instant, Span};

const NODES: usize = 3;
const ALLOWANCE: Span = Span::from_secs(1);
const TERM: Span = Span::from_secs(3);
const DRIFT: f64 = 0.05;

#[derive(Clone, Debug)]
enum Op {
    Pass(u64),
    Deliver(prop::sample::Index),
    Repeat(prop::sample::Index),
    Lose(prop::sample::Index),
    /// So many requests come.
    Begin(usize, u64),
    /// So many of those inside end.
    End(usize, u64),
    Crash(usize),
    Forget,
    Bequeath,
    /// So many places from now on.
    Whole(u64),
    Settle,
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
        8 => (0..NODES, 1..20u64).prop_map(|(node, count)| Op::Begin(node, count)),
        6 => (0..NODES, 1..20u64).prop_map(|(node, count)| Op::End(node, count)),
        1 => (0..NODES).prop_map(Op::Crash),
        1 => Just(Op::Forget),
        1 => Just(Op::Bequeath),
        1 => (6..60u64).prop_map(Op::Whole),
        1 => Just(Op::Settle),
        3 => Just(Op::Calm),
    ]
}

#[derive(Clone, Copy, Debug)]
enum Message {
    Up(Report),
    Down(Grant),
}

/// What is left of requests that nobody waits for.
#[derive(Clone, Copy, Debug)]
struct Left {
    count: u64,
    until: Instant,
}

struct World {
    config: LeaseConfig,
    whole: u64,
    /// The largest number since it was settled.
    largest: u64,
    now: Instant,
    granter: Granter,
    nodes: Vec<Places>,
    /// How fast the clock of each is, and the granter's.
    speeds: Vec<f64>,
    left: Vec<Left>,
    under_way: Vec<Message>,
    next_id: u64,
}

fn places(count: u64) -> Share {
    Share::new(Rate::ZERO, count)
}

impl World {
    fn new(safe: f64, speeds: &[f64]) -> Self {
        let (period, on_loss) = (Span::from_millis(500), OnLoss::Safe);
        let config = LeaseConfig {
            nodes: NODES as u32,
            safe,
            term: TERM,
            period,
            drift: DRIFT,
            on_loss,
            places: Some(ALLOWANCE),
        };
        let whole = 30;
        let granter = Granter::new(places(whole), config, AdaptorConfig::of_places()).unwrap();
        let speeds = speeds.iter().map(|speed| 1.0 + speed * DRIFT).collect();
        let mut world = Self {
            config,
            whole,
            largest: whole,
            now: Instant::ZERO,
            granter,
            nodes: Vec::new(),
            speeds,
            left: Vec::new(),
            under_way: Vec::new(),
            next_id: 0,
        };
        world.nodes = (0..NODES).map(|node| world.start(node)).collect();
        world
    }

    fn clock(&self, node: usize) -> Instant {
        Instant::ZERO + self.now.since(Instant::ZERO).scale(self.speeds[node])
    }

    fn start(&mut self, node: usize) -> Places {
        self.next_id += 1;
        let (id, period) = (HolderId(self.next_id), self.config.period);
        Places::unheard(self.clock(node), id, 0, OnLoss::Safe, period)
    }

    fn act(&mut self, op: &Op) {
        match op {
            Op::Pass(millis) => {
                for _ in 0..millis.div_ceil(50) {
                    self.now += Span::from_millis(50.min(*millis));
                    self.report();
                    self.abort();
                    self.check();
                }
            }
            Op::Deliver(at) => {
                self.pick(at, true).into_iter().for_each(|message| self.deliver(message));
            }
            Op::Repeat(at) => {
                self.pick(at, false).into_iter().for_each(|message| self.deliver(message));
            }
            Op::Lose(at) => drop(self.pick(at, true)),
            Op::Begin(node, count) => {
                let now = self.clock(*node);
                for _ in 0..*count {
                    let _ = self.nodes[*node].take(now);
                }
            }
            Op::End(node, count) => {
                let now = self.clock(*node);
                (0..*count).for_each(|_| self.nodes[*node].give_back(now));
            }
            Op::Crash(node) => {
                // What it held on a lease goes on for as long as that, and the allowance, at most. A safe place is
                // its successor's, and no longer bounded: work of a process that is gone has to end by itself.
                let (held, now) = (self.nodes[*node].held(), self.clock(*node));
                let left = self.nodes[*node].until().since(now) + ALLOWANCE;
                let left = left.scale(1.0 / self.speeds[*node]);
                let count = held.saturating_sub(self.nodes[*node].safe());
                self.left.push(Left { count, until: self.now + left });
                self.nodes[*node] = self.start(*node);
            }
            Op::Forget => {
                let (now, adaptor) = (self.clock(NODES), AdaptorConfig::of_places());
                let largest = places(self.largest);
                let granter = Granter::after_loss(now, largest, self.config, adaptor);
                self.granter = granter.unwrap();
                self.granter.set_whole(places(self.whole)).unwrap();
            }
            Op::Bequeath => {
                let (now, adaptor) = (self.clock(NODES), AdaptorConfig::of_places());
                if let Some(legacy) = self.granter.bequeath(now) {
                    let largest = places(self.largest);
                    let next = Granter::inherit(now, largest, self.config, adaptor, &legacy);
                    self.granter = next.unwrap();
                    self.granter.set_whole(places(self.whole)).unwrap();
                } else {
                    self.act(&Op::Forget);
                }
            }
            Op::Whole(count) => {
                self.whole = *count;
                self.largest = self.largest.max(self.whole);
                self.granter.set_whole(places(self.whole)).unwrap();
            }
            Op::Settle => {
                let safe = self.config.safe_share(places(self.whole)).unwrap().burst;
                if self.nodes.iter().all(|node| node.safe() <= safe) {
                    self.granter.settle_whole();
                }
            }
            Op::Calm => {
                for message in std::mem::take(&mut self.under_way) {
                    self.deliver(message);
                }
            }
        }
        self.report();
        self.abort();
        self.check();
    }

    fn pick(&mut self, at: &prop::sample::Index, remove: bool) -> Option<Message> {
        if self.under_way.is_empty() {
            return None;
        }
        let at = at.index(self.under_way.len());
        Some(if remove { self.under_way.remove(at) } else { self.under_way[at] })
    }

    fn deliver(&mut self, message: Message) {
        match message {
            Message::Up(report) => {
                let now = self.clock(NODES);
                self.under_way.extend(self.granter.on_report(now, &report).map(Message::Down));
            }
            Message::Down(grant) => {
                for node in 0..NODES {
                    let now = self.clock(node);
                    self.nodes[node].on_grant(now, &grant);
                }
            }
        }
    }

    fn report(&mut self) {
        for node in 0..NODES {
            let now = self.clock(node);
            self.under_way.extend(self.nodes[node].poll(now).map(Message::Up));
        }
        let many = self.under_way.len().saturating_sub(60);
        self.under_way.drain(..many);
    }

    /// Drivers abort what is overdue, and the work goes on for the rest of the allowance.
    fn abort(&mut self) {
        for node in 0..NODES {
            let now = self.clock(node);
            let mut count = 0;
            while self.nodes[node].is_overdue(now) {
                self.nodes[node].give_back(now);
                count += 1;
            }
            let over = now.since(self.nodes[node].until());
            let left = ALLOWANCE.saturating_sub(over).scale(1.0 / self.speeds[node]);
            let until = self.now + left;
            self.left.push(Left { count, until });
        }
        let now = self.now;
        self.left.retain(|left| left.until > now && left.count > 0);
    }

    fn held(&self) -> u64 {
        let left: u64 = self.left.iter().map(|left| left.count).sum();
        self.nodes.iter().map(Places::held).sum::<u64>() + left
    }

    fn check(&self) {
        let (held, most) = (self.held(), self.granter.bound().whole.burst);
        assert!(held <= most, "{held} of {most} places are held at {}", self.now);
        // Safe places are rounded: up to one each more.
        assert!(
            most <= self.largest + NODES as u64,
            "{most} of {} that there ever were",
            self.largest
        );
        self.granter.invariants();
        self.nodes.iter().for_each(Places::invariants);
    }
}

proptest! {
    #[test]
    fn no_more_places_are_held_than_there_are(
        safe in prop_oneof![3 => Just(0.0), 1 => Just(0.3)],
        speeds in prop::collection::vec(prop_oneof![Just(-1.0), Just(1.0), -1.0..1.0f64], NODES + 1),
        ops in prop::collection::vec(op(), 1..200),
    ) {
        let mut world = World::new(safe, &speeds);
        for op in &ops {
            world.act(op);
        }
        // When the trouble is over, one node can have nearly all.
        world.act(&Op::Calm);
        for round in 0..400 {
            (1..NODES).for_each(|node| world.act(&Op::End(node, 100)));
            world.act(&Op::End(0, 2));
            world.act(&Op::Begin(0, 5));
            world.act(&Op::Pass(50));
            world.act(&Op::Calm);
            if round > 300 {
                world.act(&Op::Settle);
            }
        }
        let reserved = world.config.safe_share(places(world.whole)).unwrap().burst * (NODES as u64 - 1);
        let left = world.whole - reserved;
        prop_assert!(world.nodes[0].held() * 100 >= left * 95, "{} of {left}", world.nodes[0].held());
    }
}

/// A node that is cut off keeps its requests to the end of the lease, and its places are others' one allowance later.
#[test]
fn places_of_a_silent_node_return_after_its_lease_and_the_allowance() {
    let mut world = World::new(0.0, &[0.0; NODES + 1]);
    let serve = |world: &mut World, node: usize, millis: u64| {
        for _ in 0..millis / 50 {
            world.act(&Op::Begin(node, 5));
            world.act(&Op::Pass(50));
            world.act(&Op::Calm);
        }
    };
    serve(&mut world, 0, 2_000);
    assert_eq!(world.nodes[0].held(), 30);
    world.act(&Op::Begin(1, 1));
    assert_eq!(world.nodes[1].held(), 0, "there is none for another");
    world.act(&Op::Crash(0));
    serve(&mut world, 1, 3_000);
    assert_eq!(world.nodes[1].held(), 0, "what it left may go on");
    serve(&mut world, 1, 2_000);
    assert_eq!(world.nodes[1].held(), 30);
}
