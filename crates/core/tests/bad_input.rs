//! What cannot be: limits, divisions and placements that make no sense are errors or have a defined meaning, and
//! none of them lets more pass than was agreed.

use tidegate_core::config::Problems;
use tidegate_core::gate::GateConfig;
use tidegate_core::limit::{Bucket, Limit};
use tidegate_core::placement::replay::{Arrival, Costs};
use tidegate_core::placement::{
    Broker, FitConfig, Fitting, GroupId, Host, Measured, PlaceError, Placement, Planner,
    PlannerConfig, Publisher, moves,
};
use tidegate_core::share::{
    AdaptorConfig, Granter, HistoryConfig, Holder, HolderId, LeaseConfig, Rate, Share, SplitError,
    Weight, split,
};
use tidegate_core::{Instant, Span};

const NUMBERS_THAT_ARE_NONE: [f64; 4] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0];
const SLO: Span = Span::from_millis(1);

fn whole(rate: f64, burst: u64) -> Share {
    Share::new(Rate::per_second(rate).unwrap(), burst)
}

#[test]
fn a_share_plan_that_cannot_sum_is_an_error_on_both_sides() {
    assert_eq!(split(whole(100.0, 10), &[]), Err(SplitError::NoParts));
    let many = vec![Weight::both(1); 11];
    let error = SplitError::BurstTooSmall { parts: 11, burst: 10 };
    assert_eq!(split(whole(100.0, 10), &many), Err(error));
    // Weights of nothing are weights all the same, and the parts are the whole.
    let parts = split(whole(100.0, 10), &[Weight::both(0); 3]).unwrap();
    let sum = parts.into_iter().fold(Share::NONE, Share::plus);
    assert_eq!(sum, whole(100.0, 10));
    // Safe shares of more nodes than there are tokens, and of no nodes at all.
    for (nodes, error) in [(11, error), (0, SplitError::NoParts)] {
        let config = LeaseConfig { nodes, ..LeaseConfig::default() };
        let granter = Granter::new(whole(100.0, 10), config, AdaptorConfig::default());
        assert_eq!(granter.err(), Some(error));
        let history = HistoryConfig::default();
        let holder = Holder::new(Instant::ZERO, HolderId(1), whole(100.0, 10), config, history);
        assert_eq!(holder.err(), Some(error));
    }
}

#[test]
fn rates_below_zero_or_no_numbers_are_refused_or_the_slowest_there_is() {
    for rate in NUMBERS_THAT_ARE_NONE {
        assert_eq!(Rate::per_second(rate), None, "{rate}");
        let mut problems = Problems::default();
        Limit::new(rate, 1.0).validate(&mut problems, 1.0);
        assert!(problems.into_result().is_err(), "{rate}");
    }
    for rate in ["-1.0", "nan", "inf"] {
        let text = format!("[[limits]]\nlimit = 'rate'\nrate = {rate}\nburst = 5");
        let error = GateConfig::from_toml(&text).unwrap_err().to_string();
        assert!(error.contains("rate"), "{error}");
    }
    // A driver that asks nobody still lets no more pass than the burst.
    for rate in [f64::NAN, -1.0] {
        let mut bucket = Bucket::full(Instant::ZERO, Limit::new(rate, 5.0));
        let later = Instant::ZERO + Span::from_secs(3_600);
        let passed = (0..100).filter(|_| bucket.take_cost(later, 1.0).is_ok()).count();
        assert_eq!(passed, 5, "{rate}");
    }
}

#[test]
fn costs_that_are_no_numbers_pass_nothing_and_mint_nothing() {
    for cost in NUMBERS_THAT_ARE_NONE {
        let mut bucket = Bucket::full(Instant::ZERO, Limit::new(1.0, 5.0));
        assert!(bucket.take_cost(Instant::ZERO, cost).is_err(), "{cost}");
        bucket.refund(Instant::ZERO, cost);
        bucket.settle_cost(Instant::ZERO, 1.0, cost, 5.0);
        assert!(bucket.tokens(Instant::ZERO) <= 5.0, "{cost}");
        bucket.invariants();
    }
}

