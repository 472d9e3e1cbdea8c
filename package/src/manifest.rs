//! The package manifest: what a package is, holds, needs and promises.
//!
//! It is the `config` blob of the signed OCI manifest, as JSON. Unknown fields are refused, since a
//! device that overlooks a field may run what its author meant to forbid.

use std::collections::BTreeMap;

use semver::Version;
use serde::{Deserialize, Serialize};

use crate::name::{FilePath, PackageName};
use crate::origin::Origin;
use crate::tensor::TensorSpec;

/// The manifest, version 1 of its format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Manifest {
    /// Version of this format: 1.
    pub format: u32,
    /// Name under which the package is released, assigned and served.
    pub name: PackageName,
    /// Version for people (semantic versioning).
    pub version: Version,
    /// Release counter: grows with every release of this name, from 1.
    pub release: u64,
    /// No device that committed this package may later run a release below this one.
    #[serde(default)]
    pub min_release: u64,
    /// One line for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// SPDX expression.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub license: String,
    /// What a device must have.
    #[serde(default)]
    pub requires: Requires,
    /// The guest component and its limits.
    #[serde(default)]
    pub module: Module,
    /// The ONNX models, at least one.
    pub models: Vec<Model>,
    /// Other files that the module may read (labels, vocabularies).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FilePath>,
    /// What clients send.
    pub inputs: Vec<TensorSpec>,
    /// What clients get.
    pub outputs: Vec<TensorSpec>,
    /// Golden cases: without a passed one nothing is committed.
    pub acceptance: Acceptance,
    /// How versions follow one another on a device.
    #[serde(default)]
    pub activation: Activation,
    /// Settings that a deployment may override, with their defaults; a module reads them as `config`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    /// Web servers that have the package's blobs, too. Devices ask them first, in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<Origin>,
}

/// What a device must have to be offered the package.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Requires {
    /// `x86_64`, `aarch64`; empty: any.
    pub architectures: Vec<String>,
    /// Hardware labels that the device must carry with these values.
    pub labels: BTreeMap<String, String>,
    /// Memory of the device in MiB, as the kernel counts all of it.
    pub ram_mib: u32,
    /// Free disk in MiB, beyond the package itself.
    pub disk_mib: u32,
}

/// The guest component and its limits. Without `component` it is the built-in `direct`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Module {
    /// The component's file; absent: the built-in `direct` module.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub component: Option<FilePath>,
    /// What it may use of WASI 0.2; nothing by default.
    pub capabilities: Vec<Capability>,
    /// Linear memory of one instance, in MiB.
    pub memory_mib: u32,
    /// Wall time of one request, in milliseconds.
    pub deadline_ms: u32,
    /// Requests served side by side: the number of pooled instances.
    pub concurrency: u32,
    /// Whether an instance serves many requests or one.
    pub isolation: Isolation,
    /// Largest sum of a request's input tensors, and of its output tensors, in MiB.
    pub tensor_mib: u32,
    /// Sequences of requests between which the module keeps its state; absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequences: Option<Sequences>,
    /// Requests that may wait for their turn; absent: see [`Module::queue`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<u32>,
    /// Requests that wait together are answered by one run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batching: Option<Batching>,
}

/// How requests are put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Batching {
    /// Most rows of one run: the sum of its requests' first extents.
    pub max_size: u32,
    /// How long the first of them waits for others, in milliseconds, before it waits for its turn.
    #[serde(default)]
    pub max_delay_ms: u32,
}

impl Module {
    /// Waiting requests for each that may run, where the manifest says nothing.
    const WAITING_PER_RUNNING: u32 = 8;

    /// Fewest waiting requests then: a burst, or the moments in which a swap takes the processor, refuse nobody
    /// (at 200 requests a second this is more than half a second).
    const FEWEST_WAITING: u32 = 128;

    /// Requests that may wait for their turn.
    pub fn queue(&self) -> u32 {
        let usual = self.concurrency.saturating_mul(Self::WAITING_PER_RUNNING).max(Self::FEWEST_WAITING);
        self.queue.unwrap_or(usual)
    }
}

impl Default for Module {
    fn default() -> Self {
        Self {
            component: None,
            capabilities: Vec::new(),
            memory_mib: 64,
            deadline_ms: 10_000,
            concurrency: 2,
            isolation: Isolation::Package,
            tensor_mib: 256,
            sequences: None,
            queue: None,
            batching: None,
        }
    }
}

/// Sequences of requests. Each has an instance to itself, whose memory is its state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Sequences {
    /// How many there may be at once; one more is turned away.
    pub most: u32,
    /// Seconds without a request after which one ends.
    pub idle_seconds: u32,
}

impl Default for Sequences {
    fn default() -> Self {
        Self { most: 16, idle_seconds: 60 }
    }
}

