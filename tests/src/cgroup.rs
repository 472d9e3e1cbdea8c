//! A memory control group of the test's own: what is started in it is really killed when it takes too much.

use std::path::{Path, PathBuf};

/// A control group with a limit; removed when it is dropped, once nobody is in it any more.
pub struct Cgroup {
    path: PathBuf,
    version: u8,
}

impl Cgroup {
    /// Makes one of so many bytes of memory, with no swap besides.
    ///
    /// # Errors
    /// Where none can be made here, saying what is needed.
    pub fn limited(bytes: u64) -> Result<Self, String> {
        let name = format!("selvedge-test-{}", std::process::id());
        let first = Path::new("/sys/fs/cgroup/memory");
        let (version, root) =
            if first.join("cgroup.procs").exists() { (1, first) } else { (2, Path::new("/sys/fs/cgroup")) };
        let group = Self { path: root.join(name), version };
        let needs = |error| {
            format!(
                "a memory control group at {} cannot be made: {error}; it needs root and /sys/fs/cgroup to \
                 be writable, with the memory controller",
                group.path.display()
            )
        };
        if version == 2 {
            // Where the controller is on already this says so and changes nothing.
            std::fs::write(root.join("cgroup.subtree_control"), "+memory").map_err(needs)?;
        }
        std::fs::create_dir(&group.path).map_err(needs)?;
        let limit = if version == 1 { "memory.limit_in_bytes" } else { "memory.max" };
        std::fs::write(group.path.join(limit), bytes.to_string()).map_err(needs)?;
        // Not every kernel counts swap; where it does, swap must not help out.
        let swap = if version == 1 { ("memory.swappiness", "0") } else { ("memory.swap.max", "0") };
        let _ = std::fs::write(group.path.join(swap.0), swap.1);
        Ok(group)
    }

    /// What starts a program in it.
    pub fn within(&self) -> Vec<String> {
        let enter = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.path.display());
        ["sh", "-c", &enter, "sh"].map(str::to_owned).to_vec()
    }

    /// How many processes of it the kernel has killed.
    ///
    /// # Panics
    /// Where the kernel does not say.
    pub fn kills(&self) -> u64 {
        let file = if self.version == 1 { "memory.oom_control" } else { "memory.events" };
        let text = std::fs::read_to_string(self.path.join(file)).expect("the group says how it is");
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.and_then(|number| number.parse().ok()).expect("the kernel counts those that it kills")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for _ in 0..100 {
            if std::fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}
