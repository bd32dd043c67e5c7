//! Pressure stall information of Linux: the time in which something waited for a resource.

use std::path::Path;

use super::text;

/// A resource that tasks wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pressure {
    Cpu,
    Memory,
    Io,
}

/// Seconds in which at least one task waited, since the system's start: of the control group if it
/// tells, else of the machine.
pub(super) fn waited_seconds(
    proc: &Path,
    group: Option<&Path>,
    pressure: Pressure,
) -> Result<f64, String> {
    let name = match pressure {
        Pressure::Cpu => "cpu",
        Pressure::Memory => "memory",
        Pressure::Io => "io",
    };
    let own =
        group.map(|group| group.join(format!("{name}.pressure"))).filter(|path| path.exists());
    let path = own.unwrap_or_else(|| proc.join("pressure").join(name));
    let total = text(&path)?.lines().find_map(total);
    total.ok_or_else(|| format!("{} has no total", path.display()))
}

/// Of a line such as `some avg10=0.12 avg60=0.05 avg300=0.01 total=1234567`, in seconds.
fn total(line: &str) -> Option<f64> {
    let micros =
        line.strip_prefix("some ")?.split(' ').find_map(|word| word.strip_prefix("total="))?;
    micros.parse::<u64>().ok().map(|micros| micros as f64 / 1e6)
}
