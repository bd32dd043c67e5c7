//! What there is before and after: slots, files, memory.

use std::thread;
use std::time::{Duration, Instant};

use super::{PATIENCE, Sidecar};

/// Open files of this process, in which sidecar, upstream and clients all are.
fn files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// Open files once none were opened or closed for a while: threads that have just begun open some.
pub(crate) fn files_at_rest() -> usize {
    let (mut last, mut looks) = (files(), 0);
    while looks < 20 {
        thread::sleep(Duration::from_millis(15));
        let now = files();
        looks = if now == last { looks + 1 } else { 0 };
        last = now;
    }
    last
}

/// Waits until no more files are open than before.
pub(crate) fn wait_for_files(before: usize) {
    let end = Instant::now() + PATIENCE;
    while files() > before {
        assert!(Instant::now() < end, "{} files are open where {before} were", files());
        thread::sleep(Duration::from_millis(10));
    }
}

/// All that went in has come out.
pub(crate) fn conserved(sidecar: &Sidecar) {
    sidecar.wait_until_empty();
    // What reads slowly holds no slot.
    sidecar.wait_for("idle upstreams", |state| {
        let mut peers = state["upstreams"].as_array().expect("a list").iter();
        peers.all(|peer| peer["in_flight"] == 0)
    });
    let state = sidecar.state();
    let sum = |value: &serde_json::Value| -> u64 {
        let bands = value.as_object().expect("bands").values();
        bands
            .map(|band| match band.as_object() {
                Some(counts) => counts.values().filter_map(serde_json::Value::as_u64).sum(),
                None => band.as_u64().unwrap_or(0),
            })
            .sum()
    };
    let (admitted, finished) = (sum(&state["admitted"]), sum(&state["finished"]));
    // Those that left while they waited were neither started nor refused.
    assert!(finished <= admitted, "{finished} of {admitted}");
    assert_eq!(state["events_lost"], 0);
}

/// Memory of this process, in kilobytes.
pub(crate) fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().split(' ').next()?.parse().ok()).unwrap_or(0)
}
