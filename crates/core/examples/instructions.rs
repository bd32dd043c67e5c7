//! Work to count instructions of: `cargo xtask bench` runs this under callgrind.
//!
//! `instructions` lists what there is; `instructions NAME N` does operation NAME N times. The price
//! of one is the difference between 2N and N times, divided by N: whatever happens before and
//! after cancels out.
//!
//! A new policy is one line in a list below: its TOML block.

use std::hint::black_box;

use tidegate_core::caller::{CallAction, CallerConfig};
use tidegate_core::gate::{Action, GateConfig};
use tidegate_core::rng::Rng;
use tidegate_core::slots::SlotsConfig;
use tidegate_core::throttle::Answer;
use tidegate_core::{
    Caller, CallerId, Context, Cost, Cursor, Feedback, Gate, GateId, Instant, Outcome, Progress,
    Rank, Request, RequestId, Span, Workflow,
};

/// Admission policies: `arrive → dispatch → finish`, the same with feedback, and a refusal.
const ADMISSION: &[(&str, &str)] = &[
    ("open", "policy = 'open'"),
    ("tide", "policy = 'tide'"),
    // Times as for an objective of 50 ms, like the others.
    ("breakwater", "policy = 'breakwater'\ntarget = '20ms'\ndrop = '40ms'\nperiod = '2.5ms'"),
    ("dagor", "policy = 'dagor'"),
    ("codel", "policy = 'codel'"),
    ("seda", "policy = 'seda'\nstart_rate = 1e6\nmax_rate = 1e7"),
    ("random", "policy = 'random'"),
    ("utilization", "policy = 'utilization'"),
];

/// Orders of service: taking the next and adding one, at several depths.
const ORDERS: &[(&str, &str)] = &[
    ("fifo", "order = 'fifo'"),
    ("adaptive-lifo", "order = 'adaptive-lifo'"),
    ("edf", "order = 'edf'"),
    ("lstf", "order = 'lstf'"),
    ("sjf", "order = 'sjf'"),
    ("srtf", "order = 'srtf'"),
    ("lasf", "order = 'lasf'"),
    ("drr", "order = 'drr'"),
];

/// Bounds on execution: `arrive → dispatch → finish` without admission control.
const SLOTS: &[(&str, &str)] = &[("fixed", "slots = 'fixed'"), ("adaptive", "slots = 'adaptive'")];

/// Limits: `arrive → dispatch → finish` through one of them that lets everything pass.
const LIMITS: &[(&str, &str)] = &[
    ("rate", "limit = 'rate'\nrate = 1e9"),
    ("rate-each", "limit = 'rate'\nrate = 1e9\neach = 'caller'"),
    ("quota", "limit = 'quota'\ndefault = { rate = 1e9, burst = 1e6 }"),
    ("window", "limit = 'window'\nquota = 1e15"),
    ("leased", "limit = 'leased'\nagreement = 'a'\nsafe_rate = 1e9\nsafe_burst = 1e9"),
];

/// Throttles: `submit → transmit → respond` with feedback that lets everything through.
const THROTTLES: &[(&str, &str)] = &[
    ("open", "throttle = 'open'"),
    ("credit", "throttle = 'credit'"),
    ("cursor", "throttle = 'cursor'"),
    ("adaptive", "throttle = 'adaptive'"),
    ("window", "throttle = 'window'"),
];

/// Requests that wait while orders are measured.
const DEPTHS: &[usize] = &[10, 1_000, 100_000];

/// Callers that take turns.
const CALLERS: u64 = 64;

/// Something to count, with its name.
struct Operation {
    name: String,
    run: Box<dyn Fn(u64)>,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let operations = operations();
    match args.as_slice() {
        [] => operations.iter().for_each(|operation| println!("{}", operation.name)),
        [name, times] => {
            let times = times.parse().expect("N is a whole number");
            let operation = operations.iter().find(|operation| operation.name == *name);
            (operation.expect("NAME is one of the list").run)(times);
        }
        _ => panic!("usage: instructions [NAME N]"),
    }
}

