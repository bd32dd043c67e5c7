//! `cargo xtask bench`: instructions per operation, counted by callgrind.
//!
//! Counts do not depend on how busy the machine is. Each operation of
//! `crates/core/examples/instructions.rs` and `crates/driver/examples/buckets.rs` runs N and 2N
//! times; the difference, divided by N, is the price of one, free of start-up and preparation.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::install::{self, Need};
use crate::run::{Result, cargo, output};

const NEEDS: &[Need] = &[Need { program: "valgrind", package: "valgrind" }];

/// How often an operation is done in the shorter run. Enough to average over growing tables and
/// control periods, few enough for callgrind's fifty-fold slowness.
const TIMES: u64 = 20_000;

/// Programs that list and do operations, as (package, example).
const PROGRAMS: &[(&str, &str)] =
    &[("tidegate-core", "instructions"), ("tidegate-driver", "buckets")];

/// What to measure and how to tell.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    json: bool,
    install: bool,
    /// Only operations whose name contains this.
    filter: String,
}

impl Options {
    pub(crate) fn parse(args: &[&str]) -> Option<Self> {
        let mut options = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match *arg {
                "--install" => options.install = true,
                "--format" => match *args.next()? {
                    "json" => options.json = true,
                    "text" => options.json = false,
                    _ => return None,
                },
                flag if flag.starts_with('-') => return None,
                filter => options.filter = filter.to_owned(),
            }
        }
        Some(options)
    }
}

/// Counts and prints.
pub(crate) fn bench(options: &Options) -> Result {
    install::provide(NEEDS, options.install)?;
    let mut rows = Vec::new();
    for (package, example) in PROGRAMS {
        let program = build(package, example)?;
        let (names, _) = output(&mut Command::new(&program))?;
        for name in names.lines().filter(|name| name.contains(&options.filter)) {
            let (once, twice) = (count(&program, name, TIMES)?, count(&program, name, 2 * TIMES)?);
            let instructions = twice.saturating_sub(once) as f64 / TIMES as f64;
            if !options.json {
                println!("{name:<28} {instructions:>10.1}");
            }
            rows.push(json!({ "operation": name, "instructions": instructions }));
        }
    }
    match (rows.is_empty(), options.json) {
        (true, _) => return Err(format!("no operation is called {:?}", options.filter)),
        (false, true) => println!("{}", Value::Array(rows)),
        (false, false) => {}
    }
    Ok(())
}

/// Builds the program to be counted and returns where cargo put it.
fn build(package: &str, example: &str) -> Result<PathBuf> {
    let package = ["build", "--release", "-q", "-p", package];
    let example = ["--example", example, "--message-format", "json"];
    let (messages, _) = output(&mut cargo(&[&package[..], &example].concat()))?;
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut programs =
        messages.filter_map(|message| message["executable"].as_str().map(PathBuf::from));
    programs.next_back().ok_or_else(|| "cargo built no program".to_owned())
}

fn count(program: &PathBuf, name: &str, times: u64) -> Result<u64> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    let (_, report) = output(valgrind.arg(program).args([name, &times.to_string()]))?;
    collected(&report).ok_or_else(|| format!("no count in what valgrind said:\n{report}"))
}

/// The number in callgrind's line `==123== Collected : 4567`.
fn collected(report: &str) -> Option<u64> {
    let line = report.lines().find(|line| line.contains("Collected"))?;
    line.split_whitespace().last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_callgrinds_count() {
        let report = "==7== Events    : Ir\n==7== Collected : 123456\n==7==\n";
        assert_eq!(collected(report), Some(123_456));
        assert_eq!(collected("valgrind: no such file"), None);
    }

    #[test]
    fn options_are_read_and_wrong_ones_refused() {
        let options = Options::parse(&["pass", "--format", "json"]).unwrap();
        assert_eq!(options, Options { json: true, install: false, filter: "pass".into() });
        assert_eq!(Options::parse(&["--format"]), None);
        assert_eq!(Options::parse(&["--colour"]), None);
    }
}
