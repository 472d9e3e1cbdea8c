//! The agent's one loop: messages, the host's fate, outcomes, questions and time, one at a time.
//!
//! Everything that decides lives elsewhere; this carries between them. It runs on one thread, so
//! nothing is ever half-changed when something else looks. A failure of the store ends the agent:
//! what is on disk is whole, the host goes on serving, and the next start takes up from there. A
//! full disk does not: it is waited out ([`full`]).

mod credentials;
mod full;
mod link;
mod local;
mod messages;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use selvedge_mqtt::{AddressError, BrokerAddress, Inbox, Incoming};
use selvedge_package::trust::TrustState;
use selvedge_protocol::envelope::Body;
use selvedge_protocol::message::{Accepted, Birth, COMMANDS, DeviceState, Heartbeat, INFER, ReportBody};
use selvedge_protocol::topic::Kind;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::activate::{Activation, Outcome, Parts, Told};
use crate::clock::Floor;
use crate::config::Config;
use crate::credential::Machine;
use crate::enrolment::Enrolment;
use crate::failure::chain;
use crate::fetch::Hardware;
use crate::identity::{Established, Identity, IdentityError, next_epoch};
use crate::import::Taker;
use crate::lock::{Lock, LockError};
use crate::memory::Memory;
use crate::remote::{Done, Logs, Rate, Remote};
use crate::report::Reporter;
use crate::status::{Question, Status, root_versions};
use crate::store::{RealDisk, Replaces, Store, StoreError};
use crate::supervise::{
    Farewell, HostEvent, HostProgram, ListenError, Options, Probe, Supervisor, listen_privately,
};
use crate::{clock, facts, status};

use credentials::Asking;
use full::Full;
use link::{Due, Link};

/// Largest block that the agent takes, in bytes.
const LARGEST_BLOCK: u32 = 65536;
/// How often mere progress is reported.
const PROGRESS: Duration = Duration::from_secs(5);
/// Lines in a row about what comes from outside, and one more every so often.
const NOISE: (u32, Duration) = (20, Duration::from_secs(30));
/// Wait for an earlier agent to end, before it counts as running.
const LOCK: Duration = Duration::from_secs(1);
/// Wait before another try to start on a full disk.
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
    fn is_full(&self) -> bool {
        match self {
            Self::Store(error) | Self::Identity(IdentityError::Store(error)) => error.is_full(),
            _ => false,
        }
    }
}