fn operations() -> Vec<Operation> {
    let mut all = Vec::new();
    let mut add = |name: String, run: Box<dyn Fn(u64)>| all.push(Operation { name, run });
    add("loop".to_owned(), Box::new(measuring_loop));
    for (name, block) in ADMISSION {
        let config = format!("[admission]\n{block}");
        for with_feedback in [false, true] {
            let (gate, config) =
                (if with_feedback { "pass+feedback" } else { "pass" }, config.clone());
            add(format!("{gate}/{name}"), Box::new(move |n| pass(&config, with_feedback, n)));
        }
        add(format!("refuse/{name}"), Box::new(move |n| refuse(&config, n)));
    }
    for (name, block) in LIMITS {
        let config = format!("[admission]\npolicy = 'open'\n[[limits]]\n{block}");
        add(format!("limit/{name}"), Box::new(move |n| pass(&config, false, n)));
    }
    for (name, block) in SLOTS {
        let config = format!("[admission]\npolicy = 'open'\n[slots]\n{block}");
        add(format!("slots/{name}"), Box::new(move |n| pass(&config, false, n)));
    }
    for (name, block) in ORDERS {
        for depth in DEPTHS {
            let config = format!("[schedule]\n{block}");
            add(format!("order/{name}/{depth}"), Box::new(move |n| order(&config, *depth, n)));
        }
    }
    for (name, block) in THROTTLES {
        let config = format!("[throttle]\n{block}");
        add(format!("call/{name}"), Box::new(move |n| call(&config, n)));
    }
    all
}

fn gate_config(text: &str) -> GateConfig {
    GateConfig::from_toml(text).unwrap_or_else(|error| panic!("{error}"))
}

/// Requests of many callers, ranks and workflows, spread by a fixed seed.
fn contexts() -> Vec<Context> {
    let mut rng = Rng::new(1);
    let context = |n: u64| Context {
        rank: Rank::new(rng.below(64) as u8, rng.next_u64() as u16),
        workflow: Workflow(rng.below(8) as u16),
        caller: CallerId(1 + n % CALLERS),
        demand: 1,
        ..Context::default()
    };
    (0..1024).map(context).collect()
}

/// The loop of `pass` around nothing: part of every other number here.
fn measuring_loop(times: u64) {
    let contexts = contexts();
    let (mut now, mut served) = (Instant::ZERO, 0u64);
    for n in 0..4096 + times {
        let context = &contexts[n as usize % contexts.len()];
        now += Span::from_micros(1);
        if black_box(context).attempt == 0 {
            now += Span::from_micros(1);
            served += 1;
        }
        let mut action = black_box(Some(Action::Start { id: RequestId::NOWHERE, degraded: false }));
        while let Some(taken) = action.take() {
            black_box(taken);
        }
        black_box(now);
    }
    assert!(served >= times);
}

/// A request arrives, starts, runs for 1 µs, ends; the service is not overloaded.
fn pass(config: &str, with_feedback: bool, times: u64) {
    let contexts = contexts();
    let mut gate = Gate::new(&gate_config(config), Instant::ZERO, 1).expect("checked");
    let mut now = Instant::ZERO;
    let mut served = 0;
    // The first few thousand fill tables and caches, and let a policy find its level.
    for n in 0..4096 + times {
        let context = &contexts[n as usize % contexts.len()];
        now += Span::from_micros(1);
        if let Ok(id) = gate.arrive(now, context) {
            gate.dispatch(now);
            while let Some(action) = gate.poll() {
                black_box(action);
            }
            now += Span::from_micros(1);
            gate.finish(now, id, Outcome::Serve, Cost(1_000));
            gate.dispatch(now);
            served += 1;
        }
        if with_feedback {
            black_box(gate.feedback(now, context.caller, context.workflow));
        }
        while let Some(action) = gate.poll() {
            black_box(action);
        }
    }
    assert!(served >= times, "{served} of {times} were served: this measures something else");
}

