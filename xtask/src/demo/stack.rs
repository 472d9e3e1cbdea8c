//! `selvedge up` as the demo's child, and the proof that nothing of it is left when it has ended:
//! programs of the stack name its folder on their command lines, and the kernel lists those.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::children::{self, Running};
use crate::run::{say, step};
use crate::{clock, paths};

/// Longest start, on a slow machine.
const START: Duration = Duration::from_secs(120);
/// How long a program may take to end after its parent did.
const LINGER: Duration = Duration::from_secs(5);
/// What `selvedge up` prints when all of it answers.
const READY: &str = "everything is ready";

/// The running stack. Dropped, it ends.
pub struct Stack {
    up: Option<Running>,
    folder: PathBuf,
}

impl Stack {
    /// Starts it and waits until it is ready.
    pub fn start(up: &mut Command, folder: &Path) -> Result<Self> {
        let log = folder.join("up.log");
        let file = File::create(&log).with_context(|| format!("making {}", log.display()))?;
        let errors = file.try_clone().context("copying a descriptor")?;
        up.stdin(Stdio::null()).stdout(file).stderr(errors);
        let mut stack = Self { up: Some(children::spawn_apart(up)?), folder: folder.to_owned() };
        step(&format!("waiting for the stack (log: {})", paths::shown(&log)), || stack.wait_ready(&log))?;
        for line in fs::read_to_string(&log).unwrap_or_default().lines() {
            say(format!("  {line}"));
            if line.contains(READY) {
                break;
            }
        }
        Ok(stack)
    }

    fn wait_ready(&mut self, log: &Path) -> Result<()> {
        let ready = clock::wait_for(START, || {
            let text = fs::read_to_string(log).unwrap_or_default();
            if text.contains(READY) {
                return Some(Ok(()));
            }
            self.still_runs().err().map(Err)
        });
        match ready {
            Some(result) => result,
            None => bail!("not ready after {START:?}\n{}", self.tail()),
        }
    }

    /// Fails when the stack has ended by itself.
    pub fn still_runs(&mut self) -> Result<()> {
        if children::interrupted() {
            bail!("interrupted");
        }
        let ended = self.up.as_mut().map(Running::ended).transpose()?.flatten();
        match ended {
            None => Ok(()),
            Some(status) => bail!("`selvedge up` ended with {status}\n{}", self.tail()),
        }
    }

    /// Address of the inference endpoint.
    pub fn inference(&self) -> Result<String> {
        let record = record(&self.folder).context("`selvedge up` left no record")?;
        Ok(record["inference"].as_str().context("the record has no inference address")?.to_owned())
    }

    /// Ends it; fails when a program of it is still there afterwards.
    pub fn end(mut self) -> Result<()> {
        step("stopping the stack", || {
            if let Some(mut up) = self.up.take() {
                up.end()?;
            }
            nothing_left(&self.folder)
        })
    }

    /// Lets it run on.
    pub fn leave(mut self) -> Result<()> {
        if let Some(up) = self.up.take() {
            up.leave()?;
        }
        Ok(())
    }

    fn tail(&self) -> String {
        let text = fs::read_to_string(self.folder.join("up.log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if let Some(up) = self.up.take() {
            drop(up);
            if let Err(error) = nothing_left(&self.folder) {
                say(format!("warning: {error:#}"));
            }
        }
    }
}

/// Removes what an earlier demo wrote; refuses while it still runs.
pub fn clear(folder: &Path) -> Result<()> {
    let alive = alive(folder);
    if !alive.is_empty() {
        let advice = up_pid(folder).map_or_else(String::new, |pid| format!(": `kill {pid}` ends it"));
        bail!("an earlier demo still runs ({}){advice}", shown(&alive));
    }
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    Ok(())
}

/// Process id of the `selvedge up` that the folder's record names.
pub fn up_pid(folder: &Path) -> Option<i64> {
    record(folder)?["pids"]["up"]["pid"].as_i64()
}

fn record(folder: &Path) -> Option<Value> {
    let text = fs::read_to_string(folder.join("stack/up.json")).ok()?;
    serde_json::from_str(&text).ok()
}

/// Kills what should have ended, and says so: it is a fault of the stack.
fn nothing_left(folder: &Path) -> Result<()> {
    if clock::wait_for(LINGER, || alive(folder).is_empty().then_some(())).is_some() {
        return Ok(());
    }
    let left = alive(folder);
    for (pid, _) in &left {
        if let Err(error) = kill_process(*pid, Signal::KILL) {
            say(format!("warning: killing {}: {error}", pid.as_raw_nonzero()));
        }
    }
    bail!("still running after the stack had ended, and killed: {}", shown(&left))
}

fn shown(processes: &[(Pid, String)]) -> String {
    let one = |(pid, name): &(Pid, String)| format!("{name} {}", pid.as_raw_nonzero());
    processes.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Processes with the stack's folder on their command line, by id and program.
fn alive(folder: &Path) -> Vec<(Pid, String)> {
    let stack = folder.join("stack");
    let (whole, short) = (stack.display().to_string(), paths::shown(&stack));
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let process = |entry: fs::DirEntry| {
        let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).into_owned();
        let here = fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == paths::root());
        let mut words = line.split('\0');
        let name = words.next()?.rsplit('/').next()?.to_owned();
        let named = |word: &str| word.starts_with(&whole) || (here && word.starts_with(&short));
        (name.starts_with("selvedge") && words.any(named)).then_some((pid, name))
    };
    entries.filter_map(Result::ok).filter_map(process).collect()
}
