//! Requests and answers of the control socket. Paths are in [`path`].

use std::path::PathBuf;

use selvedge_package::{Digest, PackageName};
use serde::{Deserialize, Serialize};

/// Paths of the control socket, and what they take and give.
pub mod path {
    /// GET → [`super::HostStatus`].
    pub const STATUS: &str = "/v1/status";
    /// GET `?since=N` → [`super::Events`]; waits up to 30 s for an event newer than `N`.
    pub const EVENTS: &str = "/v1/events";
    /// POST [`super::Load`] → [`super::Loaded`]: opens a package beside what is served and runs its
    /// acceptance cases; routes nothing. Loading what is loaded runs the cases again.
    pub const LOAD: &str = "/v1/packages/load";
    /// POST [`super::PackageRef`] → [`super::HostStatus`]: routes the package's name to this release.
    /// The one routed before drains and is dropped.
    pub const ACTIVATE: &str = "/v1/packages/activate";
    /// POST [`super::PackageRef`] → [`super::HostStatus`]: drains and drops; idempotent.
    pub const UNLOAD: &str = "/v1/packages/unload";
    /// POST → [`super::HostStatus`]: everything that is to be served is. Until then `/v2/health/ready`
    /// is 503, and so is a model that is not here, since it may still come; idempotent.
    pub const READY: &str = "/v1/ready";
    /// POST [`super::ListenersTo`] → 202: sends copies of both listeners ([`crate::listeners`]) there.
    pub const LISTENERS: &str = "/v1/listeners";
    /// POST → 202: drains and ends the process.
    pub const SHUTDOWN: &str = "/v1/shutdown";
}

/// A package on the host.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackageRef {
    /// Its name.
    pub name: PackageName,
    /// Digest of its OCI manifest.
    pub digest: Digest,
}

/// Opens a package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// Which.
    pub package: PackageRef,
    /// Directory with `package.json` (the OCI manifest), `manifest.json` (its config) and the files
    /// by their paths. The host checks every one against the digests before it uses it.
    pub directory: PathBuf,
    /// Settings of the deployment.
    #[serde(default)]
    pub settings: Settings,
    /// What it is opened for.
    #[serde(default)]
    pub purpose: Purpose,
    /// Milliseconds after which a host that still opens it, or runs its cases, ends and names it, since
    /// nothing else ends a hung load; 0: never.
    #[serde(default)]
    pub patience_ms: u64,
}

/// Settings of a deployment.
pub type Settings = std::collections::BTreeMap<String, String>;

/// Tells settings apart without showing them: the digest of their JSON.
pub fn settings_digest(settings: &Settings) -> Digest {
    // A map of texts always has a JSON form.
    Digest::of(&serde_json::to_vec(settings).unwrap_or_default())
}

/// What a package is opened for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// It is on trial: all its cases are run, and it is warmed up.
    #[default]
    Trial,
    /// It has been accepted before and is wanted back: its first case is run, and others for as long as
    /// that takes hardly any time.
    Serve,
}

/// Asks for the listeners.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListenersTo {
    /// A Unix socket on which whoever asks waits for them.
    pub socket: PathBuf,
}

/// What loading found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Loaded {
    /// Which.
    pub package: PackageRef,
    /// Every acceptance case, in the manifest's order.
    pub cases: Vec<CaseResult>,
    /// Time to open the models and the module, in milliseconds.
    pub load_ms: f64,
}

impl Loaded {
    /// Whether there was at least one case and all passed.
    pub fn accepted(&self) -> bool {
        !self.cases.is_empty() && self.cases.iter().all(|case| case.failure.is_none())
    }

    /// The first case that did not pass.
    pub fn first_failure(&self) -> Option<&CaseResult> {
        self.cases.iter().find(|case| case.failure.is_some())
    }
}

/// One acceptance case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CaseResult {
    /// The case's own name.
    pub case: String,
    /// Time that it took, in milliseconds.
    pub ms: f64,
    /// Why it failed: which output, which element, what was expected and what came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// The host as a whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostStatus {
    /// Process id.
    pub pid: u32,
    /// Version of the host program.
    pub version: String,
    /// Version of ONNX Runtime, as the library says it.
    pub onnxruntime: String,
    /// Address of the inference endpoint.
    pub http: String,
    /// Whether [`path::READY`] was said to it.
    #[serde(default)]
    pub ready: bool,
    /// Every loaded package.
    pub packages: Vec<PackageStatus>,
    /// How far the host's process is shut in; `None`: it does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confinement: Option<Confinement>,
}

