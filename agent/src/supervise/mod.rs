//! Keeps one host running: starts it, adopts one that an earlier agent left, starts it again.
//!
//! The host serves without the agent and outlives it unless told otherwise. Its listeners are made
//! here and handed down, so nobody is refused while it is being restarted. What the host does with
//! packages is the driver's concern ([`crate::activate`]); this only says when it is there, what it
//! noticed, and when and how it ended.

mod attend;
mod backoff;
mod launch;
mod listeners;
mod log;
mod probe;
mod process;
mod replace;
mod service;
mod take_over;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use selvedge_control::{Client, Event, HostStatus, PackageRef};
use tokio::sync::{mpsc, oneshot};

use crate::bounded;
use attend::{Attendant, Keeper, end};
pub use launch::{CANNOT, Launch, SUBCOMMAND};
pub use listeners::{ListenError, Listeners, listen_privately};
pub use probe::{Probe, Probed};
pub use process::{Fate, Process, Trace, write_run_file};
pub use service::Ended;
use service::Service;

/// A host that answers nothing for so long after its start is started again.
const START: Duration = Duration::from_secs(60);
/// Longest wait for a host's listeners.
const LISTENERS: Duration = Duration::from_secs(10);
/// The host's program and what it needs.
#[derive(Debug, Clone)]
pub struct HostProgram {
    /// The executable.
    pub binary: PathBuf,
    /// Directory of built-in modules; `None`: the host's own choice.
    pub modules: Option<PathBuf>,
    /// The ONNX Runtime library; `None`: the host's own choice.
    pub onnxruntime: Option<PathBuf>,
}

impl HostProgram {
    fn resources(&self) -> Vec<OsString> {
        let mut arguments = Vec::new();
        for (flag, path) in [("--modules", &self.modules), ("--onnxruntime", &self.onnxruntime)] {
            if let Some(path) = path {
                arguments.extend([flag.into(), path.clone().into_os_string()]);
            }
        }
        arguments
    }
}

/// What the supervisor needs to know.
#[derive(Debug, Clone)]
pub struct Options {
    /// The agent's data directory.
    pub data: PathBuf,
    /// Where inference is served.
    pub http: SocketAddr,
    /// The agent's own program, for `launch`.
    pub launcher: PathBuf,
    /// The host's program.
    pub host: HostProgram,
    /// Whether the host goes on when the agent ends.
    pub outlives: bool,
    /// The control socket of a host that somebody else keeps running; `None`: the agent does.
    pub control: Option<PathBuf>,
}

impl Options {
    fn run_file(&self, name: &str) -> PathBuf {
        self.data.join("run").join(name)
    }

    /// The host's program and its arguments.
    fn command(&self) -> Vec<OsString> {
        let mut command = vec![self.host.binary.clone().into_os_string(), "serve".into()];
        command.extend(["--data".into(), self.data.join("host").into_os_string()]);
        // It can then read nothing else, this agent's keys least of all.
        command.extend(["--packages-below".into(), self.data.join("packages").into_os_string()]);
        command.extend(self.host.resources());
        command
    }

    fn client(&self) -> Client {
        Client::new(self.run_file("control.sock"))
    }
}

/// What became of the host.
#[derive(Debug)]
pub enum HostEvent {
    /// It is there and answers.
    Up {
        /// What it has.
        status: HostStatus,
        /// Whether an earlier agent started it.
        adopted: bool,
    },
    /// It noticed something about a package.
    Noticed(Event),
    /// It is gone; it will be started again.
    Down {
        /// How it ended, for people.
        what: String,
        /// Packages that it named before it ended.
        named: Vec<PackageRef>,
        /// Whose doing that was.
        fate: Fate,
    },
    /// One that an earlier agent left was ended, since it is not the one that is to run, and why.
    Replaced(String),
    /// It cannot be started, and why; tried again after a pause.
    Trouble(String),
}

/// What becomes of the host when the agent ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Farewell {
    /// It goes on serving.
    Leave,
    /// It drains and ends.
    End,
}

/// A running supervisor.
#[derive(Debug)]
pub struct Supervisor {
    client: Client,
    stop: oneshot::Sender<Farewell>,
    task: tokio::task::JoinHandle<()>,
}

