//! Call graphs, workloads and faults do what they say. Conservation is asserted in every run.

use std::path::Path;

use tidegate_sim::{Plan, Report, run_plan, run_point};

/// Two services, one of which calls the other.
const GRAPH: &str = r#"
    policy = "open"
    load = 0.5
    callers = 20
    entry = "a"
    warmup = "100ms"
    duration = "600ms"
    slo = "50ms"
    [network]
    rtt = "100us"
    [services.a]
    replicas = 3
    cores = 4
    time = "200us"
    calls = ["m"]
    [services.m]
    replicas = 3
    cores = 2
    time = "1ms"
    [policies.open.gate]
    admission = { policy = "open" }
    [policies.open.caller]
    throttle = { throttle = "open" }
    retry = { attempts = 1 }
    [policies.random.gate]
    admission = { policy = "open" }
    queue_limit = 20
    retry_share = 1.0
    [policies.random.caller]
    throttle = { throttle = "open" }
    retry = { attempts = 4, share = 1.0, reserve = 1000, backoff = "0s" }
"#;

fn run(text: &str, sets: &[&str]) -> Report {
    run_with(text, sets, 3)
}

fn run_with(text: &str, sets: &[&str], seed: u64) -> Report {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let plan = Plan::parse("scenario", text, &sets, Path::new("")).unwrap();
    run_point(&plan, &plan.points[0], seed)
}

fn near(found: f64, expected: f64, tolerance: f64) {
    assert!((found - expected).abs() <= tolerance * expected, "{found} is not near {expected}");
}

#[test]
fn a_graph_serves_what_its_fullest_service_can() {
    let report =
        run(GRAPH, &["services.m.distribution=constant", "services.a.distribution=constant"]);
    assert_eq!(report.capacity_rps.round(), 6000.0);
    near(report.goodput_rps, 3000.0, 0.05);
    let services: Vec<_> =
        report.services.iter().map(|s| (s.name.as_str(), s.utilization)).collect();
    assert_eq!((services[0].0, services[1].0), ("a", "m"));
    near(services[0].1, 0.05, 0.06);
    near(services[1].1, 0.5, 0.06);
    // 100 µs each way twice, 200 µs and 1 ms of work, and little waiting.
    assert!(report.p50_us >= 1390.0 && report.p50_us < 2000.0, "{}", report.p50_us);
}