fn broker(capacity: f64) -> Broker {
    Broker { capacity, load: 0.0 }
}

fn publishers(count: usize, group: Option<GroupId>) -> Vec<Publisher> {
    vec![Publisher { rate: 10.0, group }; count]
}

fn planner(topic: &[Publisher], brokers: usize) -> Result<Planner, PlaceError> {
    let costs = Costs {
        cores: 2,
        wake: Span::from_micros(18),
        read: Span::from_micros(7),
        forward: Span::from_micros(8),
        network: Span::ZERO,
    };
    let second = Span::from_secs(1);
    let at = |publisher: usize| Arrival {
        at: Instant::ZERO + Span::from_millis(publisher as u64),
        publisher: publisher as u32,
        messages: 10,
    };
    let recording: Vec<Arrival> = (0..topic.len()).map(at).collect();
    let hosts = vec![Host { costs, serves: Vec::new() }; brokers];
    let config = PlannerConfig::new(SLO, second, second);
    Planner::new(topic, whole(1_000.0, 100), &recording, &hosts, config)
}

#[test]
fn an_empty_broker_list_is_an_error_and_nobody_can_move() {
    let topic = publishers(3, None);
    let fitting = Fitting::new(&topic, &[], FitConfig::new(SLO));
    assert_eq!(fitting.err(), Some(PlaceError::NoBrokers));
    assert_eq!(planner(&topic, 0).err(), Some(PlaceError::NoBrokers));
    assert_eq!(planner(&[], 2).err(), Some(PlaceError::NoPublishers));
    let moved = moves(&topic, &Placement::none(3), &[]);
    assert_eq!(moved.placement.used(), [0usize; 0]);
    assert_eq!(
        moved.placement.shares(whole(30.0, 3), &topic),
        Err(SplitError::NoParts),
        "nobody has a share of anything"
    );
}

#[test]
fn publishers_without_a_group_are_placed_by_everyone() {
    let mut topic = publishers(30, None);
    topic.extend(publishers(30, Some(GroupId(7))));
    let fitting = Fitting::new(&topic, &[broker(400.0), broker(400.0)], FitConfig::new(SLO));
    assert!(fitting.unwrap().placement().broker_of.iter().all(Option::is_some));
    assert!(planner(&topic, 2).unwrap().placement().broker_of.iter().all(Option::is_some));
}

/// In mid-placement, and the last one, too. The shares of those who are left are the whole, never more.
#[test]
fn a_broker_that_disappears_takes_no_share_with_it() {
    let topic = publishers(40, None);
    let agreed = whole(440.0, 50);
    let sum = |placement: &Placement| {
        let shares = placement.shares(agreed, &topic).unwrap();
        shares.into_iter().fold(Share::NONE, |sum, (_, share)| sum.plus(share))
    };
    let brokers = [broker(220.0), broker(220.0), broker(220.0)];
    let mut fitting = Fitting::new(&topic, &brokers, FitConfig::new(SLO)).unwrap();
    assert_eq!(fitting.placement().used(), [0, 1]);
    fitting.on_measured(&[Measured::Gone, Measured::Tail(SLO), Measured::Idle]);
    while !fitting.is_done() {
        fitting.on_measured(&[Measured::Gone, Measured::Tail(SLO), Measured::Tail(SLO)]);
    }
    assert_eq!(fitting.placement().used(), [1, 2]);
    assert_eq!(sum(fitting.placement()), agreed);

    let mut planner = planner(&topic, 2).unwrap();
    let first = planner.placement().used()[0];
    let mut measured = [Measured::Idle; 2];
    measured[first] = Measured::Gone;
    planner.on_measured(&measured);
    assert_eq!(planner.placement().used(), [1 - first]);
    assert_eq!(sum(planner.placement()), agreed);
    planner.on_measured(&[Measured::Gone; 2]);
    assert!(planner.is_done() && !planner.met());
    assert_eq!(planner.placement().used(), [0usize; 0], "nobody is left to serve anyone");
}
