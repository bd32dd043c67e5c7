//! `tidegate sim` and `tidegate figure` as a user meets them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A plan of two tiny runs.
const PLAN: &str = r#"
include = "standard"
policy = ["tide", "open"]
load = [0.5]
callers = 4
slo = "20ms"
warmup = "20ms"
duration = "60ms"
[service]
cores = 2
time = "1ms"
[network]
rtt = "100us"
[caller]
hold_time = "0.05 slo"
"#;

/// The fields that scripts rely on (docs/simulator.md).
const FIELDS: [&str; 22] = [
    "plan",
    "policy",
    "point",
    "seed",
    "requests",
    "duration_s",
    "capacity_rps",
    "offered_rps",
    "goodput_rps",
    "throughput_rps",
    "p50_us",
    "p99_us",
    "p999_us",
    "drop_rate",
    "local_reject_rate",
    "expired_rate",
    "reject_delay_us",
    "rx_per_request",
    "tx_per_request",
    "success_by_quarter",
    "jain_callers",
    "utilization",
];

/// A folder of its own, gone when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary folder");
        Self(path)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("a temporary file");
        path.to_string_lossy().into_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn tidegate(args: &[&str]) -> (i32, String, String) {
    tidegate_in(Path::new("."), args)
}

fn tidegate_in(folder: &Path, args: &[&str]) -> (i32, String, String) {
    let program = Path::new(env!("CARGO_BIN_EXE_tidegate"));
    let output = Command::new(program).args(args).current_dir(folder).output();
    let output = output.expect("the binary was built");
    let text = |bytes| String::from_utf8(bytes).expect("answers are text");
    let code = output.status.code().expect("it exits by itself");
    (code, text(output.stdout), text(output.stderr))
}

#[test]
fn a_plan_runs_and_answers_in_json() {
    let folder = Folder::new("json");
    let plan = folder.file("tiny.toml", PLAN);
    let args = ["sim", &plan, "--format", "json", "--seed", "7", "--set", "load=[0.5,2.0]"];
    let (code, out, err) = tidegate(&args);
    assert_eq!((code, err.as_str()), (0, ""), "no bar without a terminal");
    let runs: Vec<serde_json::Value> =
        out.lines().map(|line| serde_json::from_str(line).expect("one object per line")).collect();
    assert_eq!(runs.len(), 4);
    for run in &runs {
        for field in FIELDS {
            assert!(!run[field].is_null(), "{field} is missing from {run}");
        }
        assert_eq!((&run["plan"], &run["seed"]), (&"tiny".into(), &7.into()));
        assert!(run["series"].is_null());
    }
    assert_eq!(runs[1]["policy"], "tide");
    assert_eq!(runs[1]["point"]["load"], 2.0);
    assert!(runs[1]["offered_rps"].as_f64() > runs[0]["offered_rps"].as_f64());
    // Whatever the number of threads, the same bytes.
    assert_eq!(tidegate(&[&args[..], &["--threads", "1"]].concat()).1, out);
    assert_ne!(tidegate(&["sim", &plan, "--format", "json"]).1, out);
}

#[test]
fn series_tables_csv_and_files() {
    let folder = Folder::new("files");
    let plan = folder.file("tiny.toml", PLAN);
    let into = folder.0.join("out");
    let out_dir = into.to_string_lossy();
    let (code, out, _) = tidegate(&["sim", &plan, "--series", "10ms", "--out", &out_dir]);
    assert_eq!(code, 0);
    assert!(out.starts_with("policy") && out.contains("tide") && out.lines().count() == 3, "{out}");
    for name in ["tiny.jsonl", "tiny.csv", "tiny.txt", "tiny-series.csv"] {
        assert!(into.join(name).is_file(), "{name} is missing");
    }
    let written = std::fs::read_to_string(into.join("tiny.jsonl")).expect("it was written");
    let first: serde_json::Value =
        serde_json::from_str(written.lines().next().expect("a line")).expect("an object");
    for field in ["t_ms", "offered_rps", "goodput_rps", "p99_us"] {
        assert!(first["series"][3][field].is_number(), "{field} is missing from {first}");
    }
    let (_, out, _) = tidegate(&["sim", &plan, "--format", "csv"]);
    assert_eq!(out, std::fs::read_to_string(into.join("tiny.csv")).expect("it was written"));
}

