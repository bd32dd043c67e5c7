//! The command: files in, files out.

use std::path::{Path, PathBuf};

use tidegate_sim::Report;
use tidegate_sim::command::{Format, Options, replay, run, write};

const PLAN: &str = r#"
    include = "standard"
    policy = ["tide", "open"]
    load = [0.5, 1.5]
    callers = 10
    seeds = 2
    requests = 2000
    warmup_requests = 500
    [service]
    cores = 2
    time = "1ms"
    [network]
    rtt = "100us"
"#;

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn a_plan_file_becomes_reports_and_files() {
    let folder = folder("run");
    let plan = folder.join("small.toml");
    std::fs::write(&plan, PLAN).unwrap();
    let options = Options { plan, series: Some("100ms".parse().unwrap()), ..Options::default() };
    let reports = run(&options, |done, of| assert!(done <= of && of == 8)).unwrap();
    write(&folder, &reports).unwrap();
    let (json, csv, table) = (
        read(&folder.join("small.jsonl")),
        read(&folder.join("small.csv")),
        read(&folder.join("small.txt")),
    );
    let series = read(&folder.join("small-series.csv"));
    std::fs::remove_dir_all(&folder).unwrap();
    // Points in order, the seeds of each beside each other.
    let seen: Vec<_> = reports.iter().map(|r| (r.policy.as_str(), r.seed)).collect();
    assert_eq!(seen[..4], [("tide", 1), ("tide", 2), ("tide", 1), ("tide", 2)]);
    assert_eq!(json.lines().count(), 8);
    for field in [
        "\"plan\":\"small\"",
        "\"point\":{\"load\":0.5,\"callers\":10}",
        "\"series\":[{\"t_ms\":0.000,",
    ] {
        assert!(json.lines().next().unwrap().contains(field), "{field} {json}");
    }
    assert_eq!(table.lines().count(), 9);
    let columns = |line: &str| line.split(',').count();
    assert!(csv.lines().all(|line| columns(line) == columns(csv.lines().next().unwrap())));
    assert!(series.starts_with("policy,load,callers,seed,t_ms,offered_rps,goodput_rps,p99_us\n"));
    assert!(series.contains("\ntide,0.5,10,2,100.000,"), "{series}");
    assert_eq!(Format::Csv.render(&reports), csv);
}

#[test]
fn seeds_have_a_mean() {
    let folder = folder("mean");
    let plan = folder.join("small.toml");
    std::fs::write(&plan, PLAN).unwrap();
    let options = Options { plan, series: Some("100ms".parse().unwrap()), ..Options::default() };
    let each = run(&options, |_, _| {}).unwrap();
    let mean = run(&Options { mean: true, ..options }, |_, _| {}).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!((each.len(), mean.len()), (8, 4));
    let expected = (each[2].goodput_rps + each[3].goodput_rps) / 2.0;
    assert!((mean[1].goodput_rps - expected).abs() < 1e-6);
    assert_eq!(mean[1].requests, each[2].requests + each[3].requests);
    let offered = |n: usize| each[n].series.as_ref().unwrap()[1].offered;
    let row = &mean[1].series.as_ref().unwrap()[1];
    assert!(row.offered.abs_diff((offered(2) + offered(3)) / 2) <= 1);
}

/// Whatever a mean tells is one, and what has none it does not tell.
#[test]
fn every_part_of_a_mean_is_a_mean() {
    let text = r#"
        policy = ["own", "ideal"]
        entry = "a"
        callers = 10
        seeds = 2
        load = 1.5
        duration = "400ms"
        warmup = "100ms"
        slo = "20ms"
        [services.a]
        time = "500us"
        calls = ["b"]
        [services.b]
        time = "1ms"
        [workload]
        ignoring = 0.5
        mix = { x = 1, y = 2 }
        deadlines = { x = "10ms", y = "20ms" }
        [policies.own.gate]
        queue_limit = 5
        [policies.own.caller]
        throttle = { throttle = "adaptive" }
    "#;
    let folder = folder("parts");
    let plan = folder.join("parts.toml");
    std::fs::write(&plan, text).unwrap();
    let options = Options { plan, ..Options::default() };
    let each = run(&options, |_, _| {}).unwrap();
    let mean = run(&Options { mean: true, ..options }, |_, _| {}).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    type Part = fn(&Report) -> f64;
    let parts: [(&str, Part); 6] = [
        ("attempts", |run| run.attempts[1]),
        ("lnd", |run| run.lnd.unwrap()[1]),
        ("flows", |run| run.flows[1].answered_rps),
        ("services", |run| run.services[1].arrived_rps),
        ("workflows", |run| run.workflows[1].1),
        ("ignoring", |run| run.obeying.unwrap().1),
    ];
    for (name, part) in parts {
        let (first, second) = (part(&each[0]), part(&each[1]));
        assert_ne!(first, second, "{name} does not depend on the seed");
        assert!((part(&mean[0]) - (first + second) / 2.0).abs() < 1e-9, "{name}");
    }
    assert!(each[2].window.is_some() && mean[1].window.is_none());
}

