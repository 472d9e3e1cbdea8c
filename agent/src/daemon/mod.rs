//! The agent's one loop: messages, the host's fate, outcomes, questions and time, one at a time.
//!
//! Everything that decides lives elsewhere; this carries between them. It runs on one thread, so
//! nothing is ever half-changed when something else looks. No failure of the store ends the agent: the
//! host goes on serving, and a disk that is full, read-only or broken is waited out ([`disk`]).

mod credentials;
mod disk;
mod host;
mod link;
mod local;
mod messages;
mod say;
mod start;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use selvedge_mqtt::{AddressError, BrokerAddress, Inbox, Incoming};
use selvedge_package::trust::TrustState;
use selvedge_protocol::envelope::Body;
use selvedge_protocol::message::DeviceState;
use selvedge_protocol::topic::Kind;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::activate::{Activation, Outcome, Told};
use crate::clock;
use crate::clock::Floor;
use crate::config::Config;
use crate::credential::Machine;
use crate::enrolment::Enrolment;
use crate::failure::chain;
use crate::identity::{Identity, IdentityError};
use crate::lock::{Lock, LockError};
use crate::notify::Notify;
use crate::remote::{Done, Logs, Rate, Remote};
use crate::report::Reporter;
use crate::status::Question;
use crate::store::{Disk, RealDisk, Store, StoreError};
use crate::supervise::{Farewell, HostEvent, ListenError, Supervisor};

use credentials::Asking;
use disk::DiskHealth;
use link::Link;

/// How often mere progress is reported.
const PROGRESS: Duration = Duration::from_secs(5);
/// Wait for an earlier agent to end, before it counts as running.
const LOCK: Duration = Duration::from_secs(1);
/// Wait before another try to start on a disk that takes no writes.
const START: Duration = Duration::from_secs(10);
/// Longest time for saying goodbye to the broker.
const GOODBYE: Duration = Duration::from_secs(4);

