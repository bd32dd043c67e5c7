//! How many requests per second a proxy passes on one core, and what one costs.
//!
//! The proxy has one core; the load (wrk, or h2load for HTTP/2) and the service behind, an nginx that
//! answers at once, share the other. Peers take turns, round by round; the median round counts. Only
//! answers of the service count: one that is refused is quick, and no use.

use std::process::Command;

use serde_json::{Value, json};

use super::config::{NEEDS, Peer};
use super::process::{AROUND, Lab, Process, free_address, on_core};
use crate::run::{Result, output};

pub(crate) const COLUMNS: [&str; 8] = [
    "name",
    "protocol",
    "connections",
    "requests_per_s",
    "p50_us",
    "p99_us",
    "cpu_us_per_request",
    "ratio_to_haproxy",
];

const PEERS: [Peer; 6] = [
    Peer::Nginx,
    Peer::Haproxy,
    Peer::Envoy,
    Peer::EnvoyAdaptiveConcurrency,
    Peer::Tidegate,
    Peer::TidegateWith { objective_ms: Some(1_000), slots: None },
];
const ROUNDS: usize = 3;
const SECONDS: u32 = 3;

#[derive(Clone, Copy, Debug)]
struct Round {
    rate: f64,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    cpu_us: f64,
}

/// Measures everybody.
pub(crate) fn compare() -> Result<Vec<Value>> {
    let lab = Lab::new(NEEDS)?;
    let at = free_address()?;
    let service = lab.file(
        "service.conf",
        &format!(
            "daemon off;\nworker_processes 1;\npid {0}/service.pid;\nerror_log {0}/service.log;\n\
             events {{ worker_connections 8192; }}\nhttp {{ access_log off; keepalive_requests 100000000;\n\
             server {{ listen {at} backlog=4096; location / {{ return 200 \"ok\"; }} }} }}\n",
            lab.scratch.display()
        ),
    )?;
    let mut command = on_core("nginx".as_ref(), AROUND);
    let _service = Process::start(command.arg("-c").arg(service), at)?;
    let mut rows = Vec::new();
    for (h2, connections) in [(false, 64), (false, 1_000), (true, 64)] {
        let mut rounds: Vec<(Peer, Vec<Round>)> = PEERS.map(|peer| (peer, Vec::new())).into();
        for round in 0..ROUNDS {
            for (peer, measured) in &mut rounds {
                eprintln!("{} of {ROUNDS}: {}, {connections} connections", round + 1, peer.name());
                let Some((process, proxy)) = peer.start(&lab, at, h2)? else { continue };
                let url = format!("http://{proxy}/");
                load(&url, h2, connections, 1)?;
                let before = process.cpu_us();
                let (rate, times) = load(&url, h2, connections, SECONDS)?;
                let cpu_us = (process.cpu_us() - before) / (rate * f64::from(SECONDS)).max(1.0);
                let [p50_us, p99_us] = match times {
                    Some(times) => times,
                    None => h2_times(&lab, &url, connections)?,
                };
                measured.push(Round { rate, p50_us, p99_us, cpu_us });
            }
        }
        let medians: Vec<(Peer, Round)> =
            rounds.into_iter().filter_map(|(peer, rounds)| Some((peer, median(rounds)?))).collect();
        let haproxy = medians.iter().find(|(peer, _)| *peer == Peer::Haproxy).map(|(_, r)| r.rate);
        rows.extend(medians.iter().map(|(peer, round)| {
            json!({
                "name": peer.name(),
                "protocol": if h2 { "h2" } else { "h1" },
                "connections": connections,
                "requests_per_s": round.rate.round(),
                "p50_us": round.p50_us,
                "p99_us": round.p99_us,
                "cpu_us_per_request": round.cpu_us,
                "ratio_to_haproxy": haproxy.map(|rate| round.rate / rate),
            })
        }));
    }
    Ok(rows)
}

/// The round with the median rate.
fn median(mut rounds: Vec<Round>) -> Option<Round> {
    rounds.sort_by(|a, b| a.rate.total_cmp(&b.rate));
    rounds.get(rounds.len() / 2).copied()
}

/// Median and p99 of what answers take, in microseconds.
type Times = [Option<f64>; 2];

/// Answers per second, and their times where the load tells them by itself.
fn load(url: &str, h2: bool, connections: u32, seconds: u32) -> Result<(f64, Option<Times>)> {
    if h2 {
        let (text, _) = output(h2load(connections, seconds).arg(url))?;
        let served = after(&text, "status codes:").and_then(|word| word.parse::<f64>().ok());
        let served = served.ok_or_else(|| format!("h2load said: {text}"))?;
        return Ok((served / f64::from(seconds), None));
    }
    let mut command = on_core("wrk".as_ref(), AROUND);
    command.args(["-t1", &format!("-c{connections}"), &format!("-d{seconds}s"), "--latency", url]);
    let (text, _) = output(&mut command)?;
    let rate = after(&text, "Requests/sec:").and_then(|word| word.parse().ok());
    let rate: f64 = rate.ok_or_else(|| format!("wrk said: {text}"))?;
    // Absent where all is well.
    let refused = after(&text, "Non-2xx or 3xx responses:").and_then(|word| word.parse().ok());
    let rate = (rate - refused.unwrap_or(0.0) / f64::from(seconds)).max(0.0);
    Ok((rate, Some(["50%", "99%"].map(|part| after(&text, part).and_then(micros)))))
}

fn h2load(connections: u32, seconds: u32) -> Command {
    let mut command: Command = on_core("h2load".as_ref(), AROUND);
    command.args(["-t1", &format!("-c{connections}"), "-m1", &format!("-D{seconds}")]);
    command
}

/// Times over HTTP/2, in a second of their own: h2load writes a line for each request, with which it, and
/// no longer the proxy, has the most to do.
fn h2_times(lab: &Lab, url: &str, connections: u32) -> Result<Times> {
    let log = lab.scratch.join("h2load.log");
    let _ = std::fs::remove_file(&log);
    output(h2load(connections, 1).arg(format!("--log-file={}", log.display())).arg(url))?;
    // Start, status and duration in microseconds.
    let lines = std::fs::read_to_string(&log).unwrap_or_default();
    let times = lines.lines().filter_map(|line| line.split('\t').nth(2)?.parse::<f64>().ok());
    let mut times: Vec<f64> = times.collect();
    times.sort_by(f64::total_cmp);
    Ok([0.5, 0.99].map(|part| times.get((times.len() as f64 * part) as usize).copied()))
}

/// The word after `label`.
fn after<'a>(text: &'a str, label: &str) -> Option<&'a str> {
    text[text.find(label)? + label.len()..].split_whitespace().next()
}

/// `1.50ms`, `320.00us` or `1.2s` in microseconds.
fn micros(text: &str) -> Option<f64> {
    let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6)];
    units
        .iter()
        .find_map(|(unit, factor)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_wrk_are_read() {
        let text = "  Latency Distribution\n     50%    1.50ms\n     99%  320.00us\nRequests/sec:  71234.5\n";
        assert_eq!(after(text, "50%").and_then(micros), Some(1_500.0));
        assert_eq!(after(text, "99%").and_then(micros), Some(320.0));
        assert_eq!(after(text, "Requests/sec:"), Some("71234.5"));
        assert_eq!(micros("2.0s"), Some(2e6));
        assert_eq!(micros("soon"), None);
    }
}