impl Supervisor {
    /// Adopts the host that is there, or listens and starts one. Events go to `events`.
    ///
    /// # Errors
    /// [`ListenError`] where the addresses cannot be had at all.
    pub async fn start(options: Options, events: mpsc::Sender<HostEvent>) -> Result<Self, ListenError> {
        let client = options.client();
        if let Some(control) = &options.control {
            if let Some(why) = replace::end_ours(&options).await {
                // Nobody takes events yet; there is room for this one.
                let _ = events.try_send(HostEvent::Replaced(why));
            }
            let linked = Service::at(control, &options.data);
            let service = linked.map_err(|source| ListenError::Control { path: control.clone(), source })?;
            return Ok(Self::attending(options, Keeper::Service(service), client, events, None));
        }
        // What a service had: it is not ours to adopt, nor to listen in its place.
        let link = options.run_file("control.sock");
        if link.is_symlink() {
            let _ = std::fs::remove_file(link);
        }
        let mut adopted = adopt(&options).await;
        let mut listeners = match &adopted {
            Some((_, status)) => take_over(&client, &options, status).await,
            None => None,
        };
        if let Some((process, status)) = &mut adopted
            && let Some(why) = replace::difference(&options, process, status)
        {
            tracing::info!(pid = status.pid, "the host that runs is replaced: {why}");
            end(Some(&client), &options, process).await;
            // Nobody takes events yet; there is room for this one.
            let _ = events.try_send(HostEvent::Replaced(why));
            listeners = listeners.filter(|_| replace::same_address(options.http, &status.http));
            adopted = None;
        }
        if adopted.is_none() && listeners.is_none() {
            listeners = Some(listen_patiently(&options).await?);
        }
        Ok(Self::attending(options, Keeper::Agent(listeners), client, events, adopted))
    }

    fn attending(
        options: Options,
        keeper: Keeper,
        client: Client,
        events: mpsc::Sender<HostEvent>,
        adopted: Option<(Process, HostStatus)>,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let attendant = Attendant { options, keeper, events, client: client.clone() };
        let task = tokio::spawn(attendant.run(adopted, stopped));
        Self { client, stop, task }
    }

    /// A client of the control socket, whoever listens there.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Stops supervising; returns when the host is left or gone.
    pub async fn stop(self, farewell: Farewell) {
        let _ = self.stop.send(farewell);
        let _ = self.task.await;
    }
}

/// The host that an earlier agent left, if there is one that answers. One that does not is killed.
async fn adopt(options: &Options) -> Option<(Process, HostStatus)> {
    let found = options.client().status(Duration::from_secs(20)).await;
    if let Ok(status) = found
        && let Ok(process) = Process::adopt(status.pid)
    {
        return Some((process, status));
    }
    if let Some(left) = Trace::read(&options.run_file("host.json")) {
        tracing::warn!(pid = left.pid, "a host that does not answer is killed");
        left.kill(Duration::from_secs(10)).await;
    }
    None
}

/// Copies of its listeners. Without them callers are refused for a moment when it ends.
async fn take_over(client: &Client, options: &Options, status: &HostStatus) -> Option<Listeners> {
    let taken = take_over::take_over(client, status, &options.data.join("run"), LISTENERS).await;
    taken.map_err(|error| tracing::warn!("the host's listeners cannot be taken over: {error}")).ok()
}

fn listen(options: &Options) -> Result<Listeners, ListenError> {
    let before = bounded::read(&options.run_file("http"), bounded::NOTE)
        .ok()
        .and_then(|text| String::from_utf8(text).ok());
    let before = before.and_then(|text| text.trim().parse().ok());
    Listeners::bind(options.http, before, &options.run_file("control.sock"))
}

/// As [`listen`], waiting a moment for a host that was killed with its agent to let go of the address.
async fn listen_patiently(options: &Options) -> Result<Listeners, ListenError> {
    for _ in 0..20 {
        match listen(options) {
            Err(ListenError::Http { source, .. }) if source.kind() == std::io::ErrorKind::AddrInUse => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            other => return other,
        }
    }
    listen(options)
}
