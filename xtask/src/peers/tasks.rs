//! DAGOR's tasks over real processes: service A calls service M once, twice, three or four times, and
//! fails if one of the calls does. A sidecar stands before each; ranks go from A to M with the request.
//!
//! M does one request at a time, two milliseconds of a lock. Of tasks that make x calls at a demand of
//! d times M's capacity, at best 1 in d can succeed (DAGOR §5.3).

use serde_json::{Value, json};

use super::config::Peer;
use super::process::{AROUND, Lab, PROXY};
use crate::run::Result;

pub(crate) const COLUMNS: [&str; 6] =
    ["name", "calls", "load", "tasks_per_s", "success", "of_optimum"];

const SECONDS: u32 = 6;
const WARMUP: u32 = 4;
/// A task waits at two gates, and for up to four calls.
const SLO_MS: u32 = 300;
const PATHS: [&str; 4] = ["/1", "/2", "/3", "/4"];

/// Measures tasks of each kind alone, then all in one mix.
pub(crate) fn compare() -> Result<Vec<Value>> {
    let lab = Lab::new(&[])?;
    let kind = "lock:2000";
    let capacity = {
        let (_service, at) = lab.service(AROUND, &["upstream", kind])?;
        let words = ["capacity".to_owned(), at.to_string(), "8".to_owned(), "3".to_owned()];
        lab.measure(&words, PROXY)?["requests_per_s"].as_f64().unwrap_or(0.0)
    };
    eprintln!("M: {capacity:.0} requests per second");
    let mut rows = Vec::new();
    for load in [1.5, 2.0, 4.0] {
        for paths in PATHS.iter().map(std::slice::from_ref).chain([&PATHS[..]]) {
            let calls = paths.iter().map(|path| path[1..].parse().unwrap_or(1.0));
            let mean = calls.sum::<f64>() / paths.len() as f64;
            let rate = load * capacity / mean;
            eprintln!("{load} times the capacity, {}", paths.join(" "));
            let (_m, m) = lab.service(AROUND, &["upstream", kind])?;
            let Some((_gate_m, gate_m)) = Peer::Tidegate.start(&lab, m, false)? else { continue };
            let (_a, a) = lab.service(AROUND, &["caller", &gate_m.to_string(), "50"])?;
            let Some((_gate_a, gate_a)) = Peer::Tidegate.start(&lab, a, false)? else { continue };
            let mut words = vec!["load".to_owned(), gate_a.to_string(), format!("{rate:.1}")];
            words.extend([SECONDS, WARMUP, SLO_MS].map(|number| number.to_string()));
            words.extend(paths.iter().map(ToString::to_string));
            let row = lab.measure(&words, PROXY)?;
            for path in paths {
                let success = row["success_by_path"][*path].as_f64().unwrap_or(0.0);
                rows.push(json!({
                    "name": if paths.len() > 1 { "mix" } else { "alone" },
                    "calls": path[1..].parse::<u32>().unwrap_or(1),
                    "load": load,
                    "tasks_per_s": rate / paths.len() as f64,
                    "success": success,
                    "of_optimum": success * load,
                }));
            }
        }
    }
    Ok(rows)
}