/// How far a process is shut in: what each of the two keeps, or why it keeps nothing, in words that begin
/// with `on`, `in part` or `off`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    /// Files, connections and signals.
    pub landlock: String,
    /// System calls.
    pub seccomp: String,
}

/// A package as the host has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PackageStatus {
    /// Which.
    #[serde(flatten)]
    pub package: PackageRef,
    /// Version for people.
    pub version: String,
    /// Release counter.
    pub release: u64,
    /// What it is doing.
    pub state: PackageState,
    /// Requests answered well since it was loaded.
    pub requests: u64,
    /// Requests that ended in an error of the module, the model or a limit.
    pub failures: u64,
    /// Digest of the deployment's settings with which it was opened, as [`settings_digest`] has it.
    #[serde(default)]
    pub settings: Option<Digest>,
    /// Time within which 95 of 100 of its answers came, waiting for their turn not counted.
    #[serde(default)]
    pub latency_ms: f64,
    /// Bytes by which the host's own memory has grown since it was opened, whoever took them.
    #[serde(default)]
    pub memory: u64,
}

impl PackageStatus {
    /// A release that was opened just now with these settings, and asked nothing yet.
    pub fn staged(package: PackageRef, version: String, release: u64, settings: &Settings) -> Self {
        Self {
            package,
            version,
            release,
            state: PackageState::Staged,
            requests: 0,
            failures: 0,
            settings: Some(settings_digest(settings)),
            latency_ms: 0.0,
            memory: 0,
        }
    }
}

/// What a package on the host is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PackageState {
    /// Loaded, its acceptance cases run, not routed.
    Staged,
    /// Routed by its name.
    Serving,
    /// No longer routed, answering its last requests.
    Draining,
}

/// Events newer than the number asked for, oldest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Events {
    /// Number of the newest event known to the host: the next `since`.
    pub last: u64,
    /// The events.
    pub events: Vec<Event>,
}

/// Something that happened on the host without being asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Its number, growing from 1 with the host's start.
    pub number: u64,
    /// The package that it is about.
    pub package: PackageRef,
    /// What happened, for people.
    pub what: String,
    /// Whether the host ends because of it (a model that could not be stopped).
    pub fatal: bool,
}

/// Every error of the control socket has this body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlError {
    /// What was wrong, where, and what to do.
    pub error: String,
    /// A word for programs.
    pub reason: Reason,
}

/// Reason codes of refused loads and requests; they go into reports unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// A file of the package does not have its digest, or is missing.
    Corrupt,
    /// The manifest breaks a rule.
    BadManifest,
    /// The component is not one, or does not export a predictor.
    BadComponent,
    /// The model is not one that ONNX Runtime opens.
    BadModel,
    /// An acceptance case cannot be read.
    BadCase,
    /// No such package is loaded.
    NotLoaded,
    /// Memory, time or another limit.
    Limit,
    /// The request itself is wrong.
    BadRequest,
    /// A fault of the host.
    Internal,
}

/// What `selvedge-host probe` prints: one line of JSON on standard output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProbeResult {
    /// `probe --model FILE`: what is inside a bare model, and one recorded case.
    Model(ProbedModel),
    /// `probe --package DIR`: the package loaded and its cases run.
    Package(Loaded),
    /// Neither worked.
    Refused(ControlError),
}

/// A bare model: its inputs and outputs, and one case recorded from seeded inputs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProbedModel {
    /// Inputs in the model's order.
    pub inputs: Vec<selvedge_package::tensor::TensorSpec>,
    /// Outputs in the model's order.
    pub outputs: Vec<selvedge_package::tensor::TensorSpec>,
    /// Files that the model's external data names, relative to the model.
    pub external_data: Vec<String>,
    /// The recorded case, as a case file's JSON.
    pub case: serde_json::Value,
}
