//! `tidegate bench rpc` as a user meets it. What it measures depends on the machine and is not judged
//! here; that it measures at all, and says so in the fields that scripts rely on, is.

use std::process::{Command, Output};

/// The fields of `tidegate sim` that matter here, and those that only a real run has.
const FIELDS: [&str; 16] = [
    "policy",
    "point",
    "capacity_rps",
    "offered_rps",
    "goodput_rps",
    "p50_us",
    "p99_us",
    "drop_rate",
    "local_reject_rate",
    "success_by_quarter",
    "cpu_server",
    "cpu_us_per_request",
    "connections",
    "bytes_per_connection",
    "send_lag_p99_us",
    "valid",
];

fn bench(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["bench", "rpc"]).args(arguments).output().expect("it runs")
}

fn rows(output: &Output) -> Vec<serde_json::Value> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn every_policy_at_every_load_is_a_row_with_all_fields() {
    let folder = std::env::temp_dir().join(format!("tidegate-bench-{}", std::process::id()));
    let out = folder.display().to_string();
    let common = ["--seconds", "0.2", "--callers", "4", "--load", "0.5,2", "--format", "json"];
    let policies = ["--policy", "tide", "--policy", "open", "--simulate", "--out", &out];
    let rows = rows(&bench(&[&common[..], &policies[..]].concat()));
    let named: Vec<&str> = rows.iter().filter_map(|row| row["policy"].as_str()).collect();
    let expected = ["tide", "sim tide", "tide", "sim tide", "open", "sim open", "open", "sim open"];
    assert_eq!(named, expected);
    for row in rows.iter().step_by(2) {
        for field in FIELDS {
            assert!(!row[field].is_null(), "{field} is missing: {row}");
        }
        assert!(row["requests"].as_u64().is_some_and(|count| count > 0), "{row}");
        assert_eq!(row["connections"], 4);
    }
    for file in ["rpc.json", "rpc.txt", "rpc.svg"] {
        let text = std::fs::read_to_string(folder.join(file)).expect("written");
        assert!(text.contains("tide"), "{file}");
    }
    std::fs::remove_dir_all(folder).expect("ours");
}

#[test]
fn a_shift_has_its_course_and_a_store_its_keys() {
    let shift = ["--seconds", "0.1", "--callers", "4", "--shift", "0.5,1.4", "--format", "json"];
    let rows_of = |more: &[&str]| rows(&bench(&[&shift[..], more].concat()));
    let rows = rows_of(&["--policy", "tide", "--service", "kv", "--capacity", "1000"]);
    let series = rows[0]["series"].as_array().expect("a course");
    assert!(series.len() >= 10, "{}", series.len());
    assert!(series.iter().any(|step| step["offered_rps"].as_f64() > Some(0.0)));
}

/// A baseline is at its best, and what was chosen is told with it.
#[test]
fn baselines_are_tuned_to_the_service_and_say_how() {
    let few = ["--seconds", "0.1", "--callers", "4", "--load", "2", "--capacity", "2000"];
    let policies = ["--policy", "seda", "--policy", "tide", "--format", "json"];
    let arguments = [&few[..], &policies[..]].concat();
    let tuned = rows(&bench(&arguments));
    let note = tuned[0]["tuned"].as_str().expect("a text");
    // Steps for callers of 500 requests per second each: Breakwater's 40 are for 850.
    assert!(note.starts_with("seda, 4 callers: adj_i ") && note.contains("(of 23.5, 5.9, 58.8)"));
    assert_eq!(tuned[1]["tuned"], "");
    let untuned = rows(&bench(&[&arguments[..], &["--untuned"]].concat()));
    assert_eq!(untuned[0]["tuned"], "");
}

/// A run in which nothing happened says nothing, and says that.
#[test]
fn a_run_without_requests_is_not_valid() {
    let rows = rows(&bench(&[
        "--seconds",
        "0.1",
        "--callers",
        "4",
        "--load",
        "0",
        "--capacity",
        "1000",
        "--policy",
        "tide",
        "--format",
        "json",
    ]));
    assert_eq!((&rows[0]["requests"], &rows[0]["valid"]), (&0.into(), &false.into()));
}

/// Rows come as they are measured, and what there is when somebody has had enough is kept.
#[cfg(target_os = "linux")]
#[test]
fn what_was_measured_before_ctrl_c_is_told() {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;
    let folder = std::env::temp_dir().join(format!("tidegate-bench-int-{}", std::process::id()));
    let loads = vec!["1"; 600].join(",");
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["bench", "rpc", "--seconds", "0.1", "--callers", "4", "--capacity", "1000"])
        .args(["--load", &loads, "--policy", "tide", "--format", "json", "--out"])
        .arg(&folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    lines.next().expect("a row").expect("text");
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(killed.expect("there is kill").success());
    let count = 1 + lines.count();
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("interrupted"), "{output:?}");
    assert!(count < 600, "{count} rows");
    let written = std::fs::read_to_string(folder.join("rpc.json")).expect("written");
    assert_eq!(written.lines().count(), count);
    std::fs::remove_dir_all(folder).expect("ours");
}

#[test]
fn wrong_input_is_told_and_exits_with_2() {
    let cases: [&[&str]; 14] = [
        &["--service", "fast"],
        &["--policy", "none-such"],
        &["--cores", "0"],
        &["--rounds", "0"],
        &["--shift", "1,2", "--step", "0s"],
        &["--shift", "1,2", "--step", "1ns"],
        &["--saturate", "1", "--out", "somewhere"],
        &["--saturate", "1", "--rounds", "2"],
        &["--simulate", "--service", "kv"],
        &["--png"],
        &["--load", "1,inf"],
        &["--shift", "nan"],
        &["--slo", "0s"],
        &["--capacity", "0"],
    ];
    for case in cases {
        let output = bench(case);
        assert_eq!(output.status.code(), Some(2), "{case:?}");
        let (told, mut flags) = (String::from_utf8_lossy(&output.stderr), case.iter());
        assert!(
            flags.any(|flag| flag.starts_with("--") && told.contains(flag)),
            "{case:?}: {told}"
        );
    }
}
