//! Keeps one host running: starts it, adopts one that an earlier agent left, starts it again.
//!
//! The host serves without the agent and outlives it unless told otherwise. Its listeners are made
//! here and handed down, so nobody is refused while it is being restarted. What the host does with
//! packages is the driver's concern ([`crate::activate`]); this only says when it is there, what it
//! noticed, and when and how it ended.

mod backoff;
mod launch;
mod listeners;
mod log;
mod probe;
mod process;
mod replace;
mod take_over;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use selvedge_control::{Client, Event, HostStatus, PackageRef};
use tokio::sync::{mpsc, oneshot};

use backoff::Backoff;
pub use launch::{CANNOT, Launch, SUBCOMMAND};
pub use listeners::{ListenError, Listeners, listen_privately};
pub use probe::{Probe, Probed};
pub use process::{Process, Trace, write_run_file};

/// A host that answers nothing for so long after its start is started again.
const START: Duration = Duration::from_secs(60);
/// The host holds an events answer back for up to 30 s; one that takes longer is not well.
const EVENTS: Duration = Duration::from_secs(45);
/// Longest wait for an answer of a host that has missed one.
const HUNG: Duration = Duration::from_secs(5);
/// Unanswered questions after which a host counts as hung.
const MISSES: u32 = 3;
/// Exit code of a host that ends because a model cannot be stopped.
const CANNOT_STOP: i32 = 86;
/// Longest wait for a host's listeners.
const LISTENERS: Duration = Duration::from_secs(10);
/// How often the log's size is looked at.
const LOG_CHECK: Duration = Duration::from_secs(60);

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
}

impl Options {
    fn run_file(&self, name: &str) -> PathBuf {
        self.data.join("run").join(name)
    }

    /// The host's program and its arguments.
    fn command(&self) -> Vec<OsString> {
        let mut command = vec![self.host.binary.clone().into_os_string(), "serve".into()];
        command.extend(["--data".into(), self.data.join("host").into_os_string()]);
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
        /// Whether it broke by itself.
        crashed: bool,
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
        let mut adopted = adopt(&options).await;
        let mut listeners = match &adopted {
            Some((_, status)) => take_over(&client, &options, status).await,
            None => None,
        };
        if let Some((process, status)) = &mut adopted
            && let Some(why) = replace::difference(&options, process, status)
        {
            tracing::info!(pid = status.pid, "the host that runs is replaced: {why}");
            end(&client, &options, process).await;
            // Nobody takes events yet; there is room for this one.
            let _ = events.try_send(HostEvent::Replaced(why));
            listeners = listeners.filter(|_| replace::same_address(options.http, &status.http));
            adopted = None;
        }
        if adopted.is_none() && listeners.is_none() {
            listeners = Some(listen_patiently(&options).await?);
        }
        let (stop, stopped) = oneshot::channel();
        let attendant = Attendant { options, listeners, events, client: client.clone() };
        let task = tokio::spawn(attendant.run(adopted, stopped));
        Ok(Self { client, stop, task })
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
    let before =
        std::fs::read_to_string(options.run_file("http")).ok().and_then(|text| text.trim().parse().ok());
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

/// How attending to a host ended.
enum Over {
    Stopped(Farewell),
    Died { what: String, named: Vec<PackageRef>, crashed: bool },
}

struct Attendant {
    options: Options,
    listeners: Option<Listeners>,
    events: mpsc::Sender<HostEvent>,
    client: Client,
}

impl Attendant {
    async fn run(mut self, adopted: Option<(Process, HostStatus)>, mut stop: oneshot::Receiver<Farewell>) {
        let mut backoff = Backoff::default();
        let mut next = adopted.map(|(process, status)| (process, Some(status)));
        loop {
            let began = crate::clock::since_boot();
            let (mut process, status) = match next.take() {
                Some(found) => found,
                None => match self.launch() {
                    Ok(process) => (process, None),
                    Err(why) => {
                        let pause = backoff.ended(Duration::ZERO);
                        if self.tell_and_wait(HostEvent::Trouble(why), pause, &mut stop).await {
                            return;
                        }
                        continue;
                    }
                },
            };
            let over = self.attend(&mut process, status, &mut stop).await;
            match over {
                Over::Stopped(farewell) => {
                    if farewell == Farewell::End {
                        end(&self.client, &self.options, &mut process).await;
                    }
                    return;
                }
                Over::Died { what, named, crashed } => {
                    let _ = std::fs::remove_file(self.options.run_file("host.json"));
                    let ran = crate::clock::since_boot().saturating_sub(began);
                    let pause = backoff.ended(ran);
                    if self.tell_and_wait(HostEvent::Down { what, named, crashed }, pause, &mut stop).await {
                        return;
                    }
                }
            }
        }
    }

    /// Whether to stop.
    async fn tell_and_wait(
        &self,
        event: HostEvent,
        pause: Duration,
        stop: &mut oneshot::Receiver<Farewell>,
    ) -> bool {
        let _ = self.events.send(event).await;
        tokio::select! {
            _ = stop => true,
            () = tokio::time::sleep(pause) => false,
        }
    }

    fn launch(&mut self) -> Result<Process, String> {
        if self.listeners.is_none() {
            let listeners = listen(&self.options).map_err(|error| crate::failure::chain(&error))?;
            self.listeners = Some(listeners);
        }
        let Some(listeners) = &self.listeners else {
            return Err("there are no listeners".to_owned());
        };
        let launch = Launch {
            session: true,
            die_with: (!self.options.outlives).then(std::process::id),
            listeners: true,
            trace: Some(self.options.run_file("host.json")),
            command: self.options.command(),
            ..Launch::default()
        };
        let cannot =
            |error: std::io::Error| format!("cannot start {}: {error}", self.options.host.binary.display());
        let http = listeners.http.try_clone().map_err(cannot)?;
        let control = listeners.control.try_clone().map_err(cannot)?;
        let log = log::open(&self.options.data.join("host.log")).map_err(cannot)?;
        tokio::process::Command::from(launch.by(&self.options.launcher))
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(http)))
            .stdout(Stdio::from(std::os::fd::OwnedFd::from(control)))
            .stderr(log)
            .spawn()
            .map(Process::Child)
            .map_err(cannot)
    }

