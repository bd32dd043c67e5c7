//! `cargo xtask test`: everything a change must pass, as one list of steps.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::install::{self, Need};
use crate::run::{Result, answers, cargo, find, run};
use crate::{deps, tidy};

/// Programs that make more tests run. Where they may not be installed, those are skipped by name.
const OFFERED: &[Need] = &[
    Need { program: "chromium", package: "chromium" },
    Need { program: "chromedriver", package: "chromium-driver" },
    Need { program: "curl", package: "curl" },
    Need { program: "h2load", package: "nghttp2-client" },
    Need { program: "nats-server", package: "nats-server" },
    Need { program: "wrk", package: "wrk" },
];

/// Runs every step; stops at the first that fails.
pub(crate) fn test(install: bool) -> Result {
    // A step that finds its tool missing does its work in another way, or is skipped; the summary
    // names every such case.
    let steps: &[(&str, Step)] = &[
        ("format", format),
        ("tidy", || tidy::tidy().map(|()| Done::Ran)),
        ("dependencies", || deps::check().map(|()| Done::Ran)),
        ("clippy", clippy),
        ("tests", tests),
        ("clients of others", clients),
        ("message brokers", brokers),
        ("browser", browser),
        ("terminal", terminal),
        ("traces", traces),
        ("doc tests", || cargo_step(&["test", "-q", "--workspace", "--doc"])),
        ("loom models", loom),
        ("documentation", documentation),
        ("examples", || cargo_step(&["build", "-q", "--workspace", "--examples"])),
        ("figures", figures),
    ];
    let start = Instant::now();
    let mut report = Vec::new();
    install::offer(OFFERED, install);
    for (name, step) in steps {
        println!("[{:>6.1} s] {name}", start.elapsed().as_secs_f64());
        let began = Instant::now();
        let done = step().map_err(|why| format!("step `{name}` failed\n{why}"))?;
        report.push((*name, done, began.elapsed()));
    }
    print!("{}", summary(&report, start.elapsed()));
    Ok(())
}

type Step = fn() -> Result<Done>;

