//! Plans: what is wrong is told at once, with lines; what is right becomes a grid.

use std::path::Path;

use tidegate_sim::Plan;
use tidegate_sim::plan::TEMPLATE;

fn problems(text: &str) -> Vec<String> {
    Plan::parse("bad", text, &[], Path::new("")).unwrap_err().0
}

fn check_all(text: &str, expected: &[&str]) {
    let found = problems(text);
    for part in expected {
        assert!(found.iter().any(|problem| problem.contains(part)), "{part} not in {found:#?}");
    }
    assert_eq!(found.len(), expected.len(), "{found:#?}");
}

#[test]
fn all_problems_are_told_with_their_lines() {
    let text = r#"policy = ["open", "closed"]
load = -1
warmpu = "1s"
warmup = "2s"
duration = "1s"
[service]
cores = 0
time = 10
distribution = "gaussian"
colour = "red"
[network]
rtt = "10 parsecs"
[[faults]]
kind = "slow"
at = "1s"
[[faults]]
kind = "fire"
[policies.open.gate]
queue_limit = 0
retry_share = 2.0
[policies.open.caller]
hold = 3
"#;
    check_all(
        text,
        &[
            "line 2: load = -1 is not allowed",
            "line 3: warmpu is not a known key",
            "line 4: warmup = 2s is not below duration = 1s",
            "line 7: service.cores = 0 is not allowed",
            "line 8: service.time: 10 is not a time",
            "line 9: service.distribution = \"gaussian\" is not allowed: exponential, constant",
            "line 10: service.colour is not a known key",
            "line 12: network.rtt",
            "line 17: faults.1.kind = \"fire\" is not allowed: slow, pause",
            "line 19: policies.open.gate.queue_limit = 0",
            "line 20: policies.open.gate.retry_share = 2",
            "line 22: policies.open.caller.hold = 3 is not allowed: unknown field `hold`",
            "line 1: policy = \"closed\" has no block [policies.closed]",
        ],
    );
}

/// Each told once, also what all policies have, and also beside a choice that has no parameters.
#[test]
fn unknown_keys_of_policies_are_all_told() {
    let text = r#"policy = ["one", "two"]
[service]
[gate]
deep = 1
[policies.one.gate]
admission = { policy = "open", nope = 1 }
wide = 2
[policies.two.caller]
throttle = { throttle = "open", nope = 2 }
hold_time = "soon"
"#;
    check_all(
        text,
        &[
            "line 4: gate.deep = 1 is not allowed: unknown field",
            "line 6: policies.one.gate.admission.nope = 1 is not allowed: unknown field",
            "line 7: policies.one.gate.wide = 2 is not allowed: unknown field",
            "line 9: policies.two.caller.throttle.nope = 2 is not allowed: unknown field",
            "line 10: policies.two.caller.hold_time = \"soon\" is not allowed",
        ],
    );
}

/// Two tenants: 450 per second of 1 ms and 20 of 10 ms are 0.65 cores, for 470 requests.
const TENANTS: &str = r#"policy = "ideal"
duration = "2s"
[service]
time = "1ms"
times = { long = "10ms" }
[[tenants]]
workflow = "short"
rate = 450
[[tenants]]
workflow = "long"
rate = 20
"#;

#[test]
fn capacity_is_that_of_what_tenants_offer() {
    let plan = Plan::parse("tenants", TENANTS, &[], Path::new("")).unwrap();
    let capacity = plan.points[0].scenario.capacity();
    assert!((capacity - 470.0 / 0.65).abs() < 1e-6, "{capacity}");
    let idle = ["tenants.0.rate=0".to_owned(), "tenants.1.rate=0".to_owned()];
    let found = Plan::parse("tenants", TENANTS, &idle, Path::new("")).unwrap_err().0;
    assert_eq!(found.len(), 1, "{found:#?}");
}

/// What a tenant says is not said for all of them.
#[test]
fn what_means_nothing_beside_tenants_is_told() {
    let text =
        TENANTS.replace("duration = \"2s\"", "load = [0.5, 2.0]\nrequests = 100\ncallers = 4");
    let text = text
        + "[workload]\narrivals = \"periodic\"\nranks = \"one\"\ntimeout = \"1s\"\n\
        steps = [{ at = \"1s\", load = 2.0 }]\n";
    check_all(
        &text,
        &[
            "line 2: load has no meaning beside [[tenants]]",
            "line 3: requests has no meaning beside [[tenants]]",
            "line 4: callers has no meaning beside [[tenants]]",
            "line 15: workload.arrivals has no meaning beside [[tenants]]",
            "line 16: workload.ranks has no meaning beside [[tenants]]",
            "line 18: workload.steps has no meaning beside [[tenants]]",
        ],
    );
}

