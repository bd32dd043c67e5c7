//! Leases, checked exhaustively at a small size: every schedule of two nodes, their messages, and up to two
//! faults, to a given depth, over the state machines as they are.
//!
//! A *step* is one of: time passes (a quarter of a term, at which both nodes report); a message under way arrives; one
//! arrives and stays under way as well; the load moves to the other node; a node crashes and another process
//! starts in its place; the granter forgets everything; it is cut off from whoever elects granters, and
//! another one follows it when its authority is over; the agreement is made smaller, or larger again. A message that
//! is lost is one that never arrives. The granter's clock is as fast as clocks may be, those of nodes as slow.
//!
//! After each step the shares in use are within what the granter says is bounded, and no more tokens have
//! been taken than a bucket of that bound would have given. States that have been seen before are not gone on from.
//! That the search can fail is a test of its own.

use std::collections::BTreeSet;
use std::fmt::Write;

use tidegate_core::share::{
    AdaptorConfig, Grant, Granter, HistoryConfig, Holder, HolderId, LeaseConfig, OnLoss, Rate,
    Report, Share,
};
use tidegate_core::{Instant, Span};

const WHOLE: Share = Share::new(Rate::from_millionths(100_000_000), 20);
const SMALLER: Share = Share::new(Rate::from_millionths(40_000_000), 8);
const TICK: Span = Span::from_millis(500);
const AUTHORITY: Span = TICK;
const DRIFT: f64 = 0.05;
const NODES: usize = 2;
/// Messages under way; of more the oldest are lost.
const MOST_MESSAGES: usize = 4;
/// Things that go wrong in one schedule.
const MOST_FAULTS: u32 = 2;

fn config() -> LeaseConfig {
    let term = Span::from_nanos(4 * TICK.as_nanos());
    let (on_loss, places) = (OnLoss::Safe, None);
    LeaseConfig {
        nodes: NODES as u32,
        safe: 0.2,
        term,
        period: TICK,
        drift: DRIFT,
        on_loss,
        places,
    }
}

#[derive(Clone, Copy, Debug)]
enum Message {
    Up(Report),
    Down(Grant),
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Pass,
    Deliver(usize),
    Repeat(usize),
    Shift,
    Crash(usize),
    Forget,
    Elect,
    Change,
}

/// What a search assumes of a granter that starts anew.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Successor {
    /// It waits as it should.
    Waits,
    /// It believes that nothing is leased.
    Believes,
}

#[derive(Clone, Debug)]
struct State {
    now: Instant,
    granter: Granter,
    past: Option<Granter>,
    epoch: u64,
    election: Option<Instant>,
    nodes: Vec<Holder>,
    next_id: u64,
    busy: usize,
    smaller: bool,
    under_way: Vec<Message>,
    faults: u32,
    allowed: f64,
}

impl State {
    fn new() -> Self {
        let granter = Granter::new(WHOLE, config(), AdaptorConfig::default()).unwrap();
        let mut state = Self {
            now: Instant::ZERO,
            granter,
            past: None,
            epoch: 0,
            election: None,
            nodes: Vec::new(),
            next_id: 0,
            busy: 0,
            smaller: false,
            under_way: Vec::new(),
            faults: 0,
            allowed: WHOLE.burst as f64,
        };
        for _ in 0..NODES {
            let node = state.start();
            state.nodes.push(node);
        }
        state.settle();
        state
    }

    fn granters_now(&self) -> Instant {
        Instant::ZERO + self.now.since(Instant::ZERO).scale(1.0 + DRIFT)
    }

    fn nodes_now(&self) -> Instant {
        Instant::ZERO + self.now.since(Instant::ZERO).scale(1.0 - DRIFT)
    }

    fn start(&mut self) -> Holder {
        self.next_id += 1;
        // One step of history, so that a load is what it was in the last tick.
        let history = HistoryConfig { span: TICK, step: TICK, newest: 0, ..Default::default() };
        Holder::new(self.nodes_now(), HolderId(self.next_id), WHOLE, config(), history).unwrap()
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = vec![Step::Pass, Step::Shift];
        steps.extend((0..self.under_way.len()).map(Step::Deliver));
        if self.faults < MOST_FAULTS {
            steps.extend((0..self.under_way.len()).map(Step::Repeat));
            steps.extend((0..NODES).map(Step::Crash));
            steps.push(Step::Forget);
            if self.election.is_none() {
                steps.extend([Step::Elect, Step::Change]);
            }
        }
        steps
    }

    /// The state after a step, or what is wrong with it.
    fn after(&self, step: Step, successor: Successor) -> Result<Self, String> {
        let mut next = self.clone();
        let fault = !matches!(step, Step::Pass | Step::Shift | Step::Deliver(_));
        next.faults += u32::from(fault);
        match step {
            Step::Pass => next.pass(successor),
            Step::Deliver(at) => {
                let message = next.under_way.remove(at);
                next.deliver(message);
            }
            Step::Repeat(at) => next.deliver(next.under_way[at]),
            Step::Shift => next.busy = 1 - next.busy,
            Step::Crash(node) => next.nodes[node] = next.start(),
            Step::Forget => next.granter = next.follow(successor),
            Step::Elect => {
                next.granter.set_authority(next.granters_now() + AUTHORITY);
                next.election = Some(next.now + AUTHORITY.scale(1.0 / (1.0 - DRIFT)));
            }
            Step::Change => {
                next.smaller = !next.smaller;
                let whole = next.whole();
                next.granter.set_whole(whole).unwrap();
            }
        }
        next.allowed = next.allowed.min(next.granter.bound().whole.burst as f64);
        next.settle();
        next.check()?;
        Ok(next)
    }

