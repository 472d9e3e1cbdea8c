//! The tables have what REST says, and say what is written.

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
        (Kind::Message(table), Value::Array(values)) => values.iter().map(|value| (*table, value)).collect(),
        (Kind::Message(table), value) => vec![(*table, value)],
        (Kind::Map(table), Value::Object(entries)) => entries.values().map(|value| (*table, value)).collect(),
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
