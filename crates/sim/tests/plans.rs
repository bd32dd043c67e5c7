//! Plans: what is wrong is told at once, with lines; what is right becomes a grid.

use std::path::Path;

use tidegate_sim::Plan;

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
            "line 8: service.time : 10 is not a time",
            "line 9: service.distribution = \"gaussian\" is not allowed: exponential, constant",
            "line 10: service.colour is not a known key",
            "line 12: network.rtt",
            "line 17: faults.1.kind = \"fire\" is not allowed: slow, pause",
            "line 19: policies.open.gate.queue_limit = 0",
            "line 20: policies.open.gate.retry_share = 2",
            "line 21: policies.open.caller : unknown field `hold`",
            "line 1: policy = \"closed\" has no block [policies.closed]",
        ],
    );
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