/// A request of the last rank arrives at a gate that has been offered twice its capacity for long. A
/// policy that would let it in meets the bound of the queue.
fn refuse(config: &str, times: u64) {
    const OVERLOADED: u64 = 20_000;
    // The first of the flood fill the queue where a policy lets them in.
    const FLOODED: u64 = 8_192;
    let contexts = contexts();
    let slots = SlotsConfig::fixed(1);
    let config = GateConfig { queue_limit: 1000, slots, ..gate_config(config) };
    let mut gate = Gate::new(&config, Instant::ZERO, 1).expect("checked");
    let (mut now, mut running) = (Instant::ZERO, None);
    let mut refused = 0;
    for n in 0..OVERLOADED + FLOODED + times {
        let mut context = contexts[n as usize % contexts.len()];
        if n < OVERLOADED {
            // Two seconds, an arrival every 100 µs and a finish every 200 µs.
            now += Span::from_micros(100);
            if let Some(id) = running.take_if(|_| n % 2 == 0) {
                gate.finish(now, id, Outcome::Serve, Cost(200_000));
            }
            let _ = gate.arrive(now, &context);
            gate.dispatch(now);
        } else {
            // Then the measured flood: a million a second.
            now += Span::from_micros(1);
            context.rank = Rank::LAST;
            let gone = gate.arrive(now, &context).is_err();
            refused += u64::from(gone && n >= OVERLOADED + FLOODED);
        }
        while let Some(action) = gate.poll() {
            if let Action::Start { id, .. } = black_box(action) {
                running = Some(id);
            }
        }
    }
    // A rate lets a few in all the same.
    assert!(refused > times / 100 * 99, "{refused} of {times}: this measures something else");
}

/// The next request is taken and another one added, while `depth` wait.
fn order(config: &str, depth: usize, times: u64) {
    let contexts = contexts();
    let mut rng = Rng::new(2);
    let mut schedule = gate_config(config).schedule.build();
    // Made beforehand, so that it is the order that is counted: requests and their time to go.
    let mut requests: Vec<(Request, Span)> = contexts
        .iter()
        .map(|context| {
            let total = Span::from_nanos(1 + rng.below(1_000_000));
            let request = Request {
                id: RequestId::NOWHERE,
                context: Context {
                    progress: Progress { total, ..Progress::default() },
                    ..*context
                },
                arrived: Instant::ZERO,
                enqueued: Instant::ZERO,
                cost: Cost::from(total),
                attained: Span::from_nanos(rng.below(1_000_000)),
            };
            (request, Span::from_nanos(1 + rng.below(1_000_000_000)))
        })
        .collect();
    for n in 0..depth as u64 + times {
        let now = Instant::from_nanos(n * 1_000);
        // Places are reused, as in a gate.
        let place = if schedule.len() < depth {
            n
        } else {
            schedule.pop(now).expect("some wait").index() as u64
        };
        let kind = n as usize % requests.len();
        let (request, time_to_go) = &mut requests[kind];
        request.id = RequestId::from_u64(place);
        (request.arrived, request.enqueued) = (now, now);
        request.context.deadline = now + *time_to_go;
        schedule.push(now, request);
    }
    assert_eq!(schedule.len(), depth);
}

/// A call leaves and is answered after 1 µs; the callee is not overloaded.
fn call(config: &str, times: u64) {
    let contexts = contexts();
    let config = CallerConfig::from_toml(config).unwrap_or_else(|error| panic!("{error}"));
    let mut caller = Caller::new(&config, 1, Instant::ZERO, 1).expect("checked");
    let mut now = Instant::ZERO;
    let mut sent = 0;
    let mut feedback = Feedback {
        window: Some(1000),
        free: Some(Cursor::OPEN),
        last: Some(Cursor::OPEN),
        rate: Some(1e9),
        utilization: Some(0.5),
        ..Feedback::silent(GateId(1), 0)
    };
    for n in 0..4096 + times {
        now += Span::from_micros(1);
        // A call that was rejected or is held says something about the throttle, and costs too.
        let _ = black_box(caller.submit(now, &contexts[n as usize % contexts.len()]));
        while let Some(action) = caller.poll() {
            let CallAction::Transmit { id, .. } = action else { continue };
            sent += 1;
            now += Span::from_micros(1);
            feedback.sequence += 1;
            black_box(caller.respond(now, id, Answer::Done(Outcome::Serve), Some(&feedback)));
        }
    }
    assert!(sent >= times, "{sent} of {times} were sent: this measures something else");
}
