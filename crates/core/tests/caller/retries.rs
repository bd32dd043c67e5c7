//! Retries: three attempts, a tenth of the traffic, as the callee advises, and no second layer.

use tidegate_core::caller::{CallAction, Next};
use tidegate_core::event::Event;
use tidegate_core::retry::RetryConfig;
use tidegate_core::throttle::Answer;
use tidegate_core::{Advice, Context, Outcome, Reason, Span};

use crate::*;

/// A budget that forbids nothing.
fn generous() -> RetryConfig {
    RetryConfig { share: 1.0, reserve: 1_000, ..RetryConfig::default() }
}

/// "Handling Overload", Deciding to Retry: three attempts, numbered 0, 1, 2, with the same rank
/// each time.
#[test]
fn three_attempts_elsewhere_with_the_same_rank() {
    let mut caller = open(2, generous());
    for round in 0..50 {
        let context = Context { deadline: at(1_000_000), ..ranked(round) };
        let id = caller.submit(at(0), &context).unwrap();
        let (mut before, mut rank) = (None, None);
        for attempt in 0..3 {
            let sent = sent(&mut caller);
            let [(sent_id, endpoint, sent)] = sent[..] else { panic!("{sent:?}") };
            assert_eq!((sent_id, sent.importance(), sent.attempt), (id, context.rank, attempt));
            assert_eq!(sent.rank, *rank.get_or_insert(sent.rank), "its lot is drawn once");
            assert_eq!(sent.deadline, context.deadline);
            assert_ne!(Some(endpoint), before.replace(endpoint), "elsewhere");
            let next = caller.respond(at(0), id, refused(Advice::Elsewhere), None);
            // The third refusal is final, for every layer above as well.
            let over = Next::Over(refused(Advice::Never));
            assert_eq!(next, if attempt < 2 { Next::Retry } else { over });
        }
        assert_eq!(drain(&mut caller), []);
    }
}

/// "Handling Overload", Deciding to Retry: with the 10 % budget the load is at most 1.1 times the
/// requests, though all is refused.
#[test]
fn the_budget_bounds_the_load() {
    let mut caller = open(2, RetryConfig::default());
    let (calls, mut transmissions) = (10_000, 0);
    for _ in 0..calls {
        let id = caller.submit(at(0), &ranked(1)).unwrap();
        while let Some(CallAction::Transmit { .. }) = caller.poll() {
            transmissions += 1;
            caller.respond(at(0), id, refused(Advice::Elsewhere), None);
        }
    }
    assert!((10_990..=11_010).contains(&transmissions), "{transmissions}");
    assert!(caller.budget_spent());
    // A new configuration does not fill it up.
    caller.reconfigure(at(0), &Default::default()).unwrap();
    assert!(caller.budget_spent());
}

/// Retries are paid for when they are decided, so a thousand in back-off cannot all pass.
#[test]
fn retries_in_back_off_count() {
    let mut caller = open(1, RetryConfig::default());
    let ids: Vec<RequestId> =
        (0..1_000).map(|_| caller.submit(at(0), &ranked(1)).unwrap()).collect();
    let later = refused(Advice::Later(Span::from_millis(10)));
    let retried = ids.iter().filter(|id| caller.respond(at(1), **id, later, None) == Next::Retry);
    assert_eq!(retried.count(), 10, "the reserve: deposits of full savings are lost");
}

#[test]
fn never_means_never() {
    let mut caller = open(3, generous());
    let never = refused(Advice::Never);
    for _ in 0..100 {
        let id = caller.submit(at(0), &ranked(1)).unwrap();
        assert_eq!(sent(&mut caller).len(), 1);
        assert_eq!(caller.respond(at(0), id, never, None), Next::Over(never));
    }
    assert_eq!((drain(&mut caller), caller.next_wakeup()), (vec![], None));
}

