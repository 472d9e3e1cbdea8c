//! Metadata written by hand and properly signed, for forms that our own signing never makes.

use jiff::Timestamp;
use selvedge_package::Digest;
use selvedge_package::trust::bins;
use selvedge_signing::{Signer, SigningKey};
use serde_json::{Map, Value, json};

use crate::fixture::World;
use selvedge_signing::image::ImageTarget;

/// TUF's canonical JSON, for text without quotes and backslashes.
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort();
            let parts: Vec<_> =
                keys.into_iter().map(|key| format!("\"{key}\":{}", canonical(&map[key]))).collect();
            format!("{{{}}}", parts.join(","))
        }
        Value::Array(list) => format!("[{}]", list.iter().map(canonical).collect::<Vec<_>>().join(",")),
        Value::String(text) => {
            assert!(!text.contains(['"', '\\']), "{text}");
            format!("\"{text}\"")
        }
        other => other.to_string(),
    }
}

/// `signed` as a metadata file with the signatures of `keys`.
pub fn sign(signed: &Value, keys: &[&SigningKey]) -> Vec<u8> {
    let message = canonical(signed);
    let signatures: Vec<_> = keys
        .iter()
        .map(|key| {
            json!({ "keyid": key.key_id().unwrap(), "sig": hex(&key.sign(message.as_bytes()).unwrap()) })
        })
        .collect();
    serde_json::to_vec(&json!({ "signed": signed, "signatures": signatures })).unwrap()
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The `delegations` part: `roles` as they are, `keys` by their ids.
pub fn delegations(keys: &[&SigningKey], roles: Vec<Value>) -> Value {
    let keys: Map<String, Value> = keys
        .iter()
        .map(|key| {
            let public = hex(key.public_key().as_bytes());
            let key_json =
                json!({ "keytype": "ed25519", "scheme": "ed25519", "keyval": { "public": public } });
            (key.key_id().unwrap(), key_json)
        })
        .collect();
    json!({ "keys": keys, "roles": roles })
}

/// One entry of `delegations`.
pub fn role(name: &str, keys: &[&SigningKey], rest: Value) -> Value {
    let ids: Vec<_> = keys.iter().map(|key| key.key_id().unwrap()).collect();
    let mut role = json!({ "name": name, "keyids": ids, "threshold": 1, "terminating": false });
    for (key, value) in rest.as_object().unwrap() {
        role[key] = value.clone();
    }
    role
}

/// An unsigned targets role.
pub fn targets(version: u64, expires: Timestamp, list: &[&ImageTarget], split: Option<Value>) -> Value {
    let list: Map<String, Value> = list.iter().map(|target| (target.name(), entry(target))).collect();
    let mut signed = json!({
        "_type": "targets", "spec_version": "1.0.31", "version": version,
        "expires": expires.to_string(), "targets": list,
    });
    if let Some(split) = split {
        signed["delegations"] = split;
    }
    signed
}

pub fn entry(target: &ImageTarget) -> Value {
    json!({
        "length": target.length, "hashes": { "sha256": target.digest.hex() },
        "custom": serde_json::to_value(&target.custom).unwrap(),
    })
}

/// The sixteen bins below `prefix`, all signed for by the world's targets key.
pub fn sixteen(world: &World, prefix: &str) -> Value {
    let key = &world.image.targets;
    let roles = bins::children(prefix)
        .map(|prefix| {
            let rest = json!({ "terminating": true, "path_hash_prefixes": [prefix] });
            role(&bins::role(&prefix), &[key], rest)
        })
        .collect();
    delegations(&[key], roles)
}

/// A snapshot that pins `files` (name without `.json`, bytes), and its timestamp.
pub fn online(world: &World, version: u64, files: &[(&str, &[u8])]) -> (Vec<u8>, Vec<u8>) {
    let expires = world.now + crate::fixture::DAY * 7;
    let mut meta = Map::new();
    for (role, file) in files {
        let read: Value = serde_json::from_slice(file).unwrap();
        meta.insert(format!("{role}.json"), json!({ "version": read["signed"]["version"] }));
    }
    let snapshot = json!({
        "_type": "snapshot", "spec_version": "1.0.31", "version": version,
        "expires": expires.to_string(), "meta": meta,
    });
    let snapshot = sign(&snapshot, &[&world.image.snapshot]);
    let pin = json!({
        "version": version, "length": snapshot.len(), "hashes": { "sha256": Digest::of(&snapshot).hex() },
    });
    let timestamp = json!({
        "_type": "timestamp", "spec_version": "1.0.31", "version": version,
        "expires": expires.to_string(), "meta": { "snapshot.json": pin },
    });
    (snapshot, sign(&timestamp, &[&world.image.timestamp]))
}
