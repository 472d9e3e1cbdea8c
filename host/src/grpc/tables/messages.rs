//! The tables: fields of each message by the name that REST has for them.

use super::{Field, Kind};

const fn field(name: &'static str, number: u32, kind: Kind) -> Field {
    Field { name, number, kind }
}

/// `ServerLiveResponse`.
pub const LIVE: &[Field] = &[field("live", 1, Kind::Number)];

/// `ServerReadyResponse`.
pub const READY: &[Field] = &[field("ready", 1, Kind::Number)];

/// `ModelReadyResponse`.
pub const MODEL_READY: &[Field] = &[field("name", 0, Kind::Left), field("ready", 1, Kind::Number)];

/// `ServerMetadataResponse`.
pub const SERVER: &[Field] = &[
    field("name", 1, Kind::Text),
    field("version", 2, Kind::Text),
    field("extensions", 3, Kind::Text),
    field("confinement", 0, Kind::Left),
];

/// `ModelMetadataResponse`. Its `properties` are of the protocol, and unknown to Triton.
pub const MODEL: &[Field] = &[
    field("name", 1, Kind::Text),
    field("versions", 2, Kind::Text),
    field("platform", 3, Kind::Text),
    field("inputs", 4, Kind::Message(TENSOR)),
    field("outputs", 5, Kind::Message(TENSOR)),
    field("parameters", 6, Kind::Texts),
];

const TENSOR: &[Field] = &[
    field("name", 1, Kind::Text),
    field("datatype", 2, Kind::Text),
    field("shape", 3, Kind::Number),
    field("optional", 0, Kind::Left),
];

/// `ModelConfigResponse`, of a configuration under the name `config`.
pub const CONFIG: &[Field] = &[field("config", 1, Kind::Message(MODEL_CONFIG))];

const MODEL_CONFIG: &[Field] = &[
    field("name", 1, Kind::Text),
    field("platform", 2, Kind::Text),
    field("max_batch_size", 4, Kind::Number),
    field("input", 5, Kind::Message(INPUT)),
    field("output", 6, Kind::Message(OUTPUT)),
    field("instance_group", 7, Kind::Message(INSTANCE_GROUP)),
    field("dynamic_batching", 11, Kind::Message(DYNAMIC_BATCHING)),
    field("sequence_batching", 13, Kind::Message(SEQUENCE_BATCHING)),
    field("parameters", 14, Kind::Map(&[field("string_value", 1, Kind::Text)])),
    field("backend", 17, Kind::Text),
];

const INPUT: &[Field] = &[
    field("name", 1, Kind::Text),
    field("data_type", 2, Kind::Word(DATA_TYPES)),
    field("dims", 4, Kind::Number),
    field("optional", 8, Kind::Number),
];

const OUTPUT: &[Field] = &[
    field("name", 1, Kind::Text),
    field("data_type", 2, Kind::Word(DATA_TYPES)),
    field("dims", 3, Kind::Number),
    field("optional", 0, Kind::Left),
];

const DATA_TYPES: &[&str] = &[
    "TYPE_INVALID",
    "TYPE_BOOL",
    "TYPE_UINT8",
    "TYPE_UINT16",
    "TYPE_UINT32",
    "TYPE_UINT64",
    "TYPE_INT8",
    "TYPE_INT16",
    "TYPE_INT32",
    "TYPE_INT64",
    "TYPE_FP16",
    "TYPE_FP32",
    "TYPE_FP64",
    "TYPE_STRING",
    "TYPE_BF16",
];

const INSTANCE_GROUP: &[Field] = &[
    field("count", 2, Kind::Number),
    field("kind", 4, Kind::Word(&["KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL"])),
];

const DYNAMIC_BATCHING: &[Field] = &[field("max_queue_delay_microseconds", 2, Kind::Number)];

const SEQUENCE_BATCHING: &[Field] = &[
    field("max_sequence_idle_microseconds", 1, Kind::Number),
    field("oldest", 4, Kind::Message(&[field("max_candidate_sequences", 1, Kind::Number)])),
];

/// `ModelStatisticsResponse`.
pub const STATISTICS: &[Field] = &[field("model_stats", 1, Kind::Message(MODEL_STATISTICS))];

const MODEL_STATISTICS: &[Field] = &[
    field("name", 1, Kind::Text),
    field("version", 2, Kind::Text),
    field("last_inference", 3, Kind::Number),
    field("inference_count", 4, Kind::Number),
    field("execution_count", 5, Kind::Number),
    field("inference_stats", 6, Kind::Message(INFERENCE_STATISTICS)),
    field("batch_stats", 7, Kind::Message(BATCH_STATISTICS)),
    field("memory_usage", 8, Kind::Message(MEMORY_USAGE)),
];

const INFERENCE_STATISTICS: &[Field] = &[
    field("success", 1, Kind::Message(DURATION)),
    field("fail", 2, Kind::Message(DURATION)),
    field("queue", 3, Kind::Message(DURATION)),
    field("compute_input", 4, Kind::Message(DURATION)),
    field("compute_infer", 5, Kind::Message(DURATION)),
    field("compute_output", 6, Kind::Message(DURATION)),
    field("cache_hit", 7, Kind::Message(DURATION)),
    field("cache_miss", 8, Kind::Message(DURATION)),
];

const BATCH_STATISTICS: &[Field] = &[
    field("batch_size", 1, Kind::Number),
    field("compute_input", 2, Kind::Message(DURATION)),
    field("compute_infer", 3, Kind::Message(DURATION)),
    field("compute_output", 4, Kind::Message(DURATION)),
];

const DURATION: &[Field] = &[field("count", 1, Kind::Number), field("ns", 2, Kind::Number)];

const MEMORY_USAGE: &[Field] =
    &[field("type", 1, Kind::Text), field("id", 2, Kind::Number), field("byte_size", 3, Kind::Number)];

/// `RepositoryIndexResponse`, of the list under the name `models`.
pub const INDEX: &[Field] = &[field(
    "models",
    1,
    Kind::Message(&[
        field("name", 1, Kind::Text),
        field("version", 2, Kind::Text),
        field("state", 3, Kind::Text),
        field("reason", 4, Kind::Text),
    ]),
)];
