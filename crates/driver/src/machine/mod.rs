//! How full the machine is: signals read from the operating system, as one utilization for
//! [`Gate::on_utilization`](tidegate_core::Gate::on_utilization).
//!
//! | signal | what it says, 1 being full | read from |
//! |---|---|---|
//! | `cpu` | CPU used by this container against its limit | its cgroup, v2 or v1; without a limit, all cores |
//! | `memory` | memory in use against the limit, page cache that can be dropped left out | its cgroup; without a limit `/proc/meminfo` |
//! | `process` | CPU used by this process against the same limit | `/proc/self/stat` |
//! | `pressure-cpu`, `pressure-memory`, `pressure-io` | share of time in which something waited for it | PSI of its cgroup, else of the machine |
//! | `lag`, `executor` | how late tasks are polled, how many want to be | the runtime's driver, by [`Machine::add`] |
//!
//! A container's limits stand in its own leaf of the hierarchy or in any group above it, so both are
//! looked for, by `/proc/self/cgroup` and `/proc/self/mountinfo`; the smallest counts. A file that
//! is missing switches its signal off, with one warning. Files are read anew for every sample, so a
//! limit that changes counts from the next sample on.
//!
//! Only std: whoever has a timer calls [`Machine::sample`] about once a second.

mod cgroup;
mod procfs;
mod psi;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tidegate_core::signal::{Part, Signals, SignalsConfig};
use tidegate_core::{Instant, Span};

use cgroup::Groups;
use psi::Pressure;

/// The signals of the machine this process runs on.
#[derive(Debug)]
pub struct Machine {
    roots: Roots,
    groups: Groups,
    signals: Signals,
    config: SignalsConfig,
    /// Those that are read from files and not switched off.
    probes: Vec<Probe>,
    /// Whether they are read.
    looks: bool,
    /// Names that were asked for, those the driver adds among them.
    wanted: Vec<String>,
    /// What is still to be told.
    warnings: Vec<String>,
    /// Samples of [`Self::add`] until the next [`Self::sample`].
    added: BTreeMap<String, f64>,
}

/// Where the system's files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// Usually `/proc`.
    pub proc: PathBuf,
    /// What mount points in `mountinfo` are below: usually `/`.
    pub root: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { proc: PathBuf::from("/proc"), root: PathBuf::from("/") }
    }
}

#[derive(Debug)]
struct Probe {
    name: &'static str,
    kind: Kind,
    /// The total at the last sample, of signals that are rates: when, and seconds.
    last: Option<(Instant, f64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Cpu,
    Memory,
    Process,
    Pressure(Pressure),
}

impl Machine {
    /// The signals that `config` names.
    pub fn new(config: &SignalsConfig) -> Self {
        Self::at(Roots::default(), config)
    }

    /// The same where files are elsewhere.
    pub fn at(roots: Roots, config: &SignalsConfig) -> Self {
        let mut machine = Self {
            groups: Groups::find(&roots, config.cgroup.as_deref()),
            roots,
            signals: Signals::new(config),
            config: config.clone(),
            probes: Vec::new(),
            looks: true,
            wanted: config.read.clone(),
            warnings: Vec::new(),
            added: BTreeMap::new(),
        };
        let kinds = config.read.iter().filter_map(|name| Kind::of(name));
        machine.probes.extend(kinds.map(|(name, kind)| Probe { name, kind, last: None }));
        machine
    }

    /// Something the driver measured itself: `lag`, `executor`, or a signal of its own; 1 is full.
    /// Counts from the next sample on. What was not asked for is ignored.
    pub fn add(&mut self, name: &str, value: f64) {
        if self.wanted.iter().any(|wanted| wanted == name) {
            self.added.insert(name.to_owned(), value);
        }
    }

    /// Whether files are read. Not while somebody who knows better tells: what was read before is then as good as missing.
    pub fn look(&mut self, looks: bool) {
        if self.looks && !looks {
            self.signals = Signals::new(&self.config);
        }
        self.looks = looks;
    }

    /// Reads all files. Returns the utilization, none if every signal is missing.
    pub fn sample(&mut self, now: Instant) -> Option<f64> {
        let mut probes = if self.looks { std::mem::take(&mut self.probes) } else { Vec::new() };
        probes.retain_mut(|probe| match self.read(now, probe) {
            Ok(value) => {
                value.into_iter().for_each(|value| self.put(now, probe.name, value));
                true
            }
            Err(missing) => {
                self.warnings.push(format!("signal {} is off: {missing}", probe.name));
                false
            }
        });
        if self.looks {
            self.probes = probes;
        }
        for (name, value) in std::mem::take(&mut self.added) {
            self.put(now, &name, value);
        }
        self.signals.utilization(now)
    }

