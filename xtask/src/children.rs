//! The programs that xtask started and that still run. Each is the leader of a process group of its
//! own where it may have children; a signal to xtask ends all of them before xtask itself ends.

use std::io::ErrorKind;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::clock;
use crate::run;

static RUNNING: Mutex<Vec<Entry>> = Mutex::new(Vec::new());
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// How long a program gets between being asked to end and being killed.
const GRACE: Duration = Duration::from_secs(20);

#[derive(Clone, Copy)]
struct Entry {
    pid: Pid,
    group: Group,
}

#[derive(Clone, Copy, PartialEq)]
enum Group {
    /// Shares ours: a terminal's Ctrl-C reaches it directly.
    Ours,
    /// Leads its own.
    Own,
}

/// A running program; dropped, it is asked to end, and killed when it does not.
pub struct Running {
    child: Child,
    entry: Entry,
    ended: Option<ExitStatus>,
}

/// Starts a program that shares our process group.
pub fn spawn(command: &mut Command) -> Result<Running> {
    start(command, Group::Ours)
}

/// Starts a program with a process group of its own: only we end it.
pub fn spawn_apart(command: &mut Command) -> Result<Running> {
    std::os::unix::process::CommandExt::process_group(command, 0);
    start(command, Group::Own)
}

fn start(command: &mut Command, group: Group) -> Result<Running> {
    let mut running = running();
    if interrupted() {
        bail!("interrupted");
    }
    let child = command.spawn().with_context(|| format!("starting `{}`", run::shown(command)))?;
    let pid = Pid::from_child(&child);
    let entry = Entry { pid, group };
    running.push(entry);
    Ok(Running { child, entry, ended: None })
}

impl Running {
    /// Takes the reading end of its standard output, when that is a pipe.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Takes the reading end of its standard error, when that is a pipe.
    pub fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }

    /// Its status, when it has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().context("waiting for a child")?;
            if self.ended.is_some() {
                self.forget();
            }
        }
        Ok(self.ended)
    }

    /// Waits until it ends; `None` when `limit` passed first.
    pub fn wait(&mut self, limit: Option<Duration>) -> Result<Option<ExitStatus>> {
        if limit.is_none() {
            let status = self.child.wait().context("waiting for a child")?;
            self.ended = Some(status);
            self.forget();
            return Ok(self.ended);
        }
        let limit = limit.unwrap_or_default();
        clock::wait_for(limit, || self.ended().transpose()).transpose()
    }

    /// Asks it to end, waits, and kills it when it does not.
    pub fn end(&mut self) -> Result<Option<ExitStatus>> {
        if self.ended()?.is_none() {
            self.entry.signal(Signal::TERM);
            if self.wait(Some(GRACE))?.is_none() {
                self.entry.signal(Signal::KILL);
                self.wait(Some(GRACE))?;
            }
        }
        Ok(self.ended)
    }

    /// Lets it go on after xtask ends.
    pub fn leave(mut self) -> Result<u32> {
        self.forget();
        // Reaps nothing and signals nothing: the drop below sees an ended child.
        self.ended = Some(ExitStatus::default());
        Ok(self.child.id())
    }

    fn forget(&self) {
        running().retain(|entry| entry.pid != self.entry.pid);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            run::say(format!("warning: {error:#}"));
        }
        self.forget();
    }
}

impl Entry {
    fn signal(self, signal: Signal) {
        let sent = match self.group {
            Group::Ours => kill_process(self.pid, signal),
            Group::Own if signal == Signal::KILL => kill_process_group(self.pid, signal),
            Group::Own => kill_process(self.pid, signal),
        };
        match sent {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(rustix::io::Errno::SRCH) => {}
            Err(error) => run::say(format!("warning: signalling {:?}: {error}", self.pid)),
        }
    }
}

fn running() -> MutexGuard<'static, Vec<Entry>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a signal asked us to end.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// From now on SIGINT, SIGTERM and SIGHUP end the children first; a second one kills them.
pub fn end_them_on_signals() {
    let handler = || {
        let again = INTERRUPTED.swap(true, Ordering::SeqCst);
        let signal = if again { Signal::KILL } else { Signal::TERM };
        for entry in running().iter() {
            entry.signal(signal);
        }
    };
    if let Err(error) = ctrlc::set_handler(handler) {
        run::say(format!("warning: signals are not handled: {error}"));
    }
}
