//! TUF metadata written by hand, with whatever keys are at hand: what an honest registry would sign,
//! and what an attacker would.
//!
//! It shares nothing with the programs but the keys' file of form: canonical JSON is made here, so
//! that a fault of the signing crate cannot hide one of the verifier's.

use std::sync::Arc;

use jiff::Timestamp;
use selvedge_package::Digest;
use selvedge_signing::{Signer as _, SigningKey};
use serde_json::{Map, Value, json};

/// A key that several may hold.
pub type Key = Arc<SigningKey>;

/// New keys.
pub fn keys(count: usize) -> Vec<Key> {
    (0..count).map(|_| Arc::new(SigningKey::generate().unwrap())).collect()
}

/// The id of a key in metadata.
pub fn id(key: &Key) -> String {
    key.key_id().unwrap()
}

/// Signs `signed` with each key. Maps are sorted and all text is plain ASCII, so that compact JSON is
/// the canonical form.
pub fn sign(signed: &Value, keys: &[Key]) -> Vec<u8> {
    let message = serde_json::to_vec(signed).unwrap();
    let signature = |key: &Key| json!({ "keyid": id(key), "sig": hex::encode(key.sign(&message).unwrap()) });
    let signatures: Vec<Value> = keys.iter().map(signature).collect();
    serde_json::to_vec(&json!({ "signatures": signatures, "signed": signed })).unwrap()
}

/// The head of every role.
pub fn role(name: &str, version: u64, expires: Timestamp) -> Value {
    json!({ "_type": name, "spec_version": "1.0.31", "version": version, "expires": expires.to_string() })
}

/// A root that names these keys and thresholds for these roles.
pub fn root(version: u64, expires: Timestamp, roles: &[(&str, &[Key], usize)]) -> Value {
    let (mut keys, mut named) = (Map::new(), Map::new());
    for (name, holders, threshold) in roles {
        for key in *holders {
            let public = key.public_key().to_string();
            keys.insert(
                id(key),
                json!({ "keytype": "ed25519", "scheme": "ed25519", "keyval": { "public": public } }),
            );
        }
        let ids: Vec<String> = holders.iter().map(id).collect();
        named.insert((*name).to_owned(), json!({ "keyids": ids, "threshold": threshold }));
    }
    let mut root = role("root", version, expires);
    root["consistent_snapshot"] = true.into();
    root["keys"] = keys.into();
    root["roles"] = named.into();
    root
}

/// Targets that list these.
pub fn targets(version: u64, expires: Timestamp, listed: &Map<String, Value>) -> Value {
    let mut targets = role("targets", version, expires);
    targets["targets"] = listed.clone().into();
    targets
}

/// A snapshot that pins this `targets.json`, or a timestamp that pins this `snapshot.json`.
pub fn pinning(name: &str, version: u64, expires: Timestamp, pinned: &str, file: &[u8]) -> Value {
    let read: Value = serde_json::from_slice(file).unwrap();
    let mut role = role(name, version, expires);
    role["meta"] = json!({ pinned: {
        "version": read["signed"]["version"], "length": file.len(),
        "hashes": { "sha256": Digest::of(file).hex() },
    } });
    role
}

/// An entry of a targets role.
pub fn entry(bytes: &[u8], custom: Value) -> Value {
    json!({ "length": bytes.len(), "hashes": { "sha256": Digest::of(bytes).hex() }, "custom": custom })
}
