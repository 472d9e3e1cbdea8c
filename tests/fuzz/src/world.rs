//! Signs whatever metadata says. The fuzzer is everybody at once: who releases, the registry, the people
//! with the roots.

use jiff::Timestamp;
use selvedge_package::trust::{MetadataBundle, RepositoryMetadata, TrustState};
use selvedge_package::{DeviceId, Digest};
use selvedge_signing::roots::{RoleKeys, RootSpec, sign_root};
use selvedge_signing::{Signer, SigningKey};
use serde_json::{Value, json};
use sigstore_tuf::{Metadata, Root, Snapshot, Targets, Timestamp as TimestampRole};

/// One key for every role of both repositories.
pub struct World {
    key: SigningKey,
    root: Vec<u8>,
    /// The time.
    pub now: Timestamp,
    /// The device.
    pub device: DeviceId,
}

impl Default for World {
    fn default() -> Self {
        let key = SigningKey::generate().unwrap();
        let role = || RoleKeys::single(key.public_key());
        let spec = RootSpec {
            version: 1,
            expires: "2030-01-01T00:00:00Z".parse().unwrap(),
            root: role(),
            targets: role(),
            snapshot: role(),
            timestamp: role(),
        };
        let root = sign_root(&spec, &[&key]).unwrap();
        let now = "2026-03-01T12:00:00Z".parse().unwrap();
        Self { key, root, now, device: "edge-1".parse().unwrap() }
    }
}

impl World {
    /// A device that was just enrolled.
    pub fn state(&self) -> TrustState {
        TrustState::enrol(&self.root, &self.root, self.now).unwrap()
    }

    /// The same bundle with every file signed, and pinned by the one above it. Files that are no metadata
    /// stay as they are.
    pub fn signed(&self, bundle: &MetadataBundle) -> MetadataBundle {
        let mut bundle = bundle.clone();
        let assignment = bundle.assignment.clone();
        self.repository(&mut bundle.image, None);
        self.repository(&mut bundle.director, Some(&assignment));
        bundle
    }

    fn repository(&self, part: &mut RepositoryMetadata, assignment: Option<&[u8]>) {
        for root in &mut part.roots {
            self.sign::<Root>(root, |signed| {
                // The keys are names in the seeds; here they are the ones that sign.
                let read: Value = serde_json::from_slice(&self.root).unwrap();
                signed["keys"] = read["signed"]["keys"].clone();
                if signed["roles"] == json!({}) {
                    signed["roles"] = read["signed"]["roles"].clone();
                }
            });
        }
        let id = self.key.key_id().unwrap();
        let delegate = |signed: &mut Value| {
            if let Some(split) = signed.get_mut("delegations").filter(|split| split.is_object()) {
                let public = hex::encode(self.key.public_key().as_bytes());
                let key =
                    json!({ "keytype": "ed25519", "scheme": "ed25519", "keyval": { "public": public } });
                split["keys"] = json!({ &id: key });
                for role in split.get_mut("roles").and_then(Value::as_array_mut).into_iter().flatten() {
                    if role.is_object() && role.get("keyids") == Some(&json!([])) {
                        role["keyids"] = json!([&id]);
                    }
                }
            }
        };
        self.sign::<Targets>(&mut part.targets, |signed| {
            delegate(signed);
            if let Some(bytes) = assignment
                && let Some(entry) =
                    signed.pointer_mut("/targets/edge-1.json").filter(|entry| entry.is_object())
            {
                entry["length"] = json!(bytes.len());
                entry["hashes"] = json!({ "sha256": Digest::of(bytes).hex() });
            }
        });
        for delegated in &mut part.delegated {
            self.sign::<Targets>(&mut delegated.file, delegate);
        }
        let mut files = vec![("targets".to_owned(), &part.targets)];
        files.extend(part.delegated.iter().map(|delegated| (delegated.role.clone(), &delegated.file)));
        let pins: Vec<_> =
            files.into_iter().map(|(role, file)| (format!("{role}.json"), version(file))).collect();
        self.sign::<Snapshot>(&mut part.snapshot, |signed| {
            if let Some(meta) = signed.get_mut("meta").and_then(Value::as_object_mut) {
                meta.extend(pins.into_iter().map(|(name, version)| (name, json!({ "version": version }))));
            }
        });
        let snapshot = part.snapshot.clone();
        self.sign::<TimestampRole>(&mut part.timestamp, |signed| {
            if let Some(pin) = signed.pointer_mut("/meta/snapshot.json").filter(|pin| pin.is_object()) {
                pin["version"] = version(&snapshot);
                pin["length"] = json!(snapshot.len());
                pin["hashes"] = json!({ "sha256": Digest::of(&snapshot).hex() });
            }
        });
    }

    /// Signs one file after a change.
    fn sign<T: sigstore_tuf::Role>(&self, file: &mut Vec<u8>, change: impl FnOnce(&mut Value)) {
        let Ok(mut read) = serde_json::from_slice::<Value>(file) else {
            return;
        };
        let Some(signed) = read.get_mut("signed").filter(|signed| signed.is_object()) else {
            return;
        };
        change(signed);
        read["signatures"] = json!([]);
        let unsigned = serde_json::to_vec(&read).unwrap();
        let Ok(parsed) = Metadata::<T>::from_slice(&unsigned) else {
            *file = unsigned;
            return;
        };
        let signature = self.key.sign(parsed.signed_canonical()).unwrap();
        read["signatures"] = json!([{ "keyid": self.key.key_id().unwrap(), "sig": hex::encode(signature) }]);
        *file = serde_json::to_vec(&read).unwrap();
    }
}

fn version(file: &[u8]) -> Value {
    let read = serde_json::from_slice::<Value>(file).unwrap_or_default();
    read.pointer("/signed/version").cloned().unwrap_or(json!(1))
}