/// Why the agent cannot run, or stopped.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum DaemonError {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("the device's storage failed")]
    Store(#[from] StoreError),
    #[error("the device has no usable identity")]
    Identity(#[from] IdentityError),
    #[error("the broker's address `{address}` cannot be used")]
    Broker { address: String, source: AddressError },
    #[error("the device's listeners cannot be had")]
    Listen(#[from] ListenError),
    #[error("cannot {action}")]
    System { action: &'static str, source: std::io::Error },
}

impl DaemonError {
    /// Whether it is the disk, which may take writes later.
    fn is_disk(&self) -> bool {
        let is_disk = |source: &std::io::Error| {
            use std::io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
            matches!(source.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem)
                || source.raw_os_error() == Some(libc::EIO)
        };
        match self {
            Self::Store(error) | Self::Identity(IdentityError::Store(error)) => error.is_disk(),
            Self::System { source, .. } | Self::Lock(LockError::Io { source, .. }) => is_disk(source),
            _ => false,
        }
    }
}

/// What the agent stands on.
#[derive(Debug, Clone)]
pub struct Ground {
    /// Where it keeps everything.
    pub disk: Arc<dyn Disk>,
    /// The agent's own program: what sets its children up.
    pub launcher: PathBuf,
}

impl Default for Ground {
    fn default() -> Self {
        Self { disk: Arc::new(RealDisk), launcher: "/proc/self/exe".into() }
    }
}

/// Runs the agent until it is told to stop.
/// What it logs is to reach `logs` too.
pub async fn run(config: Config, enrolment: Option<Enrolment>, logs: Logs) -> Result<(), DaemonError> {
    run_on(Ground::default(), config, enrolment, logs).await
}

/// Runs it on another ground: tests have a disk that fails.
pub async fn run_on(
    ground: Ground,
    config: Config,
    enrolment: Option<Enrolment>,
    logs: Logs,
) -> Result<(), DaemonError> {
    let system = |action| move |source| DaemonError::System { action, source };
    let mut notify = Notify::from_environment();
    // Before the signals: while it waits for the directory they simply end it.
    let _lock = loop {
        match Lock::take(&config.data, LOCK).map_err(DaemonError::from) {
            Err(error) if error.is_disk() => wait_for_the_disk(&error, &mut notify).await,
            taken => break taken?,
        }
    };
    let mut terminate = signal(SignalKind::terminate()).map_err(system("listen for SIGTERM"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(system("listen for SIGINT"))?;
    let (mut daemon, mut sources) = loop {
        match Daemon::start(&ground, &config, enrolment.clone(), logs.clone()).await {
            // It has written nothing down then. A host that runs goes on serving.
            Err(error) if error.is_disk() => tokio::select! {
                _ = terminate.recv() => return Ok(()),
                _ = interrupt.recv() => return Ok(()),
                () = wait_for_the_disk(&error, &mut notify) => {}
            },
            started => break started?,
        }
    };
    tracing::info!(device = %daemon.identity.device, data = %config.data.display(), "the agent runs");
    loop {
        if let Err(error) = daemon.settle() {
            daemon.endure(error);
        }
        notify.beat(clock::since_boot(), || daemon.summary());
        let wake = [daemon.wake_at(), notify.wake_at()].into_iter().flatten().min();
        let wake = wake.map(|at| at.saturating_sub(clock::since_boot()));
        let result = tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            incoming = next(&mut sources.inbox) => match incoming {
                Some(incoming) => daemon.incoming_all(incoming, sources.inbox.as_mut()),
                // The client has ended, to begin anew with another certificate.
                None if daemon.asking.reopening => {
                    sources.inbox = daemon.open_link();
                    Ok(())
                }
                None => break,
            },
            Some(event) = sources.host.recv() => daemon.host(event),
            Some(outcome) = sources.outcomes.recv() => {
                daemon.dirty |= !outcome.is_progress();
                daemon.activation.take(outcome)
            }
            Some(done) = sources.done.recv() => {
                daemon.answered(done);
                Ok(())
            }
            Some(question) = sources.questions.recv() => daemon.local(question),
            () = pause(wake) => daemon.activation.tick(),
        };
        if let Err(error) = result {
            daemon.endure(error);
        }
        if daemon.link.has_asked() {
            // Blocks that have come wait in the inbox by the dozen: the request for more goes out before
            // they are dealt with, so that more come meanwhile.
            tokio::task::yield_now().await;
        }
    }
    notify.stopping();
    daemon.stop(&config, sources).await;
    Ok(())
}

/// The agent cannot start on this disk: says so, and waits before the next try.
async fn wait_for_the_disk(error: &DaemonError, notify: &mut Notify) {
    let why = format!("{}: waiting for the disk before the start", chain(error));
    tracing::error!("{why}");
    notify.starting(&why, START * 6);
    tokio::time::sleep(START).await;
}

async fn next(inbox: &mut Option<Inbox>) -> Option<Incoming> {
    match inbox {
        Some(inbox) => inbox.recv().await,
        None => std::future::pending().await,
    }
}

async fn pause(wake: Option<Duration>) {
    match wake {
        Some(wake) => tokio::time::sleep(wake).await,
        None => std::future::pending().await,
    }
}

/// Where events come from.
struct Sources {
    /// None where the link is not open.
    inbox: Option<Inbox>,
    host: mpsc::Receiver<HostEvent>,
    outcomes: mpsc::UnboundedReceiver<Outcome>,
    questions: mpsc::Receiver<Question>,
    done: mpsc::UnboundedReceiver<Done>,
    supervisor: Supervisor,
}

struct Daemon {
    store: Store,
    identity: Identity,
    /// None where nothing is accepted: the device is detached, or what it trusted is damaged.
    trust: Option<TrustState>,
    /// Its floor, as TLS goes by it.
    floor: Floor,
    broker: BrokerAddress,
    credentials: Machine,
    asking: Asking,
    /// When the agent started, since boot.
    started: Duration,
    activation: Activation,
    reporter: Reporter,
    link: Link,
    remote: Remote,
    /// How often what comes from outside is worth a line of the log.
    noise: Rate,
    nonce: Vec<u8>,
    /// Whether somebody said that the key is accepted. Only a signed acknowledgement proves it.
    said_accepted: bool,
    /// Why the newest desired state was refused.
    refused: Option<String>,
    /// Whether the accepted one echoes this run's nonce.
    fresh: Option<bool>,
    /// Why nothing is accepted: the store has failed in an acceptance, or what follows.
    latched: Option<String>,
    /// Why nothing is accepted before a person has done something: the trust state is damaged.
    distrust: Option<String>,
    /// Why there is no connection, no host, no enrolment.
    offline: Option<String>,
    hostless: Option<String>,
    unenrolled: Option<String>,
    /// Why there is nothing to show to the broker.
    unshown: Option<String>,
    reported: Option<DeviceState>,
    reported_at: Duration,
    refused_at: Option<Duration>,
    /// When the device last introduced itself because of a refusal.
    introduced_at: Option<Duration>,
    /// What is to be reported and not yet written down.
    told: VecDeque<Told>,
    /// Whether the facts are to be reported.
    facts: bool,
    disk: DiskHealth,
    /// Whether something but progress may have changed.
    dirty: bool,
}

impl Daemon {
    /// Carries on what the last event left to be done.
    fn settle(&mut self) -> Result<(), StoreError> {
        let now = clock::since_boot();
        if let Some(due) = self.link.due(now) {
            self.speak(due);
        }
        self.mind_the_reserve(now);
        if !self.disk.waits(now) {
            self.recover()?;
            self.write_down(now)?;
        }
        if self.may_talk()
            && !self.disk.is_broken()
            && let Some(rows) = self.reporter.due(now)?
        {
            self.link.say(Kind::State, Body::State(rows));
        }
        Ok(())
    }

    /// The part of it that needs room on the disk.
    fn write_down(&mut self, now: Duration) -> Result<(), StoreError> {
        self.tell()?;
        if self.facts {
            self.report_facts()?;
            self.facts = false;
        }
        self.mind_the_certificate(now)?;
        // What is done for one errand may make others.
        loop {
            let errands = self.activation.errands();
            if errands.is_empty() {
                break;
            }
            for need in errands.needs {
                self.link.need(need);
            }
            self.told.extend(errands.told);
            self.tell()?;
            for bytes in errands.pulled {
                self.wanted(&bytes)?;
            }
        }
        if !self.activation.awaits_blocks() {
            self.link.awaits(false);
        }
        if self.dirty || now >= self.reported_at + PROGRESS {
            self.report_state(now)?;
        }
        self.disk.over();
        Ok(())
    }

    fn wake_at(&self) -> Option<Duration> {
        let reads = self.may_talk() && !self.disk.is_broken();
        let rows = reads.then(|| self.reporter.wake_at()).flatten();
        // It is minded with what is written down.
        let certificate = if self.disk.is_waiting() { None } else { self.certificate_wakes_at() };
        let room = self.disk.wake_at();
        [self.activation.wake_at(), self.link.wake_at(), rows, room, certificate].into_iter().flatten().min()
    }

    /// Ends in order: what has come is durable, the broker is told, the host is left or ended.
    async fn stop(mut self, config: &Config, mut sources: Sources) {
        for error in [self.activation.stopping().err(), self.activation.end().err()].into_iter().flatten() {
            tracing::warn!("{}", chain(&error));
        }
        // What was still being kept is counted by now.
        tracing::info!(chunks = self.activation.chunks(), "the agent ends");
        self.link.close();
        // The supervisor must not wait for somebody to take its events.
        drop(sources.host);
        let goodbye = async {
            if let Some(inbox) = &mut sources.inbox {
                while inbox.recv().await.is_some() {}
            }
        };
        let farewell = if config.host_outlives { Farewell::Leave } else { Farewell::End };
        let (_, ()) = tokio::join!(tokio::time::timeout(GOODBYE, goodbye), sources.supervisor.stop(farewell));
        let _ = std::fs::remove_file(config.data.join("run/agent.sock"));
    }
}
