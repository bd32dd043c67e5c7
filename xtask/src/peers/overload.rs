//! What is left of a service at up to ten times its capacity, behind each proxy.
//!
//! The service does one request at a time, a millisecond of cpu, or of a lock while the cpu idles. It
//! has one core to itself; proxy and load share the other. The load is an open loop; a latency counts
//! from the time a request was to be sent; of use is an answer within the objective.

use serde_json::{Value, json};

use super::config::{NEEDS, Peer};
use super::process::{AROUND, Lab, PROXY};
use crate::run::Result;

pub(crate) const COLUMNS: [&str; 8] = [
    "service",
    "name",
    "load",
    "goodput_rps",
    "of_capacity",
    "p99_ms",
    "success_top_quarter",
    "errors",
];

const PEERS: [Peer; 7] = [
    Peer::Haproxy,
    Peer::HaproxyQueue { most: 1, queue_ms: 40 },
    Peer::HaproxyQueue { most: 4, queue_ms: 40 },
    Peer::EnvoyAdaptiveConcurrency,
    Peer::EnvoyAdmissionControl,
    Peer::Tower(16),
    Peer::Tidegate,
];
const LOADS: [f64; 6] = [0.5, 0.8, 1.2, 2.0, 4.0, 10.0];
const SECONDS: u32 = 5;
const WARMUP: u32 = 3;
/// Services, and what an answer may take: what the sidecar learns of them.
const SERVICES: [(&str, u32); 2] = [("cpu:1000", 50), ("lock:1000", 50)];

/// Measures everybody.
pub(crate) fn compare() -> Result<Vec<Value>> {
    let lab = Lab::new(NEEDS)?;
    let mut rows = Vec::new();
    for (kind, slo_ms) in SERVICES {
        let capacity = {
            let (_service, at) = lab.service(AROUND, &["upstream", kind])?;
            let words = ["capacity".to_owned(), at.to_string(), "8".to_owned(), "3".to_owned()];
            lab.measure(&words, PROXY)?["requests_per_s"].as_f64().unwrap_or(0.0)
        };
        eprintln!("{kind}: {capacity:.0} requests per second");
        for peer in PEERS {
            for load in LOADS {
                eprintln!("{kind}: {} at {load}", peer.name());
                // A service of its own for each: what a peer leaves behind in one is not the next one's.
                let (_service, at) = lab.service(AROUND, &["upstream", kind])?;
                let Some((_process, proxy)) = peer.start(&lab, at, false)? else { break };
                let mut words = vec!["load".to_owned(), proxy.to_string()];
                words.push(format!("{:.1}", load * capacity));
                words.extend([SECONDS, WARMUP, slo_ms].map(|number| number.to_string()));
                let row = lab.measure(&words, PROXY)?;
                let row = json!({
                    "service": kind,
                    "name": peer.name(),
                    "load": load,
                    "capacity_rps": capacity,
                    "goodput_rps": row["goodput_rps"],
                    "of_capacity": row["goodput_rps"].as_f64().map(|rate| rate / capacity),
                    "p99_ms": row["p99_ms"],
                    "success_top_quarter": row["success_top_quarter"],
                    "refused": row["refused"],
                    "errors": row["errors"],
                });
                // It takes long, and what was measured should not be lost with the rest.
                eprintln!("{row}");
                rows.push(row);
            }
        }
    }
    Ok(rows)
}
