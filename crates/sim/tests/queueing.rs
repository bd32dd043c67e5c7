//! The simulator against theory: mean waiting times of queues that can be computed exactly.

use std::path::Path;

use tidegate_sim::{Plan, run_point};

/// Mean waiting time in mean service times, with messages and network free of charge.
fn simulated_wait(cores: u32, distribution: &str, load: f64, requests: u32) -> f64 {
    let text = format!(
        r#"
        policy = "open"
        load = {load}
        callers = 10
        warmup_requests = 20000
        requests = {requests}
        slo = "1s"
        [service]
        cores = {cores}
        time = "100us"
        distribution = "{distribution}"
        [policies.open]
        gate = {{ admission = {{ policy = "open" }}, queue_limit = 1000000 }}
        caller = {{ throttle = {{ throttle = "open" }}, retry = {{ attempts = 1 }} }}
        "#
    );
    let plan = Plan::parse("theory", &text, &[], Path::new("")).unwrap();
    run_point(&plan, &plan.points[0], 5).mean_us / 100.0 - 1.0
}

/// Erlang's C formula: the probability that all of `cores` are busy.
fn erlang_c(cores: u32, load: f64) -> f64 {
    let offered = f64::from(cores) * load;
    let (mut sum, mut term) = (0.0, 1.0);
    for n in 0..cores {
        sum += term;
        term *= offered / f64::from(n + 1);
    }
    let all_busy = term / (1.0 - load);
    all_busy / (sum + all_busy)
}

fn check(what: &str, simulated: f64, theory: f64) {
    let error = (simulated / theory - 1.0).abs();
    assert!(error < 0.01, "{what}: simulated {simulated}, theory {theory}");
}

#[test]
fn mmk_waits_as_erlang_says() {
    // Waits follow each other closely, so the mean of so many is known to about half a percent.
    for (cores, load, requests) in [(1, 0.5, 2_000_000), (4, 0.7, 7_000_000)] {
        let theory = erlang_c(cores, load) / (f64::from(cores) * (1.0 - load));
        let simulated = simulated_wait(cores, "exponential", load, requests);
        check(&format!("M/M/{cores} at {load}"), simulated, theory);
    }
}

#[test]
fn md1_waits_as_pollaczek_and_khinchine_say() {
    for load in [0.5, 0.7] {
        let theory = load / (2.0 * (1.0 - load));
        check(&format!("M/D/1 at {load}"), simulated_wait(1, "constant", load, 1_000_000), theory);
    }
}

/// M/G/1 with the bimodal service of Breakwater §5.1: E[s²] = 0.2 × 16 + 0.8 ÷ 16 = 3.25.
#[test]
fn mg1_waits_by_the_second_moment() {
    let theory = 0.5 * 3.25 / (2.0 * 0.5);
    check("M/G/1", simulated_wait(1, "bimodal", 0.5, 3_000_000), theory);
}

/// Requests that hold one of two permits for 100 µs, and hardly need a core: M/M/2 in a pool of the core.
#[test]
fn a_pool_waits_as_erlang_says() {
    let text = r#"
        policy = "open"
        warmup = "1s"
        duration = "500s"
        slo = "1s"
        [service]
        time = "100ns"
        distribution = "exponential"
        threads = 100000
        holds = { w = "100us" }
        pool = 2
        [[tenants]]
        workflow = "w"
        callers = 10
        rate = 14000
        [policies.open]
        gate = { admission = { policy = "open" }, queue_limit = 1000000 }
        caller = { throttle = { throttle = "open" }, retry = { attempts = 1 } }
    "#;
    let plan = Plan::parse("pool", text, &[], Path::new("")).unwrap();
    let simulated = (run_point(&plan, &plan.points[0], 5).mean_us - 0.1) / 100.0 - 1.0;
    check("M/M/2 at 0.7", simulated, erlang_c(2, 0.7) / (2.0 * 0.3));
}
