//! What the server says about itself and about a model.

use selvedge_package::Manifest;
use selvedge_package::tensor::{Datatype, TensorSpec};
use serde::Serialize;

use super::request::{Parameter, Parameters};
use crate::confine::{self, Confinement};

/// `GET /v2`.
#[derive(Debug, Serialize)]
pub struct ServerMetadata {
    /// The program.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// Extensions of the protocol that are offered. `raw_body` is ours: `POST …/raw`.
    pub extensions: &'static [&'static str],
    /// How far its process is shut in.
    pub confinement: &'static Confinement,
}

/// What this server says about itself.
pub fn server() -> ServerMetadata {
    ServerMetadata {
        name: "selvedge-host",
        version: env!("CARGO_PKG_VERSION"),
        extensions: &["binary_tensor_data", "model_configuration", "raw_body", "sequence", "statistics"],
        confinement: confine::state(),
    }
}

/// `GET /v2/models/M`.
#[derive(Debug, Serialize)]
pub struct ModelMetadata<'a> {
    /// The package's name.
    pub name: &'a str,
    /// Versions that answer, the one that a request without a version gets first.
    pub versions: Vec<String>,
    /// Always `selvedge`.
    pub platform: &'static str,
    /// What clients send.
    pub inputs: &'a [TensorSpec],
    /// What they get.
    pub outputs: &'a [TensorSpec],
    /// Who answers: digests of the package and of its models.
    pub parameters: &'a Parameters,
}

impl<'a> ModelMetadata<'a> {
    /// The metadata of a package.
    pub fn new(manifest: &'a Manifest, versions: Vec<String>, parameters: &'a Parameters) -> Self {
        Self {
            name: manifest.name.as_str(),
            versions,
            platform: PLATFORM,
            inputs: &manifest.inputs,
            outputs: &manifest.outputs,
            parameters,
        }
    }
}

const PLATFORM: &str = "selvedge";

/// `GET /v2/models/M/config`, as Triton's clients read it: they ask for sizes and names.
#[derive(Debug, Serialize)]
pub struct ModelConfig<'a> {
    name: &'a str,
    platform: &'static str,
    backend: &'static str,
    /// Rows of one run, where requests are put together: the first extent is then not among `dims`. 0: the
    /// shapes are complete as they stand.
    max_batch_size: u32,
    input: Vec<TensorConfig<'a>>,
    output: Vec<TensorConfig<'a>>,
    instance_group: [InstanceGroup; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence_batching: Option<SequenceBatching>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dynamic_batching: Option<DynamicBatching>,
    parameters: ConfigParameters,
}

/// By this Triton's clients see that a model keeps sequences. None of their requests are batched.
#[derive(Debug, Serialize)]
struct SequenceBatching {
    max_sequence_idle_microseconds: u64,
    oldest: OldestSequence,
}

#[derive(Debug, Serialize)]
struct OldestSequence {
    max_candidate_sequences: u32,
}

#[derive(Debug, Serialize)]
struct TensorConfig<'a> {
    name: &'a str,
    data_type: String,
    dims: &'a [i64],
    /// As Triton says it of inputs; left out where it is not so.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    optional: bool,
}

#[derive(Debug, Serialize)]
struct DynamicBatching {
    max_queue_delay_microseconds: u64,
}

#[derive(Debug, Serialize)]
struct InstanceGroup {
    kind: &'static str,
    count: u32,
}

#[derive(Debug, Serialize)]
struct ConfigParameters {
    deadline_ms: StringValue,
    tensor_mib: StringValue,
}

#[derive(Debug, Serialize)]
struct StringValue {
    string_value: String,
}

impl<'a> ModelConfig<'a> {
    /// The configuration of a package.
    pub fn new(manifest: &'a Manifest) -> Self {
        let module = &manifest.module;
        let tensor = |spec| tensor(spec, module.batching.is_some());
        let text = |value: u32| StringValue { string_value: value.to_string() };
        Self {
            name: manifest.name.as_str(),
            platform: PLATFORM,
            backend: PLATFORM,
            max_batch_size: module.batching.map_or(0, |batching| batching.max_size),
            input: manifest.inputs.iter().map(tensor).collect(),
            output: manifest.outputs.iter().map(tensor).collect(),
            dynamic_batching: module.batching.map(|batching| DynamicBatching {
                max_queue_delay_microseconds: u64::from(batching.max_delay_ms) * 1000,
            }),
            instance_group: [InstanceGroup { kind: "KIND_CPU", count: module.concurrency }],
            sequence_batching: module.sequences.as_ref().map(|sequences| SequenceBatching {
                max_sequence_idle_microseconds: u64::from(sequences.idle_seconds) * 1_000_000,
                oldest: OldestSequence { max_candidate_sequences: sequences.most },
            }),
            parameters: ConfigParameters {
                deadline_ms: text(module.deadline_ms),
                tensor_mib: text(module.tensor_mib),
            },
        }
    }
}

fn tensor(spec: &TensorSpec, batched: bool) -> TensorConfig<'_> {
    let data_type = match spec.datatype {
        Datatype::Bytes => "TYPE_STRING".to_owned(),
        other => format!("TYPE_{}", other.name()),
    };
    let dims = &spec.shape[usize::from(batched)..];
    TensorConfig { name: &spec.name, data_type, dims, optional: spec.optional }
}

/// Who answers, as `parameters` of answers and metadata say it.
pub fn provenance<'a>(
    package: selvedge_package::Digest,
    release: u64,
    models: impl Iterator<Item = (&'a str, selvedge_package::Digest)>,
) -> Parameters {
    let mut parameters = Parameters::from([
        ("selvedge_package".to_owned(), Parameter::Text(package.to_string())),
        ("selvedge_release".to_owned(), Parameter::Integer(i64::try_from(release).unwrap_or(i64::MAX))),
    ]);
    parameters.extend(
        models.map(|(name, digest)| (format!("selvedge_model_{name}"), Parameter::Text(digest.to_string()))),
    );
    parameters
}
