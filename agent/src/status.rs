//! What the device says about itself to a person in front of it, with or without a network.
//!
//! A running agent answers `GET /v1/status` on `run/agent.sock`. When none runs, the same is read
//! from a copy of the database; nothing is changed by looking.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use jiff::Timestamp;
use selvedge_control::{Client, HostStatus};
use selvedge_deployment::{State, StateRecord};
use selvedge_package::trust::{MetadataBundle, TrustState};
use selvedge_package::{DeviceId, Digest};
use selvedge_protocol::message::{Clock, DeviceState, Failure, PackageReport, Pending, ReleaseRef};
use serde::{Deserialize, Serialize};
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::credential::{Credential, Kept, KeptRecord, Machine, Origin};
use crate::enrolment::Kind;
use crate::failure::chain;
use crate::identity::Identity;
use crate::import::{self, ImportError, Permit, Taker};
use crate::lock::Lock;
use crate::store::{Database, Key, StoreError};
use crate::trust_show::{self, Held};
use crate::{bounded, clock};

/// The path that is answered.
pub const PATH: &str = "/v1/status";
/// People who may look at the same time.
const CALLERS: usize = 8;
/// Longest time for one of them.
const PATIENCE: Duration = Duration::from_secs(10);

/// Everything about the device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Who it is.
    pub device: DeviceId,
    /// What it is.
    pub kind: Kind,
    /// Process id of the agent; absent where none runs and this is what it left.
    pub agent: Option<u32>,
    /// Version of the agent that says this.
    pub version: String,
    /// The broker's address.
    pub broker: String,
    /// Whether there is a connection to it.
    pub connected: bool,
    /// Whether the registry has accepted the device's key.
    pub enrolled: bool,
    /// Whether it belongs to no registry any more.
    #[serde(default)]
    pub detached: bool,
    /// The device's public key, hex; empty where there is none.
    #[serde(default)]
    pub public_key: String,
    /// What it shows to its broker, where that asks for it.
    #[serde(default)]
    pub certificate: Option<ShownCertificate>,
    /// How far the clock is trusted.
    pub clock: Clock,
    /// Versions of the newest roots that are trusted.
    pub image_root: u64,
    /// See `image_root`.
    pub director_root: u64,
    /// Reports that wait for their acknowledgement.
    pub reports_waiting: u64,
    /// Chunks of packages that came and were kept since the agent's start.
    #[serde(default)]
    pub chunks: u64,
    /// What stands in the way at the moment, for people.
    pub trouble: Vec<String>,
    /// The host, where one answers.
    pub host: Option<HostStatus>,
    /// Every package.
    pub state: DeviceState,
}

/// What is shown to the broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownCertificate {
    /// Where it is from; absent where there is none.
    pub origin: Option<Origin>,
    /// From when it is valid.
    pub not_before: Option<Timestamp>,
    /// Until when.
    pub not_after: Option<Timestamp>,
    /// When another one is asked for.
    pub renew_at: Option<Timestamp>,
    /// Whether it is over, by the device's time.
    pub expired: bool,
    /// Whether it has not worked yet, and the old one is kept until it has.
    pub unproven: bool,
    /// Whether another one was asked for.
    pub asked: bool,
}

impl ShownCertificate {
    /// Of what is shown and kept.
    pub fn of(shown: Option<&Credential>, kept: &Kept, now: Timestamp) -> Self {
        Self {
            origin: shown.map(|shown| shown.origin),
            not_before: shown.map(|shown| shown.not_before),
            not_after: shown.map(|shown| shown.not_after),
            renew_at: shown.map(Credential::renew_at),
            expired: shown.is_some_and(|shown| shown.has_expired(now)),
            unproven: kept.next.is_some(),
            asked: kept.request.is_some(),
        }
    }

