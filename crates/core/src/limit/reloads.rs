//! Limits under any sequence of changes: limits come and go, change places, keys and units, and all
//! the while everything that can be taken is taken. No change mints a token.

use proptest::prelude::*;

use super::stage::Limits;
use super::{Ask, Each, LimitConfig, Node, Quota, QuotaConfig, RateLimitConfig, TreeConfig, Unit};
use crate::context::Context;
use crate::meter::Cost;
use crate::request::RequestId;
use crate::time::{Instant, Span};

#[derive(Clone, Debug)]
enum Op {
    /// Time passes, in milliseconds.
    Pass(u64),
    /// Another configuration.
    Reload(Vec<LimitConfig>),
    /// A request that passes is refused further on, or cancelled before its work begins.
    Refund,
}

/// A limit under which each request of this test takes one token of one bucket.
fn limit() -> impl Strategy<Value = LimitConfig> {
    let terms = (1..200u32, 1..20u32).prop_map(|(rate, burst)| (f64::from(rate), f64::from(burst)));
    let unit = prop_oneof![Just(Unit::Requests), Just(Unit::Cost)];
    let each =
        prop_oneof![Just(Each::All), Just(Each::Workflow), Just(Each::Caller), Just(Each::User)];
    let path = prop_oneof![Just("acme"), Just("corp")];
    (0..3u8, terms, unit, each, path, 1..100usize).prop_map(
        |(kind, terms, unit, each, path, keys)| {
            let (rate, burst) = terms;
            match kind {
                0 => {
                    let config =
                        RateLimitConfig { rate, burst, each, keys, unit, ..Default::default() };
                    LimitConfig::Rate(config)
                }
                1 => {
                    let default = Some(Quota { rate, burst, ..Default::default() });
                    LimitConfig::Quota(QuotaConfig { unit, default, ..Default::default() })
                }
                _ => {
                    let node =
                        |path: &str| Node { path: path.to_owned(), rate, burst, borrow: true };
                    let mut nodes = vec![node(path), node("corp/ads"), node("acme/ads")];
                    // In any order, and more or fewer of them.
                    nodes.rotate_left(keys % 3);
                    nodes.retain(|node| keys % 2 == 0 || node.path == path);
                    LimitConfig::Tree(TreeConfig {
                        unit,
                        others: path.to_owned(),
                        nodes,
                        factor: 1.0,
                    })
                }
            }
        },
    )
}

fn limits() -> impl Strategy<Value = Vec<LimitConfig>> {
    prop::collection::vec(limit(), 1..4)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0..80u64).prop_map(Op::Pass),
        4 => limits().prop_map(Op::Reload),
        1 => Just(Op::Refund),
    ]
}

/// The rate and the burst of a limit.
fn terms(config: &LimitConfig) -> (f64, f64) {
    match config {
        LimitConfig::Rate(config) => (config.rate, config.burst),
        LimitConfig::Quota(config) => {
            config.default.as_ref().map_or((0.0, 0.0), |quota| (quota.rate, quota.burst))
        }
        LimitConfig::Tree(config) => (config.nodes[0].rate, config.nodes[0].burst),
        LimitConfig::Window(_) | LimitConfig::Leased(_) => (0.0, 0.0),
    }
}

struct World {
    limits: Limits,
    context: Context,
    now: Instant,
    next: u64,
    inside: Vec<RequestId>,
    passed: u64,
}

impl World {
    fn ask(&mut self) -> bool {
        let ask = Ask { context: &self.context, cost: Cost(1), delay: Span::ZERO };
        let fits = self.limits.pass(self.now, &ask).is_ok();
        if fits {
            self.next += 1;
            let id = RequestId::from_u64(self.next);
            self.limits.keep(id);
            self.inside.push(id);
            self.passed += 1;
        }
        fits
    }

    fn act(&mut self, op: Op) {
        match op {
            Op::Pass(millis) => self.now += Span::from_millis(millis),
            Op::Reload(configs) => self.limits.reconfigure(self.now, &configs),
            Op::Refund => {
                if let Some(id) = self.inside.pop() {
                    self.limits.refund(self.now, id, &self.context);
                    self.passed -= 1;
                }
            }
        }
        while self.ask() {}
        // Of all that is inside, the older half ends.
        for id in self.inside.drain(..self.inside.len() / 2) {
            self.limits.finish(self.now, id, &self.context, Cost(1));
        }
        self.limits.invariants();
    }
}

