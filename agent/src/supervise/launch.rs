//! The step between the agent and a child: a process of the agent's own program that sets itself up
//! and becomes the child.
//!
//! A session of its own, limits and inherited listeners can only be set inside the new process,
//! before its program starts. Doing that here, in `selvedge-agent launch`, needs no unsafe code and
//! allocates freely. Listeners come in as standard input (HTTP) and standard output (control) and
//! leave as descriptors from 3 on, as `LISTEN_FDS`, `LISTEN_FDNAMES` and `LISTEN_PID` say
//! (sd_listen_fds). A descriptor that the agent itself inherited may lie between them: it is named
//! `unknown`, as systemd does.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Resource, Rlimit, Signal};

use super::process::Trace;

/// Name of the hidden subcommand.
pub const SUBCOMMAND: &str = "launch";
/// How a launcher ends when it cannot become the child.
pub const CANNOT: i32 = 127;

/// What to set before the child's program starts.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
pub struct Launch {
    /// Makes a session of its own, so that no terminal reaches the child.
    #[arg(long)]
    pub session: bool,
    /// Has the kernel kill the child when this process, its parent, ends.
    #[arg(long, value_name = "PID")]
    pub die_with: Option<u32>,
    /// Bytes of private writable memory (RLIMIT_DATA).
    #[arg(long, value_name = "BYTES")]
    pub data_limit: Option<u64>,
    /// Seconds of processor time (RLIMIT_CPU).
    #[arg(long, value_name = "SECONDS")]
    pub cpu_limit: Option<u64>,
    /// Standard input is the HTTP listener, standard output the control listener.
    #[arg(long)]
    pub listeners: bool,
    /// Writes down which process this is before the program starts, so that a later agent finds it
    /// however early this one's agent ends.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

impl Launch {
    /// The command that runs this by way of the launcher.
    pub fn by(&self, launcher: &Path) -> Command {
        let mut command = Command::new(launcher);
        command.arg(SUBCOMMAND);
        for variable in crate::notify::VARIABLES {
            command.env_remove(variable);
        }
        if self.session {
            command.arg("--session");
        }
        for (flag, value) in [
            ("--die-with", self.die_with.map(u64::from)),
            ("--data-limit", self.data_limit),
            ("--cpu-limit", self.cpu_limit),
        ] {
            if let Some(value) = value {
                command.arg(flag).arg(value.to_string());
            }
        }
        if self.listeners {
            command.arg("--listeners");
        }
        if let Some(trace) = &self.trace {
            command.arg("--trace").arg(trace);
        }
        command.arg("--").args(&self.command);
        command
    }

    /// Becomes the child. Returns only where that fails.
    pub fn become_it(&self) -> io::Error {
        match self.set_up() {
            Ok((mut command, _inherited)) => command.exec(),
            Err(error) => error,
        }
    }

    fn set_up(&self) -> io::Result<(Command, Vec<OwnedFd>)> {
        if let Some(parent) = self.die_with {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may have ended before the kernel was asked.
            let now = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
            if now.and_then(|pid| u32::try_from(pid).ok()) != Some(parent) {
                return Err(io::Error::other("the agent that wanted this child has ended"));
            }
        }
        if self.session {
            rustix::process::setsid()?;
        }
        // When memory runs out the child goes before the agent. Not every system lets us say so.
        let _ = std::fs::write("/proc/self/oom_score_adj", "500");
        for (resource, limit) in [(Resource::Data, self.data_limit), (Resource::Cpu, self.cpu_limit)] {
            if let Some(limit) = limit {
                let limit = Some(limit);
                rustix::process::setrlimit(resource, Rlimit { current: limit, maximum: limit })?;
            }
        }
        if let Some(path) = &self.trace {
            let trace = Trace::of(std::process::id()).ok_or_else(|| io::Error::other("/proc is not there"));
            // On a full disk a host that serves is worth more than a note of it.
            if let Err(error) = trace.and_then(|trace| trace.write(path)) {
                eprintln!("selvedge-agent: cannot write {}: {error}", path.display());
            }
        }
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(io::Error::other("no program was named"));
        };
        let mut command = Command::new(program);
        command.args(arguments);
        let inherited = if self.listeners { pass_listeners(&mut command)? } else { Vec::new() };
        Ok((command, inherited))
    }
}

/// Moves the two listeners to descriptors from 3 on and says so in the environment.
fn pass_listeners(command: &mut Command) -> io::Result<Vec<OwnedFd>> {
    let http = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?;
    let control = rustix::io::fcntl_dupfd_cloexec(io::stdout(), 3)?;
    for listener in [&http, &control] {
        rustix::io::fcntl_setfd(listener, rustix::io::FdFlags::empty())?;
    }
    let nothing = std::fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(io::stderr())?;
    let names = names(http.as_raw_fd(), control.as_raw_fd());
    command
        .env("LISTEN_FDS", names.len().to_string())
        .env("LISTEN_FDNAMES", names.join(":"))
        .env("LISTEN_PID", std::process::id().to_string());
    Ok(vec![http, control])
}

fn names(http: RawFd, control: RawFd) -> Vec<&'static str> {
    (3..=http.max(control))
        .map(|fd| {
            if fd == http {
                "http"
            } else if fd == control {
                "control"
            } else {
                "unknown"
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_in_between_are_named_unknown() {
        assert_eq!(names(3, 4), ["http", "control"]);
        assert_eq!(names(5, 4), ["unknown", "control", "http"]);
        assert_eq!(names(4, 6), ["unknown", "http", "unknown", "control"]);
    }

    #[test]
    fn the_command_line_reads_back() {
        use clap::Parser;
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            launch: Launch,
        }
        let launch = Launch {
            session: true,
            die_with: Some(7),
            data_limit: Some(1 << 40),
            cpu_limit: None,
            listeners: true,
            trace: Some("run/host.json".into()),
            command: vec!["host".into(), "serve".into(), "--data".into(), "x".into()],
        };
        let command = launch.by(Path::new("agent"));
        let read = Line::parse_from(command.get_args()).launch;
        assert_eq!(read, launch);
    }
}