    /// For people.
    pub(crate) fn describe(&self) -> String {
        let (Some(origin), Some(until), Some(renew)) = (self.origin, self.not_after, self.renew_at) else {
            return "certificate: none".to_owned();
        };
        let whose = match origin {
            Origin::Enrolment => "the enrolment's",
            Origin::Issued => "its own",
        };
        let mut text = format!("certificate: {whose}, until {until}");
        if self.expired {
            text.push_str(", which is OVER");
        } else if origin == Origin::Issued {
            text.push_str(&format!(", renewed from {renew} on"));
        }
        if self.unproven {
            text.push_str("; a newer one has not worked yet");
        }
        if self.asked {
            text.push_str("; another one is asked for");
        }
        text
    }
}

/// Someone asks.
#[derive(Debug)]
pub enum Question {
    /// How it is.
    Status(oneshot::Sender<Status>),
    /// What it trusts.
    Trust(oneshot::Sender<Box<Held>>),
    /// A step of taking a file.
    Import(Step, oneshot::Sender<Result<Option<Permit>, ImportError>>),
}

/// A step of taking a file; see [`crate::import::Gate`].
#[derive(Debug)]
#[allow(missing_docs)]
pub enum Step {
    Judge(Box<MetadataBundle>, Option<DeviceId>),
    Keep(BTreeSet<Digest>),
    Accept(Box<MetadataBundle>),
    GiveUp(BTreeSet<Digest>),
}