/// Calls one after the other take the sum of their times, calls at the same time the longest.
#[test]
fn calls_are_made_in_stages() {
    let quiet =
        ["load=0.02", "services.m.distribution=constant", "services.a.distribution=constant"];
    let with =
        |calls: &str| run(GRAPH, &[&quiet[..], &[calls, "services.a.after=300us"]].concat()).p50_us;
    near(with(r#"services.a.calls=["m"]"#), 1700.0, 0.01);
    near(with(r#"services.a.calls=["m","m"]"#), 2800.0, 0.01);
    near(with(r#"services.a.calls=[["m","m"]]"#), 1700.0, 0.01);
}

#[test]
fn a_stage_may_have_more_calls_than_sixteen_bits_count() {
    let sets =
        ["services.a.calls=[\"70000 m\"]", "services.m.time=1us", "rate=100", "duration=120ms"];
    let report = run(&GRAPH.replace("load = 0.5", ""), &sets);
    assert!(report.services[1].arrived_rps >= 70_000.0, "{:?}", report.services);
}

/// A task with two calls to a full service that refuses at random succeeds far less often than one
/// with one call, and what A did for the others is wasted (DAGOR §5.3).
#[test]
fn subsequent_overload_multiplies_refusals() {
    let sets = [
        "policy=random",
        "slo=1s",
        "load=2",
        "duration=3s",
        "policies.random.caller.retry.attempts=1",
    ];
    let once = run(GRAPH, &sets);
    near(once.goodput_rps, 6000.0, 0.05);
    let twice = run(GRAPH, &[&sets[..], &[r#"services.a.calls=["m","m"]"#]].concat());
    // f·(p + p²) = 6000 for f = 6000 tasks per second: p² = 0.382.
    // (Choosing the emptier of two replicas makes refusals a little less random than that.)
    near(twice.goodput_rps / twice.offered_rps, 0.382, 0.1);
    assert!(twice.wasted > 0.5, "{}", twice.wasted);
    // Where a rejected call is resent up to three times there are many more of them.
    let pair = ["policy=random", "slo=1s", "load=1.2", r#"services.a.calls=["m","m"]"#];
    let resent = run(GRAPH, &pair);
    let plain = run(GRAPH, &[&pair[..], &["policies.random.caller.retry.attempts=1"]].concat());
    assert!(resent.services[1].arrived_rps > 1.3 * plain.services[1].arrived_rps);
}

#[test]
fn workflows_call_what_they_call() {
    let sets =
        ["workload.mix={one=1,none=1}", "services.a.calls={one=[\"m\"],none=[]}", "load=0.2"];
    let report = run(GRAPH, &sets);
    // Only half of the tasks call m, so twice as many fit.
    assert_eq!(report.capacity_rps.round(), 12000.0);
    let calls = report.services[1].arrived_rps / report.services[0].arrived_rps;
    near(calls, 0.5, 0.1);
    assert_eq!(report.workflows.len(), 2);
    assert!(report.workflows.iter().all(|(_, success)| *success > 0.99), "{:?}", report.workflows);
}

/// One service of 10 cores, 1 ms.
const SINGLE: &str = r#"
    policy = "open"
    load = 0.5
    callers = 100
    warmup = "50ms"
    duration = "550ms"
    slo = "10ms"
    [network]
    rtt = "100us"
    [service]
    cores = 10
    time = "1ms"
    [workload]
    timeout = "50ms"
    [policies.open.gate]
    admission = { policy = "open" }
    [policies.open.caller]
    throttle = { throttle = "open" }
    retry = { attempts = 1 }
    [policies.retry.gate]
    admission = { policy = "open" }
    [policies.retry.caller]
    throttle = { throttle = "open" }
    retry = { attempts = 3, share = 1.0, failures = true }
"#;

fn fault(kind: &str) -> String {
    format!("faults=[{{at=\"200ms\",for=\"100ms\",{kind}}}]")
}

#[test]
fn faults_cost_what_they_take_away() {
    let whole = run(SINGLE, &[]);
    near(whole.goodput_rps, 5000.0, 0.05);
    assert_eq!(whole.failed_rate, 0.0);
    // One fifth of the measured time is lost to a crash, and nobody waits for the lost.
    let crash = run(SINGLE, &[&fault("kind=\"crash\"")]);
    near(crash.goodput_rps, 4000.0, 0.05);
    near(crash.failed_rate, 0.2, 0.1);
    // A pause of as long answers late what it held, and so loses a little more.
    let pause = run(SINGLE, &[&fault("kind=\"pause\"")]);
    assert!(pause.goodput_rps < crash.goodput_rps && pause.goodput_rps > 3000.0);
    // Half of the cores, or half of the speed, is just enough on the average, but late.
    for kind in ["kind=\"cores\",cores=4", "kind=\"slow\",factor=2.5"] {
        let less = run(SINGLE, &[&fault(kind)]);
        assert!(less.goodput_rps < 0.9 * whole.goodput_rps, "{kind} {}", less.goodput_rps);
    }
    // Some callers are cut off.
    let partition = run(SINGLE, &[&fault("kind=\"partition\",share=0.5")]);
    near(partition.failed_rate, 0.1, 0.15);
    // Both directions lose one in ten.
    let loss = run(SINGLE, &[&fault("kind=\"loss\",share=0.1")]);
    near(loss.failed_rate, 0.19 * 0.2, 0.2);
    // Jitter delays but loses nothing.
    let jitter = run(SINGLE, &[&fault("kind=\"jitter\",jitter=\"2ms\"")]);
    assert_eq!(jitter.failed_rate, 0.0);
    assert!(jitter.mean_us > whole.mean_us + 300.0);
}

#[test]
fn lost_messages_are_retried_after_a_timeout() {
    let loss =
        ["network.loss=0.05", "workload.timeout=8ms", "slo=100ms", "load=0.3", "duration=3s"];
    let plain = run(SINGLE, &loss);
    let retried = run(
        SINGLE,
        &[&loss[..], &["policy=retry", "policies.retry.caller.retry.backoff=0s"]].concat(),
    );
    near(plain.failed_rate, 1.0 - 0.95 * 0.95, 0.1);
    assert!(retried.failed_rate < 0.02, "{}", retried.failed_rate);
    assert!(retried.rx_per_request >= 1.0);
}

/// A crash in the middle of a call graph: both lives of the caller in the middle keep their books.
#[test]
fn a_crash_in_the_middle_of_a_graph_is_survived() {
    for service in ["a", "m"] {
        let fault = format!(
            "faults=[{{at=\"200ms\",for=\"50ms\",kind=\"crash\",service=\"{service}\",replica=1}}]"
        );
        let sets = ["workload.timeout=20ms", "load=0.3", &fault];
        let report = run(GRAPH, &sets);
        assert!(report.failed_rate > 0.005, "{service} {}", report.failed_rate);
        assert!(report.goodput_rps > 0.8 * report.offered_rps, "{service} {}", report.goodput_rps);
    }
}

/// Whoever calls a service inside the graph can be cut off from it as well.
#[test]
fn a_partition_cuts_off_the_callers_of_any_service() {
    let cut = |share: f64, service: &str| {
        let kind = format!("kind=\"partition\",share={share:?},service=\"{service}\"");
        run(GRAPH, &["workload.timeout=20ms", &fault(&kind)])
    };
    // A fifth of the measured time nobody is answered.
    for service in ["a", "m"] {
        near(cut(1.0, service).failed_rate, 0.2, 0.1);
        assert_eq!(cut(0.0, service).failed_rate, 0.0);
    }
    // Seven of twenty callers are not; one of the three machines that call m is not, but it keeps what it
    // waits for, and callers go to the others.
    near(cut(0.34, "a").failed_rate, 0.2 * 0.35, 0.25);
    let some = cut(0.34, "m").failed_rate;
    assert!(some > 0.01 && some < 0.2 / 3.0, "{some}");
}

/// One core of ten is left, whatever other faults begin and end meanwhile.
#[test]
fn faults_that_end_bring_back_no_cores_of_others() {
    let mut faults = vec!["{kind=\"cores\",cores=1}".to_owned()];
    faults.extend(
        (0..50).map(|n| format!("{{kind=\"slow\",factor=1.0,at=\"{}ms\",for=\"15ms\"}}", 10 * n)),
    );
    let even = "service.distribution=constant";
    let patient = ["slo=1s", "workload.timeout=10s"];
    let report =
        run(SINGLE, &[patient[0], patient[1], even, &format!("faults=[{}]", faults.join(","))]);
    near(report.throughput_rps, 1000.0, 0.1);
}

/// What a core was to do after a crash it has not done.
#[test]
fn crashes_do_not_keep_cores_busy() {
    let crash = |n: u32| format!("{{kind=\"crash\",at=\"{}ms\",for=\"1ms\"}}", 10 * n);
    let faults: Vec<String> = (1..50).map(crash).collect();
    let long = ["service.time=1s", "service.distribution=constant", "rate=10000"];
    let text = SINGLE.replace("load = 0.5", "");
    let report = run(&text, &[&long[..], &[&format!("faults=[{}]", faults.join(","))]].concat());
    assert!(report.utilization > 0.5 && report.utilization <= 1.0, "{}", report.utilization);
}

/// Two crashes of the same node that overlap are one long one.
#[test]
fn overlapping_faults_add_up() {
    let crash = |at: u32, lasts: u32| format!("{{kind=\"crash\",at=\"{at}ms\",for=\"{lasts}ms\"}}");
    let both = run(SINGLE, &[&format!("faults=[{},{}]", crash(250, 50), crash(200, 75))]);
    let long = run(SINGLE, &[&format!("faults=[{}]", crash(200, 100))]);
    assert_eq!(both.goodput_rps, long.goodput_rps);
    let slow = "{kind=\"slow\",factor=2.0,at=\"100ms\",for=\"300ms\"}";
    let twice = run(SINGLE, &["load=0.1", &format!("faults=[{slow},{slow}]")]);
    let fourfold = run(SINGLE, &["load=0.1", &format!("faults=[{}]", slow.replace("2.0", "4.0"))]);
    assert_eq!(twice.mean_us, fourfold.mean_us);
}

#[test]
fn closed_loops_bursts_and_steps() {
    // Little's law: 100 callers, 1 ms of service, 0.1 ms of network, 3.9 ms of thinking.
    let closed = run(SINGLE, &["workload.arrivals=closed", "workload.think=18.9ms"]);
    near(closed.throughput_rps, 5000.0, 0.05);
    // The same rate in bursts waits longer.
    let burst = run(SINGLE, &["workload.arrivals=bursts", "workload.burst=50"]);
    near(burst.offered_rps, 5000.0, 0.15);
    assert!(burst.mean_us > run(SINGLE, &[]).mean_us + 500.0);
    let step = "workload.steps=[{at=\"300ms\",load=0.25},{at=\"400ms\",load=0.75,over=\"50ms\"}]";
    let text = Plan::parse("steps", SINGLE, &[step.to_owned()], Path::new("")).unwrap();
    let mut plan = text;
    plan.points[0].scenario.series = Some("50ms".parse().unwrap());
    let report = run_plan(&plan, 1, |_, _| {}).remove(0);
    let offered: Vec<f64> =
        report.series.unwrap().iter().map(|row| row.offered as f64 / 0.05).collect();
    for (row, expected) in [(1, 5000.0), (5, 5000.0), (6, 2500.0), (8, 5000.0), (9, 7500.0)] {
        near(offered[row], expected, 0.15);
    }
}

#[test]
fn a_log_is_replayed() {
    let folder = std::env::temp_dir().join(format!("tidegate-sim-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let lines: Vec<String> =
        (0..1000).map(|n| format!("{},w{},5,{n},900", f64::from(n) / 5e3, n % 2)).collect();
    std::fs::write(folder.join("log.csv"), lines.join("\n")).unwrap();
    let sets = ["workload.arrivals=\"replay\"", "workload.log=\"log.csv\"", "workload.speed=2.0"];
    let sets = sets.map(str::to_owned);
    let mut text = SINGLE.to_owned();
    for said_by_the_log in ["load = 0.5", "warmup = \"50ms\"", "duration = \"550ms\""] {
        text = text.replace(said_by_the_log, "");
    }
    let plan = Plan::parse("replay", &text, &sets, &folder).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let report = run_point(&plan, &plan.points[0], 1);
    assert_eq!(report.requests, 1000);
    // A tenth of a second, and the SLO after its last line.
    near(report.offered_rps, 1000.0 / 0.11, 0.01);
    // Ten cores and 0.9 ms each.
    assert_eq!(report.capacity_rps.round(), 11_111.0);
    assert_eq!(report.workflows.len(), 2);
}

/// One in sixty takes longer than the SLO by itself: no 99th percentile is within it, and the yardstick
/// is the most that can be answered in time all the same.
#[test]
fn ideal_serves_the_most_where_nobody_keeps_the_slo() {
    let text = r#"
        policy = "ideal"
        load = 1.2
        callers = 100
        requests = 20000
        warmup_requests = 5000
        slo = "10ms"
        [service]
        cores = 10
        time = "1ms"
    "#;
    let even = run(text, &["service.distribution=exponential"]);
    assert!(even.p99_us <= 10_000.0 && even.utilization > 0.97, "{}", even.p99_us);
    let sets = ["service.distribution=lognormal", "service.sigma=2.0"];
    let tailed = run(text, &sets);
    assert!(tailed.p99_us > 10_000.0 && tailed.utilization > 0.9, "{}", tailed.utilization);
}

/// Nobody is better than the yardstick, whatever goes wrong: it neither waits for what was lost nor
/// lets in what cannot be served.
#[test]
fn ideal_serves_the_most_whatever_goes_wrong() {
    let text = r#"
        include = "standard"
        load = 2.0
        callers = 100
        slo = "10ms"
        warmup = "500ms"
        duration = "1500ms"
        [service]
        cores = 10
        time = "1ms"
        distribution = "exponential"
        receive = "5us"
        send = "5us"
        [network]
        rtt = "100us"
        [workload]
        ranks = "uniform"
        [caller]
        hold_time = "0.05 slo"
        retry = { attempts = 1 }
    "#;
    for fault in [
        r#"kind="slow",factor=2.0"#,
        r#"kind="pause""#,
        r#"kind="crash""#,
        r#"kind="cores",cores=5"#,
        r#"kind="lose-feedback",share=0.5"#,
        r#"kind="partition",share=0.5"#,
        r#"kind="loss",share=0.1"#,
        r#"kind="jitter",jitter="1ms""#,
    ] {
        let faults = format!(r#"faults=[{{{fault},at="700ms",for="300ms"}}]"#);
        // By core time with two messages of 5 µs, so that it is no luck to have drawn cheap requests.
        let good = |policy: &str| {
            let report = run(text, &[&format!("policy={policy}"), &faults]);
            report.goodput_rps * (report.work_us + 10.0)
        };
        let ideal = good("ideal");
        for policy in ["tide", "breakwater", "codel", "open"] {
            let other = good(policy);
            // Chance decides what is lost: the same number of requests, not the same ones.
            assert!(other <= 1.01 * ideal, "{fault}: {policy} {other}, ideal {ideal}");
        }
    }
}

/// Callers that ignore credits and cursors do not disturb the books, and are told apart.
#[test]
fn some_callers_ignore_control() {
    let text = SINGLE.to_owned()
        + r#"
    [policies.credit.gate.admission]
    policy = "breakwater"
    target = "0.4 slo"
    drop = "0.8 slo"
    period = "1 rtt"
    [policies.credit.caller]
    hold_time = "0.1 slo"
    throttle = { throttle = "credit" }
    "#;
    let sets = ["policy=credit", "load=1.5", "workload.ignoring=0.5"];
    let report = run(&text, &sets);
    let (obeying, ignoring) = report.obeying.unwrap();
    assert!(obeying > 0.0 && ignoring > 0.0);
    assert!(report.goodput_rps > 0.8 * report.capacity_rps, "{}", report.goodput_rps);
}

/// A caller that says with every message that it has shed four billion requests of the first rank. One such among a thousand once took all of a
/// service.
#[test]
fn who_lies_about_what_it_shed_gains_nothing_and_takes_nothing() {
    let text = SINGLE.to_owned()
        + r#"
    [policies.tide.gate]
    admission = { policy = "tide", objective = "1 slo" }
    [policies.tide.caller]
    hold_time = "0.05 slo"
    retry = { attempts = 1 }
    "#;
    for (callers, load) in [(5, 0.95), (100, 0.95), (100, 2.0), (1_000, 2.0)] {
        let set = [
            "policy=tide".to_owned(),
            "duration=2s".to_owned(),
            format!("callers={callers}"),
            format!("load={load}"),
        ];
        let with = |liars: &str| {
            let sets: Vec<&str> = set.iter().map(String::as_str).chain([liars]).collect();
            run(&text, &sets)
        };
        let liars = format!("workload.liars={}", 1.0 / f64::from(callers));
        let (honest, lied) = (with("workload.liars=0.0"), with(&liars));
        near(lied.goodput_rps, honest.goodput_rps, 0.01);
        near(lied.success_by_quarter[0], honest.success_by_quarter[0], 0.01);
    }
}

/// The gate hears how busy the cores are: thresholds of utilization keep the less critical out.
#[test]
fn gates_are_told_the_utilization() {
    let text = SINGLE.to_owned()
        + r#"
    [policies.threshold.gate.admission]
    policy = "utilization"
    [policies.threshold.caller]
    throttle = { throttle = "open" }
    retry = { attempts = 1 }
    "#;
    let sets = ["policy=threshold", "workload.ranks=zipf", "workload.exponent=0.0"];
    let calm = run(&text, &[&sets[..], &["load=0.4"]].concat());
    assert!(calm.drop_rate < 0.02, "{}", calm.drop_rate);
    let busy = run(&text, &[&sets[..], &["load=1.5"]].concat());
    assert!(busy.drop_rate > 0.1, "{}", busy.drop_rate);
    let quarters = busy.success_by_quarter;
    assert!(quarters[0] > quarters[3] + 0.2, "{quarters:?}");
}

/// Where all requests are one user's, credits decide how many come. That fewer come then is no sign that fewer are
/// wanted: who takes it for one lets everybody in, refuses a third of them, and takes the credits away again.
#[test]
fn callers_that_wait_for_credits_have_not_gone_away() {
    let text = include_str!("../../../plans/ranks-and-costs.toml");
    let sets = ["requests=100000", "warmup_requests=60000", "load=2.0", "policy=[\"tide\"]"];
    let one = ["workload.ranks=[\"same\"]", "workload.cost=[\"independent\"]"];
    for target in ["0.31", "0.4"] {
        let target = format!("policies.tide.gate.admission.target={target}");
        let report = run(text, &[&sets[..], &one, &[&target]].concat());
        let goodput = report.goodput_rps / report.capacity_rps;
        assert!(goodput > 0.98 && report.drop_rate < 0.02, "{target}: {goodput}");
    }
}

/// Credits are steered for a delay at which nobody is refused yet, also where costs differ so much that few may wait.
#[test]
fn credits_run_out_before_requests_are_refused() {
    let text = include_str!("../../../plans/ranks-and-costs.toml");
    let sets = ["requests=100000", "warmup_requests=60000", "load=4.0", "policy=[\"tide\"]"];
    let one = ["workload.ranks=[\"same\"]", "workload.cost=[\"falling\"]"];
    let report = run(text, &[&sets[..], &one].concat());
    assert!(report.drop_rate < 0.1, "{}", report.drop_rate);
}

/// Half of the cores are gone for a while: callers hear within a few rounds how little is left, and when it is over the
/// requests that they shed meanwhile are not taken to be offered beside those that they send again.
#[test]
fn what_callers_shed_before_they_were_told_better_is_not_offered_now() {
    let text = include_str!("../../../plans/rough.toml");
    let sets = ["requests=42500", "warmup_requests=80000", "load=[2.0]", "service.time=10us"];
    let fault = r#"faults=[{kind="cores",cores=5,at="47ms",for="20ms"}]"#;
    // Core time of answers in time, with 1.76 µs for messages, over some seeds.
    let good = |policy: &str| {
        let policy = format!("policy=[\"{policy}\"]");
        let more = [fault, "service.distribution=exponential", &policy];
        let plan = Plan::parse(
            "scenario",
            text,
            &[&sets[..], &more].concat().iter().map(|set| (*set).to_owned()).collect::<Vec<_>>(),
            Path::new(""),
        )
        .unwrap();
        let one = |seed| {
            let report = run_point(&plan, &plan.points[0], seed);
            report.goodput_rps / report.capacity_rps * (report.work_us + 1.76) / 11.76
        };
        (1..=8).map(one).sum::<f64>() / 8.0
    };
    let below = good("ideal") - good("tide");
    assert!(below < 0.028, "{below} of the capacity");
}

/// A point of `plans/service-times.toml` with tide.
fn service(time: &str, sets: &[&str], seed: u64) -> Report {
    let text = include_str!("../../../plans/service-times.toml");
    let time = format!("service.time=[\"{time}\"]");
    let all = ["policy=[\"tide\"]", "service.distribution=[\"exponential\"]", &time];
    run_with(text, &[&all[..], sets].concat(), seed)
}

/// Nobody ranks anything. With many callers lots are drawn, and cut as ranks are: 96 % where credits decide. With few,
/// credits decide: their callers send several at once, which are answered at once.
#[test]
fn requests_without_ranks_are_cut_by_lot_or_left_to_credits() {
    let unranked = |time: &str, sets: &[&str]| {
        let report = service(time, &[&["load=[2.0]", "workload.ranks=one"][..], sets].concat(), 1);
        (report.goodput_rps / report.capacity_rps, report.drop_rate)
    };
    let many = ["callers=[10000]", "warmup_requests=800000", "requests=200000"];
    let (goodput, dropped) = unranked("10us", &many);
    assert!(goodput > 0.98 && dropped < 0.015, "{goodput} {dropped}");
    let few = ["callers=[10]", "warmup_requests=100000", "requests=100000"];
    let (goodput, dropped) = unranked("1us", &few);
    assert!(goodput > 1.02 && dropped < 0.001, "{goodput} {dropped}");
    // Between few and many: to change one's mind each round costs 5 to 30 % of the goodput.
    let some = ["callers=[255]", "load=[10.0]", "warmup_requests=200000", "requests=400000"];
    let (goodput, dropped) = unranked("10us", &some);
    assert!(goodput > 0.98 && dropped < 0.01, "{goodput} {dropped}");
    // Credits decide for a moment of the first storm. Who was left waiting for one came back 16 ms later, with all others: 92 %, and 8 % refused.
    let storm = ["callers=[1000]", "load=[10.0]", "service.distribution=[\"bimodal\"]"];
    let sizes = ["warmup_requests=400000", "requests=1000000"];
    let (goodput, dropped) = unranked("1us", &[&storm[..], &sizes].concat());
    assert!(goodput > 0.985 && dropped < 0.01, "{goodput} {dropped}");
}

/// A service of 1 µs that starts into ten times what it can do: nothing but messages at first. What it does then is no
/// measure of what it can do when callers have heard, and those who ask are let in while nothing waits.
#[test]
fn a_cold_start_into_a_storm_does_not_last() {
    for (callers, ranks) in [("callers=[1000]", "uniform"), ("callers=[10000]", "one")] {
        let ranks = format!("workload.ranks={ranks}");
        let sets = ["load=[10.0]", "warmup_requests=1200000", "requests=400000", callers, &ranks];
        for seed in 1..=3 {
            let report = service("1us", &sets, seed);
            let goodput = report.goodput_rps / report.capacity_rps;
            assert!(goodput > 0.8, "{callers} {ranks} {seed}: {goodput}");
        }
    }
}

/// Demand grows from 0.9 to ten times the capacity at once. Ten SLOs later callers have been told, and the service is busy with requests
/// again: without that, it is busy with messages for two rounds of 2.5 SLOs, and all in all has 46 % of these ten SLOs.
#[test]
fn a_storm_is_told_of_before_the_round_is_over() {
    let text = include_str!("../../../plans/steps.toml");
    let sets = [
        "policy=[\"tide\"]",
        "callers=1000",
        "workload.steps=[{at=\"20ms\",load=10.0}]",
        "warmup=20ms",
        "duration=22ms",
        "seeds=1",
    ];
    let good = |seed| {
        let report = run_with(text, &sets, seed);
        report.goodput_rps / report.capacity_rps
    };
    let mean = (1..=4).map(good).sum::<f64>() / 4.0;
    assert!(mean > 0.55, "{mean}");
}
