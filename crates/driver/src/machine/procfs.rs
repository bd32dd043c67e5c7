//! CPU time of this process, memory of the machine.

use std::path::Path;

use super::cgroup::field;
use super::text;

/// Ticks per second in `/proc/*/stat`: 100 on every architecture that Linux runs servers on.
const TICKS: f64 = 100.0;

/// User and system time that all threads of this process have used, to a hundredth of a second.
pub(super) fn process_cpu_seconds(proc: &Path) -> Result<f64, String> {
    let path = proc.join("self/stat");
    let stat = text(&path)?;
    // The name is in brackets and may contain anything, brackets too.
    let after_name = stat.rsplit_once(')').map(|(_, rest)| rest);
    let mut fields = after_name.into_iter().flat_map(str::split_whitespace).skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    match (ticks(), ticks()) {
        (Some(user), Some(system)) => Ok((user + system) as f64 / TICKS),
        _ => Err(format!("{} has no times", path.display())),
    }
}

/// Memory in use of the whole machine, what can be had at once left out: for who has no limit.
pub(super) fn memory(proc: &Path) -> Result<f64, String> {
    let path = proc.join("meminfo");
    let (total, available) = (field(&path, "MemTotal:")?, field(&path, "MemAvailable:")?);
    if total > 0.0 { Ok((1.0 - available / total).max(0.0)) } else { Err("no memory".to_owned()) }
}
