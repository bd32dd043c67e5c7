//! A swarm of small worlds: policies, workloads, graphs and faults at random. Every run asserts
//! conservation and all invariants of gates and callers; afterwards, with the faults over and the
//! load low for fifty SLOs, every quick policy must serve again.

use std::path::Path;

use proptest::prelude::*;
use tidegate_sim::{Plan, run_point};

const WORLD: &str = r#"
    include = "standard"
    entry = "front"
    callers = 8
    slo = "20ms"
    warmup = "1200ms"
    duration = "1400ms"
    [services.front]
    replicas = 2
    cores = 2
    time = "500us"
    receive = "10us"
    send = "10us"
    calls = ["leaf"]
    [services.leaf]
    replicas = 3
    cores = 2
    time = "1ms"
    receive = "10us"
    send = "10us"
    [network]
    rtt = "200us"
    [workload]
    steps = [{ at = "120ms", load = 0.3 }]
    [caller]
    hold_time = "0.1 slo"
"#;

/// Policies that must recover within the time a world lives. SEDA's callers take seconds, DAGOR's
/// windows are a second long, and a caller of Breakwater's waits for ever for a grant that was lost:
/// they are only checked for conservation.
const QUICK: [&str; 4] = ["tide", "codel", "window", "open"];
const SLOW: [&str; 5] = ["breakwater", "dagor", "dagor-aimd", "seda", "random"];

fn policy() -> impl Strategy<Value = String> {
    let all: Vec<&str> = QUICK.iter().chain(&SLOW).copied().collect();
    prop::sample::select(all).prop_map(str::to_owned)
}

fn fault() -> impl Strategy<Value = String> {
    // Loss and jitter are everywhere, the others somewhere.
    let kinds = prop::sample::select(vec![
        ("kind=\"slow\",factor=4.0", true),
        ("kind=\"pause\"", true),
        ("kind=\"crash\"", true),
        ("kind=\"cores\",cores=1", true),
        ("kind=\"lose-feedback\",share=0.5", true),
        ("kind=\"partition\",share=0.5", true),
        ("kind=\"loss\",share=0.2", false),
        ("kind=\"jitter\",jitter=\"3ms\"", false),
    ]);
    let service = prop::sample::select(vec!["front", "leaf"]);
    let place = (service, 0..2).prop_map(|(name, n)| format!(",service=\"{name}\",replica={n}"));
    (kinds, place, 0..60u32, 1..60u32).prop_map(|((kind, somewhere), place, at, lasts)| {
        let place = if somewhere { place } else { String::new() };
        format!("{{{kind}{place},at=\"{at}ms\",for=\"{lasts}ms\"}}")
    })
}

fn workload() -> impl Strategy<Value = Vec<String>> {
    let arrivals = prop::sample::select(vec!["poisson", "periodic", "bursts"]);
    let ranks = prop::sample::select(vec!["uniform", "one", "zipf", "same"]);
    let calls = prop::sample::select(vec![
        "[\"leaf\"]",
        "[[\"leaf\",\"leaf\"]]",
        "[\"leaf\",\"leaf\"]",
        "[]",
    ]);
    let attempts = 1..4u8;
    let deadline = prop::sample::select(vec!["", "workload.deadline=20ms"]);
    (arrivals, ranks, calls, attempts, deadline, 0.2f64..4.0, any::<bool>()).prop_map(
        |(arrivals, ranks, calls, attempts, deadline, load, after)| {
            let mut sets = vec![
                format!("workload.arrivals={arrivals}"),
                format!("workload.ranks={ranks}"),
                format!("services.front.calls={calls}"),
                format!("caller.retry.attempts={attempts}"),
                "caller.retry.failures=true".to_owned(),
                "workload.timeout=50ms".to_owned(),
                format!("load={load}"),
            ];
            if after {
                sets.push("services.front.after=100us".to_owned());
            }
            if !deadline.is_empty() {
                sets.push(deadline.to_owned());
            }
            sets
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn no_world_loses_a_request_and_every_quick_policy_recovers(
        policy in policy(),
        faults in prop::collection::vec(fault(), 0..4),
        mut sets in workload(),
        ignoring in prop::sample::select(vec![0.0, 0.5]),
        seed in any::<u64>(),
    ) {
        sets.push(format!("policy={policy}"));
        sets.push(format!("faults=[{}]", faults.join(",")));
        sets.push(format!("workload.ignoring={ignoring:?}"));
        let plan = Plan::parse("world", WORLD, &sets, Path::new("")).unwrap();
        let report = run_point(&plan, &plan.points[0], seed);
        prop_assert!(report.requests > 0);
        if QUICK.contains(&policy.as_str()) {
            let success = report.goodput_rps / report.offered_rps;
            // The least seen is 0.775, with bursts at 1.55 times the capacity.
            prop_assert!(success > 0.6, "{policy} {sets:?}: {success}");
        }
    }
}