/// A part of WASI 0.2 that a module may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Capability {
    /// Wall and monotonic clocks; without it time stands still.
    Clocks,
    /// Real random numbers; without it they are the same every time.
    Random,
    /// The package's own files, read-only, at `/package`.
    PackageFiles,
    /// The deployment's settings as environment variables.
    Environment,
}

/// Whether an instance serves many requests or one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// Instances are pooled for the package.
    #[default]
    Package,
    /// Each request gets a fresh instance.
    Request,
}

/// An ONNX model of the package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Model {
    /// The name by which the module opens it.
    pub name: PackageName,
    /// The ONNX file.
    pub file: FilePath,
    /// Files with its external data, beside it under the names that the ONNX file uses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub external_data: Vec<FilePath>,
    /// Threads of one run; 1 by default.
    #[serde(default = "one")]
    pub intra_op_threads: u32,
    /// What its operators run on, in the order in which they are taken; empty: the processor.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub execution_providers: Vec<ExecutionProvider>,
    /// Sessions, of which each runs one request at a time and may take the model's memory once more; 1 by default.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub sessions: u32,
}

/// Something that runs operators of ONNX models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExecutionProvider {
    /// The processor, as every ONNX Runtime has it.
    Cpu,
    /// NVIDIA's CUDA.
    Cuda,
    /// NVIDIA's TensorRT.
    Tensorrt,
    /// Intel's OpenVINO.
    Openvino,
    /// XNNPACK: the processor, with other kernels.
    Xnnpack,
    /// The Arm Compute Library.
    Acl,
}

impl ExecutionProvider {
    /// All that there are.
    pub const ALL: [Self; 6] =
        [Self::Cpu, Self::Cuda, Self::Tensorrt, Self::Openvino, Self::Xnnpack, Self::Acl];

    /// Its name in manifests.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Tensorrt => "tensorrt",
            Self::Openvino => "openvino",
            Self::Xnnpack => "xnnpack",
            Self::Acl => "acl",
        }
    }
}

impl std::fmt::Display for ExecutionProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for ExecutionProvider {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|provider| provider.name() == text).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|provider| provider.name()).collect();
            let text: String = text.chars().take(80).collect();
            format!("`{text}` is no execution provider; there are {}", known.join(", "))
        })
    }
}

fn one() -> u32 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_one(count: &u32) -> bool {
    *count == 1
}

/// Golden cases and how exactly they must be met.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Acceptance {
    /// Files, each one case (see `docs/package.md`); at least one.
    pub cases: Vec<FilePath>,
    /// Tolerance for floating-point outputs.
    #[serde(default)]
    pub tolerance: Tolerance,
    /// Other tolerances for single architectures, by their name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tolerance_by_architecture: BTreeMap<String, Tolerance>,
    /// Longest time that one case may take, in milliseconds; 0: the module's deadline.
    #[serde(default)]
    pub latency_ms: u32,
    /// Most memory that opening the package and running its cases may take in a process of its own, in MiB;
    /// 0: what the device has.
    #[serde(default)]
    pub memory_mib: u32,
}

impl Acceptance {
    /// The tolerance that holds on `architecture`.
    pub fn tolerance_on(&self, architecture: &str) -> Tolerance {
        self.tolerance_by_architecture.get(architecture).copied().unwrap_or(self.tolerance)
    }
}

/// `|actual - expected| <= absolute + relative * |expected|`; NaN equals NaN.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tolerance {
    /// Absolute part.
    pub absolute: f64,
    /// Relative part.
    pub relative: f64,
}

impl Default for Tolerance {
    fn default() -> Self {
        Self { absolute: 1e-5, relative: 1e-4 }
    }
}

/// How versions follow one another on a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Activation {
    /// Side by side, or one after the other where memory would not hold both.
    pub swap: Swap,
    /// Seconds on probation before commit.
    pub probation_seconds: u32,
    /// Requests on probation that end it early; 0: time alone.
    pub probation_requests: u32,
    /// Share of requests on probation that may fail by the package's fault, in percent; 100: all.
    pub probation_failures: u32,
    /// Time within which 95 of 100 answers on probation come, in milliseconds; 0: any.
    pub probation_latency_ms: u32,
    /// Memory by which the host may have grown since the package was opened, in MiB, as long as it is on
    /// probation; 0: any.
    pub probation_memory_mib: u32,
    /// How often the inputs of all cases are asked once more before the route moves.
    pub warm_up: u32,
}

impl Default for Activation {
    fn default() -> Self {
        Self {
            swap: Swap::Handover,
            probation_seconds: 0,
            probation_requests: 0,
            probation_failures: 50,
            probation_latency_ms: 0,
            probation_memory_mib: 0,
            warm_up: 1,
        }
    }
}

/// How a new version takes over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Swap {
    /// The new one loads beside the old one; no request fails.
    #[default]
    Handover,
    /// The old one is unloaded first.
    StopFirst,
}
