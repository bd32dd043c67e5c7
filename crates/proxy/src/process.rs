//! What this process takes of its machine, under the names that Prometheus has for it; nothing where the system does not tell.

use std::fs;

type Number = (&'static str, &'static str, &'static str, f64);

/// Ticks per second in which Linux tells times of processes, on every machine it supports.
const TICKS: f64 = 100.0;

/// Name, kind, meaning and value.
pub(crate) fn numbers() -> Vec<Number> {
    let cpu = fs::read_to_string("/proc/self/stat").ok().and_then(|stat| cpu_seconds(&stat));
    let status = fs::read_to_string("/proc/self/status").ok();
    let memory = status.and_then(|status| resident_bytes(&status));
    let files = fs::read_dir("/proc/self/fd").ok().map(|list| list.count() as f64);
    let number =
        |(name, kind, help, value): (_, _, _, Option<f64>)| Some((name, kind, help, value?));
    let numbers = [
        ("process_cpu_seconds_total", "counter", "Cpu time of the process.", cpu),
        ("process_resident_memory_bytes", "gauge", "Memory that the process has.", memory),
        ("process_open_fds", "gauge", "Files and sockets that the process has open.", files),
    ];
    numbers.into_iter().filter_map(number).collect()
}

/// Of `/proc/self/stat`: the name of the program, which may say anything, ends with the last parenthesis.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    // The state is field 3; user and system time are 14 and 15.
    let mut times = rest.split_whitespace().skip(11).map(str::parse::<f64>);
    Some((times.next()?.ok()? + times.next()?.ok()?) / TICKS)
}

fn resident_bytes(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: f64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 250 150 0 0 20";
        assert_eq!(cpu_seconds(stat), Some(4.0));
        assert_eq!(cpu_seconds("7 (a) S 1 2"), None);
        assert_eq!(resident_bytes("Name:\ta\nVmRSS:\t    12 kB\n"), Some(12_288.0));
        assert_eq!(resident_bytes("VmRSS: many"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_memory_and_files() {
        let numbers = numbers();
        assert_eq!(numbers.len(), 3);
        assert!(numbers[1].3 > 1e6 && numbers[2].3 >= 1.0, "{numbers:?}");
    }
}