/// What became of a step that did not fail.
#[derive(Debug)]
enum Done {
    Ran,
    /// It ran, but not in the way it would have with all tools there.
    RanBut(&'static str),
    /// It did not run, and why.
    Skipped(&'static str),
}

fn cargo_step(args: &[&str]) -> Result<Done> {
    run(&mut cargo(args)).map(|()| Done::Ran)
}

fn format() -> Result<Done> {
    if !answers(&mut cargo(&["fmt"])) {
        return Ok(Done::Skipped("rustfmt is missing: rustup component add rustfmt"));
    }
    cargo_step(&["fmt", "--all", "--check"])
}

fn clippy() -> Result<Done> {
    if !answers(&mut cargo(&["clippy"])) {
        return Ok(Done::Skipped("clippy is missing: rustup component add clippy"));
    }
    cargo_step(&["clippy", "-q", "--workspace", "--all-targets", "--", "-D", "warnings"])
}

fn tests() -> Result<Done> {
    if answers(&mut cargo(&["nextest"])) {
        let quiet = ["--status-level", "fail", "--final-status-level", "flaky"];
        let quiet = [&quiet[..], &["--cargo-quiet", "--show-progress", "none"]].concat();
        return cargo_step(&[&["nextest", "run", "--workspace"][..], &quiet].concat());
    }
    cargo_step(&["test", "-q", "--workspace", "--all-targets"])?;
    Ok(Done::RanBut("cargo-nextest is not installed: run by cargo test, one binary at a time"))
}

/// Tests that drive clients which are not ours pass without a word where those are missing: here it
/// is said.
fn clients() -> Result<Done> {
    for (program, why) in [
        ("curl", "curl is missing: apt-get install curl"),
        ("wrk", "wrk is missing: apt-get install wrk"),
        ("h2load", "h2load is missing: apt-get install nghttp2-client"),
        ("node", "node is missing: apt-get install nodejs"),
    ] {
        if find(program).is_none() {
            return Ok(Done::Skipped(why));
        }
    }
    if !answers(Command::new("ip").args(["netns", "list"])) {
        return Ok(Done::Skipped(
            "ip is missing: apt-get install iproute2; partitions need root, too",
        ));
    }
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    if !answers(Command::new(python).args(["-c", "import grpc"])) {
        return Ok(Done::Skipped("Python has no grpcio: apt-get install python3-grpcio"));
    }
    Ok(Done::Ran)
}

/// As above: tests before real NATS servers, and with a client of theirs.
fn brokers() -> Result<Done> {
    if find("nats-server").is_none() {
        return Ok(Done::Skipped("nats-server is missing: apt-get install nats-server"));
    }
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    if !answers(Command::new(python).args(["-c", "import nats"])) {
        return Ok(Done::Skipped("Python has no nats-py: pip install nats-py"));
    }
    Ok(Done::Ran)
}

/// As above: tests with a browser pass without a word where there is none.
fn browser() -> Result<Done> {
    if !answers(&mut Command::new("chromedriver")) || !answers(&mut Command::new("chromium")) {
        return Ok(Done::Skipped(
            "no browser: apt-get install chromium chromium-driver, or pass --install",
        ));
    }
    Ok(Done::Ran)
}

/// `tidegate top` is behind a feature, so that the usual build stays small.
fn terminal() -> Result<Done> {
    if !answers(&mut Command::new("script")) {
        return Ok(Done::Skipped("script is missing: apt-get install bsdutils"));
    }
    cargo_step(&["test", "-q", "-p", "tidegate-cli", "--features", "tui", "top"])
}

/// Spans are behind a feature, too.
fn traces() -> Result<Done> {
    let args = ["test", "-q", "-p", "tidegate-proxy", "--features", "otel", "--test", "traces"];
    cargo_step(&args)
}

/// Explores the interleavings of the driver's lock and wakers. Loom replaces the standard library's
/// types by a flag of the compiler, so it builds in a folder of its own.
fn loom() -> Result<Done> {
    let mut command = cargo(&["test", "-q", "-p", "tidegate-driver", "--test", "loom"]);
    command.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", "target/loom");
    run(&mut command).map(|()| Done::Ran)
}

/// The papers' figures, short: every claim must hold.
fn figures() -> Result<Done> {
    let build = ["run", "-q", "-p", "tidegate-cli", "--", "figure", "all", "--quick"];
    run(&mut cargo(&build)).map(|()| Done::Ran)
}

fn documentation() -> Result<Done> {
    let args = ["doc", "-q", "--workspace", "--no-deps", "--document-private-items"];
    // Private items are documented too, so links to them work.
    let flags = "-D warnings -A rustdoc::private_intra_doc_links";
    run(cargo(&args).env("RUSTDOCFLAGS", flags)).map(|()| Done::Ran)
}

fn summary(report: &[(&str, Done, Duration)], total: Duration) -> String {
    let skipped = report.iter().any(|(_, done, _)| matches!(done, Done::Skipped(_)));
    let verdict = if skipped { "passed, but not everything ran" } else { "everything passed" };
    let mut text = format!("\n{verdict}:\n");
    for (name, done, took) in report {
        let note = match done {
            Done::Ran => String::new(),
            Done::RanBut(note) => format!("  ({note})"),
            Done::Skipped(why) => format!("  SKIPPED: {why}"),
        };
        text += &format!("  {name:<14} {:>6.1} s{note}\n", took.as_secs_f64());
    }
    text + &format!("  {:<14} {:>6.1} s\n", "in all", total.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_names_every_step_and_what_was_different() {
        let second = Duration::from_secs(1);
        let ran = [("format", Done::Ran, second), ("tests", Done::RanBut("slow way"), second)];
        let text = summary(&ran, 2 * second);
        for part in
            ["everything passed", "format", "1.0 s", "tests", "(slow way)", "in all", "2.0 s"]
        {
            assert!(text.contains(part), "{text}");
        }
        let skipped = [("clippy", Done::Skipped("no clippy"), second)];
        let text = summary(&skipped, second);
        assert!(text.contains("not everything ran") && text.contains("no clippy"), "{text}");
    }
}
