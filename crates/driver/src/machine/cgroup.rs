//! The control groups of this process: limits and use of CPU and memory, v2 or v1.
//!
//! `/proc/self/cgroup` names the group, `/proc/self/mountinfo` says where groups are mounted and
//! which group the mount shows as its root. In a container without a namespace of its own the group
//! is named from the host's root, while the mount begins at the container's: then the part below the
//! mount's root is what is there to see, or nothing but that root itself.

use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

use super::{Roots, text};

/// Where this process's groups are, from its own leaf upwards.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// Of the one hierarchy of v2.
    unified: Vec<PathBuf>,
    /// Of the controllers of v1.
    cpu: Vec<PathBuf>,
    cpuacct: Vec<PathBuf>,
    memory: Vec<PathBuf>,
}

impl Groups {
    /// Looks up those of this process, or of the group that is `named`; those that are not there are empty.
    pub(super) fn find(roots: &Roots, named: Option<&str>) -> Self {
        let groups = text(&roots.proc.join("self/cgroup")).unwrap_or_default();
        let mounts = text(&roots.proc.join("self/mountinfo")).unwrap_or_default();
        let leaf = |controller: Option<&str>| {
            let group = named.or_else(|| group_of(&groups, controller));
            let mount = mounts.lines().filter_map(Mount::read).find(|it| it.is_of(controller));
            match (group, mount) {
                (Some(group), Some(mount)) => upwards(roots, group, &mount),
                _ => Vec::new(),
            }
        };
        let unified = leaf(None);
        // On hosts with both, controllers are in one of them only: v1 if it has the mount.
        let (cpu, cpuacct, memory) =
            (leaf(Some("cpu")), leaf(Some("cpuacct")), leaf(Some("memory")));
        Self { unified, cpu, cpuacct, memory }
    }

    /// The leaf of v2, for pressure.
    pub(super) fn unified(&self) -> Option<&Path> {
        self.unified.first().map(PathBuf::as_path)
    }

    /// The smallest limit from the leaf upwards, else what the machine has.
    pub(super) fn cores(&self) -> f64 {
        let two = self.unified.iter().filter_map(|group| quota_v2(&group.join("cpu.max")));
        let one = self.cpu.iter().filter_map(|group| quota_v1(group));
        let machine = available_parallelism().map_or(1.0, |cores| cores.get() as f64);
        two.chain(one).fold(machine, f64::min)
    }

    /// CPU that the leaf has used.
    pub(super) fn cpu_seconds(&self) -> Result<f64, String> {
        if let Some(leaf) = self.cpuacct.first() {
            return number(&leaf.join("cpuacct.usage")).map(|nanos| nanos / 1e9);
        }
        let leaf = self.unified.first().ok_or("no cgroup for cpu is mounted")?;
        let path = leaf.join("cpu.stat");
        field(&path, "usage_usec").map(|micros| micros / 1e6)
    }

    /// Memory in use against the limit that is nearest. Page cache that nobody used lately is not in
    /// use: it goes when something else wants the room.
    pub(super) fn memory(&self) -> Result<f64, String> {
        let two = ("memory.current", "memory.max", "inactive_file");
        let one = ("memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file");
        let (groups, (used, limit, cache)) =
            if self.memory.is_empty() { (&self.unified, two) } else { (&self.memory, one) };
        if groups.is_empty() {
            return Err("no cgroup for memory is mounted".to_owned());
        }
        let shares = groups.iter().filter_map(|group| {
            // "max" is no number, and v1 writes a huge one: neither is a limit.
            let limit = number(&group.join(limit)).ok().filter(|limit| *limit < 1e15)?;
            let used = number(&group.join(used)).ok()?;
            let cache = field(&group.join("memory.stat"), cache).unwrap_or(0.0);
            (limit > 0.0).then(|| (used - cache).max(0.0) / limit)
        });
        let unlimited = || format!("{} has no limit", groups[0].display());
        shares
            .fold(None, |most: Option<f64>, share| Some(most.map_or(share, |most| most.max(share))))
            .ok_or_else(unlimited)
    }
}

/// The group of `controller` in v1, or of v2 if there is none, from the root of its hierarchy.
fn group_of<'a>(groups: &'a str, controller: Option<&str>) -> Option<&'a str> {
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let fits = match controller {
            None => controllers.is_empty(),
            Some(wanted) => controllers.split(',').any(|name| name == wanted),
        };
        fits.then_some(path)
    })
}

/// A mount of control groups.
#[derive(Debug, PartialEq, Eq)]
struct Mount<'a> {
    /// The group that is seen at the mount point.
    root: &'a str,
    point: &'a str,
    /// The controllers of v1; none of v2.
    controllers: Option<&'a str>,
}

impl<'a> Mount<'a> {
    /// A line of `mountinfo`: `id parent dev root point options… - type source super-options`.
    fn read(line: &'a str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (root, point) = (before.next()?, before.next()?);
        let mut after = after.split(' ');
        match after.next()? {
            "cgroup2" => Some(Self { root, point, controllers: None }),
            "cgroup" => Some(Self { root, point, controllers: Some(after.nth(1)?) }),
            _ => None,
        }
    }

