//! Limits as the first stage of a gate: all or nothing, given back when a later stage refuses,
//! settled when the work is done.

use proptest::prelude::*;
use tidegate_core::gate::{Action, GateConfig};
use tidegate_core::{
    Advice, Context, Cost, Gate, Instant, Outcome, Rank, Reason, Rejection, RequestId, Span,
    Workflow,
};

fn at(millis: u64) -> Instant {
    Instant::ZERO + Span::from_millis(millis)
}

fn gate(config: &str) -> Gate {
    let config = GateConfig::from_toml(config).unwrap_or_else(|error| panic!("{error}"));
    let mut gate = Gate::new(&config, at(0), 1).expect("checked");
    gate.name_workflows(|name| Workflow(if name == "mail" { 1 } else { 2 }));
    gate
}

fn of(workflow: u16) -> Context {
    Context { workflow: Workflow(workflow), ..Context::default() }
}

fn start(gate: &mut Gate, now: Instant) -> Vec<RequestId> {
    gate.dispatch(now);
    let mut started = Vec::new();
    while let Some(action) = gate.poll() {
        if let Action::Start { id, .. } = action {
            started.push(id);
        }
    }
    started
}

const TWO: &str = "
    admission = { policy = 'open' }
    slots = { slots = 'fixed', count = 1 }
    queue_limit = 2
    [[limits]]
    limit = 'rate'
    rate = 1
    burst = 10
    [[limits]]
    limit = 'quota'
    [[limits.quotas]]
    workflow = 'mail'
    rate = 1
    burst = 3
";

/// The quota refuses what the rate before it had let pass: it costs the rate nothing.
#[test]
fn a_request_is_charged_by_all_or_by_none() {
    let mut gate = gate(&TWO.replace("queue_limit = 2", "queue_limit = 100"));
    let passed = (0..50).filter(|_| gate.arrive(at(0), &of(1)).is_ok()).count();
    assert_eq!(passed, 3);
    // Seven of the rate's ten are left for another.
    let passed = (0..50).filter(|_| gate.arrive(at(0), &of(2)).is_ok()).count();
    assert_eq!(passed, 7);
    gate.invariants();
}

/// Refused by the bound of the queue, cancelled while it waited, or served: only the last is paid.
#[test]
fn what_a_later_stage_refuses_is_given_back() {
    let mut gate = gate(TWO);
    let first = gate.arrive(at(0), &of(1)).unwrap();
    assert_eq!(start(&mut gate, at(0)), [first]);
    let second = gate.arrive(at(0), &of(1)).unwrap();
    gate.arrive(at(0), &of(2)).unwrap();
    for _ in 0..20 {
        assert_eq!(gate.arrive(at(0), &of(1)).unwrap_err().reason, Reason::Full);
    }
    gate.cancel(at(0), second);
    // One runs, one was cancelled: two of three are left.
    gate.finish(at(0), first, Outcome::Serve, Cost(1));
    let mut passed = 0;
    while let Ok(id) = gate.arrive(at(0), &of(1)) {
        passed += 1;
        gate.dispatch(at(0));
        for started in start(&mut gate, at(0)) {
            gate.finish(at(0), started, Outcome::Serve, Cost(1));
        }
        gate.cancel(at(0), id);
        assert!(passed < 100, "what was paid for comes back for ever");
    }
    assert!(passed >= 2, "{passed}");
}

#[test]
fn a_refusal_tells_the_quota_and_when_to_come_back() {
    let mut gate = gate(TWO);
    let refused = |gate: &mut Gate| -> Rejection {
        loop {
            match gate.arrive(at(0), &of(1)) {
                Ok(_) => {
                    for id in start(gate, at(0)) {
                        gate.finish(at(0), id, Outcome::Serve, Cost(1));
                    }
                }
                Err(rejection) => return rejection,
            }
        }
    };
    let rejection = refused(&mut gate);
    assert_eq!((rejection.reason, rejection.limit), (Reason::Quota, 1.0));
    assert_eq!(rejection.advice, Advice::Later(Span::from_secs(1)));
    assert!(rejection.measured > rejection.limit);
}

