//! One child of `selvedge up`: started in a process group of its own, so that Ctrl-C reaches only
//! `up`; its output in a log; ended by request first and by force after a grace.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use crate::failure::Failure;
use crate::supervisor::process::Process;

/// Lines of a log that an error shows.
const TAIL: usize = 15;

/// A running child.
pub struct Child {
    name: &'static str,
    process: tokio::process::Child,
    identity: Option<Process>,
    log: PathBuf,
}

impl Child {
    /// Starts `program`. The log of the start before is kept beside as `.1`.
    pub fn start(name: &'static str, program: &Path, args: &[OsString], log: &Path) -> Result<Self, Failure> {
        if log.exists() {
            let older = log.with_extension("log.1");
            std::fs::rename(log, &older).map_err(Failure::file("move", log))?;
        }
        let file = File::create(log).map_err(Failure::file("write", log))?;
        let second = file.try_clone().map_err(Failure::file("write", log))?;
        let process = tokio::process::Command::new(program)
            .args(args)
            // Its output is a file: no colours.
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(second)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|source| Failure::Start { program: program.to_owned(), source })?;
        let identity = process.id().and_then(Process::of);
        Ok(Self { name, process, identity, log: log.to_owned() })
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its identity, for the record.
    pub fn identity(&self) -> Option<Process> {
        self.identity
    }

    /// An error if it has ended.
    pub fn check(&mut self) -> Result<(), Failure> {
        match self.process.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.ended(status)),
            Err(source) => Err(Failure::Internal { what: "cannot wait for a child", source: source.into() }),
        }
    }

    /// Waits for its end, which is an error.
    pub async fn died(&mut self) -> Failure {
        match self.process.wait().await {
            Ok(status) => self.ended(status),
            Err(source) => Failure::Internal { what: "cannot wait for a child", source: source.into() },
        }
    }

    /// Asks it to end, and makes it end when it does not within `grace`.
    pub async fn end(&mut self, grace: Duration) {
        if let (Ok(None), Some(identity)) = (self.process.try_wait(), self.identity) {
            identity.signal(rustix::process::Signal::TERM);
            if tokio::time::timeout(grace, self.process.wait()).await.is_err() {
                // An error here means that it has ended by itself.
                let _ = self.process.kill().await;
            }
        }
    }

    fn ended(&self, status: ExitStatus) -> Failure {
        Failure::Ended {
            name: self.name,
            status: status.to_string(),
            log: self.log.clone(),
            tail: tail(&self.log),
        }
    }
}

/// The last lines of a log, indented.
fn tail(log: &Path) -> String {
    use std::io::{Read as _, Seek as _, SeekFrom};
    let mut bytes = Vec::new();
    let read = File::open(log).and_then(|mut file| {
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(8192)))?;
        file.take(8192).read_to_end(&mut bytes)
    });
    if read.is_err() || bytes.is_empty() {
        return "  (it is empty)".to_owned();
    }
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(TAIL);
    lines[from..].iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, log: &Path) -> Child {
        Child::start("test", Path::new("/bin/sh"), &["-c".into(), script.into()], log).unwrap()
    }

    #[tokio::test]
    async fn a_death_shows_the_end_of_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("test.log");
        let mut child = shell("for i in $(seq 30); do echo line $i; done; echo oops >&2; exit 3", &log);
        let failure = child.died().await;
        let text = failure.to_string();
        assert!(
            text.contains("exit status: 3") && text.contains("oops") && !text.contains("line 3\n"),
            "{text}"
        );
        assert!(child.check().is_err());
        shell("exit 0", &log).died().await;
        assert!(std::fs::read_to_string(dir.path().join("test.log.1")).unwrap().contains("oops"));
    }

    #[tokio::test]
    async fn an_end_by_force_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("test.log");
        let mut child = shell("trap '' TERM; echo ready; exec sleep 60", &log);
        while !std::fs::read_to_string(&log).unwrap().contains("ready") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let identity = child.identity().unwrap();
        child.end(Duration::from_millis(50)).await;
        assert!(!identity.is_alive());
    }

    #[tokio::test]
    async fn a_missing_program_says_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("none");
        let failure = Child::start("test", &missing, &[], &dir.path().join("l.log")).err().unwrap();
        assert!(failure.advice().unwrap().contains("side by side"));
    }
}
