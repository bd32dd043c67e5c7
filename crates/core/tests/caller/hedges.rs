//! Second attempts while the first has not been answered.

use tidegate_core::caller::CallerConfig;
use tidegate_core::retry::HedgeConfig;
use tidegate_core::{Caller, Context, RequestId};

use crate::{SERVED, at, sent};

/// A caller that knows that answers take 2 ms.
fn caller(endpoints: usize) -> Caller {
    let config = CallerConfig { hedge: Some(HedgeConfig::default()), ..CallerConfig::default() };
    let mut caller = Caller::new(&config, endpoints, at(0), 5).unwrap();
    for n in 0..100 {
        let id = submit(&mut caller, 10 * n).0;
        caller.respond(at(10 * n + 2), id, SERVED, None);
    }
    caller
}

fn submit(caller: &mut Caller, millis: u64) -> (RequestId, usize) {
    let id = caller.submit(at(millis), &Context::default()).unwrap();
    (id, sent(caller)[0].1)
}

#[test]
fn a_hedge_goes_elsewhere_after_the_usual_time() {
    let mut caller = caller(3);
    let (id, endpoint) = submit(&mut caller, 2_000);
    let due = caller.hedge_at(id).unwrap();
    assert!((at(2_001)..=at(2_003)).contains(&due), "{due:?}");
    let hedge = caller.hedge(due, id).unwrap();
    let [(sent, elsewhere, context)] = sent(&mut caller)[..] else { panic!("one was sent") };
    assert_eq!((sent, context.attempt), (hedge, 1));
    assert_ne!(elsewhere, endpoint);
    assert_eq!(caller.hedge_at(hedge), None, "no hedge of a hedge");
    caller.respond(at(2_004), hedge, SERVED, None);
    caller.cancel(at(2_004), id);
    caller.invariants();
    assert_eq!((0..3).map(|it| caller.in_flight(it)).sum::<u32>(), 0);
}

/// The budget is that of retries: when everything is late, a tenth is sent twice and no more.
#[test]
fn hedges_and_retries_share_one_budget() {
    let mut caller = caller(3);
    let mut hedged = 0;
    for n in 0..1_000 {
        let id = submit(&mut caller, 2_000 + n).0;
        if let Some(hedge) = caller.hedge(at(2_000 + n), id) {
            hedged += 1;
            sent(&mut caller);
            caller.cancel(at(2_000 + n), hedge);
        }
        caller.cancel(at(2_000 + n), id);
    }
    assert!((100..=111).contains(&hedged), "{hedged}");
    assert!(caller.budget_spent());
}

#[test]
fn there_is_none_without_another_endpoint_or_time_or_when_it_was_not_asked_for() {
    let mut alone = caller(1);
    let id = submit(&mut alone, 2_000).0;
    assert_eq!(alone.hedge(at(2_010), id), None);
    let mut late = caller(2);
    let context = Context { deadline: at(2_001), ..Context::default() };
    let id = late.submit(at(2_000), &context).unwrap();
    assert_eq!((late.hedge_at(id), late.hedge(at(2_005), id)), (None, None));
    let mut never = Caller::new(&CallerConfig::default(), 2, at(0), 5).unwrap();
    let id = submit(&mut never, 0).0;
    assert_eq!((never.hedge_at(id), never.hedge(at(900), id)), (None, None));
    never.respond(at(901), id, SERVED, None);
    assert_eq!(never.hedge(at(902), id), None, "it was answered");
}