#[test]
fn a_sweep_that_changes_nothing_is_told() {
    let closed =
        "policy = \"ideal\"\nload = [0.5, 2.0]\n[service]\n[workload]\narrivals = \"closed\"\n";
    check_all(closed, &["line 2: load has no meaning in a closed loop"]);
    let one = closed.replace("[0.5, 2.0]", "0.5");
    assert!(Plan::parse("closed", &one, &[], Path::new("")).is_ok());
}

/// What it tells is worked out from one workload and one server.
#[test]
fn the_yardstick_told_needs_one_server_and_an_open_loop() {
    let problem = "line 1: policy = \"told\" needs one service of one replica";
    check_all(&TENANTS.replace("ideal", "told"), &[problem]);
    check_all("policy = \"told\"\n[service]\nreplicas = 2\n", &[problem]);
    check_all("policy = \"told\"\n[service]\n[workload]\narrivals = \"closed\"\n", &[problem]);
    let told = "policy = [\"told\", \"ideal\"]\n[told]\nroom = -1\noffers = 2\n[service]\n";
    check_all(told, &["line 3: told.room = -1 is not allowed", "line 4: told.offers"]);
}

/// Messages are lost everywhere or nowhere.
#[test]
fn faults_of_the_network_have_no_place() {
    let text = r#"policy = "ideal"
[service]
replicas = 2
[[faults]]
kind = "loss"
service = "service"
[[faults]]
kind = "jitter"
replica = 1
[[faults]]
kind = "partition"
service = "service"
replica = 1
"#;
    check_all(
        text,
        &[
            "line 6: faults.0.service has no meaning for loss",
            "line 9: faults.1.replica has no meaning for jitter",
        ],
    );
}

#[test]
fn samples_have_a_mean() {
    for samples in ["[]", "[0.0]", "[1e308, 1e308]"] {
        let text = format!(
            "policy = \"ideal\"\n[service]\ndistribution = \"empirical\"\nsamples = {samples}\n"
        );
        check_all(&text, &["line 4: service.samples needs at least one number above zero"]);
    }
}

/// What all policies have is of no use to one that chooses something else.
#[test]
fn another_choice_has_its_own_parameters() {
    let text = r#"policy = "own"
[service]
[caller]
throttle = { throttle = "adaptive", k = 1.5 }
[policies.own.caller]
throttle = { throttle = "open" }
"#;
    let plan = Plan::parse("choice", text, &[], Path::new("")).unwrap();
    assert!(format!("{:?}", plan.points[0].scenario.caller.throttle).starts_with("Open"));
}

#[test]
fn what_is_no_table_is_told() {
    let text = "policy = \"ideal\"\ngate = 3\ncaller = 4\nsweep = 5\nseeds = 0\n[service]\n[policies.own]\ngate = 6\n";
    check_all(
        text,
        &[
            "line 2: gate is not a table",
            "line 3: caller is not a table",
            "line 4: sweep = 5 is not allowed",
            "line 5: seeds = 0 is not allowed: 1 to 100000",
            "line 8: policies.own.gate is not a table",
        ],
    );
}

/// Nobody looks for it in the file.
#[test]
fn what_was_set_otherwise_is_told_as_such() {
    let text = r#"policy = "own"
load = 1.0
[service]
cores = 4
[sweep]
"service.time" = ["1us", "soon"]
"service.send" = ["1us", "2us"]
[policies.own.gate]
queue_limit = 5
"#;
    let sets =
        ["load=-1", "service.cores=0", "policies.own.gate.queue_limit=0", "service.send=never"];
    let found = Plan::parse("bad", text, &sets.map(str::to_owned), Path::new("")).unwrap_err().0;
    for part in [
        "--set: load = -1 is not allowed",
        "--set: service.cores = 0 is not allowed",
        "--set: policies.own.gate.queue_limit = 0 is not allowed",
        "--set: service.send: ",
        "line 6: service.time: ",
    ] {
        assert!(found.iter().any(|problem| problem.starts_with(part)), "{part} not in {found:#?}");
    }
    assert_eq!(found.len(), 5, "{found:#?}");
}

