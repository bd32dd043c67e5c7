//! The same plan and seed give the same bytes, whatever the number of threads.

use std::path::Path;

use tidegate_sim::world::Scenario;
use tidegate_sim::{Plan, run_plan};

const PLAN: &str = r#"
    policy = ["tide", "breakwater", "ideal", "told"]
    load = [0.8, 1.5]
    callers = 50
    warmup = "5ms"
    duration = "25ms"
    [service]
    cores = 4
    time = "10us"
    receive = "0.9us"
    send = "0.86us"
    [network]
    rtt = "10us"
    jitter = "2us"
    loss = 0.001
    [workload]
    timeout = "400us"
    [policies.tide.gate.admission]
    policy = "tide"
    objective = "1 slo"
    [policies.tide.caller.throttle]
    throttle = "credit"
    [policies.breakwater.gate.admission]
    policy = "breakwater"
    [policies.breakwater.caller.throttle]
    throttle = "credit"
"#;

fn lines(seed: u64, threads: usize) -> Vec<String> {
    let mut plan = Plan::parse("determinism", PLAN, &[], Path::new("")).unwrap();
    plan.seed = seed;
    run_plan(&plan, threads, |_, _| {}).iter().map(|report| report.to_json()).collect()
}

#[test]
fn same_seed_same_bytes_on_any_number_of_threads() {
    let once = lines(7, 1);
    assert_eq!(once.len(), 8);
    assert_eq!(once, lines(7, 2));
    assert_eq!(once, lines(7, 5));
    assert_ne!(once, lines(8, 2));
}

/// Requests do not depend on the policy that meets them, nor on the window of the yardstick: the same
/// moments, callers, ranks, workflows and service times.
#[test]
fn every_policy_meets_the_same_requests() {
    let plan = Plan::parse("p", PLAN, &["load=1.5".to_owned()], Path::new("")).unwrap();
    let policies: Vec<&str> = plan.points.iter().map(|point| point.policy.as_str()).collect();
    assert_eq!(policies, ["tide", "breakwater", "ideal", "told"]);
    let offers = |scenario: &Scenario, seed| scenario.simulate(seed).unwrap().offers;
    let ideal = &plan.points[2].scenario;
    let same = offers(ideal, 1);
    for window in [1, 100] {
        assert_eq!(offers(&Scenario { window: Some(window), ..ideal.clone() }, 1), same);
    }
    for point in &plan.points[..2] {
        assert_eq!(offers(&point.scenario, 1), same, "{}", point.policy);
        assert_ne!(offers(&point.scenario, 2), same, "{}", point.policy);
    }
}