/// Runs the agent until it is told to stop.
/// What it logs is to reach `logs` too.
pub async fn run(config: Config, enrolment: Option<Enrolment>, logs: Logs) -> Result<(), DaemonError> {
    let system = |action| move |source| DaemonError::System { action, source };
    // Before the signals: while it waits for the directory they simply end it.
    let _lock = Lock::take(&config.data, LOCK)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(system("listen for SIGTERM"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(system("listen for SIGINT"))?;
    let (mut daemon, mut sources) = loop {
        match Daemon::start(&config, enrolment.clone(), logs.clone()).await {
            // It has written nothing down then. A host that runs goes on serving.
            Err(error) if error.is_full() => {
                tracing::error!("{}: waiting for room before the start", chain(&error));
                tokio::select! {
                    _ = terminate.recv() => return Ok(()),
                    _ = interrupt.recv() => return Ok(()),
                    () = tokio::time::sleep(START) => {}
                }
            }
            started => break started?,
        }
    };
    tracing::info!(device = %daemon.identity.device, data = %config.data.display(), "the agent runs");
    let ended = loop {
        if let Err(error) = daemon.settle().or_else(|error| daemon.wait_for_room(error)) {
            break Err(error);
        }
        let wake = daemon.wake_at().map(|at| at.saturating_sub(clock::since_boot()));
        let result = tokio::select! {
            _ = terminate.recv() => break Ok(()),
            _ = interrupt.recv() => break Ok(()),
            incoming = next(&mut sources.inbox) => match incoming {
                Some(incoming) => daemon.incoming(incoming),
                // The client has ended, to begin anew with another certificate.
                None if daemon.asking.reopening => {
                    sources.inbox = daemon.open_link();
                    Ok(())
                }
                None => break Ok(()),
            },
            Some(event) = sources.host.recv() => daemon.host(event),
            Some(outcome) = sources.outcomes.recv() => {
                daemon.dirty = true;
                daemon.activation.take(outcome)
            }
            Some(done) = sources.done.recv() => {
                daemon.answered(done);
                Ok(())
            }
            Some(question) = sources.questions.recv() => daemon.local(question),
            () = pause(wake) => daemon.activation.tick(),
        };
        if let Err(error) = result.or_else(|error| daemon.wait_for_room(error)) {
            break Err(error);
        }
    };
    daemon.stop(&config, sources).await;
    Ok(ended?)
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
    /// Why nothing is accepted any more: the store has failed in an acceptance.
    latched: Option<String>,
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
    full: Full,
    /// Whether something but progress may have changed.
    dirty: bool,
}

impl Daemon {
    async fn start(
        config: &Config,
        enrolment: Option<Enrolment>,
        logs: Logs,
    ) -> Result<(Self, Sources), DaemonError> {
        let system = |action| move |source| DaemonError::System { action, source };
        let store = Store::open(Arc::new(RealDisk), &config.data)?;
        let run = config.data.join("run");
        make_private(&run).map_err(system("make the run directory"))?;
        make_private(&config.data.join("host")).map_err(system("make the host's directory"))?;
        let Established { mut identity, trust, credentials, distrust, unshown } =
            Identity::establish(&store, enrolment.as_ref())?;
        if let Some(why) = &distrust {
            tracing::error!("nothing is accepted: {why}");
        }
        let key = Arc::new(identity.key(&store)?);
        let epoch = next_epoch(store.database(), clock::system_ms() / 1000)?;
        let broker: BrokerAddress = identity
            .broker
            .parse()
            .map_err(|source| DaemonError::Broker { address: identity.broker.clone(), source })?;

        let (questioned, questions) = mpsc::channel(4);
        let listener = listen_privately(&run.join("agent.sock"))?;
        let listener = tokio::net::UnixListener::from_std(listener).map_err(system("use agent.sock"))?;
        tokio::spawn(status::answer(listener, questioned, Taker::new(store.clone())));

        let host_program = HostProgram {
            binary: config.host_binary.clone(),
            modules: config.modules.clone(),
            onnxruntime: config.onnxruntime.clone(),
        };
        let options = Options {
            data: config.data.clone(),
            http: config.http,
            launcher: "/proc/self/exe".into(),
            host: host_program.clone(),
            outlives: config.host_outlives,
        };
        let (host_events, host) = mpsc::channel(16);
        let supervisor = Supervisor::start(options, host_events).await?;

        let memory_mib = facts::memory_mib().unwrap_or(u64::from(u32::MAX));
        let (outcome, outcomes) = mpsc::unbounded_channel();
        let parts = Parts {
            store: store.clone(),
            hardware: Hardware { architecture: std::env::consts::ARCH, memory_mib },
            client: supervisor.client().clone(),
            probe: Probe {
                launcher: "/proc/self/exe".into(),
                host: host_program,
                log: config.data.join("host.log"),
                patience: config.probe,
                memory: config.probe_memory.unwrap_or((memory_mib << 20) / 4 * 3),
                sampled: Memory::default(),
            },
            memory: Memory::default(),
            load: config.load,
            outcomes: outcome,
        };
        let mut activation = Activation::resume(parts, rand::random())?;
        // Newest intent that was ever accepted, in case the agent was killed right after accepting.
        let mut fresh = None;
        let floor = Floor::default();
        if let Some(trust) = &trust {
            floor.raise(trust.floor());
            match trust.desired(&identity.device) {
                Ok(Some(desired)) => {
                    activation.desire(trust, &desired)?;
                    // It was signed before this run had a nonce.
                    fresh = Some(false);
                }
                Ok(None) => {}
                Err(error) => tracing::error!("the accepted desired state cannot be read: {}", chain(&error)),
            }
        }
        let reporter = Reporter::new(store.clone(), identity.device.clone(), Arc::clone(&key), epoch)?;
        let link = Link::new(identity.device.clone(), key, epoch, config.heartbeat);
        let (carried, done) = mpsc::unbounded_channel();
        let remote = Remote::new(logs, config.data.join("host.log"), epoch, carried);
        let nonce: [u8; 16] = rand::random();
        let mut daemon = Self {
            store,
            identity,
            trust,
            floor,
            broker,
            credentials: Machine::start(credentials),
            asking: Asking::default(),
            started: clock::since_boot(),
            activation,
            reporter,
            link,
            remote,
            noise: Rate::new(NOISE.0, NOISE.1),
            nonce: nonce.to_vec(),
            said_accepted: false,
            refused: None,
            fresh,
            latched: distrust,
            offline: Some("not connected yet".to_owned()),
            hostless: Some("the host is starting".to_owned()),
            unenrolled: None,
            unshown,
            reported: None,
            reported_at: Duration::ZERO,
            refused_at: None,
            introduced_at: None,
            told: VecDeque::new(),
            full: Full::default(),
            dirty: true,
        };
        let begun = daemon.report_facts().and_then(|()| daemon.activation.pursue());
        begun.or_else(|error| daemon.wait_for_room(error))?;
        if let Some(why) = daemon.latched.clone() {
            daemon.told.push_back(Told { kind: "trust-fault", package: None, what: why });
        }
        let inbox = daemon.open_link();
        Ok((daemon, Sources { inbox, host, outcomes, questions, done, supervisor }))
    }

    /// Whether the registry listens to more than an enrolment.
    fn may_talk(&self) -> bool {
        self.link.is_connected() && (self.identity.enrolled || self.said_accepted)
    }

    /// Carries on what the last event left to be done.
    fn settle(&mut self) -> Result<(), StoreError> {
        let now = clock::since_boot();
        if let Some(due) = self.link.due(now) {
            self.speak(due);
        }
        self.mind_the_reserve(now);
        if !self.full.waits(now) {
            self.write_down(now)?;
        }
        if self.may_talk()
            && let Some(rows) = self.reporter.due(now)?
        {
            self.link.say(Kind::State, Body::State(rows));
        }
        Ok(())
    }

    /// The part of it that needs room on the disk.
    fn write_down(&mut self, now: Duration) -> Result<(), StoreError> {
        self.tell()?;
        self.mind_the_certificate(now)?;
        // What is done for one errand may make others.
        loop {
            let errands = self.activation.errands();
            if errands.is_empty() {
                break;
            }
            for need in errands.needs {
                self.link.say(Kind::Need, Body::Need(need));
            }
            self.told.extend(errands.told);
            self.tell()?;
            for bytes in errands.pulled {
                self.wanted(&bytes)?;
            }
        }
        if self.dirty || now >= self.reported_at + PROGRESS {
            self.report_state(now)?;
        }
        self.full.over();
        Ok(())
    }

    fn wake_at(&self) -> Option<Duration> {
        let rows = self.may_talk().then(|| self.reporter.wake_at()).flatten();
        let (room, certificate) = (self.full.wake_at(), self.certificate_wakes_at());
        [self.activation.wake_at(), self.link.wake_at(), rows, room, certificate].into_iter().flatten().min()
    }

    /// Reports what the device runs, where that has changed.
    fn report_state(&mut self, now: Duration) -> Result<(), StoreError> {
        self.reported_at = now;
        let state = self.activation.report(self.refused.clone(), self.fresh);
        if self.reported.as_ref() != Some(&state) {
            self.reporter.push(ReportBody::State(state.clone()), Replaces::State)?;
            self.reported = Some(state);
        }
        self.dirty = false;
        Ok(())
    }

    fn report_facts(&mut self) -> Result<(), StoreError> {
        let facts = facts::gather(self.store.root(), self.activation.host());
        self.reporter.push(ReportBody::Facts(facts), Replaces::Facts)
    }

    fn speak(&mut self, due: Due) {
        let generation = self.activation.state().generation;
        let desired = self.trust.as_ref().map_or(0, TrustState::sequence);
        if !self.identity.enrolled {
            let token = self.identity.token.clone();
            self.enrol(&token);
            if !self.said_accepted {
                return;
            }
        }
        match due {
            Due::Heartbeat => {
                self.link.say(Kind::Heartbeat, Body::Heartbeat(Heartbeat { generation, desired }))
            }
            Due::Introduction => {
                let (image_root, director_root) = self.trust.as_ref().map(root_versions).unwrap_or_default();
                let accepted = self.trust.as_ref().map(TrustState::accepted_versions);
                let (image, director) = accepted.unwrap_or_default();
                let birth = Birth {
                    agent: env!("CARGO_PKG_VERSION").to_owned(),
                    capabilities: vec![COMMANDS.to_owned(), INFER.to_owned()],
                    largest_block: LARGEST_BLOCK,
                    generation,
                    desired,
                    image_root,
                    director_root,
                    nonce: self.nonce.clone(),
                    accepted: Accepted { image, director },
                };
                self.link.say(Kind::Birth, Body::Birth(birth));
            }
        }
    }

    fn host(&mut self, event: HostEvent) -> Result<(), StoreError> {
        self.dirty = true;
        match event {
            HostEvent::Up { status, adopted } => {
                tracing::info!(pid = status.pid, http = %status.http, adopted, "the host answers");
                self.hostless = None;
                self.activation.host_up(status)?;
                self.report_facts()
            }
            HostEvent::Noticed(event) if event.fatal => {
                self.reporter.event("host-fatal", Some(&event.package.name), event.what)
            }
            HostEvent::Noticed(event) => {
                tracing::debug!(package = %event.package.name, what = %event.what, "the host says");
                self.activation.noticed()
            }
            HostEvent::Down { what, named, crashed } => {
                let why = format!("the host ended: {what}");
                // One that never comes up is reported once, not at every try.
                if self.hostless.as_ref() != Some(&why) {
                    self.reporter.event("host-died", None, why.clone())?;
                    self.hostless = Some(why);
                }
                self.activation.host_down(&named, crashed)
            }
            HostEvent::Replaced(why) => self.reporter.event("host-replaced", None, why),
            HostEvent::Trouble(why) => {
                if self.hostless.as_ref() != Some(&why) {
                    self.reporter.event("host-trouble", None, why.clone())?;
                    self.hostless = Some(why);
                }
                Ok(())
            }
        }
    }

    fn status(&mut self) -> Status {
        let (image_root, director_root) = self.trust.as_ref().map(root_versions).unwrap_or_default();
        let certificate = self.certificate_trouble(self.now().at);
        let full = self.full.trouble();
        let latched = self.latched.as_ref().map(|why| format!("nothing is accepted: {why}"));
        let trouble = [&self.offline, &self.hostless, &self.unenrolled, &certificate, &full, &latched];
        Status {
            device: self.identity.device.clone(),
            kind: self.identity.kind,
            agent: Some(std::process::id()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            broker: self.identity.broker.clone(),
            connected: self.link.is_connected(),
            enrolled: self.identity.enrolled,
            detached: self.identity.detached,
            public_key: hex::encode(self.reporter.public_key().0),
            certificate: self.certificate(),
            clock: clock::trusted(),
            image_root,
            director_root,
            reports_waiting: self.store.database().rows_waiting().unwrap_or(0),
            chunks: self.activation.chunks(),
            trouble: trouble.into_iter().flatten().cloned().collect(),
            host: self.activation.host().cloned(),
            state: self.activation.report(self.refused.clone(), self.fresh),
        }
    }

    /// Ends in order: what has come is durable, the broker is told, the host is left or ended.
    async fn stop(mut self, config: &Config, mut sources: Sources) {
        tracing::info!(chunks = self.activation.chunks(), "the agent ends");
        self.activation.disconnected();
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

fn make_private(path: &std::path::Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}