/// Answers on the socket until the listener is dropped with its task.
pub async fn answer(listener: UnixListener, questions: mpsc::Sender<Question>, taker: Taker) {
    let callers = Arc::new(Semaphore::new(CALLERS));
    loop {
        let Ok(permit) = Arc::clone(&callers).acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept on agent.sock");
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        let (questions, taker) = (questions.clone(), taker.clone());
        tokio::spawn(async move {
            // A file takes as long as it takes; it is given up when nothing more of it comes.
            let imports = Arc::new(AtomicBool::new(false));
            let service = service_fn(|request: Request<Incoming>| {
                imports.fetch_or(request.uri().path() == import::PATH, Ordering::Relaxed);
                reply(request, questions.clone(), taker.clone())
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(PATIENCE)
                .max_buf_size(16 * 1024)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            tokio::pin!(connection);
            while tokio::time::timeout(PATIENCE, &mut connection).await.is_err() {
                if !imports.load(Ordering::Relaxed) {
                    break;
                }
            }
            drop(permit);
        });
    }
}

async fn reply(
    request: Request<Incoming>,
    questions: mpsc::Sender<Question>,
    taker: Taker,
) -> Result<Response<Full<Bytes>>, hyper::http::Error> {
    let say = |status: StatusCode, body: String| {
        Response::builder()
            .status(status)
            .header(hyper::header::CONTENT_TYPE, "application/json")
            .body(Full::from(body))
    };
    let refuse = |status: StatusCode, error: &str, reason: &str| {
        say(status, serde_json::json!({ "error": error, "reason": reason }).to_string())
    };
    let body = match (request.method(), request.uri().path()) {
        (&Method::GET, PATH) => ask(&questions, Question::Status).await,
        (&Method::GET, trust_show::PATH) => ask(&questions, Question::Trust).await,
        (&Method::POST, import::PATH) => match taker.take(request.into_body(), questions).await {
            Ok(imported) => serde_json::to_string(&imported).ok(),
            Err(error) => {
                return refuse(StatusCode::UNPROCESSABLE_ENTITY, &chain(&error), error.reason());
            }
        },
        (_, PATH | trust_show::PATH | import::PATH) => {
            return refuse(StatusCode::METHOD_NOT_ALLOWED, "another method is answered", "bad-request");
        }
        _ => {
            let here = "there are only /v1/status, /v1/trust and /v1/import here";
            return refuse(StatusCode::NOT_FOUND, here, "bad-request");
        }
    };
    match body {
        Some(body) => say(StatusCode::OK, body),
        None => refuse(StatusCode::SERVICE_UNAVAILABLE, "the agent is ending", "internal"),
    }
}

/// The answer to a question, as JSON; `None` where the agent is ending.
async fn ask<T: Serialize>(
    questions: &mpsc::Sender<Question>,
    question: impl FnOnce(oneshot::Sender<T>) -> Question,
) -> Option<String> {
    let (sender, answer) = oneshot::channel();
    questions.send(question(sender)).await.ok()?;
    serde_json::to_string(&answer.await.ok()?).ok()
}

/// Why nothing can be said.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// No agent ever ran there.
    #[error("there is no device in {}: `selvedge-agent run --data {0}` makes one", directory.display())]
    NoDevice {
        /// The data directory.
        directory: PathBuf,
    },
    /// An agent runs and does not answer.
    #[error("{holder} runs on it but does not answer")]
    Silent {
        /// Who holds the directory's lock.
        holder: String,
        /// What went wrong.
        #[source]
        source: selvedge_control::ClientError,
    },
    /// What it left cannot be read.
    #[error("cannot read what the device keeps")]
    Store(#[from] StoreError),
}

/// Asks the agent of a data directory, or reads what it left there.
pub async fn look(directory: &Path) -> Result<Status, StatusError> {
    let client = Client::new(directory.join("run/agent.sock"));
    match client.get::<Status>(PATH, PATIENCE).await {
        Ok(status) => Ok(status),
        Err(source) => match Lock::held_by(directory) {
            Some(holder) => Err(StatusError::Silent { holder, source }),
            None => left_behind(directory).await,
        },
    }
}

/// Bytes of a database that is looked at without an agent: far more than one ever has.
const LARGEST_DATABASE: u64 = 256 << 20;

/// A copy of the database of a data directory that no agent runs on.
pub(crate) fn database_of(directory: &Path) -> Result<Database, StatusError> {
    let path = directory.join("agent.redb");
    match bounded::read(&path, LARGEST_DATABASE) {
        Ok(bytes) => Ok(Database::from_bytes(&bytes)?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(StatusError::NoDevice { directory: directory.to_owned() })
        }
        Err(source) => Err(StoreError::Io { action: "read", path, source }.into()),
    }
}

async fn left_behind(directory: &Path) -> Result<Status, StatusError> {
    let database = database_of(directory)?;
    let Some(identity) = Identity::read(&database)? else {
        return Err(StatusError::NoDevice { directory: directory.to_owned() });
    };
    // A damaged record is what a person looks for here: it is said, and the rest is shown.
    let mut trouble = Vec::new();
    let trust: Option<TrustState> = sound(database.read(Key::Trust), &mut trouble)?;
    let record: Option<StateRecord> = database.read(Key::Deployment)?;
    // The host goes on without the agent.
    let host = Client::new(directory.join("run/control.sock")).status(Duration::from_secs(5)).await.ok();
    let state = stored_state(&record.map(State::from).unwrap_or_default(), host.as_ref());
    let versions = trust.as_ref().map(root_versions).unwrap_or_default();
    let kept: Option<KeptRecord> = sound(database.read(Key::Credentials), &mut trouble)?;
    let machine = Machine::start(kept.map(Kept::from).unwrap_or_default());
    let now = trust.as_ref().map_or_else(clock::built, |trust| trust.now(clock::synchronised(trust.floor())));
    let certificate =
        identity.broker_ca.is_some().then(|| ShownCertificate::of(machine.shown(), machine.kept(), now));
    Ok(Status {
        device: identity.device,
        kind: identity.kind,
        agent: None,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        broker: identity.broker,
        connected: false,
        enrolled: identity.enrolled,
        detached: identity.detached,
        public_key: Identity::public_key(directory).map(|key| hex::encode(key.0)).unwrap_or_default(),
        certificate,
        clock: clock::trusted(),
        image_root: versions.0,
        director_root: versions.1,
        reports_waiting: database.rows_waiting()?,
        chunks: 0,
        trouble,
        host,
        state,
    })
}

/// What was read, or nothing where the record is damaged, which is noted.
fn sound<T>(read: Result<Option<T>, StoreError>, trouble: &mut Vec<String>) -> Result<Option<T>, StoreError> {
    match read {
        Err(error @ StoreError::Record { .. }) => {
            trouble.push(chain(&error));
            Ok(None)
        }
        read => read,
    }
}

/// Versions of the Image root and of the Director root; 0 where one cannot be read.
pub fn root_versions(trust: &TrustState) -> (u64, u64) {
    (trust.image_root_version().unwrap_or(0), trust.director_root_version().unwrap_or(0))
}

fn stored_state(state: &State, host: Option<&HostStatus>) -> DeviceState {
    let of = |release: &selvedge_deployment::Release| ReleaseRef {
        release: release.release,
        version: String::new(),
        digest: release.digest,
    };
    let packages = state.slots.iter().map(|(name, slot)| PackageReport {
        name: name.clone(),
        committed: slot.committed.as_ref().map(|committed| of(&committed.release)),
        pending: slot.stage.release().zip(slot.stage.word()).map(|(release, stage)| Pending {
            release: of(release),
            stage: stage.to_owned(),
            bytes: 0,
            total: 0,
        }),
        serving: slot.committed.as_ref().is_some_and(|committed| {
            host.is_some_and(|host| {
                host.packages.iter().any(|package| {
                    package.package.name == *name
                        && package.package.digest == committed.release.digest
                        && package.state == selvedge_control::PackageState::Serving
                })
            })
        }),
        failure: slot.failure.as_ref().map(|failure| Failure {
            release: failure.release,
            reason: failure.reason.clone(),
            what: failure.what.clone(),
        }),
    });
    DeviceState {
        generation: state.generation,
        desired: state.desired,
        refused: None,
        fresh: None,
        packages: packages.collect(),
    }
}

/// The status for people.
pub fn describe(status: &Status) -> String {
    let mut lines = Vec::new();
    match status.agent {
        Some(pid) => {
            lines.push(format!("device {}: agent {} runs, process {pid}", status.device, status.version))
        }
        None => lines.push(format!("device {}: NO AGENT RUNS; this is what it left behind", status.device)),
    }
    let link = match (status.connected, status.enrolled) {
        _ if status.detached => "detached: the device belongs to no registry",
        (true, true) => "connected",
        (true, false) => "connected, waiting for the registry to accept this device's key",
        (false, _) if status.agent.is_none() => "not connected",
        (false, _) => "no connection; it is tried again",
    };
    lines.push(format!("broker {}: {link}", status.broker));
    if !status.public_key.is_empty() {
        lines.push(format!("public key {}", status.public_key));
    }
    lines.extend(status.certificate.as_ref().map(ShownCertificate::describe));
    lines.push(format!(
        "desired state {}, generation {}, roots {}/{}, clock {}, {} reports wait",
        status.state.desired,
        status.state.generation,
        status.image_root,
        status.director_root,
        if status.clock == Clock::Synchronised { "synchronised" } else { "not synchronised" },
        status.reports_waiting
    ));
    if status.state.fresh == Some(false) {
        lines.push(
            "freshness: the accepted desired state does not echo a nonce of this run of the agent: a newer \
             one may be kept from this device"
                .to_owned(),
        );
    }
    match &status.host {
        Some(host) => lines.push(format!(
            "host {} with ONNX Runtime {}, process {}: inference at http://{}",
            host.version, host.onnxruntime, host.pid, host.http
        )),
        None => lines.push("host: none answers".to_owned()),
    }
    if status.state.packages.is_empty() {
        lines.push("no packages".to_owned());
    }
    for package in &status.state.packages {
        lines.push(describe_package(package));
    }
    if let Some(refused) = &status.state.refused {
        lines.push(format!("the newest desired state was refused: {refused}"));
    }
    lines.extend(status.trouble.iter().map(|trouble| format!("trouble: {trouble}")));
    lines.join("\n")
}

fn describe_package(package: &PackageReport) -> String {
    let mut text = format!("package {}:", package.name);
    match &package.committed {
        Some(release) => {
            let served = if package.serving { "answers" } else { "is not served" };
            text.push_str(&format!(" release {} {} {served}", release.release, release.version));
        }
        None => text.push_str(" nothing committed"),
    }
    if let Some(pending) = &package.pending {
        text.push_str(&format!("; release {} is {}", pending.release.release, pending.stage));
        if pending.total > 0 {
            text.push_str(&format!(" ({} of {} bytes)", pending.bytes, pending.total));
        }
    }
    if let Some(failure) = &package.failure {
        text.push_str(&format!(
            "; release {} failed ({}): {}",
            failure.release, failure.reason, failure.what
        ));
    }
    text
}
