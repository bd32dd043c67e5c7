//! The messaging gate on real brokers: SRTM's Figure 4, scaled to a machine of two cores.
//!
//! Publishers that send as Poisson's do share one agreement at one, two and three `nats-server`s. Every broker
//! more cuts the bucket once more, and messages wait longer for tokens: by how much, the paper's Eq. (1) says, and
//! an exact formula. The other half of the figure, that more brokers process faster, needs more messages than two
//! cores can serve, and is left to the simulator (`tidegate figure srtm-4`).
//!
//! Where the machine is busy, what was to be sent one by one is sent in bursts: so the delay of what was really sent is
//! computed, too (`replayed`), with publishers dealt evenly to even parts.
//!
//! And so is that of what arrived, as the gate has recorded it (`arrived`): what it differs by from `replayed` came on the way
//! to the gate, and what the gate's own differs by from it is the gate's.
//!
//! A delay for tokens does not depend on how quick anything is, so this runs in the dev profile.

use std::process::Command;

use serde_json::{Value, json};

use super::process::{Process, free_address, scratch};
use crate::install::{self, Need};
use crate::run::{Result, cargo, output, root, run};

const NEEDS: &[Need] = &[
    Need { program: "nats-server", package: "nats-server" },
    Need { program: "curl", package: "curl" },
];
/// Most brokers.
const BROKERS: usize = 3;
const PUBLISHERS: usize = 60;
/// Tokens per second and at once. The burst divides evenly.
const RATE: f64 = 1_000.0;
const BURST: usize = 12;
/// Messages per second: the bucket is used to eight tenths.
const ARRIVALS: f64 = 800.0;
const SECONDS: f64 = 20.0;
const WARMUP: f64 = 3.0;

/// What is told of each number of brokers.
pub(super) const COLUMNS: [&str; 11] = [
    "brokers",
    "p50 ms",
    "p95 ms",
    "p99 ms",
    "mean ms",
    "access mean ms",
    "arrived ms",
    "replayed ms",
    "Eq. 1 ms",
    "exact ms",
    "beyond",
];

/// Measures, one row for each number of brokers.
pub(super) fn compare() -> Result<Vec<Value>> {
    install::provide(NEEDS, false)?;
    run(&mut cargo(&["build", "-q", "-p", "tidegate-cli", "-p", "xtask-lab"]))?;
    (1..=BROKERS).map(measure).collect()
}

fn measure(count: usize) -> Result<Value> {
    let mut brokers = Vec::new();
    let mut urls = Vec::new();
    for _ in 0..count {
        let at = free_address()?;
        let mut command = Command::new("nats-server");
        command.args(["-a", "127.0.0.1", "-p", &at.port().to_string()]);
        brokers.push(Process::start(&mut command, at)?);
        urls.push(format!("nats://{at}"));
    }
    let config = scratch()?.join("nats.toml");
    let topic = format!(
        "[[nats.topics]]\nsubject = \"load\"\nrate = {RATE}\nburst = {BURST}\nrecord = 100000\n"
    );
    let text = format!("[nats]\nbrokers = {urls:?}\n{topic}");
    std::fs::write(&config, text).map_err(|error| format!("{}: {error}", config.display()))?;
    let (listen, admin) = (free_address()?, free_address()?);
    let programs = root().join("target/debug");
    let mut gate = Command::new(programs.join("tidegate"));
    gate.args(["nats", "--listen", &listen.to_string(), "--admin", &admin.to_string()]);
    let _gate = Process::start(gate.arg("--config").arg(&config), listen)?;
    let (text, _) = output(
        Command::new(programs.join("xtask-lab"))
            .args(["nats", &listen.to_string(), &PUBLISHERS.to_string()])
            .args([ARRIVALS, SECONDS, WARMUP, RATE].map(|number| number.to_string()))
            .args([BURST.to_string(), count.to_string()]),
    )?;
    let measured: Value = read(&text)?;
    let url = format!("http://{admin}/state");
    let (text, _) = output(Command::new("curl").args(["-sf", &url]))?;
    let state = read(&text)?;
    let topic = &state["topics"][0];
    let (trace, at) = (format!("http://{admin}/trace?topic=load"), scratch()?.join("trace"));
    output(Command::new("curl").args(["-sf", &trace, "-o"]).arg(&at))?;
    let (text, _) =
        output(Command::new(programs.join("xtask-lab")).arg("nats-trace").arg(&at).args([
            RATE.to_string(),
            BURST.to_string(),
            count.to_string(),
        ]))?;
    let arrived = read(&text)?;
    Ok(json!({
        "brokers": count,
        "p50 ms": measured["p50_ms"],
        "p95 ms": measured["p95_ms"],
        "p99 ms": measured["p99_ms"],
        "mean ms": measured["mean_ms"],
        "access mean ms": topic["delay_ms"]["mean"],
        "arrived ms": arrived,
        "replayed ms": measured["replayed_ms"],
        "Eq. 1 ms": measured["eq1_ms"],
        "exact ms": measured["exact_ms"],
        // Messages beyond the agreement, by departure.
        "beyond": topic["beyond"],
    }))
}

fn read(text: &str) -> Result<Value> {
    serde_json::from_str(text.trim()).map_err(|error| format!("{error}: {text}"))
}
