//! Processes by id and start time, so that an id that the kernel gave away again is never taken
//! for the process that had it. Linux only: it reads `/proc`.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

/// A process, told apart from later ones with the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its id.
    pub pid: i32,
    /// When it started, in clock ticks since the machine's start (field 22 of `/proc/PID/stat`).
    pub started: u64,
}

impl Process {
    /// The process that has this id now.
    pub fn of(pid: u32) -> Option<Self> {
        let pid = i32::try_from(pid).ok()?;
        let (_, started) = stat(pid)?;
        Some(Self { pid, started })
    }

    /// Whether it still runs. One that ended and was not yet reaped does not.
    pub fn is_alive(&self) -> bool {
        stat(self.pid).is_some_and(|(state, started)| started == self.started && !matches!(state, 'Z' | 'X'))
    }

    /// Sends a signal, if it still runs.
    pub fn signal(&self, signal: Signal) {
        if self.is_alive()
            && let Some(pid) = Pid::from_raw(self.pid)
        {
            // It may have ended since the check; then there is nothing left to do.
            let _ = kill_process(pid, signal);
        }
    }

    /// Waits for its end; whether it came within `allowed`.
    pub async fn gone(&self, allowed: Duration) -> bool {
        let wait = async {
            while self.is_alive() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(allowed, wait).await.is_ok()
    }

    /// Asks it to end, and makes it end when it does not within `grace`.
    pub async fn end(&self, grace: Duration) {
        self.signal(Signal::TERM);
        if !self.gone(grace).await {
            self.signal(Signal::KILL);
            self.gone(Duration::from_secs(5)).await;
        }
    }
}

/// State letter and start time of a process.
fn stat(pid: i32) -> Option<(char, u64)> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name in brackets may hold anything, brackets too: fields are counted behind the last one.
fn parse_stat(text: &str) -> Option<(char, u64)> {
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let started = fields.nth(18)?.parse().ok()?;
    Some((state, started))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read_behind_a_hostile_name() {
        let text = "12 (a) Z (b) S 1 12 12 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 1 2 3";
        assert_eq!(parse_stat(text), Some(('S', 987_654)));
        assert_eq!(parse_stat("garbage"), None);
    }

    #[tokio::test]
    async fn an_id_with_another_start_is_another_process() {
        let me = Process::of(std::process::id()).unwrap();
        assert!(me.is_alive());
        let other = Process { started: me.started + 1, ..me };
        assert!(!other.is_alive());
        other.signal(Signal::KILL);
        assert!(other.gone(Duration::ZERO).await);
    }

    #[tokio::test]
    async fn one_that_ignores_a_request_to_end_is_ended() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "trap '' TERM; echo; exec sleep 60"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // The first byte says that the trap is set.
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let process = Process::of(child.id()).unwrap();
        process.end(Duration::from_millis(100)).await;
        assert!(!process.is_alive());
        child.wait().unwrap();
    }
}
