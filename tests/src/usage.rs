//! What a process uses, as the kernel counts it (proc(5)).

use std::fs;
use std::time::Duration;

/// Time between two looks at what moves.
const SETTLING: Duration = Duration::from_millis(500);

/// Proportional set size in KiB: memory of its own, and its share of what it has in common with others.
///
/// # Panics
/// When the process is not there.
pub fn pss_kib(id: u32) -> u64 {
    let path = format!("/proc/{id}/smaps_rollup");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    field(&text, "Pss:").unwrap_or_else(|| panic!("no Pss in {path}"))
}

/// The same once it has stopped moving.
///
/// # Panics
/// When the process is not there.
pub fn settled_kib(id: u32) -> u64 {
    let mut last = u64::MAX;
    loop {
        std::thread::sleep(SETTLING);
        let now = pss_kib(id);
        if now.abs_diff(last) < 32 {
            return now;
        }
        last = now;
    }
}

/// How often threads of it have given up a processor to wait: each is followed by a wake-up.
///
/// # Panics
/// When the process is not there.
pub fn waits(id: u32) -> u64 {
    let path = format!("/proc/{id}/task");
    let tasks = fs::read_dir(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let texts = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
    texts.filter_map(|text| field(&text, "voluntary_ctxt_switches:")).sum()
}

/// How many threads it has.
pub fn threads(id: u32) -> usize {
    fs::read_dir(format!("/proc/{id}/task")).map_or(0, Iterator::count)
}

/// How long its threads have worked, in seconds, to a hundredth: for itself and in the kernel.
///
/// # Panics
/// When the process is not there.
pub fn worked(id: u32) -> f64 {
    let path = format!("/proc/{id}/stat");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    // The name, in parentheses, may hold anything; user and system time are the 14th and 15th field.
    let after = text.rsplit_once(')').map_or("", |(_, after)| after);
    let ticks: u64 = after.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}
