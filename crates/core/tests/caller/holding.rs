//! The holding queue: bounded, in order, least important first to go, never too late.

use tidegate_core::caller::{CallAction, CallerConfig, Next};
use tidegate_core::throttle::{RateConfig, ThrottleConfig};
use tidegate_core::{Advice, Context, Feedback, GateId, Reason, Span, Workflow};

use crate::*;

#[test]
fn held_calls_leave_in_order_of_arrival() {
    let mut caller = one_at_a_time(1, 5);
    let ids: Vec<RequestId> =
        [9, 3, 5].map(|business| caller.submit(at(0), &ranked(business)).unwrap()).into();
    assert_eq!(caller.held(), 2);
    for (n, id) in ids.iter().enumerate() {
        let sent = sent(&mut caller);
        assert_eq!(sent.len(), 1);
        // Each tells how many still wait.
        assert_eq!((sent[0].0, sent[0].2.demand), (*id, [0, 1, 0][n]));
        caller.respond(at(1), *id, SERVED, None);
    }
}

#[test]
fn a_full_queue_loses_its_least_important() {
    let mut caller = one_at_a_time(1, 5);
    caller.submit(at(0), &ranked(0)).unwrap();
    let held = [20, 50, 30, 50].map(|business| caller.submit(at(0), &ranked(business)).unwrap());
    drain(&mut caller);
    // As unimportant as the least: the newcomer goes.
    assert_eq!(caller.submit(at(0), &ranked(50)).unwrap_err().reason, Reason::Credit);
    // More important: the newest of the least important goes, and is told so.
    for victim in [held[3], held[1], held[2]] {
        caller.submit(at(0), &ranked(10)).unwrap();
        let failed = failed(&mut caller);
        assert_eq!(failed.len(), 1);
        assert_eq!((failed[0].0, failed[0].1.reason), (victim, Reason::PushedOut));
    }
    assert_eq!(caller.held(), 4);
}

/// Nothing is sent whose answer would come after its deadline.
#[test]
fn held_calls_give_up_in_time_for_an_answer() {
    let mut caller = one_at_a_time(1, 5);
    // Answers take 10 ms, always.
    for n in 0..10 {
        let id = caller.submit(at(10 * n), &ranked(1)).unwrap();
        caller.respond(at(10 * n + 10), id, SERVED, None);
    }
    caller.submit(at(100), &ranked(1)).unwrap();
    drain(&mut caller);
    let hopeless = Context { deadline: at(110), ..ranked(1) };
    assert_eq!(caller.submit(at(100), &hopeless).unwrap_err().reason, Reason::Credit);
    let id = caller.submit(at(100), &Context { deadline: at(130), ..ranked(1) }).unwrap();
    assert_eq!(caller.next_wakeup(), Some(at(120)));
    caller.dispatch(at(120) - Span::from_nanos(1));
    assert_eq!(caller.held(), 1);
    caller.dispatch(at(120));
    assert_eq!(failed(&mut caller)[0].0, id);
}

#[test]
fn without_a_deadline_calls_are_held_for_the_holding_time() {
    let mut caller = one_at_a_time(1, 5);
    caller.submit(at(0), &ranked(1)).unwrap();
    let id = caller.submit(at(3), &ranked(1)).unwrap();
    drain(&mut caller);
    caller.dispatch(at(1_002));
    assert_eq!(failed(&mut caller), []);
    // Waking late does not send what has waited too long.
    caller.dispatch(at(2_000));
    assert_eq!(failed(&mut caller)[0].0, id);
}

/// Two random choices may both be busy while a third endpoint is idle.
#[test]
fn nothing_is_held_while_any_endpoint_would_take_it() {
    for seed in 0..20 {
        let mut caller = one_at_a_time(5, seed);
        for _ in 0..5 {
            caller.submit(at(0), &ranked(1)).unwrap();
        }
        assert_eq!((caller.held(), sent(&mut caller).len()), (0, 5));
        caller.submit(at(0), &ranked(1)).unwrap();
        assert_eq!(caller.held(), 1);
        // And a new endpoint is put to use at once.
        assert_eq!(caller.add_endpoint(at(0)), 5);
        assert_eq!(sent(&mut caller)[0].1, 5);
    }
}

/// Demand that was told and then vanished without another request.
#[test]
fn vanished_demand_is_reported_once() {
    let mut caller = one_at_a_time(1, 5);
    let first = caller.submit(at(0), &ranked(1)).unwrap();
    let held = [2, 3, 4].map(|business| caller.submit(at(0), &ranked(business)).unwrap());
    caller.respond(at(1), first, SERVED, None);
    let told = sent(&mut caller).last().map(|(.., context)| context.demand);
    assert_eq!(told, Some(2));
    // One is cancelled, one gives up after a second; the one that is out comes back last.
    caller.cancel(at(2), held[1]);
    caller.dispatch(at(1_000));
    assert_eq!((caller.held(), failed(&mut caller).len()), (0, 1));
    caller.respond(at(1_001), held[0], SERVED, None);
    let actions = drain(&mut caller);
    let [CallAction::Report { endpoint: 0, context }] = actions[..] else {
        panic!("{actions:?}");
    };
    assert_eq!((context.caller, context.demand), (caller.id(), 0));
    assert_eq!((context.sheds.count, context.sheds.sample.business()), (1, 4));
    caller.dispatch(at(9_000));
    assert_eq!(drain(&mut caller), []);
}

