//! The native RPC beside `redis-server`: a handler that does nothing, with the gate on, against GET.
//!
//! Each server has core 0 and its load core 1: redis with `redis-benchmark`, ours with the closed loop
//! of `tidegate bench rpc --saturate`. They take turns, round by round, with the same number of
//! connections and requests outstanding; the medians are compared. Beside the rate stands the server's
//! own cpu time per request, which does not depend on how quick its load is.

use std::fs;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::install::{self, Need};
use crate::run::{Result, cargo, output, root, run};

const NEEDS: &[Need] = &[
    Need { program: "redis-server", package: "redis-server" },
    Need { program: "redis-benchmark", package: "redis-tools" },
    Need { program: "taskset", package: "util-linux" },
];
const PORT: u16 = 16_379;
const ROUNDS: usize = 3;
const CONNECTIONS: usize = 50;
const SECONDS: f64 = 2.0;

/// Requests per second, and microseconds of the server's cpu per request.
type Rates = (f64, f64);

/// What is told of each number of requests outstanding.
pub(super) const COLUMNS: [&str; 7] = [
    "connections",
    "pipeline",
    "redis /s",
    "tidegate /s",
    "ratio",
    "redis cpu µs",
    "tidegate cpu µs",
];

/// Measures both, one row for each number of requests outstanding.
pub(super) fn compare() -> Result<Vec<Value>> {
    install::provide(NEEDS, false)?;
    run(&mut cargo(&["build", "--release", "-q", "-p", "tidegate-cli"]))?;
    let redis = Redis::start()?;
    let mut rows = Vec::new();
    for pipeline in [1, 16] {
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            theirs.push(redis.measure(pipeline)?);
            ours.push(own(pipeline)?);
        }
        let ((their_rate, their_cpu), (our_rate, our_cpu)) = (median(theirs), median(ours));
        rows.push(json!({
            "connections": CONNECTIONS,
            "pipeline": pipeline,
            "redis /s": their_rate,
            "tidegate /s": our_rate,
            "ratio": our_rate / their_rate,
            "redis cpu µs": their_cpu,
            "tidegate cpu µs": our_cpu,
        }));
    }
    Ok(rows)
}

/// A redis-server of our own, ended when this is dropped.
struct Redis {
    child: Child,
}

impl Redis {
    fn start() -> Result<Self> {
        let port = PORT.to_string();
        let child = Command::new("taskset")
            .args(["-c", "0", "redis-server", "--port", &port, "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot start redis-server: {error}"))?;
        let redis = Self { child };
        for _ in 0..100 {
            if TcpStream::connect(("127.0.0.1", PORT)).is_ok() {
                let set = ["-p", &port, "-t", "set", "-n", "1", "-q"];
                output(Command::new("redis-benchmark").args(set))?;
                return Ok(redis);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err("redis-server does not answer".to_owned())
    }

    fn measure(&self, pipeline: usize) -> Result<Rates> {
        // As many requests as take about as long as ours.
        let few = self.run(pipeline, 50_000)?;
        self.run(pipeline, (few.0 * SECONDS) as u64)
    }

    fn run(&self, pipeline: usize, requests: u64) -> Result<Rates> {
        let before = self.cpu_us();
        let (text, _) = output(
            Command::new("taskset")
                .args(["-c", "1", "redis-benchmark", "-p", &PORT.to_string(), "--csv", "-t", "get"])
                .args(["-c", &CONNECTIONS.to_string(), "-P", &pipeline.to_string()])
                .args(["-n", &requests.to_string()]),
        )?;
        let cpu = (self.cpu_us() - before) / requests as f64;
        Ok((rate_of(&text).ok_or_else(|| format!("redis-benchmark said: {text}"))?, cpu))
    }

    fn cpu_us(&self) -> f64 {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id()));
        let nanos = tasks.into_iter().flatten().flatten().filter_map(|task| {
            let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<f64>().ok()
        });
        nanos.sum::<f64>() / 1e3
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The rate in the line of GET: `"GET","123456.78",…`
fn rate_of(csv: &str) -> Option<f64> {
    let line = csv.lines().find(|line| line.starts_with("\"GET\""))?;
    line.split(',').nth(1)?.trim_matches('"').parse().ok()
}

fn own(pipeline: usize) -> Result<Rates> {
    let target =
        std::env::var("CARGO_TARGET_DIR").map_or_else(|_| root().join("target"), Into::into);
    let (text, _) = output(
        Command::new(target.join("release/tidegate"))
            .args(["bench", "rpc", "--service", "none", "--policy", "tide", "--format", "json"])
            .args(["--callers", &CONNECTIONS.to_string(), "--saturate", &pipeline.to_string()])
            .args(["--seconds", &SECONDS.to_string()]),
    )?;
    let value: Value =
        serde_json::from_str(text.trim()).map_err(|error| format!("{error}: {text}"))?;
    let number = |name: &str| value[name].as_f64().ok_or_else(|| format!("no {name}: {text}"));
    Ok((number("throughput_rps")?, number("cpu_us_per_request")?))
}

/// The round with the median rate.
fn median(mut rounds: Vec<Rates>) -> Rates {
    rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
    rounds[rounds.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_benchmarks_answer_is_read() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\"\n\"GET\",\"133333.33\",\"0.2\"\n";
        assert_eq!(rate_of(csv), Some(133_333.33));
        assert_eq!(rate_of("nothing"), None);
        assert_eq!(median(vec![(3.0, 0.3), (1.0, 0.1), (2.0, 0.2)]), (2.0, 0.2));
    }
}