#[test]
fn calls_in_a_circle_and_to_nobody_are_told() {
    let text = r#"
policy = "ideal"
entry = "a"
[services.a]
calls = ["b", "nobody"]
[services.b]
calls = [["c"]]
[services.c]
calls = { sale = ["b"] }
[workload.mix]
sale = 1
"#;
    check_all(
        text,
        &[
            "line 5: services.a.calls has \"nobody\"",
            "services.b.calls go round in a circle: b → c → b",
        ],
    );
}

#[test]
fn syntax_errors_and_bad_sets_are_told() {
    assert!(problems("policy = [").join("").contains("line 1"));
    let sets = ["load".to_owned(), "service.time.mean=1".to_owned()];
    let text = "policy = \"ideal\"\n[service]\ntime = \"10us\"\n";
    let found = Plan::parse("bad", text, &sets, Path::new("")).unwrap_err().0;
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[1].contains("time is not a table"), "{found:?}");
}

#[test]
fn a_plan_is_a_grid_and_sets_narrow_it() {
    let text = r#"
policy = ["ideal"]
load = [0.5, 2.0]
callers = [10, 100]
[service]
time = "10us"
[sweep]
"service.time" = ["1us", "10us", "100us"]
"#;
    let parse = |sets: &[&str]| {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        Plan::parse("grid", text, &sets, Path::new("")).unwrap().points
    };
    assert_eq!(parse(&[]).len(), 12);
    let narrowed = parse(&["load=1.2", "callers=[7]", "service.time=5us", "duration=2s"]);
    assert_eq!(narrowed.len(), 1);
    let scenario = &narrowed[0].scenario;
    assert_eq!(scenario.callers, 7);
    assert_eq!(scenario.duration.as_secs_f64(), 2.0);
    assert_eq!(scenario.topology.services[0].time.mean.as_micros_f64(), 5.0);
    // Ten times service and round trip unless it is given.
    assert_eq!(scenario.slo.as_micros_f64(), 50.0);
    // Whichever way the file has said it.
    let counted = format!("requests = 1000000\n{text}");
    let sets = ["duration=2s".to_owned()];
    let plan = Plan::parse("counted", &counted, &sets, Path::new("")).unwrap();
    assert_eq!(plan.points[0].scenario.duration.as_secs_f64(), 2.0);
}

#[test]
fn the_template_is_right_and_says_the_defaults() {
    let plan = Plan::parse("template", TEMPLATE, &[], Path::new("")).unwrap();
    assert_eq!(plan.points.len(), 12);
    // What is commented out shows the default, so setting it changes nothing.
    let set = ["seed=1", "workload.ranks=uniform", "service.after=0s", "service.replicas=1"];
    let set = set.map(str::to_owned);
    let same = Plan::parse("template", TEMPLATE, &set, Path::new("")).unwrap();
    for (a, b) in plan.points.iter().zip(&same.points) {
        assert_eq!(format!("{:?}", a.scenario), format!("{:?}", b.scenario));
    }
}

#[test]
fn includes_fill_in_and_their_problems_name_the_file() {
    let folder = std::env::temp_dir().join(format!("tidegate-plans-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("own.toml"), "[policies.own.gate]\nqueue_limit = 0\n").unwrap();
    let text = "policy = \"own\"\ninclude = [\"own.toml\", \"none.toml\"]\n[service]\n";
    let found = Plan::parse("bad", text, &[], &folder).unwrap_err().0;
    let fixed = ["policies.own.gate.queue_limit=5".to_owned(), "include=own.toml".to_owned()];
    let right = Plan::parse("good", text, &fixed, &folder);
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("line 2: include none.toml"), "{found:?}");
    assert!(
        found[1].starts_with("own.toml line 2: policies.own.gate.queue_limit = 0"),
        "{found:?}"
    );
    assert_eq!(right.unwrap().points[0].scenario.gates[0].queue_limit, 5);
}

/// Every plan that ships is right.
#[test]
fn shipped_plans_are_right() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plans");
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let text = std::fs::read_to_string(&path).unwrap();
            if let Err(error) = Plan::parse("shipped", &text, &[], &folder) {
                panic!("{}: {error}", path.display());
            }
            count += 1;
        }
    }
    assert!(count > 0);
}
