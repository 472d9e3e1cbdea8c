//! A host process: our child, or one that an earlier agent left behind.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;

use crate::bounded;

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// For people.
    pub what: String,
    /// Whose doing it was.
    pub fate: Fate,
    /// Its exit code, where it had one.
    pub code: Option<i32>,
}

/// Whose doing the end of a process was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Its own, in order; or nobody knows.
    Orderly,
    /// It broke: a fault, an abort.
    Faulted,
    /// It was killed: by a watchdog, by a person, or by the kernel for want of memory.
    Killed,
    /// It was killed for want of memory, and whoever keeps it says so.
    Starved,
}

impl Ending {
    fn unknown(what: String) -> Self {
        Self { what, fate: Fate::Orderly, code: None }
    }
}

/// What `run/host.json` says: enough to know the same process again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// Process id.
    pub pid: u32,
    /// Its start, in the kernel's ticks since boot.
    pub start: u64,
}

impl Trace {
    /// The trace of a running process; `None` where there is none of that id.
    pub fn of(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The second field is the program's name in parentheses and may hold anything.
        let rest = &stat[stat.rfind(')')? + 1..];
        let mut fields = rest.split_ascii_whitespace();
        let state = fields.next()?;
        // Field 22 of the whole line.
        let start = fields.nth(18)?.parse().ok()?;
        (state != "Z" && state != "X").then_some(Self { pid, start })
    }

    /// The one written down, if its process still runs.
    pub fn read(path: &Path) -> Option<Self> {
        let written: Self = serde_json::from_slice(&bounded::read(path, bounded::NOTE).ok()?).ok()?;
        Self::of(written.pid).filter(|now| *now == written)
    }

    /// Writes it down.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        write_run_file(path, &serde_json::to_string(self).map_err(io::Error::other)?)
    }

    /// Kills it and waits until it is gone, at most for `patience`.
    pub async fn kill(self, patience: Duration) {
        if let Some(pid) = pid(self.pid) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        let _ = tokio::time::timeout(patience, async {
            while Self::of(self.pid) == Some(self) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }
}

fn pid(raw: u32) -> Option<Pid> {
    i32::try_from(raw).ok().and_then(Pid::from_raw)
}

/// A running host.
#[derive(Debug)]
pub enum Process {
    /// Started by this agent.
    Child(tokio::process::Child),
    /// Started by an earlier one.
    Adopted {
        /// Which.
        trace: Trace,
        /// Readable once it has ended.
        ended: AsyncFd<std::os::fd::OwnedFd>,
    },
}

impl Process {
    /// A process that runs already.
    pub fn adopt(raw: u32) -> io::Result<Self> {
        let gone = || io::Error::new(io::ErrorKind::NotFound, format!("there is no process {raw}"));
        let fd = rustix::process::pidfd_open(pid(raw).ok_or_else(gone)?, PidfdFlags::NONBLOCK)?;
        let trace = Trace::of(raw).ok_or_else(gone)?;
        // The safe constructor is deprecated for types whose descriptor may change or close while it
        // is registered; an owned descriptor does neither.
        #[expect(deprecated, reason = "the successor is unsafe, and this crate has no need of it")]
        let ended = AsyncFd::with_interest(fd, tokio::io::Interest::READABLE)?;
        Ok(Self::Adopted { trace, ended })
    }

    /// Its process id, while it runs.
    pub fn id(&self) -> Option<u32> {
        match self {
            Self::Child(child) => child.id(),
            Self::Adopted { trace, .. } => Some(trace.pid),
        }
    }

    /// Waits for its end.
    pub async fn ended(&mut self) -> Ending {
        match self {
            Self::Child(child) => match child.wait().await {
                Ok(status) => describe(status),
                Err(error) => Ending::unknown(format!("it cannot be waited for: {error}")),
            },
            Self::Adopted { ended, .. } => {
                let _ = ended.readable().await;
                Ending::unknown("how is known to nobody, since an earlier agent had started it".to_owned())
            }
        }
    }

    /// Sends it a signal; it may have ended meanwhile.
    pub fn signal(&self, signal: Signal) {
        match self {
            Self::Child(child) => {
                if let Some(pid) = child.id().and_then(pid) {
                    let _ = rustix::process::kill_process(pid, signal);
                }
            }
            Self::Adopted { ended, .. } => {
                let _ = rustix::process::pidfd_send_signal(ended.get_ref(), signal);
            }
        }
    }
}

/// How a child ended, in words.
pub fn describe(status: std::process::ExitStatus) -> Ending {
    use std::os::unix::process::ExitStatusExt;
    let code = status.code();
    match (code, status.signal()) {
        (Some(0), _) => Ending { what: "it ended by itself".to_owned(), fate: Fate::Orderly, code },
        (Some(number), _) => Ending { what: format!("exit code {number}"), fate: Fate::Orderly, code },
        (None, Some(signal)) => {
            let fault = [Signal::SEGV, Signal::ABORT, Signal::BUS, Signal::ILL, Signal::FPE, Signal::SYS];
            let fate = match signal {
                _ if fault.iter().any(|fault| fault.as_raw() == signal) => Fate::Faulted,
                _ if signal == Signal::KILL.as_raw() => Fate::Killed,
                _ => Fate::Orderly,
            };
            Ending { what: format!("signal {signal}"), fate, code }
        }
        (None, None) => Ending::unknown("in a way that the system does not tell".to_owned()),
    }
}

/// Writes a small file of the `run` directory so that readers see the old one or the new one.
pub fn write_run_file(path: &Path, content: &str) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = PathBuf::from(temporary);
    std::fs::write(&temporary, content)?;
    std::fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_start() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("host.json");
        let own = Trace::of(std::process::id()).unwrap();
        write_run_file(&path, &serde_json::to_string(&own).unwrap()).unwrap();
        assert_eq!(Trace::read(&path), Some(own));
        let other = Trace { start: own.start + 1, ..own };
        write_run_file(&path, &serde_json::to_string(&other).unwrap()).unwrap();
        assert_eq!(Trace::read(&path), None);
        write_run_file(&path, "garbage").unwrap();
        assert_eq!(Trace::read(&path), None);
        std::fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(Trace::read(&path), None);
    }

    #[tokio::test]
    async fn the_end_of_a_stranger_is_seen() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let mut process = Process::adopt(child.id()).unwrap();
        assert_eq!(process.id(), Some(child.id()));
        process.signal(Signal::KILL);
        process.ended().await;
        let ending = describe(child.wait().unwrap());
        assert_eq!((ending.what.as_str(), ending.fate), ("signal 9", Fate::Killed));
        assert!(Process::adopt(u32::MAX).is_err());
    }
}
