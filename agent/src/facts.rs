//! What the device is: the facts that it reports and that selectors may go by.

use std::collections::BTreeMap;
use std::path::Path;

use selvedge_control::HostStatus;

/// Facts by name. Those about the host are missing until it has answered once.
pub fn gather(data: &Path, host: Option<&HostStatus>) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    let mut tell = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            facts.insert(name.to_owned(), value);
        }
    };
    tell("architecture", Some(std::env::consts::ARCH.to_owned()));
    tell("os", os());
    let uname = rustix::system::uname();
    tell("kernel", uname.release().to_str().ok().map(str::to_owned));
    tell("hostname", uname.nodename().to_str().ok().map(str::to_owned));
    tell("cores", std::thread::available_parallelism().ok().map(|cores| cores.to_string()));
    tell("memory-mib", memory_mib().map(|mib| mib.to_string()));
    tell("disk-free-mib", disk_free_mib(data).map(|mib| mib.to_string()));
    tell("agent", Some(env!("CARGO_PKG_VERSION").to_owned()));
    if let Some(host) = host {
        tell("host", Some(host.version.clone()));
        tell("onnxruntime", Some(host.onnxruntime.clone()));
        tell("inference", Some(host.http.clone()));
    }
    facts
}

/// The machine's memory in MiB.
pub fn memory_mib() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kib: u64 = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(kib / 1024)
}

/// What is free for us on the data directory's file system, in MiB.
pub fn disk_free_mib(data: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(data).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize) >> 20)
}

fn os() -> Option<String> {
    let text = std::fs::read_to_string("/etc/os-release").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(line.trim_matches('"').chars().take(120).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_facts() {
        let facts = gather(Path::new("/"), None);
        for name in ["architecture", "kernel", "cores", "memory-mib", "disk-free-mib", "agent"] {
            assert!(facts.contains_key(name), "{name} is missing from {facts:?}");
        }
        assert!(!facts.contains_key("inference"));
    }
}