    /// What each signal adds.
    pub fn parts(&self, now: Instant) -> impl Iterator<Item = Part<'_>> {
        self.signals.parts(now)
    }

    /// What an operator should hear once: which signals are off, and why.
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// Cores this process may use: its container's limit, else those of the machine.
    pub fn cores(&self) -> f64 {
        self.groups.cores()
    }

    fn put(&mut self, now: Instant, name: &str, value: f64) {
        if let Some(signal) = self.signals.register(name) {
            self.signals.add(now, signal, value);
        }
    }

    /// A sample; none if it takes two to make one. An error says what is missing.
    fn read(&self, now: Instant, probe: &mut Probe) -> Result<Option<f64>, String> {
        let Roots { proc, .. } = &self.roots;
        match probe.kind {
            Kind::Cpu => {
                let used = self.groups.cpu_seconds()?;
                Ok(rate(probe, now, used).map(|cores| cores / self.cores()))
            }
            Kind::Memory => self.groups.memory().or_else(|_| procfs::memory(proc)).map(Some),
            Kind::Process => {
                let used = procfs::process_cpu_seconds(proc)?;
                Ok(rate(probe, now, used).map(|cores| cores / self.cores()))
            }
            Kind::Pressure(pressure) => {
                let waited = psi::waited_seconds(proc, self.groups.unified(), pressure)?;
                Ok(rate(probe, now, waited))
            }
        }
    }
}

impl Kind {
    fn of(name: &str) -> Option<(&'static str, Self)> {
        let kind = match name {
            "cpu" => Self::Cpu,
            "memory" => Self::Memory,
            "process" => Self::Process,
            "pressure-cpu" => Self::Pressure(Pressure::Cpu),
            "pressure-memory" => Self::Pressure(Pressure::Memory),
            "pressure-io" => Self::Pressure(Pressure::Io),
            _ => return None,
        };
        SignalsConfig::KNOWN.into_iter().find(|known| *known == name).map(|name| (name, kind))
    }
}

/// Growth of a total per second since the last sample. A total that shrank was reset: says nothing.
fn rate(probe: &mut Probe, now: Instant, total: f64) -> Option<f64> {
    let (at, before) = probe.last.replace((now, total))?;
    let elapsed = now.since(at).as_secs_f64();
    (elapsed > 0.0 && total >= before).then(|| (total - before) / elapsed)
}

/// How late a task was polled that asked to be woken at `due`, as a share of `bound`: the signal
/// `lag`.
pub fn lag(due: Instant, polled: Instant, bound: Span) -> f64 {
    polled.since(due).as_secs_f64() / bound.as_secs_f64().max(1e-9)
}