/// Processor time: the estimate is charged, the truth is settled.
#[test]
fn costs_are_settled_at_the_end() {
    let mut gate = gate(
        "
        admission = { policy = 'open' }
        [[limits]]
        limit = 'rate'
        unit = 'cpu-seconds'
        rate = 1
        burst = 0.1
        ",
    );
    let id = gate.arrive(at(0), &of(0)).unwrap();
    start(&mut gate, at(0));
    // Nobody knew that it would take 150 ms of processor time.
    gate.finish(at(0), id, Outcome::Serve, Cost(150_000_000));
    assert!(gate.arrive(at(40), &of(0)).is_err());
    // Next time it is expected to: the bucket has to be full.
    assert!(gate.arrive(at(140), &of(0)).is_err());
    assert!(gate.arrive(at(151), &of(0)).is_ok());
}

/// A new configuration changes limits in place and mints nothing; limits can come and go.
#[test]
fn limits_change_while_requests_are_inside() {
    let mut gate = gate(TWO);
    let first = gate.arrive(at(0), &of(1)).unwrap();
    start(&mut gate, at(0));
    let mut config = GateConfig::from_toml(TWO).unwrap();
    config.limits.pop();
    gate.reconfigure(at(0), &config).unwrap();
    gate.finish(at(0), first, Outcome::Serve, Cost(1));
    let second = gate.arrive(at(0), &of(1)).unwrap();
    config.limits.clear();
    gate.reconfigure(at(0), &config).unwrap();
    assert!(gate.limits().is_none());
    start(&mut gate, at(0));
    gate.finish(at(0), second, Outcome::Serve, Cost(1));
    gate.reconfigure(at(0), &GateConfig::from_toml(TWO).unwrap()).unwrap();
    gate.invariants();
}

#[test]
fn what_is_wrong_with_a_limit_is_named_with_its_place() {
    let text = "
        [[limits]]
        limit = 'rate'
        rate = -1
        burst = 0
        colour = 'red'
        [[limits]]
        limit = 'window'
        quota = nan
        [[limits]]
        limit = 'tree'
        others = 'nobody'
        [[limits.nodes]]
        path = 'acme//x'
        rate = 'fast'
    ";
    let error = GateConfig::from_toml(text).unwrap_err();
    let fields: Vec<&str> = error.problems().iter().map(|at| at.field.as_str()).collect();
    for field in [
        "limits.0.rate",
        "limits.0.burst",
        "limits.0.colour",
        "limits.1.quota",
        "limits.2.others",
        "limits.2.nodes.0.path",
        "limits.2.nodes.0.rate",
    ] {
        assert!(fields.contains(&field), "{field} in {error}");
    }
}

proptest! {
    /// Whatever happens to requests, what is served in any run is within the limit, and what was
    /// refused, cancelled or pushed out cost nothing: at the end the rest of the burst is there.
    #[test]
    fn only_what_is_served_is_charged(
        ops in prop::collection::vec((0..5u8, 0..64u8), 1..200),
    ) {
        const BURST: usize = 20;
        let mut gate = gate("
            queue_limit = 3
            slots = { slots = 'fixed', count = 2 }
            [admission]
            policy = 'tide'
            [[limits]]
            limit = 'rate'
            rate = 0.001
            burst = 20
        ");
        let (mut waiting, mut running, mut served) = (Vec::new(), Vec::new(), 0);
        for (op, n) in ops {
            match op {
                0 | 1 => {
                    let context = Context { rank: Rank::new(n, 0), ..of(0) };
                    waiting.extend(gate.arrive(at(0), &context).ok());
                }
                2 if !waiting.is_empty() => {
                    let id = waiting.swap_remove(usize::from(n) % waiting.len());
                    if !running.contains(&id) {
                        gate.cancel(at(0), id);
                    }
                }
                3 if !running.is_empty() => {
                    let id = running.swap_remove(usize::from(n) % running.len());
                    gate.finish(at(0), id, Outcome::Serve, Cost(1));
                    served += 1;
                }
                _ => {}
            }
            running.extend(start(&mut gate, at(0)));
            waiting.retain(|id| !running.contains(id) && gate.request(*id).is_some());
            prop_assert!(served + running.len() + waiting.len() <= BURST);
            gate.invariants();
        }
        for id in waiting.drain(..).filter(|id| !running.contains(id)) {
            gate.cancel(at(0), id);
        }
        for id in running.drain(..) {
            gate.finish(at(0), id, Outcome::Serve, Cost(1));
            served += 1;
        }
        let mut left = 0;
        while let Ok(id) = gate.arrive(at(0), &of(0)) {
            for started in start(&mut gate, at(0)) {
                gate.finish(at(0), started, Outcome::Serve, Cost(1));
                left += 1;
            }
            prop_assert!(gate.request(id).is_none());
        }
        prop_assert_eq!(served + left, BURST);
    }
}
