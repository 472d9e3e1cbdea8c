//! A host that somebody else keeps running, as systemd does with a unit of its own and its sockets.
//!
//! The agent starts nothing and makes no listeners then: it steers whoever answers on the control socket.
//! Connecting to it may be what starts the host. How a host ended is told by the unit's `ExecStopPost`
//! (`selvedge-agent host-ended`), since only systemd was its parent.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use selvedge_control::{Client, HostStatus};
use serde::{Deserialize, Serialize};

use super::START;
use super::process::{Ending, Fate, Process, write_run_file};
use crate::bounded;
use crate::failure::chain;

/// Where the unit's note lies in the data directory: the host's own part of it.
const NOTE: &str = "host/ended.json";
/// Largest note that is read, in bytes.
const LARGEST_NOTE: u64 = 4096;
/// Longest wait for the note, and time between two looks.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(3), Duration::from_millis(50));

/// How systemd says that a service ended (systemd.exec(5): `SERVICE_RESULT`, `EXIT_CODE`, `EXIT_STATUS`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// `success`, `exit-code`, `signal`, `core-dump`, `oom-kill`, `watchdog`, …
    pub result: String,
    /// `exited`, `killed` or `dumped`.
    pub code: String,
    /// The exit code, or the signal's name.
    pub status: String,
}

impl Ended {
    /// As the variables of `ExecStopPost` say it.
    pub fn from_environment() -> Self {
        let variable = |name| std::env::var(name).unwrap_or_default();
        Self {
            result: variable("SERVICE_RESULT"),
            code: variable("EXIT_CODE"),
            status: variable("EXIT_STATUS"),
        }
    }

    /// Leaves it for the agent.
    pub fn note(&self, data: &Path) -> std::io::Result<()> {
        write_run_file(&data.join(NOTE), &serde_json::to_string(self).map_err(std::io::Error::other)?)
    }

    fn read(path: &Path) -> Option<Self> {
        serde_json::from_slice(&bounded::read(path, LARGEST_NOTE).ok()?).ok()
    }

    fn ending(&self) -> Ending {
        if self.result == "oom-kill" {
            let what = "it was killed for want of memory (signal 9)".to_owned();
            return Ending { what, fate: Fate::Starved, code: None };
        }
        match (self.code.as_str(), self.status.parse::<i32>()) {
            ("exited", Ok(0)) => {
                Ending { what: "it ended by itself".to_owned(), fate: Fate::Orderly, code: Some(0) }
            }
            ("exited", Ok(code)) => {
                Ending { what: format!("exit code {code}"), fate: Fate::Orderly, code: Some(code) }
            }
            _ => {
                // The words for faults, as opposed to signals that others send.
                let crashed = ["SEGV", "ABRT", "BUS", "ILL", "FPE", "SYS"].contains(&self.status.as_str());
                let known = ["KILL", "TERM", "INT", "HUP"].contains(&self.status.as_str());
                let fate = match &*self.status {
                    _ if crashed => Fate::Faulted,
                    "KILL" => Fate::Killed,
                    _ => Fate::Orderly,
                };
                let signal = match (&*self.status, crashed || known) {
                    ("KILL", _) => Signal::KILL.as_raw().to_string(),
                    (name, true) => name.to_owned(),
                    _ => "that the service did not name".to_owned(),
                };
                Ending { what: format!("signal {signal}"), fate, code: None }
            }
        }
    }
}

/// The host's service.
#[derive(Debug, Clone)]
pub(super) struct Service {
    note: PathBuf,
}

impl Service {
    /// Of the agent with this data directory. Its control socket is found where others look for it too.
    pub fn at(control: &Path, data: &Path) -> std::io::Result<Self> {
        let link = data.join("run/control.sock");
        match std::fs::remove_file(&link) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        std::os::unix::fs::symlink(control, &link)?;
        Ok(Self { note: data.join(NOTE) })
    }

    /// The host that answers.
    pub async fn find(&self, client: &Client) -> Result<(Process, HostStatus), String> {
        let status = client.status(START).await;
        let status =
            status.map_err(|error| format!("the host's service does not answer: {}", chain(&error)))?;
        let process = Process::adopt(status.pid)
            .map_err(|error| format!("the host's process {} cannot be watched: {error}", status.pid))?;
        // What is said of an earlier one says nothing of this one.
        let _ = std::fs::remove_file(&self.note);
        Ok((process, status))
    }

    /// How the host ended, where the service tells in time.
    pub async fn how(&self, unknown: Ending) -> Ending {
        let (patience, pause) = PATIENCE;
        let told = async {
            loop {
                if let Some(ended) = Ended::read(&self.note) {
                    return ended;
                }
                tokio::time::sleep(pause).await;
            }
        };
        match tokio::time::timeout(patience, told).await {
            Ok(ended) => ended.ending(),
            Err(_) => Ending { what: "how is not told by its service".to_owned(), ..unknown },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(result: &str, code: &str, status: &str, what: &str, fate: Fate, exit: Option<i32>) {
        let ended = Ended { result: result.into(), code: code.into(), status: status.into() };
        let ending = ended.ending();
        assert_eq!((ending.what.as_str(), ending.fate, ending.code), (what, fate, exit));
    }

    #[test]
    fn endings_are_told_as_of_a_child() {
        check("success", "exited", "0", "it ended by itself", Fate::Orderly, Some(0));
        check("exit-code", "exited", "86", "exit code 86", Fate::Orderly, Some(86));
        check("signal", "killed", "KILL", "signal 9", Fate::Killed, None);
        check("core-dump", "dumped", "SEGV", "signal SEGV", Fate::Faulted, None);
        check("signal", "killed", "ABRT", "signal ABRT", Fate::Faulted, None);
        check(
            "oom-kill",
            "killed",
            "KILL",
            "it was killed for want of memory (signal 9)",
            Fate::Starved,
            None,
        );
        check("", "", "\u{1b}[31m", "signal that the service did not name", Fate::Orderly, None);
    }

    #[tokio::test]
    async fn the_note_is_found_where_the_unit_leaves_it() {
        let place = tempfile::tempdir().unwrap();
        for folder in ["run", "host"] {
            std::fs::create_dir(place.path().join(folder)).unwrap();
        }
        let service = Service::at(Path::new("/run/selvedge/host.sock"), place.path()).unwrap();
        let service =
            Service::at(Path::new("/run/selvedge/other.sock"), place.path()).map(|_| service).unwrap();
        let link = std::fs::read_link(place.path().join("run/control.sock")).unwrap();
        assert_eq!(link, Path::new("/run/selvedge/other.sock"));
        let ended = Ended { result: "exit-code".into(), code: "exited".into(), status: "86".into() };
        ended.note(place.path()).unwrap();
        let unknown = Ending { what: String::new(), fate: Fate::Orderly, code: None };
        assert_eq!(service.how(unknown).await.code, Some(86));
    }
}
