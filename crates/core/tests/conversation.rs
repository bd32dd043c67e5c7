//! A caller and a gate talking to each other over a link.

mod pair;

use pair::{End, Pair};
use tidegate_core::admission::{AdmissionConfig, BreakwaterConfig, Demand, TideConfig};
use tidegate_core::caller::CallerConfig;
use tidegate_core::gate::GateConfig;
use tidegate_core::slots::SlotsConfig;
use tidegate_core::throttle::{CreditConfig, ThrottleConfig};
use tidegate_core::{Context, Instant, Outcome, Rank, Span};

fn credit_caller() -> CallerConfig {
    let mut config = CallerConfig {
        throttle: ThrottleConfig::Credit(CreditConfig::default()),
        ..Default::default()
    };
    config.retry.attempts = 1;
    config
}

fn gate(admission: AdmissionConfig) -> GateConfig {
    GateConfig { admission, slots: SlotsConfig::fixed(1), ..GateConfig::default() }
}

fn breakwater() -> GateConfig {
    gate(AdmissionConfig::Breakwater(BreakwaterConfig { floor: 1, ..Default::default() }))
}

fn tide() -> GateConfig {
    gate(AdmissionConfig::Tide(TideConfig {
        objective: Span::from_micros(200).into(),
        floor: 1,
        ..Default::default()
    }))
}

fn at(micros: u64) -> Instant {
    Instant::ZERO + Span::from_micros(micros)
}

/// Offers one request every `every` for `millis`, alternating two ranks, and counts how many of each
/// were answered.
fn offer(pair: &mut Pair, every: Span, millis: u64) -> [usize; 2] {
    let ranks = [Rank::new(10, 0), Rank::new(50, 0)];
    let end = pair.now + Span::from_millis(millis);
    let mut ids = Vec::new();
    for n in 0.. {
        if pair.now >= end {
            break;
        }
        let which = n % 2;
        if let Ok(id) = pair.submit(&Context { rank: ranks[which], ..Context::default() }) {
            ids.push((id, which));
        }
        pair.run_until(pair.now + every);
    }
    pair.run_until(end + Span::from_millis(5));
    let mut served = [0; 2];
    for (_, id, ending) in &pair.ends {
        if *ending == End::Served {
            served[ids.iter().find(|(other, _)| other == id).unwrap().1] += 1;
        }
    }
    served
}

#[test]
fn a_first_request_needs_no_permission_and_brings_credits() {
    let mut pair = Pair::new(&credit_caller(), &breakwater(), Span::from_micros(10));
    pair.submit(&Context::default()).unwrap();
    pair.submit(&Context::default()).unwrap();
    assert_eq!(pair.caller.held(), 1, "the second waits for the first one's answer");
    pair.run_until(at(100));
    assert_eq!(pair.ends.len(), 2);
    assert!(pair.ends.iter().all(|(_, _, end)| *end == End::Served));
}

#[test]
fn below_capacity_everything_is_served_and_nothing_refused() {
    for config in [breakwater(), tide()] {
        let mut pair = Pair::new(&credit_caller(), &config, Span::from_micros(10));
        let served = offer(&mut pair, Span::from_micros(12), 20);
        let offered = 20_000usize.div_ceil(12);
        assert!(served.iter().sum::<usize>() >= offered - 2, "{served:?} of {offered}");
    }
}

#[test]
fn at_twice_capacity_breakwater_serves_at_capacity() {
    let mut pair = Pair::new(&credit_caller(), &breakwater(), Span::from_micros(10));
    let served = offer(&mut pair, Span::from_micros(5), 50);
    let total: usize = served.iter().sum();
    assert!(total >= 4_750, "{served:?} of 5000 possible");
}

#[test]
fn at_twice_capacity_tide_serves_the_important_half() {
    let mut pair = Pair::new(&credit_caller(), &tide(), Span::from_micros(10));
    let served = offer(&mut pair, Span::from_micros(5), 50);
    let total: usize = served.iter().sum();
    assert!(total >= 4_750, "{served:?} of 5000 possible");
    assert!(served[0] >= 4_750, "{served:?}: the important ones are as many as can be served");
}

/// To answer with errors is work too, and so is what nobody waits for any more: what the service can do
/// does not shrink with it.
#[test]
fn at_twice_capacity_tide_keeps_a_failing_service_busy() {
    use Outcome::{Cancel, Fail, Serve};
    let given_up: &[Outcome] = &[Serve, Cancel, Cancel, Cancel, Cancel];
    for outcomes in [&[Fail], given_up] {
        let mut pair = Pair::new(&credit_caller(), &tide(), Span::from_micros(10));
        pair.outcomes = outcomes;
        for rank in (0..20_000_u32).map(|n| Rank::from_key(n.wrapping_mul(0x9e37_79b9) >> 10)) {
            let _ = pair.submit(&Context { rank, ..Context::default() });
            pair.run_until(pair.now + Span::from_micros(5));
        }
        let done = pair.ends.iter().filter(|(.., end)| *end == End::Served).count();
        assert!(done >= 9_500, "{outcomes:?}: {done} of 10,000 possible");
    }
}

/// A drained caller is woken by a grant; if that is lost, it asks again.
#[test]
fn lost_grants_heal_by_themselves() {
    let mut config = credit_caller();
    config.throttle =
        ThrottleConfig::Credit(CreditConfig { holds: Span::from_millis(2), ..Default::default() });
    let mut pair = Pair::new(&config, &breakwater(), Span::from_micros(10));
    pair.lose_notices = true;
    let served: usize = offer(&mut pair, Span::from_micros(5), 50).iter().sum();
    assert!(served > 1_000, "{served}");
}

/// Breakwater §5.3: without overcommitment a drained caller is served because it tells its demand.
#[test]
fn synchronised_demand_is_served_without_overcommitment() {
    let mut config = credit_caller();
    let throttle = CreditConfig { synchronise: true, ..CreditConfig::default() };
    config.throttle = ThrottleConfig::Credit(throttle);
    let admission =
        BreakwaterConfig { floor: 1, demand: Demand::Synchronise, ..BreakwaterConfig::default() };
    let gate = gate(AdmissionConfig::Breakwater(admission));
    let mut pair = Pair::new(&config, &gate, Span::from_micros(10));
    // Alone and far apart, so that each call finds the caller drained.
    for n in 0..10 {
        pair.run_until(at(1_000 * n));
        pair.submit(&Context::default()).unwrap();
    }
    pair.run_until(at(9_100));
    assert_eq!(pair.ends.len(), 10, "each is served within 100 µs");
    assert!(pair.ends.iter().all(|(_, _, end)| *end == End::Served));
}
