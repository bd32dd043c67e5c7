//! The gate without control equals the simplest gate one could write.

use std::collections::VecDeque;

use proptest::prelude::*;
use tidegate_core::admission::AdmissionConfig;
use tidegate_core::gate::{Action, Gate, GateConfig};
use tidegate_core::slots::SlotsConfig;
use tidegate_core::{Context, Cost, Instant, Outcome, Progress, Reason, RequestId};

const SLOTS: usize = 3;
const QUEUE: usize = 5;

/// Waiting, running and paused requests as plain lists.
#[derive(Default)]
struct Model {
    waiting: VecDeque<RequestId>,
    running: Vec<RequestId>,
    paused: Vec<RequestId>,
}

#[derive(Clone, Debug)]
enum Op {
    Arrive,
    Finish(prop::sample::Index, bool),
    Cancel(prop::sample::Index),
    Pause(prop::sample::Index),
    Resume(prop::sample::Index),
    FinishTwice,
    Dispatch,
}

fn op() -> impl Strategy<Value = Op> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        6 => Just(Op::Arrive),
        4 => (index(), any::<bool>()).prop_map(|(at, served)| Op::Finish(at, served)),
        1 => index().prop_map(Op::Cancel),
        1 => index().prop_map(Op::Pause),
        1 => index().prop_map(Op::Resume),
        1 => Just(Op::FinishTwice),
        6 => Just(Op::Dispatch),
    ]
}

fn take(ids: &mut Vec<RequestId>, at: prop::sample::Index) -> Option<RequestId> {
    (!ids.is_empty()).then(|| ids.remove(at.index(ids.len())))
}

proptest! {
    #[test]
    fn equals_a_naive_gate(ops in prop::collection::vec(op(), 0..300)) {
        let config = GateConfig {
            admission: AdmissionConfig::Open,
            slots: SlotsConfig::fixed(SLOTS as u32),
            queue_limit: QUEUE,
            ..GateConfig::default()
        };
        let mut gate = Gate::new(&config, Instant::ZERO, 1).unwrap();
        let mut model = Model::default();
        let mut ended = None;
        for (step, op) in ops.into_iter().enumerate() {
            let now = Instant::from_nanos(step as u64 * 1_000);
            match op {
                Op::Arrive => match gate.arrive(now, &Context::default()) {
                    Ok(id) => {
                        prop_assert!(model.waiting.len() < QUEUE);
                        model.waiting.push_back(id);
                    }
                    Err(rejection) => {
                        prop_assert_eq!(rejection.reason, Reason::Full);
                        prop_assert!(model.waiting.len() >= QUEUE);
                    }
                },
                Op::Finish(at, served) => if let Some(id) = take(&mut model.running, at) {
                    let outcome = if served { Outcome::Serve } else { Outcome::Fail };
                    gate.finish(now, id, outcome, Cost(500));
                    ended = Some(id);
                },
                Op::Cancel(at) => {
                    let mut all: Vec<_> = model.waiting.iter().chain(&model.running).chain(&model.paused).copied().collect();
                    if let Some(id) = take(&mut all, at) {
                        gate.cancel(now, id);
                        model.waiting.retain(|other| *other != id);
                        model.running.retain(|other| *other != id);
                        model.paused.retain(|other| *other != id);
                        ended = Some(id);
                    }
                }
                Op::Pause(at) => if let Some(id) = take(&mut model.running, at) {
                    gate.pause(now, id);
                    model.paused.push(id);
                },
                Op::Resume(at) => if let Some(id) = take(&mut model.paused, at) {
                    gate.resume(now, id, Progress::default());
                    model.waiting.push_back(id);
                },
                // An id that has ended means nothing any more.
                Op::FinishTwice => if let Some(id) = ended {
                    gate.finish(now, id, Outcome::Serve, Cost(1));
                    gate.cancel(now, id);
                    gate.pause(now, id);
                    gate.resume(now, id, Progress::default());
                },
                Op::Dispatch => {
                    gate.dispatch(now);
                    while model.running.len() < SLOTS {
                        let Some(id) = model.waiting.pop_front() else { break };
                        prop_assert_eq!(gate.poll(), Some(Action::Start { id, degraded: false }));
                        model.running.push(id);
                    }
                    prop_assert_eq!(gate.poll(), None);
                }
            }
            prop_assert_eq!(gate.waiting(), model.waiting.len());
            prop_assert_eq!(gate.running() as usize, model.running.len());
            gate.invariants();
        }
    }
}
