//! Answers about the server and its models, as messages: what REST answers in JSON, told in protobuf by a
//! table of names and numbers. So both say the same; a name that no table has is a failing test.

use serde_json::Value;

use crate::protobuf::Message;

/// A field of a message.
#[derive(Debug)]
pub struct Field {
    name: &'static str,
    number: u32,
    kind: Kind,
}

/// What a field holds; a list of it is written as a list.
#[derive(Debug)]
enum Kind {
    Text,
    /// A whole number or a boolean.
    Number,
    /// One of these words, written as the number of its place.
    Word(&'static [&'static str]),
    Message(&'static [Field]),
    /// A map from text to messages.
    Map(&'static [Field]),
    /// A map from text to text: values that are no text as JSON writes them.
    Texts,
    /// Nothing: REST alone says it.
    Left,
}

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

/// Writes an object as the message of a table. What a table does not have, or has otherwise, is left out.
pub fn message(table: &[Field], value: &Value) -> Message {
    let mut message = Message::default();
    for (name, value) in value.as_object().into_iter().flatten() {
        if let Some(field) = table.iter().find(|field| field.name == name) {
            write(field, value, &mut message);
        }
    }
    message
}

fn write(field: &Field, value: &Value, message: &mut Message) {
    let number = field.number;
    match (&field.kind, value) {
        (Kind::Number, Value::Array(values)) => {
            message.packed(number, values.iter().filter_map(whole));
        }
        (_, Value::Array(values)) => values.iter().for_each(|value| one(field, value, message)),
        (Kind::Text, Value::String(text)) => {
            message.bytes(number, text);
        }
        (Kind::Number, value) => {
            message.number(number, whole(value).unwrap_or_default());
        }
        (Kind::Word(words), Value::String(word)) => {
            let place = words.iter().position(|known| known == word).unwrap_or_default();
            message.number(number, place as u64);
        }
        _ => one(field, value, message),
    }
}

/// Writes one of a list, or a message, which are there even when they say nothing.
fn one(field: &Field, value: &Value, message: &mut Message) {
    let number = field.number;
    match (&field.kind, value) {
        (Kind::Text, Value::String(text)) => {
            message.part(number, text);
        }
        (Kind::Message(table), Value::Object(_)) => {
            message.part(number, self::message(table, value));
        }
        (Kind::Map(table), Value::Object(entries)) => {
            for (key, value) in entries {
                message.message(number, |entry| {
                    entry.bytes(1, key).part(2, self::message(table, value));
                });
            }
        }
        (Kind::Texts, Value::Object(entries)) => {
            for (key, value) in entries {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                message.message(number, |entry| {
                    entry.bytes(1, key).bytes(2, text);
                });
            }
        }
        _ => {}
    }
}

/// A whole number as a varint: a negative one with all bits of its sign.
fn whole(value: &Value) -> Option<u64> {
    let signed = || value.as_i64().map(i64::cast_unsigned);
    value.as_u64().or_else(signed).or_else(|| value.as_bool().map(u64::from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::repository::Listed;
    use crate::serve::fake::{self, Behaviour, Fake};
    use crate::serve::served::Served;
    use crate::serve::{Serving, routes};
    use serde_json::json;

    /// Every name of `value` that the table does not have.
    fn unknown(table: &[Field], value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Array(values) => values.iter().for_each(|value| unknown(table, value, found)),
            Value::Object(entries) => {
                for (name, value) in entries {
                    match table.iter().find(|field| field.name == name) {
                        Some(field) => inside(field, value)
                            .into_iter()
                            .for_each(|(table, value)| unknown(table, value, found)),
                        None => found.push(name.clone()),
                    }
                }
            }
            _ => {}
        }
    }

    /// Every name of the table that no value has.
    fn unsaid(table: &[Field], values: &[&Value], found: &mut Vec<String>) {
        for field in table {
            let said: Vec<&Value> = values.iter().filter_map(|value| value.get(field.name)).collect();
            if said.is_empty() {
                found.push(field.name.to_owned());
            }
            let inner: Vec<_> = said.into_iter().flat_map(|value| inside(field, value)).collect();
            if let Kind::Message(table) | Kind::Map(table) = field.kind {
                unsaid(table, &inner.into_iter().map(|(_, value)| value).collect::<Vec<_>>(), found);
            }
        }
    }

    /// The messages in a field, each with its table.
    fn inside<'a>(field: &Field, value: &'a Value) -> Vec<(&'static [Field], &'a Value)> {
        match (&field.kind, value) {
            (Kind::Message(table), Value::Array(values)) => {
                values.iter().map(|value| (*table, value)).collect()
            }
            (Kind::Message(table), value) => vec![(*table, value)],
            (Kind::Map(table), Value::Object(entries)) => {
                entries.values().map(|value| (*table, value)).collect()
            }
            _ => vec![],
        }
    }

    /// A table has all that is said, and nothing else.
    fn check(table: &[Field], values: &[Value]) {
        let (mut lacking, mut idle) = (Vec::new(), Vec::new());
        for value in values {
            unknown(table, value, &mut lacking);
            assert!(!message(table, value).is_empty());
        }
        assert!(lacking.is_empty(), "a table of grpc::tables lacks {lacking:?}");
        unsaid(table, &values.iter().collect::<Vec<_>>(), &mut idle);
        assert!(idle.is_empty(), "a table of grpc::tables has {idle:?}, which REST does not say");
    }

    #[tokio::test]
    async fn the_tables_have_all_that_rest_says() {
        let serving = Serving::new(4);
        let put = |name: &str, more: Value| {
            let mut manifest = fake::manifest(name, "1.0.0", 7, "FP32", &[-1, 2]);
            for side in ["inputs", "outputs"] {
                manifest[side][0]["optional"] = true.into();
            }
            manifest["module"]["component"] = "a.wasm".into();
            for (name, value) in more.as_object().into_iter().flatten() {
                manifest["module"][name] = value.clone();
            }
            let served = Served::new(Fake::package(manifest, Behaviour::Echo), Default::default(), 0);
            serving.table.stage(std::sync::Arc::clone(&served));
            serving.table.activate(&served.reference()).unwrap();
        };
        put("m", json!({"sequences": {"most": 2, "idle-seconds": 60}}));
        put("batched", json!({"batching": {"max-size": 4, "max-delay-ms": 1}}));
        serving.announce();
        let router = routes::router(serving);
        let input = json!({"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]});
        let asked = fake::post(&router, "/v2/models/batched/infer", json!({"inputs": [input]})).await;
        assert_eq!(asked.0, 200, "{}", asked.1);
        let told = async |path: &str| fake::get(&router, path).await.1;
        check(LIVE, &[told("/v2/health/live").await]);
        check(READY, &[told("/v2/health/ready").await]);
        check(SERVER, &[told("/v2").await]);
        check(MODEL_READY, &[told("/v2/models/m/ready").await]);
        check(MODEL, &[told("/v2/models/m").await]);
        let config = async |name: &str| json!({"config": told(&format!("/v2/models/{name}/config")).await});
        check(CONFIG, &[config("m").await, config("batched").await]);
        check(STATISTICS, &[told("/v2/models/stats").await]);
        let text = || "a".to_owned();
        let listed = Listed { name: text(), version: text(), state: "READY", reason: text() };
        check(INDEX, &[json!({"models": [listed]})]);
    }

    #[test]
    fn a_table_says_what_is_written() {
        let tensor = json!({"name": "x", "datatype": "INT8", "shape": [-1, 2]});
        let value = json!({"name": "m", "versions": ["1", ""], "inputs": [tensor], "outputs": [],
            "parameters": {"a": 7}});
        let expected = [
            &b"\x0a\x01m\x22\x16\x12\x04INT8\x0a\x01x\x1a\x0b\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x02"[..],
            b"\x32\x06\x0a\x01a\x12\x017",
            b"\x12\x011\x12\x00",
        ];
        let mut parts: Vec<Vec<u8>> = Vec::new();
        for name in ["name", "inputs", "parameters", "versions"] {
            let one = json!({name: value[name].clone()});
            parts.push(message(MODEL, &one).into_bytes());
        }
        assert_eq!(parts.concat(), expected.concat());
        assert_eq!(message(READY, &json!({"ready": true})).as_ref(), [8, 1]);
        assert_eq!(message(READY, &json!({"ready": false})).as_ref(), [0_u8; 0]);
        let word = json!({"config": {"input": [{"data_type": "TYPE_BF16"}]}});
        assert_eq!(message(CONFIG, &word).as_ref(), [0x0a, 4, 0x2a, 2, 0x10, 14]);
    }
}