#[test]
fn later_is_no_sooner_than_asked_and_spread() {
    let mut caller = open(2, generous());
    let mut pauses = Vec::new();
    for n in 0..200 {
        let now = at(1_000 * n);
        let id = caller.submit(now, &ranked(1)).unwrap();
        drain(&mut caller);
        let later = refused(Advice::Later(Span::from_millis(100)));
        assert_eq!(caller.respond(now, id, later, None), Next::Retry);
        let wakeup = caller.next_wakeup().expect("a pause ends");
        caller.dispatch(wakeup - Span::from_nanos(1));
        assert_eq!(drain(&mut caller), []);
        caller.dispatch(wakeup);
        assert_eq!(sent(&mut caller)[0].2.attempt, 1);
        caller.respond(wakeup, id, SERVED, None);
        pauses.push(wakeup.since(now).as_millis_f64());
    }
    assert!(pauses.iter().all(|ms| (100.0..=125.0).contains(ms)), "{pauses:?}");
    let mean = pauses.iter().sum::<f64>() / pauses.len() as f64;
    assert!((mean - 112.5).abs() < 2.0, "full jitter over 25 ms: {mean}");
}

/// A retry that could only be late is not made.
#[test]
fn no_retry_beyond_the_deadline() {
    let mut caller = open(1, generous());
    let hurried = Context { deadline: at(50), ..ranked(1) };
    let id = caller.submit(at(0), &hurried).unwrap();
    let later = refused(Advice::Later(Span::from_millis(50)));
    assert_eq!(caller.respond(at(0), id, later, None), Next::Over(refused(Advice::Never)));
    // Nor one whose driver overslept.
    let id = caller.submit(at(0), &hurried).unwrap();
    let soon = refused(Advice::Later(Span::from_millis(1)));
    assert_eq!(caller.respond(at(0), id, soon, None), Next::Retry);
    drain(&mut caller);
    caller.dispatch(at(50));
    let failed = failed(&mut caller);
    assert_eq!((failed[0].0, failed[0].1.reason), (id, Reason::Expired));
    assert_eq!(failed[0].1.advice, Advice::Never);
}

#[test]
fn failures_are_retried_only_where_that_is_safe() {
    let broke = Answer::Done(Outcome::Fail);
    for (failures, expected) in [(false, Next::Over(broke)), (true, Next::Retry)] {
        let mut caller = open(1, RetryConfig { failures, ..generous() });
        let id = caller.submit(at(0), &ranked(1)).unwrap();
        assert_eq!(caller.respond(at(0), id, broke, None), expected);
    }
}

/// What an answer frees belongs to those who wait; a retry does not push in.
#[test]
fn a_retry_does_not_take_the_place_of_a_held_call() {
    let mut caller = one_at_a_time(1, 5);
    let first = caller.submit(at(0), &ranked(1)).unwrap();
    let held = caller.submit(at(0), &ranked(9)).unwrap();
    drain(&mut caller);
    assert_eq!(caller.respond(at(1), first, refused(Advice::Elsewhere), None), Next::Retry);
    let actions = drain(&mut caller);
    let [CallAction::Transmit { id, .. }, CallAction::Fail { id: gone, rejection }] = actions[..]
    else {
        panic!("{actions:?}");
    };
    assert_eq!((id, gone, rejection.advice), (held, first, Advice::Never));
}

/// An answer that comes twice ends nothing that goes on, and starts nothing that has ended.
#[test]
fn a_second_answer_is_ignored() {
    let mut caller = open(1, generous());
    caller.events().keep(true);
    let id = caller.submit(at(0), &ranked(1)).unwrap();
    let later = refused(Advice::Later(Span::from_millis(5)));
    assert_eq!(caller.respond(at(0), id, later, None), Next::Retry);
    assert_eq!(caller.respond(at(0), id, SERVED, None), Next::Retry);
    drain(&mut caller);
    caller.dispatch(caller.next_wakeup().unwrap());
    assert_eq!(sent(&mut caller).len(), 1);
    assert_eq!(caller.respond(at(50), id, SERVED, None), Next::Over(SERVED));
    caller.respond(at(50), id, refused(Advice::Elsewhere), None);
    caller.cancel(at(50), id);
    assert_eq!(drain(&mut caller), []);
    let ignored = caller.events().drain().filter(|(_, event)| matches!(event, Event::Ignore(_)));
    assert_eq!(ignored.count(), 3);
}

/// A callee may ask for any time. Without a deadline the call would wait for it.
#[test]
fn nobody_is_kept_waiting_for_a_year() {
    let mut caller = open(1, RetryConfig::default());
    let id = caller.submit(at(0), &Context::default()).unwrap();
    drain(&mut caller);
    let answer = refused(Advice::Later(Span::from_secs(31_000_000)));
    let Next::Over(Answer::Refused(rejection)) = caller.respond(at(1), id, answer, None) else {
        panic!("it is over");
    };
    assert_eq!(rejection.advice, Advice::Never);
}