#[test]
fn a_log_is_replayed_with_each_policy() {
    let folder = folder("replay");
    let log = folder.join("access.csv");
    let lines: Vec<String> =
        (0..4000).map(|n| format!("{},shop,5,{},1000", f64::from(n) / 4e3, n % 1000)).collect();
    std::fs::write(&log, lines.join("\n")).unwrap();
    let sets = vec!["service.cores=2".to_owned(), "slo=20ms".to_owned()];
    let options = Options { plan: log, sets, ..Options::default() };
    let policies = ["tide".to_owned(), "open".to_owned()];
    let reports = replay(&options, &policies, |_, _| {}).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    // Twice what two cores can do: without control nearly everything is late.
    assert_eq!(reports.len(), 2);
    assert_eq!(reports[0].requests, 4000);
    assert!(reports[0].goodput_rps > 0.9 * reports[0].capacity_rps, "{}", reports[0].goodput_rps);
    assert!(reports[1].goodput_rps < 0.2 * reports[1].capacity_rps, "{}", reports[1].goodput_rps);
}

fn replay_text(name: &str, text: &str, sets: &[&str]) -> Result<Vec<Report>, String> {
    let folder = folder(name);
    let log = folder.join("access.csv");
    std::fs::write(&log, text).unwrap();
    let sets = sets.iter().map(|set| (*set).to_owned()).collect();
    let options = Options { plan: log, sets, ..Options::default() };
    let reports = replay(&options, &["open".to_owned()], |_, _| {});
    std::fs::remove_dir_all(&folder).unwrap();
    reports.map_err(|error| error.to_string())
}

/// Times since 1970, answered after the last of them has come.
#[test]
fn an_access_log_of_two_lines_is_answered() {
    let text = "1700000000.1,shop,5,1,1000\n1700000000.2,shop,5,2,1000\n";
    let report = replay_text("two-lines", text, &["slo=20ms"]).unwrap().remove(0);
    assert_eq!(report.requests, 2);
    assert!((report.duration_s - 0.12).abs() < 1e-9, "{}", report.duration_s);
    assert!((report.goodput_rps - 2.0 / 0.12).abs() < 1e-6, "{}", report.goodput_rps);
}

/// Lines of the log are told, none of the plan that nobody has seen.
#[test]
fn what_is_wrong_with_a_log_is_told() {
    let error = replay_text("wrong", "-1,a,1,2,3\n0,a,1,2,3\n1,a,99,2,3\n", &[]).unwrap_err();
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(lines.len(), 2, "{error}");
    assert!(lines[0].starts_with("workload.log: line 1 of the log: timestamp"), "{error}");
    assert!(lines[1].starts_with("workload.log: line 3 of the log: business"), "{error}");
    let error = replay_text("nothing", "0,a,1,2,0\n1,a,1,2,0\n", &[]).unwrap_err();
    assert!(error.contains("workload.log needs a mean service time"), "{error}");
}

/// A step of nothing would never end, a tiny one would fill the memory.
#[test]
fn a_series_has_steps_that_can_be_counted() {
    let folder = folder("series");
    let plan = folder.join("small.toml");
    std::fs::write(&plan, PLAN).unwrap();
    for step in ["0ms", "1ns"] {
        let series = Some(step.parse().unwrap());
        let error = run(&Options { plan: plan.clone(), series, ..Options::default() }, |_, _| {});
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with("--series ") && error.contains("at least 2.5us"), "{error}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_cannot_be_read_is_told() {
    let options = Options { plan: "/nowhere/plan.toml".into(), ..Options::default() };
    assert!(run(&options, |_, _| {}).unwrap_err().to_string().contains("/nowhere/plan.toml"));
    let policies = ["tide".to_owned()];
    assert!(replay(&options, &policies, |_, _| {}).unwrap_err().to_string().contains("/nowhere"));
}