/// A token that came due while the driver slept belongs to who has waited, not to a newcomer.
#[test]
fn a_newcomer_does_not_overtake() {
    let throttle = RateConfig { rate: 10.0, burst: 1, ..RateConfig::default() };
    let config =
        CallerConfig { throttle: ThrottleConfig::Rate(throttle), ..CallerConfig::default() };
    let mut caller = Caller::new(&config, 1, at(0), 5).unwrap();
    caller.submit(at(0), &ranked(1)).unwrap();
    let waited = caller.submit(at(0), &ranked(60)).unwrap();
    drain(&mut caller);
    assert_eq!(caller.next_wakeup(), Some(at(100)));
    caller.submit(at(150), &ranked(0)).unwrap();
    let sent = sent(&mut caller);
    assert_eq!((sent.len(), sent[0].0, caller.held()), (1, waited, 1));
    // One deep: it was full from 100 ms on, and began anew when this one left.
    assert_eq!(caller.next_wakeup(), Some(at(250)));
}

/// Workflows have rates of their own, so one that waits does not stand in another's way.
#[test]
fn a_slow_workflow_does_not_block_another() {
    let config = CallerConfig {
        throttle: ThrottleConfig::Rate(RateConfig::default()),
        hold_time: Span::from_secs(10),
        ..CallerConfig::default()
    };
    let mut caller = Caller::new(&config, 1, at(0), 5).unwrap();
    let [slow, fast] = [1, 2].map(|n| Context { workflow: Workflow(n), ..ranked(1) });
    for (sequence, (context, rate)) in [(slow, 2.0), (fast, 1_000.0)].into_iter().enumerate() {
        let id = caller.submit(at(0), &context).unwrap();
        let silent = Feedback::silent(GateId(1), sequence as u64 + 1);
        let grant = Feedback { rate: Some(rate), ..silent };
        assert_eq!(caller.respond(at(0), id, SERVED, Some(&grant)), Next::Over(SERVED));
    }
    drain(&mut caller);
    caller.submit(at(0), &slow).unwrap();
    let id = caller.submit(at(0), &fast).unwrap();
    assert_eq!((caller.held(), caller.next_wakeup()), (2, Some(at(1))));
    caller.dispatch(at(1));
    assert_eq!(sent(&mut caller)[0].0, id);
    assert_eq!(caller.next_wakeup(), Some(at(500)));
}

#[test]
fn a_shorter_queue_lets_the_least_important_go() {
    let mut caller = one_at_a_time(1, 5);
    caller.submit(at(0), &ranked(0)).unwrap();
    let held = [20, 50, 0, 40].map(|business| caller.submit(at(0), &ranked(business)).unwrap());
    drain(&mut caller);
    let window = ThrottleConfig::Window(Default::default());
    let shorter = CallerConfig { throttle: window, hold_limit: 2, ..CallerConfig::default() };
    caller.reconfigure(at(1), &shorter).unwrap();
    let failed: Vec<RequestId> = failed(&mut caller).iter().map(|(id, _)| *id).collect();
    assert_eq!(failed, [held[1], held[3]]);
    caller.reconfigure(at(1), &CallerConfig { hold_limit: 0, ..shorter }).unwrap();
    assert_eq!(caller.held(), 0);
}

/// Another throttle starts with what is in flight, and looks at what is held.
#[test]
fn another_throttle_takes_over_what_is_there() {
    let mut caller = open(1, Default::default());
    let first = caller.submit(at(0), &ranked(1)).unwrap();
    let window = ThrottleConfig::Window(Default::default());
    let held_back = CallerConfig { throttle: window, ..CallerConfig::default() };
    caller.reconfigure(at(0), &held_back).unwrap();
    let second = caller.submit(at(0), &ranked(1)).unwrap();
    assert_eq!((caller.held(), sent(&mut caller)[0].0), (1, first));
    caller.reconfigure(at(0), &CallerConfig::default()).unwrap();
    assert_eq!((caller.held(), sent(&mut caller)[0].0), (0, second));
    let bad = CallerConfig {
        throttle: ThrottleConfig::Rate(RateConfig { rate: f64::NAN, ..RateConfig::default() }),
        ..CallerConfig::default()
    };
    assert!(caller.reconfigure(at(0), &bad).is_err());
}

/// A throttle that never holds decides about each held call at once, in order of arrival: none is
/// left to wait for something that will not come.
#[test]
fn a_throttle_that_never_holds_leaves_nothing_held() {
    let adaptive = ThrottleConfig::Adaptive(Default::default());
    let config = CallerConfig { throttle: adaptive, ..CallerConfig::default() };
    let (mut sent, mut failed) = (0, 0);
    for seed in 0..50 {
        let mut caller = one_at_a_time(2, seed);
        for business in [1, 2] {
            caller.submit(at(0), &ranked(business)).unwrap();
        }
        let held =
            [50, 52, 51, 53].map(|business| caller.submit(at(0), &ranked(business)).unwrap());
        drain(&mut caller);
        caller.reconfigure(at(1), &config).unwrap();
        let mut decided = Vec::new();
        for action in drain(&mut caller) {
            match action {
                CallAction::Transmit { id, .. } => {
                    sent += 1;
                    decided.push(id);
                }
                CallAction::Fail { id, .. } => {
                    failed += 1;
                    decided.push(id);
                }
                CallAction::Report { .. } => {}
            }
        }
        assert_eq!((decided, caller.held()), (held.to_vec(), 0));
    }
    assert!(sent > 0 && failed > 0, "both happen by chance: {sent} sent, {failed} failed");
}

#[test]
fn an_expired_call_is_rejected_and_never_retried() {
    let mut caller = open(1, Default::default());
    let rejection = caller.submit(at(5), &Context { deadline: at(5), ..ranked(1) }).unwrap_err();
    assert_eq!((rejection.reason, rejection.advice), (Reason::Expired, Advice::Never));
}