proptest! {
    /// In any stretch of time no more passes than the largest rate × time and the largest burst. A quota in
    /// costs lets a request begin with an eighth of the burst, and has it owe the rest.
    #[test]
    fn no_sequence_of_changes_mints(first in limits(), ops in prop::collection::vec(op(), 1..80)) {
        let (mut rate, mut burst) = (0f64, 0f64);
        let reloads = ops.iter().filter_map(|op| match op {
            Op::Reload(configs) => Some(configs),
            _ => None,
        });
        let mut owed = 0f64;
        for config in reloads.chain([&first]).flatten() {
            let (own_rate, own_burst) = terms(config);
            (rate, burst) = (rate.max(own_rate), burst.max(own_burst));
            if matches!(config, LimitConfig::Quota(QuotaConfig { unit: Unit::Cost, .. })) {
                owed = 1.0;
            }
        }
        let limits = *Limits::build(&first, Instant::ZERO).unwrap();
        let (context, now) = (Context::default(), Instant::ZERO);
        let mut world = World { limits, context, now, next: 0, inside: Vec::new(), passed: 0 };
        // A bucket of those terms, which sees all that passes.
        let (mut allowed, mut before) = (burst, (Instant::ZERO, 0));
        for op in ops {
            world.act(op.clone());
            let earned = rate * world.now.since(before.0).as_secs_f64();
            allowed = (allowed + earned).min(burst) - (world.passed as f64 - before.1 as f64);
            before = (world.now, world.passed);
            prop_assert!(allowed > -owed - 1e-6, "{} too many after {op:?}", -allowed - owed);
        }
    }
}

/// The same limits in another order, with another one before them: each goes on where it was.
#[test]
fn limits_are_known_wherever_they_stand() {
    let rate = |rate: f64, each| {
        LimitConfig::Rate(RateLimitConfig { rate, burst: 10.0, each, ..Default::default() })
    };
    let (slow, fast) = (rate(0.001, Each::All), rate(1.0, Each::Caller));
    let limits = *Limits::build(&[slow.clone(), fast.clone()], Instant::ZERO).unwrap();
    let (context, now) = (Context::default(), Instant::ZERO);
    let mut world = World { limits, context, now, next: 0, inside: Vec::new(), passed: 0 };
    (0..4).for_each(|_| assert!(world.ask()));
    world.act(Op::Reload(vec![fast.clone(), slow.clone()]));
    assert_eq!(world.passed, 10, "six were left");
    // A new one starts empty and has the only say until it has earned something.
    let other = LimitConfig::Quota(QuotaConfig {
        default: Some(Quota { rate: 1_000.0, burst: 10.0, ..Default::default() }),
        ..Default::default()
    });
    world.act(Op::Pass(20_000));
    world.act(Op::Reload(vec![other, rate(1.0, Each::All)]));
    assert_eq!(world.passed, 10);
    world.act(Op::Pass(1_000));
    assert_eq!(world.passed, 11, "the slow one's level, the new rate");
}

/// Another limit comes to stand before two of a kind: each of them goes on as itself.
#[test]
fn a_limit_that_is_put_first_changes_nobodys_heir() {
    let rate =
        |rate: f64, burst| LimitConfig::Rate(RateLimitConfig { rate, burst, ..Default::default() });
    let quota = LimitConfig::Quota(QuotaConfig::default());
    let limits = *Limits::build(&[rate(1.0, 4.0), rate(0.001, 50.0)], Instant::ZERO).unwrap();
    let (context, now) = (Context::default(), Instant::ZERO);
    let mut world = World { limits, context, now, next: 0, inside: Vec::new(), passed: 0 };
    world.act(Op::Pass(0));
    assert_eq!(world.passed, 4, "and 46 are left in the other");
    // A quota for nobody, and both a little faster.
    world.act(Op::Reload(vec![quota, rate(2.0, 4.0), rate(0.002, 50.0)]));
    world.act(Op::Pass(1_000));
    assert_eq!(world.passed, 6, "two a second");
}

/// No limits for a while: requests that came then end, and what comes afterwards is limited.
#[test]
fn limits_may_all_go_and_come_back() {
    let rate = LimitConfig::Rate(RateLimitConfig { rate: 1.0, burst: 3.0, ..Default::default() });
    let limits = *Limits::build(std::slice::from_ref(&rate), Instant::ZERO).unwrap();
    let (context, now) = (Context::default(), Instant::ZERO);
    let mut world = World { limits, context, now, next: 0, inside: Vec::new(), passed: 0 };
    world.act(Op::Pass(0));
    world.limits.reconfigure(world.now, &[]);
    assert!(world.ask() && world.ask());
    world.act(Op::Reload(vec![rate]));
    world.act(Op::Refund);
    assert_eq!(world.passed, 4, "one of five is taken back, and a new limit starts empty");
}
