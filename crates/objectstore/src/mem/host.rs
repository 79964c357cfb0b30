//! Memory that the host and the process's control groups can still provide without swapping.
//!
//! Read from `/proc/meminfo` and the files of cgroup version 1 and 2. File cache that can be dropped counts as free. The result
//! is approximate, because other processes allocate memory too. It is measured again every [`INTERVAL`]; between
//! measurements, the growth of the store is subtracted.

use parking_lot::Mutex;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a measurement is used.
const INTERVAL: Duration = Duration::from_millis(100);
/// Values of at least this many bytes mean no limit (version 1 writes a huge number).
const NO_LIMIT: u64 = 1 << 60;

/// A view of the host's memory.
#[derive(Debug)]
pub(super) struct HostMemory {
    root: PathBuf,
    /// The control groups of this process, from its own group upwards.
    groups: Vec<Group>,
    measured: Mutex<Option<(Instant, u64, u64)>>,
}

/// A control group with memory accounting.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    path: PathBuf,
    version: u8,
}

/// Bytes that this process can still allocate without swapping. `None` if the host does not report it.
pub fn available_memory() -> Option<u64> {
    HostMemory::new(Path::new("/")).measure()
}

impl HostMemory {
    /// The host whose files are below `root`, which is `/` except in tests.
    pub(super) fn new(root: &Path) -> HostMemory {
        HostMemory { root: root.to_owned(), groups: groups(root), measured: Mutex::new(None) }
    }

    /// Bytes that can still be allocated while the store uses `used` bytes. `None` if the host does not report it.
    pub(super) fn available(&self, used: u64) -> Option<u64> {
        let mut measured = self.measured.lock();
        if let Some((at, available, used_then)) = *measured
            && at.elapsed() < INTERVAL
        {
            return Some(available.saturating_sub(used.saturating_sub(used_then)));
        }
        let available = self.measure()?;
        *measured = Some((Instant::now(), available, used));
        Some(available)
    }

    fn measure(&self) -> Option<u64> {
        let meminfo = fs::read_to_string(self.root.join("proc/meminfo")).ok()?;
        let of_groups = self.groups.iter().filter_map(available_in);
        of_groups.chain(mem_available(&meminfo)).min()
    }
}

/// `MemAvailable` in bytes.
fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// The memory control groups of this process and their ancestors.
fn groups(root: &Path) -> Vec<Group> {
    let Ok(text) = fs::read_to_string(root.join("proc/self/cgroup")) else { return Vec::new() };
    let mut found = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let (mount, version) = if controllers.is_empty() {
            ("sys/fs/cgroup", 2)
        } else if controllers.split(',').any(|controller| controller == "memory") {
            ("sys/fs/cgroup/memory", 1)
        } else {
            continue;
        };
        let mount = root.join(mount);
        let mut directory = mount.join(path.trim_start_matches('/'));
        // In a container, the path is the host's while the mount shows the container's own group, so each parent is tried.
        loop {
            if directory.is_dir() {
                found.push(Group { path: directory.clone(), version });
            }
            if directory == mount || !directory.pop() {
                break;
            }
        }
    }
    found
}

/// Bytes that a group can still allocate. `None` if it has no limit.
fn available_in(group: &Group) -> Option<u64> {
    let number =
        |name: &str| -> Option<u64> { fs::read_to_string(group.path.join(name)).ok()?.trim().parse().ok() };
    let (limit, usage, dropped) = if group.version == 2 {
        // Above `memory.high` the kernel throttles the group heavily.
        let limits = [number("memory.max"), number("memory.high")];
        (limits.into_iter().flatten().min()?, number("memory.current")?, "inactive_file")
    } else {
        (number("memory.limit_in_bytes")?, number("memory.usage_in_bytes")?, "total_inactive_file")
    };
    if limit >= NO_LIMIT {
        return None;
    }
    let stat = fs::read_to_string(group.path.join("memory.stat")).unwrap_or_default();
    let cache =
        stat.lines().find_map(|line| line.strip_prefix(dropped)?.trim().parse::<u64>().ok()).unwrap_or(0);
    Some(limit.saturating_sub(usage.saturating_sub(cache)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, name: &str, text: &str) {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn the_tightest_limit_counts() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        assert_eq!(HostMemory::new(root).available(0), None);
        write(root, "proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    4000 kB\nSwapFree: 9999 kB\n");
        assert_eq!(HostMemory::new(root).available(0), Some(4000 << 10));
        write(root, "proc/self/cgroup", "0::/a/b\n");
        write(root, "sys/fs/cgroup/a/b/memory.max", "max\n");
        write(root, "sys/fs/cgroup/a/b/memory.current", "5000\n");
        assert_eq!(HostMemory::new(root).available(0), Some(4000 << 10));
        write(root, "sys/fs/cgroup/a/memory.max", "1000000\n");
        write(root, "sys/fs/cgroup/a/memory.current", "900000\n");
        write(root, "sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 50000\n");
        assert_eq!(HostMemory::new(root).available(0), Some(150_000));
        write(root, "sys/fs/cgroup/a/b/memory.high", "6000\n");
        assert_eq!(HostMemory::new(root).available(0), Some(1000));
        write(root, "proc/self/cgroup", "4:cpu:/x\n3:memory,other:/docker/1\n");
        write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        write(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", "7\n");
        assert_eq!(HostMemory::new(root).available(0), Some(4000 << 10));
        write(root, "sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes", "5000\n");
        write(root, "sys/fs/cgroup/memory/docker/1/memory.usage_in_bytes", "4500\n");
        write(
            root,
            "sys/fs/cgroup/memory/docker/1/memory.stat",
            "inactive_file 1\ntotal_inactive_file 100\n",
        );
        let host = HostMemory::new(root);
        assert_eq!(host.available(10_000), Some(600));
        // Growth of the store since the measurement counts immediately.
        assert_eq!(host.available(10_250), Some(350));
    }
}
