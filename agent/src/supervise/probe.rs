//! The throw-away child that opens a new package before the host does.
//!
//! What a model does to the process that loads it (endless optimisation, memory without bound, a
//! crash in native code) happens to this child, under limits and a deadline, and is then known.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use selvedge_control::{ProbeResult, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::attend::CANNOT_STOP;
use super::launch::{CANNOT, Launch};
use super::process::describe;
use super::{HostProgram, log};
use crate::memory::Memory;

/// How often a probe's memory is looked at. The kernel keeps the peak, so only what is taken in the
/// last moment before the end is missed.
const SAMPLE: Duration = Duration::from_millis(20);
/// Largest output of a probe that is read, in bytes.
const LARGEST_OUTPUT: u64 = 1024 * 1024;

/// How probes are run.
#[derive(Debug, Clone)]
pub struct Probe {
    /// The agent's own program, for `launch`.
    pub launcher: PathBuf,
    /// The host's program.
    pub host: HostProgram,
    /// Where standard error goes.
    pub log: PathBuf,
    /// Longest time.
    pub patience: Duration,
    /// Private writable memory in bytes.
    pub memory: u64,
    /// Where the kernel says how much memory it takes.
    pub sampled: Memory,
}

/// What came of a probe.
#[derive(Debug, Clone, PartialEq)]
pub enum Probed {
    /// It said what it found.
    Answered(ProbeResult),
    /// The package ended the child, or kept it beyond its limits: a word and a sentence.
    Failed {
        /// For programs.
        reason: &'static str,
        /// For people.
        what: String,
    },
    /// Something killed it: nobody here did. It may have been for want of memory.
    Killed(String),
    /// It could not be started; this says nothing about the package.
    NotRun(String),
}

impl Probe {
    /// Probes the package laid out in `directory` with the deployment's settings; also says how much memory,
    /// in bytes, the child had at most. Dropping the future kills the child.
    pub async fn run(&self, directory: &Path, settings: &Settings) -> (Probed, u64) {
        let mut peak = 0;
        let probed = self.watched(directory, settings, &mut peak).await;
        (probed, peak)
    }

    async fn watched(&self, directory: &Path, settings: &Settings, peak: &mut u64) -> Probed {
        let cpu = self.patience.as_secs().saturating_mul(2).max(1);
        let mut command = vec![self.host.binary.clone().into_os_string(), "probe".into()];
        command.extend(["--package".into(), directory.as_os_str().to_owned()]);
        command.push("--settings".into());
        command.extend(self.host.resources());
        let launch = Launch {
            session: true,
            die_with: Some(std::process::id()),
            data_limit: Some(self.memory),
            cpu_limit: Some(cpu),
            listeners: false,
            trace: None,
            command,
        };
        let not_run = |error: std::io::Error| {
            Probed::NotRun(format!("cannot start {}: {error}", self.host.binary.display()))
        };
        let log = match log::open(&self.log) {
            Ok(log) => log,
            Err(error) => return not_run(error),
        };
        let mut child = match tokio::process::Command::from(launch.by(&self.launcher))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
        {
            Ok(child) => child,
            Err(error) => return not_run(error),
        };
        let process = child.id();
        let mut output = Vec::new();
        let told = serde_json::to_vec(settings).unwrap_or_default();
        let stdin = child.stdin.take();
        // A child that does not listen ends for another reason, which is the one that is told.
        let tell = async {
            if let Some(mut stdin) = stdin {
                let _ = stdin.write_all(&told).await;
            }
        };
        let finish = async {
            if let Some(stdout) = child.stdout.take() {
                let read = async { stdout.take(LARGEST_OUTPUT).read_to_end(&mut output).await };
                tokio::join!(tell, read).1?;
            }
            child.wait().await
        };
        let watch = async {
            tokio::pin!(finish);
            let mut sample = tokio::time::interval(SAMPLE);
            loop {
                tokio::select! {
                    ended = &mut finish => return ended,
                    _ = sample.tick() => {
                        *peak = process.map_or(0, |process| self.sampled.peak_of(process)).max(*peak);
                    }
                }
            }
        };
        match tokio::time::timeout(self.patience, watch).await {
            Err(_) => Probed::Failed {
                reason: "probe-timeout",
                what: format!(
                    "opening it and running its acceptance cases took longer than {} s",
                    self.patience.as_secs()
                ),
            },
            Ok(Err(error)) => not_run(error),
            Ok(Ok(status)) => read(&output, status),
        }
    }
}

fn read(output: &[u8], status: std::process::ExitStatus) -> Probed {
    use std::os::unix::process::ExitStatusExt;
    let line = output.split(|byte| *byte == b'\n').rfind(|line| !line.trim_ascii().is_empty());
    match line.map(serde_json::from_slice::<ProbeResult>) {
        Some(Ok(result)) => Probed::Answered(result),
        _ if status.code() == Some(CANNOT) => {
            Probed::NotRun("the host's program cannot be run; see host.log".to_owned())
        }
        _ if status.code() == Some(CANNOT_STOP) => Probed::Failed {
            reason: "probe-timeout",
            what: "a model of it ran on after its deadline and could not be stopped".to_owned(),
        },
        // What else a package can bring about is told, or ends it by a signal.
        _ if status.code().is_some() => {
            Probed::NotRun(format!("the probe gave no result: {}; see host.log", describe(status).what))
        }
        _ if status.signal() == Some(Signal::KILL.as_raw()) => {
            Probed::Killed("the throw-away process that opened it was killed".to_owned())
        }
        _ => Probed::Failed {
            reason: "probe-crashed",
            what: format!("opening it ended the throw-away process: {}", describe(status).what),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn check(output: &str, status: i32, expected: &str) {
        let found = format!("{:?}", read(output.as_bytes(), ExitStatus::from_raw(status)));
        assert!(found.contains(expected), "{found}");
    }

    #[test]
    fn endings_of_a_probe() {
        let refused = r#"{"refused":{"error":"no","reason":"bad-model"}}"#;
        check(&format!("noise\n{refused}\n\n"), 1 << 8, "BadModel");
        check("", 9, "Killed");
        check("", 11, "probe-crashed");
        check("", CANNOT << 8, "NotRun");
        check("", CANNOT_STOP << 8, "could not be stopped");
        check("half a li", 1 << 8, "no result");
        check(&"[".repeat(200_000), 0, "no result");
    }
}
