//! `tidegate demo --once` as a newcomer runs it.

#![allow(clippy::disallowed_methods, reason = "a real process")]

use std::process::Command;

use serde_json::Value;

/// Wide margins: this is no measurement, and the machine may be busy.
#[test]
fn without_control_a_service_collapses_and_with_tide_it_does_not() {
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["demo", "--once", "--format", "json"])
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    let lines: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("an object per line")).collect();
    assert_eq!(lines.len(), 24, "{text}");
    let told = |callers: &str, policy: &str, load: f64| {
        let is = |line: &&Value| {
            line["callers"] == callers && line["policy"] == policy && line["load"] == load
        };
        let line = lines.iter().find(is);
        let line = line.unwrap_or_else(|| panic!("{policy} at {load} is missing from\n{text}"));
        ["offered_rps", "goodput_rps", "p99_ms", "success_top_quarter"]
            .map(|name| line[name].as_f64().unwrap_or_else(|| panic!("{name}: {line}")))
    };
    let of = |policy: &str, load: f64| told("plain", policy, load);
    for load in [2.0, 5.0] {
        let [offered, open, p99, _] = of("open", load);
        assert!(offered > 150.0 * load, "{text}");
        let [_, tide, _, top] = of("tide", load);
        assert!(tide > 80.0 && tide > 2.0 * open, "{text}");
        assert!(p99 > 400.0 && top > 0.4, "{text}");
    }
    // Callers that wait for credits are what Breakwater is made for; without them it is as good as open at five times.
    let [_, alone, ..] = of("breakwater", 5.0);
    let [_, obeyed, ..] = told("obeying", "breakwater", 5.0);
    assert!(obeyed > 60.0 && obeyed > alone, "{text}");
    let [_, calm, _, top] = of("tide", 0.8);
    assert!(calm > 100.0 && top > 0.9, "{text}");
}

#[test]
fn wrong_flags_are_told() {
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["demo", "--load", "11"])
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("0 to 10"));
}