    fn is_of(&self, controller: Option<&str>) -> bool {
        match (self.controllers, controller) {
            (None, None) => true,
            (Some(all), Some(wanted)) => all.split(',').any(|name| name == wanted),
            _ => false,
        }
    }
}

/// Directories from the leaf up to the mount point.
fn upwards(roots: &Roots, group: &str, mount: &Mount<'_>) -> Vec<PathBuf> {
    let point = roots.root.join(mount.point.trim_start_matches('/'));
    let below = match mount.root {
        "/" => group,
        root => group
            .strip_prefix(root)
            .filter(|rest| rest.is_empty() || rest.starts_with('/'))
            .unwrap_or(""),
    };
    // A group outside of what the namespace shows is written with dots: only the mount itself is seen.
    let below = Path::new(below.trim_start_matches('/'));
    let inside = below.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    let leaf = if inside { point.join(below) } else { point.clone() };
    leaf.ancestors().take_while(|path| path.starts_with(&point)).map(Path::to_path_buf).collect()
}

/// `quota period`, or `max period`.
fn quota_v2(path: &Path) -> Option<f64> {
    let text = text(path).ok()?;
    let (quota, period) = text.trim().split_once(' ')?;
    cores(quota.parse().ok()?, period.parse().ok()?)
}

fn quota_v1(group: &Path) -> Option<f64> {
    // -1 is no limit.
    cores(
        number(&group.join("cpu.cfs_quota_us")).ok()?,
        number(&group.join("cpu.cfs_period_us")).ok()?,
    )
}

fn cores(quota: f64, period: f64) -> Option<f64> {
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

/// A file that is one number, not negative.
fn number(path: &Path) -> Result<f64, String> {
    let text = text(path)?;
    let number = text.trim().parse::<u64>();
    number.map(|number| number as f64).map_err(|_| format!("{} is no number", path.display()))
}

/// The number after `name` in a file of lines.
pub(super) fn field(path: &Path, name: &str) -> Result<f64, String> {
    let text = text(path)?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    // `meminfo` has a unit behind it.
    let number = value.and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok());
    number
        .map(|number| number as f64)
        .ok_or_else(|| format!("{} has no number {name}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::super::tests::Tree;
    use super::*;

    #[test]
    fn a_container_without_a_namespace_finds_its_own_leaf() {
        let tree = Tree::new(
            "docker",
            &[
                (
                    "proc/self/cgroup",
                    "9:name=systemd:/\n4:memory:/docker/abc/sub\n2:cpu,cpuacct:/docker/abc/sub\n0::/\n",
                ),
                (
                    "proc/self/mountinfo",
                    "1 0 0:1 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n\
                 2 0 0:2 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
                ),
                ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n"),
                ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
                ("sys/fs/cgroup/cpu,cpuacct/sub/cpu.cfs_quota_us", "-1\n"),
                ("sys/fs/cgroup/cpu,cpuacct/sub/cpu.cfs_period_us", "100000\n"),
                ("sys/fs/cgroup/cpu,cpuacct/sub/cpuacct.usage", "7000000000\n"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "4000\n"),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n"),
                ("sys/fs/cgroup/memory/sub/memory.limit_in_bytes", "9223372036854771712\n"),
                ("sys/fs/cgroup/memory/sub/memory.usage_in_bytes", "10\n"),
            ],
        );
        let roots = tree.roots();
        let groups = Groups::find(&roots, None);
        assert_eq!(groups.cores(), 0.5);
        assert_eq!(groups.cpu_seconds(), Ok(7.0));
        assert_eq!(groups.memory(), Ok(0.25));
    }

    #[test]
    fn a_group_outside_of_the_mount_is_seen_as_the_mount_itself() {
        let point = |root, group| {
            let roots = Roots::default();
            let mount = Mount { root, point: "/sys/fs/cgroup", controllers: None };
            upwards(&roots, group, &mount)
        };
        let own = [PathBuf::from("/sys/fs/cgroup")];
        assert_eq!(point("/", "/"), own);
        assert_eq!(point("/a", "/a"), own);
        assert_eq!(point("/a", "/b/c"), own);
        assert_eq!(point("/a", "/abc"), own);
        assert_eq!(point("/", "/../other"), own);
        assert_eq!(point("/a", "/a/b").first(), Some(&PathBuf::from("/sys/fs/cgroup/b")));
    }

    #[test]
    fn lines_that_are_no_mounts_of_groups_are_passed_over() {
        assert_eq!(Mount::read("31 1 8:1 / /data rw - ext4 /dev/sda rw"), None);
        assert_eq!(Mount::read("nonsense"), None);
        assert_eq!(Mount::read(""), None);
        let mount = Mount::read("30 1 0:26 / /cg rw shared:4 - cgroup2 cgroup rw").unwrap();
        assert_eq!((mount.root, mount.point, mount.controllers), ("/", "/cg", None));
    }
}