    fn whole(&self) -> Share {
        if self.smaller { SMALLER } else { WHOLE }
    }

    fn follow(&mut self, successor: Successor) -> Granter {
        self.epoch += 1;
        let (now, adaptor) = (self.granters_now(), AdaptorConfig::default());
        let granter = match successor {
            Successor::Waits => Granter::after_loss(now, WHOLE, config(), adaptor),
            Successor::Believes => Granter::new(WHOLE, config(), adaptor),
        };
        let mut granter = granter.unwrap().of_epoch(self.epoch);
        granter.set_whole(self.whole()).unwrap();
        if let Some(election) = self.election {
            granter.set_authority(now + election.since(self.now));
        }
        granter
    }

    /// In steps that are small against the bucket, so that no token in between is missed.
    fn pass(&mut self, successor: Successor) {
        for _ in 0..4 {
            let part = Span::from_nanos(TICK.as_nanos() / 4);
            self.now += part;
            if self.election.is_some_and(|election| election <= self.now) {
                self.election = None;
                let next = self.follow(successor);
                self.past = Some(std::mem::replace(&mut self.granter, next));
            }
            let bound = self.granter.bound();
            let burst = bound.whole.burst as f64;
            self.allowed = (self.allowed + bound.most(part) - burst).min(burst);
            self.settle();
        }
    }

    fn deliver(&mut self, message: Message) {
        match message {
            Message::Up(report) => {
                let now = self.granters_now();
                let granters = [Some(&mut self.granter), self.past.as_mut()];
                for granter in granters.into_iter().flatten() {
                    self.under_way.extend(granter.on_report(now, &report).map(Message::Down));
                }
            }
            Message::Down(grant) => {
                let now = self.nodes_now();
                for node in &mut self.nodes {
                    node.on_grant(now, &grant);
                }
            }
        }
    }

    /// Nodes report what is due and take every token there is.
    fn settle(&mut self) {
        let now = self.nodes_now();
        for (at, node) in self.nodes.iter_mut().enumerate() {
            if at == self.busy {
                node.on_arrival(now, 50);
            }
            self.under_way.extend(node.poll(now).map(Message::Up));
            while node.take(now).is_ok() {
                self.allowed -= 1.0;
            }
        }
        let many = self.under_way.len().saturating_sub(MOST_MESSAGES);
        self.under_way.drain(..many);
    }

    fn check(&self) -> Result<(), String> {
        let now = self.nodes_now();
        let in_use = self.nodes.iter().map(|node| node.share(now)).fold(Share::NONE, Share::plus);
        let most = self.granter.bound().whole;
        if !most.covers(in_use) {
            return Err(format!("in use {in_use} of {most}"));
        }
        if self.allowed < -1e-6 {
            return Err(format!("{} tokens too many", -self.allowed));
        }
        self.granter.invariants();
        self.nodes.iter().for_each(Holder::invariants);
        Ok(())
    }

    /// The same for equal states: FNV-1a of what they print.
    fn print(&self) -> u128 {
        struct Hash(u128);
        impl Write for Hash {
            fn write_str(&mut self, text: &str) -> std::fmt::Result {
                for byte in text.bytes() {
                    self.0 = (self.0 ^ u128::from(byte)).wrapping_mul((1 << 88) + 0x13b);
                }
                Ok(())
            }
        }
        let mut hash = Hash(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        write!(hash, "{self:?}").expect("nothing to fail");
        hash.0
    }
}

/// Everything has arrived for a term: the busy node has all that can be leased.
fn warm() -> State {
    let mut state = State::new();
    for _ in 0..4 {
        state = state.after(Step::Pass, Successor::Waits).expect("nothing goes wrong");
        while !state.under_way.is_empty() {
            state = state.after(Step::Deliver(0), Successor::Waits).expect("nothing goes wrong");
        }
    }
    assert!(state.nodes[0].share(state.nodes_now()).rate.as_f64() > 80.0, "it has what it needs");
    state
}

/// All states within `depth` steps: how many there are, or the first that is wrong.
fn search(start: State, depth: usize, successor: Successor) -> Result<usize, String> {
    let mut seen = BTreeSet::new();
    let mut frontier = vec![(start, Vec::new())];
    for _ in 0..depth {
        let mut next = Vec::new();
        for (state, path) in &frontier {
            for step in state.steps() {
                let path = [&path[..], &[step]].concat();
                let after = state.after(step, successor);
                let after = after.map_err(|why| format!("after {path:?}: {why}"))?;
                if seen.insert(after.print()) {
                    next.push((after, path));
                }
            }
        }
        frontier = next;
    }
    Ok(seen.len())
}

#[test]
fn no_schedule_of_two_nodes_and_two_faults_uses_more_than_the_whole() {
    for (start, depth) in [(State::new(), 5), (warm(), 6)] {
        let states = search(start, depth, Successor::Waits).unwrap_or_else(|why| panic!("{why}"));
        assert!(states > 20_000, "only {states} states: a search that finds nothing to do");
        println!("{states} states");
    }
}

/// A granter that does not wait for the leases of the one before is found out.
#[test]
fn the_search_finds_a_granter_that_does_not_wait() {
    let found = search(warm(), 9, Successor::Believes).expect_err("it must be found");
    assert!(found.contains("in use") || found.contains("too many"), "{found}");
}
