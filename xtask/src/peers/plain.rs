//! Plain services behind each proxy: the rows of `tidegate figure plain` on real sockets.
//!
//! A service sleeps for what a request takes, so several can share a core: all that stands before one service is measured at the
//! same time, each with a service and a load of its own, so that what befalls the machine befalls all of them. Goodput is
//! compared with the work that was drawn. Beside it stands what the simulator says of the same row, and what is possible there.
//!
//! What others have by hand is the best of what was tried: HAProxy with as many requests at the service as it has workers or half as
//! many again and a queue that may last half or two thirds of the objective, and the sidecar with as many slots.

use std::thread;

use serde_json::{Value, json};

use super::config::{NEEDS, Peer};
use super::process::{AROUND, Lab, PROXY};
use crate::run::Result;

pub(crate) const COLUMNS: [&str; 10] = [
    "service",
    "possible",
    "simulated",
    "tidegate",
    "p99_of_objective",
    "fixed_by_hand",
    "haproxy_by_hand",
    "envoy",
    "errors",
    "done",
];

/// What two cores send, forward and answer besides without being late themselves, in requests per second.
const MOST: f64 = 3_000.0;
const SECONDS: u32 = 20;
const WARMUP: u32 = 8;

/// Who stands before a service of this row.
fn peers(row: &Value) -> Vec<Peer> {
    let workers = row["workers"].as_u64().unwrap_or(1) as u32;
    let slo_ms = row["slo_ms"].as_f64().unwrap_or(0.0) as u32;
    let objective_ms = (row["learned"] != true).then_some(slo_ms);
    let more = (workers * 3).div_ceil(2);
    let tidegate = |slots| Peer::TidegateWith { objective_ms, slots };
    let haproxy = |most, queue_ms| Peer::HaproxyQueue { most, queue_ms };
    vec![
        tidegate(None),
        tidegate(Some(workers)),
        tidegate(Some(more)),
        haproxy(workers, slo_ms / 2),
        haproxy(workers, slo_ms * 2 / 3),
        haproxy(more, slo_ms / 2),
        haproxy(more, slo_ms * 2 / 3),
        Peer::EnvoyAdaptiveConcurrency,
    ]
}

/// Measures every row that the machine is fast enough for, or those whose names contain `filter`.
pub(crate) fn compare(filter: &str) -> Result<Vec<Value>> {
    let lab = Lab::new(NEEDS)?;
    let rows = lab.measure(&["rows".to_owned()], AROUND)?;
    let rows = rows.as_array().cloned().unwrap_or_default();
    let named = |row: &&Value| row["name"].as_str().is_some_and(|name| name.contains(filter));
    let mut measured = Vec::new();
    for row in rows.iter().filter(named) {
        let rate = row["rate"].as_f64().unwrap_or(0.0);
        if rate > MOST {
            eprintln!("{}: simulated only, it asks for {rate:.0} per second", row["name"]);
            continue;
        }
        let row = one(&lab, row, (MOST / rate) as usize)?;
        // It takes long, and what was measured should not be lost with the rest.
        eprintln!("{row}");
        measured.push(row);
    }
    Ok(measured)
}

/// All that stands before the service of one row, so many at the same time.
fn one(lab: &Lab, row: &Value, at_once: usize) -> Result<Value> {
    let name = row["name"].as_str().unwrap_or_default();
    let peers = peers(row);
    let mut seen = Vec::new();
    for some in peers.chunks(at_once.clamp(1, peers.len())) {
        let measured = thread::scope(|scope| {
            let lanes: Vec<_> =
                some.iter().map(|peer| scope.spawn(move || measure(lab, *peer, name))).collect();
            lanes
                .into_iter()
                .map(|lane| lane.join().expect("it does not panic"))
                .collect::<Vec<_>>()
        });
        for lane in measured {
            seen.push(lane?);
        }
    }
    let good = |of: fn(&Peer) -> bool| {
        let lanes = peers.iter().zip(&seen).filter(|(peer, _)| of(peer));
        lanes.filter_map(|(_, seen)| seen["of_capacity"].as_f64()).reduce(f64::max)
    };
    let told = lab.measure(&["expect".to_owned(), name.to_owned()], AROUND)?;
    let ours = &seen[0];
    let slo_ms = row["slo_ms"].as_f64().unwrap_or(1.0);
    Ok(json!({
        "service": name,
        "possible": told["possible"],
        "simulated": told["good"],
        "tidegate": ours["of_capacity"],
        "p99_of_objective": ours["p99_ms"].as_f64().map(|p99| p99 / slo_ms),
        "fixed_by_hand": good(|peer| matches!(peer, Peer::TidegateWith { slots: Some(_), .. })),
        "haproxy_by_hand": good(|peer| matches!(peer, Peer::HaproxyQueue { .. })),
        "envoy": good(|peer| *peer == Peer::EnvoyAdaptiveConcurrency),
        "errors": ours["errors"],
        "done": ours["done"],
        "all": peers.iter().zip(&seen).map(|(peer, seen)| json!({ "name": peer.name(), "seen": seen })).collect::<Vec<_>>(),
    }))
}

fn measure(lab: &Lab, peer: Peer, name: &str) -> Result<Value> {
    let (_service, at) = lab.service(AROUND, &["plain", name])?;
    let Some((_process, proxy)) = peer.start(lab, at, false)? else { return Ok(Value::Null) };
    let words = ["ask", &proxy.to_string(), &at.to_string(), name].map(ToOwned::to_owned);
    let times = [SECONDS, WARMUP].map(|seconds| seconds.to_string());
    lab.measure(&[&words[..], &times[..]].concat(), PROXY)
}
