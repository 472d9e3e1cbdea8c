//! How much memory programs may still take on this machine.
//!
//! The kernel's own estimate, and what the control groups of this process leave, whichever is less.
//! Whoever plans by it plans for a moment: it is no promise.

use std::path::{Path, PathBuf};

/// Where the kernel says it.
#[derive(Debug, Clone)]
pub struct Memory {
    proc: PathBuf,
    cgroup: PathBuf,
}

impl Default for Memory {
    fn default() -> Self {
        Self::at("/proc", "/sys/fs/cgroup")
    }
}

impl Memory {
    /// The kernel's files under other roots: for tests.
    pub fn at(proc: impl Into<PathBuf>, cgroup: impl Into<PathBuf>) -> Self {
        Self { proc: proc.into(), cgroup: cgroup.into() }
    }

    /// Bytes that may still be taken; `None` where the kernel does not say.
    pub fn available(&self) -> Option<u64> {
        let machine = std::fs::read_to_string(self.proc.join("meminfo")).ok();
        let machine = machine.and_then(|text| kib(&text, "MemAvailable:"));
        [machine, self.within_groups()].into_iter().flatten().min()
    }

    /// The largest resident memory that a process has had, in bytes; 0 once it has ended.
    pub fn peak_of(&self, process: u32) -> u64 {
        let status = std::fs::read_to_string(self.proc.join(process.to_string()).join("status"));
        status.ok().and_then(|text| kib(&text, "VmHWM:")).unwrap_or(0)
    }

    /// How often the kernel has killed a process here for want of memory; `None` where it does not say. It
    /// only ever grows.
    pub fn kills(&self) -> Option<u64> {
        let machine = std::fs::read_to_string(self.proc.join("vmstat")).ok();
        machine.and_then(|text| {
            text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
        })
    }

    /// What the tightest of our control groups leaves (version 2); `None`: no limit.
    fn within_groups(&self) -> Option<u64> {
        let groups = std::fs::read_to_string(self.proc.join("self/cgroup")).ok()?;
        let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
        // A path that leads out of the tree is none of ours.
        if own.split('/').any(|part| part == "..") {
            return None;
        }
        let mut group = self.cgroup.join(own);
        let mut least = None;
        loop {
            least = [least, left(&group)].into_iter().flatten().min();
            if group == self.cgroup || !group.pop() {
                return least;
            }
        }
    }
}

/// What a group leaves: its limit less what it holds, but for files that the kernel would drop.
fn left(group: &Path) -> Option<u64> {
    let number =
        |name: &str| -> Option<u64> { std::fs::read_to_string(group.join(name)).ok()?.trim().parse().ok() };
    let most = number("memory.max")?;
    let stat = std::fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let files = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.trim().parse::<u64>().ok());
    Some(most.saturating_sub(number("memory.current")?.saturating_sub(files.unwrap_or(0))))
}

/// A line of `NAME: 123 kB`, in bytes.
fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory_and_this_process_takes_some() {
        let memory = Memory::default();
        assert!(memory.available().unwrap() > 1 << 20);
        assert!(memory.peak_of(std::process::id()) > 1 << 20);
        assert_eq!(memory.peak_of(u32::MAX), 0);
        assert!(memory.kills().is_some(), "the kernel counts them");
    }

    #[test]
    fn the_tightest_group_counts_and_droppable_files_do_not() {
        let place = tempfile::tempdir().unwrap();
        let (proc, cgroup) = (place.path().join("proc"), place.path().join("cgroup"));
        let memory = Memory::at(&proc, &cgroup);
        assert_eq!(memory.available(), None);
        let write = |path: PathBuf, text: &str| {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(proc.join("meminfo"), "MemTotal:       100 kB\nMemAvailable:       90 kB\n");
        assert_eq!(memory.available(), Some(90 * 1024));
        write(proc.join("self/cgroup"), "1:name=systemd:/x\n0::/a/b\n");
        assert_eq!(memory.available(), Some(90 * 1024), "no limits");
        write(cgroup.join("a/b/memory.max"), "max\n");
        write(cgroup.join("a/b/memory.current"), "1000\n");
        write(cgroup.join("a/memory.max"), "50000\n");
        write(cgroup.join("a/memory.current"), "40000\n");
        assert_eq!(memory.available(), Some(10_000));
        write(cgroup.join("a/memory.stat"), "anon 1\ninactive_file 5000\n");
        assert_eq!(memory.available(), Some(15_000));
        write(cgroup.join("memory.max"), "100\n");
        write(cgroup.join("memory.current"), "200\n");
        assert_eq!(memory.available(), Some(0));
        write(proc.join("self/cgroup"), "0::/../../etc\n");
        write(proc.join("meminfo"), "MemAvailable: 99999999999999999999 kB\n");
        assert_eq!(memory.available(), None);
    }
}