/// The text of a file, or an error that names it.
fn text(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Span::from_secs(seconds)
    }

    fn read(names: &[&str]) -> SignalsConfig {
        let read = names.iter().map(|name| (*name).to_owned()).collect();
        SignalsConfig { read, ..SignalsConfig::default() }
    }

    /// A file system of our own, removed when it is dropped.
    pub(super) struct Tree(pub(super) PathBuf);

    impl Tree {
        pub(super) fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let path = std::env::temp_dir().join(format!("tidegate-{}-{name}", std::process::id()));
            let tree = Self(path);
            files.iter().for_each(|(path, text)| tree.write(path, text));
            tree
        }

        pub(super) fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        pub(super) fn roots(&self) -> Roots {
            Roots { proc: self.0.join("proc"), root: self.0.clone() }
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            // It is in the directory for temporary files in any case.
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    pub(super) const V2: [(&str, &str); 7] = [
        ("proc/self/cgroup", "0::/kube/pod7/web\n"),
        (
            "proc/self/mountinfo",
            "30 1 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n31 1 8:1 / /data rw - ext4 /dev/sda rw\n",
        ),
        ("sys/fs/cgroup/kube/pod7/web/cpu.max", "max 100000\n"),
        ("sys/fs/cgroup/kube/pod7/cpu.max", "50000 100000\n"),
        ("sys/fs/cgroup/kube/pod7/web/cpu.stat", "usage_usec 1000000\nuser_usec 1\n"),
        ("sys/fs/cgroup/kube/pod7/web/memory.max", "1000\n"),
        ("sys/fs/cgroup/kube/pod7/web/memory.current", "900\n"),
    ];

    #[test]
    fn cpu_is_counted_against_the_limit_above_and_memory_without_its_cache() {
        let tree = Tree::new("v2", &V2);
        tree.write("sys/fs/cgroup/kube/pod7/web/memory.stat", "anon 1\ninactive_file 150\n");
        let mut machine = Machine::at(tree.roots(), &read(&["cpu", "memory"]));
        assert_eq!(machine.cores(), 0.5);
        assert_eq!(machine.sample(at(0)), Some(0.75), "a rate takes two samples; memory is there");
        tree.write("sys/fs/cgroup/kube/pod7/web/cpu.stat", "usage_usec 1400000\n");
        let utilization = machine.sample(at(1)).unwrap();
        assert!((utilization - 0.8).abs() < 1e-9, "{utilization}");
        let parts: Vec<_> = machine.parts(at(1)).map(|part| part.part).collect();
        assert_eq!(parts.iter().sum::<f64>(), utilization, "the fullest decides: {parts:?}");
        assert_eq!(machine.take_warnings(), Vec::<String>::new());
    }

    /// A driver beside its service watches the service, not itself.
    #[test]
    fn a_group_that_is_named_is_read_instead_of_our_own() {
        let tree = Tree::new("named", &V2);
        tree.write("sys/fs/cgroup/kube/pod7/shop/memory.max", "1000\n");
        tree.write("sys/fs/cgroup/kube/pod7/shop/memory.current", "300\n");
        let own = read(&["memory"]);
        let cgroup = Some("/kube/pod7/shop".to_owned());
        let shop = SignalsConfig { cgroup, ..own.clone() };
        assert_eq!(Machine::at(tree.roots(), &own).sample(at(0)), Some(0.9));
        let mut machine = Machine::at(tree.roots(), &shop);
        assert_eq!(machine.sample(at(0)), Some(0.3));
        machine.look(false);
        assert_eq!(machine.sample(at(1)), None, "somebody knows better");
        machine.look(true);
        assert_eq!(machine.sample(at(2)), Some(0.3));
    }

    #[test]
    fn a_missing_file_switches_its_signal_off_with_one_warning() {
        let tree = Tree::new("missing", &V2[..3]);
        let names = ["cpu", "memory", "process", "pressure-io", "lag"];
        let mut machine = Machine::at(tree.roots(), &read(&names));
        assert_eq!(machine.sample(at(0)), None);
        let warnings = machine.take_warnings();
        assert_eq!(warnings.len(), 4, "{warnings:?}");
        for part in ["cpu.stat", "meminfo", "self/stat", "pressure"] {
            assert!(warnings.iter().any(|warning| warning.contains(part)), "{part}: {warnings:?}");
        }
        assert_eq!(machine.sample(at(1)), None);
        assert_eq!(machine.take_warnings(), Vec::<String>::new(), "once");
        machine.add("lag", 0.4);
        machine.add("never asked for", 9.0);
        assert_eq!(machine.sample(at(2)), Some(0.4));
    }

    #[test]
    fn what_is_no_number_says_nothing_and_is_told() {
        let tree = Tree::new("nonsense", &V2);
        tree.write("sys/fs/cgroup/kube/pod7/web/cpu.stat", "usage_usec many\n");
        tree.write("sys/fs/cgroup/kube/pod7/web/memory.current", "-1");
        let mut machine = Machine::at(tree.roots(), &read(&["cpu", "memory"]));
        assert_eq!(machine.sample(at(0)), None);
        assert_eq!(machine.take_warnings().len(), 2);
        tree.write("proc/meminfo", "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:   250 kB\n");
        let mut machine = Machine::at(tree.roots(), &read(&["memory"]));
        assert_eq!(machine.sample(at(0)), Some(0.75), "that of the machine");
    }

    #[test]
    fn pressure_and_process_time_are_rates() {
        let tree = Tree::new(
            "rates",
            &[
                (
                    "proc/pressure/memory",
                    "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\nfull avg10=0 total=5\n",
                ),
                (
                    "proc/self/stat",
                    "77 (a (strange) name) R 1 1 1 0 -1 4194304 1 0 0 0 150 50 0 0 20 0 1 0\n",
                ),
                ("proc/self/cgroup", ""),
                ("proc/self/mountinfo", ""),
            ],
        );
        let names = ["pressure-memory", "process"];
        let mut machine = Machine::at(tree.roots(), &read(&names));
        assert_eq!(machine.sample(at(0)), None);
        tree.write("proc/pressure/memory", "some avg10=0.00 total=1250000\n");
        tree.write("proc/self/stat", "77 (x) R 1 1 1 0 -1 4194304 1 0 0 0 200 100 0 0 20 0 1 0\n");
        machine.sample(at(1));
        let parts: Vec<_> = machine.parts(at(1)).map(|part| part.value.unwrap()).collect();
        assert_eq!(parts, [0.25, 1.0 / machine.cores()]);
    }

    #[test]
    fn lag_is_a_share_of_its_bound() {
        let (due, bound) = (at(5), Span::from_millis(10));
        assert_eq!(lag(due, due, bound), 0.0);
        assert!((lag(due, due + Span::from_millis(5), bound) - 0.5).abs() < 1e-12);
        assert_eq!(lag(due, at(4), bound), 0.0);
    }
}