    /// Stays with one host until it ends or the agent does.
    async fn attend(
        &mut self,
        process: &mut Process,
        status: Option<HostStatus>,
        stop: &mut oneshot::Receiver<Farewell>,
    ) -> Over {
        let adopted = status.is_some();
        // One that is started writes itself down before its program starts.
        if adopted
            && let Some(trace) = process.id().and_then(Trace::of)
            && let Err(error) = trace.write(&self.options.run_file("host.json"))
        {
            tracing::warn!(%error, "cannot write host.json into the run directory");
        }
        let status = match status {
            Some(status) => status,
            None => tokio::select! {
                farewell = &mut *stop => return Over::Stopped(farewell.unwrap_or(Farewell::Leave)),
                ending = process.ended() => return Over::Died {
                    what: format!("the host did not start: {}; see host.log", ending.what),
                    named: Vec::new(),
                    crashed: false,
                },
                status = self.client.status(START) => match status {
                    Ok(status) => status,
                    Err(error) => {
                        process.signal(Signal::KILL);
                        process.ended().await;
                        let what = format!("the host did not answer after its start: {error}");
                        return Over::Died { what, named: Vec::new(), crashed: false };
                    }
                },
            },
        };
        self.note("http", &status.http);
        let _ = self.events.send(HostEvent::Up { status, adopted }).await;
        self.listen_to(process, stop).await
    }

    async fn listen_to(&self, process: &mut Process, stop: &mut oneshot::Receiver<Farewell>) -> Over {
        let mut since = 0;
        let mut misses = 0;
        let mut named = Vec::new();
        let mut log_check = Duration::ZERO;
        loop {
            tokio::select! {
                // What the host says before it ends is taken before its end.
                biased;
                events = self.client.events(since, EVENTS) => match events {
                    Ok(events) => {
                        misses = 0;
                        since = events.last;
                        // The host answers every half minute at least: no timer of our own is needed.
                        let now = crate::clock::since_boot();
                        if now >= log_check + LOG_CHECK {
                            log_check = now;
                            self.trim_log();
                        }
                        for event in events.events {
                            if event.fatal {
                                named.push(event.package.clone());
                            }
                            let _ = self.events.send(HostEvent::Noticed(event)).await;
                        }
                    }
                    Err(error) => {
                        misses += 1;
                        tracing::debug!(%error, misses, "the host does not tell its events");
                        let answers = tokio::select! {
                            ending = process.ended() => return self.died(ending, named),
                            answers = self.answers_still() => answers && misses < MISSES,
                        };
                        if !answers {
                            process.signal(Signal::KILL);
                            let ending = process.ended().await;
                            let what = "it did not answer any more, and was killed".to_owned();
                            return self.died(process::Ending { what, ..ending }, named);
                        }
                    }
                },
                farewell = &mut *stop => return Over::Stopped(farewell.unwrap_or(Farewell::Leave)),
                ending = process.ended() => return self.died(ending, named),
            }
        }
    }

    /// Whether a host that has missed a question answers a short one: one that hangs is not waited for
    /// as long as one that has nothing to tell.
    async fn answers_still(&self) -> bool {
        for _ in 1..MISSES {
            tokio::time::sleep(Duration::from_millis(500)).await;
            if self.client.status(HUNG).await.is_ok() {
                return true;
            }
        }
        false
    }

    fn trim_log(&self) {
        if let Err(error) = log::trim(&self.options.data.join("host.log")) {
            tracing::warn!(%error, "cannot cut the host's log");
        }
    }

    /// A host that could not stop a model says which, and once more in a file: the event may not
    /// have arrived.
    fn died(&self, ending: process::Ending, mut named: Vec<PackageRef>) -> Over {
        let record = self.options.data.join("host/fatal.json");
        if ending.code == Some(CANNOT_STOP) && named.is_empty() {
            let event =
                std::fs::read(&record).ok().and_then(|text| serde_json::from_slice::<Event>(&text).ok());
            named.extend(event.map(|event| event.package));
        }
        let _ = std::fs::remove_file(record);
        Over::Died { what: ending.what, named, crashed: ending.crashed }
    }

    fn note(&self, name: &str, content: &str) {
        if let Err(error) = write_run_file(&self.options.run_file(name), content) {
            tracing::warn!(%error, name, "cannot write into the run directory");
        }
    }
}

/// Has the host drain and end; kills it where it does not.
async fn end(client: &Client, options: &Options, process: &mut Process) {
    let _ = client.shutdown(Duration::from_secs(5)).await;
    for signal in [Signal::TERM, Signal::KILL] {
        if tokio::time::timeout(Duration::from_secs(10), process.ended()).await.is_ok() {
            break;
        }
        process.signal(signal);
    }
    let _ = std::fs::remove_file(options.run_file("host.json"));
}