#[test]
fn all_problems_of_a_plan_are_told_and_exit_with_2() {
    let folder = Folder::new("wrong");
    let wrong = PLAN.replace("cores = 2", "cores = 0\ncoers = 2").replace("= 4", "= -4");
    let plan = folder.file("wrong.toml", &wrong);
    let (code, out, err) = tidegate(&["sim", &plan, "--set", "load=often"]);
    assert_eq!((code, out.as_str()), (2, ""));
    for part in ["service.cores", "service.coers", "callers", "load", "line 11"] {
        assert!(err.contains(part), "{part} is missing from:\n{err}");
    }
    for args in [&["sim"][..], &["sim", "no/such.toml"], &["sim", &plan, "--format", "xml"]] {
        let (code, out, _) = tidegate(args);
        assert_eq!((code, out.as_str()), (2, ""), "{args:?}");
    }
}

#[test]
fn the_plan_to_start_from_is_written_once_and_runs() {
    let folder = Folder::new("new");
    let (code, template, _) = tidegate(&["sim", "new"]);
    assert_eq!(code, 0);
    assert_eq!(tidegate_in(&folder.0, &["sim", "new", "mine.toml"]).0, 0);
    let path = folder.0.join("mine.toml");
    assert_eq!(std::fs::read_to_string(&path).expect("it was written"), template);
    std::fs::write(&path, "mine").expect("it can be changed");
    let (code, _, err) = tidegate_in(&folder.0, &["sim", "new", "mine.toml"]);
    assert_eq!(code, 2);
    assert!(err.contains("mine.toml is there already"), "{err}");
    assert_eq!(std::fs::read_to_string(&path).expect("it is there"), "mine");
    std::fs::write(&path, template).expect("it can be changed");
    let short = ["--set", "duration=20ms", "--set", "warmup=10ms", "--set", "policy=open"];
    let (code, out, err) = tidegate_in(&folder.0, &[&["sim", "mine.toml"][..], &short].concat());
    assert_eq!((code, out.lines().count()), (0, 4), "{err}");
}

#[test]
fn a_log_is_replayed() {
    let folder = Folder::new("replay");
    let lines: Vec<String> =
        (0..500).map(|n| format!("{:.4},,5,{n},900", n as f64 / 2e3)).collect();
    let log = folder.file("log.csv", &lines.join("\n"));
    let args = ["sim", "replay", &log, "--policy", "tide", "--policy", "open", "--format", "json"];
    let (code, out, err) = tidegate(&[&args[..], &["--set", "service.cores=4"]].concat());
    assert_eq!((code, out.lines().count()), (0, 2), "{err}");
    let run: serde_json::Value =
        serde_json::from_str(out.lines().next().expect("a line")).expect("an object");
    assert_eq!((&run["plan"], &run["requests"]), (&"log".into(), &500.into()));
    let (code, _, err) = tidegate(&[&args[..], &["--set", "load=3"]].concat());
    assert_eq!(code, 2, "a run must not be told as what it is not");
    assert!(err.contains("load has no meaning in a replay"), "{err}");
}

#[test]
fn a_folder_that_cannot_be_written_to_is_told_before_anything_is_simulated() {
    let folder = Folder::new("out");
    let taken = folder.file("taken", "a file");
    let (code, out, err) =
        tidegate(&["sim", &folder.file("plan.toml", "no plan"), "--out", &taken]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains("cannot write to"), "{err}");
}

#[test]
fn figures_are_listed_made_and_written() {
    let (code, out, _) = tidegate(&["figure", "list"]);
    assert_eq!(code, 0);
    for name in ["breakwater-3", "tide-rank", "sre-retries"] {
        assert!(out.lines().any(|line| line.starts_with(name)), "{name} is missing from\n{out}");
    }
    let folder = Folder::new("figure");
    // In a folder without plans: they are part of the program.
    let args = ["figure", "sre-retries", "--quick", "--out", "made", "--format", "json"];
    let (code, out, err) = tidegate_in(&folder.0, &args);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let answer: serde_json::Value = serde_json::from_str(&out).expect("one object");
    assert_eq!((&answer["figure"], &answer["holds"]), (&"sre-retries".into(), &true.into()));
    assert!(answer["claims"].as_array().is_some_and(|claims| claims.len() >= 5), "{out}");
    let made = |name| std::fs::read_to_string(folder.0.join("made").join(name)).expect("written");
    assert!(made("sre-retries.svg").starts_with("<svg"));
    assert!(made("sre-retries.csv").lines().count() > 9);
}

#[test]
fn unknown_figures_are_told_before_any_is_made() {
    let (code, out, err) = tidegate(&["figure", "sre-retries", "sre-42", "x", "--quick"]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.contains("sre-42, x") && err.contains("breakwater-1"), "{err}");
}
