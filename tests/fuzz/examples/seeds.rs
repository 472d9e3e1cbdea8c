//! Writes the first inputs of every target into `seeds/`: `RUSTFLAGS= cargo run --example seeds`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use selvedge_fuzz::world::World;
use selvedge_package::Digest;
use selvedge_package::archive::{MetadataFiles, Writer};
use selvedge_package::bundle::Builder;
use selvedge_package::chunks::{CHUNK, Indexed};
use selvedge_package::draft::Draft;
use selvedge_package::trust::{DelegatedFile, MetadataBundle, RepositoryMetadata, accept, bins};
use selvedge_protocol::envelope::{Body, Envelope, to_cbor};
use selvedge_protocol::message::{Enrol, Heartbeat};
use serde_json::{Value, json};

const DRAFT: &str = r#"name = "echo"
version = "1.0.0"
release = 3
min-release = 2
files = ["labels.txt"]
[module]
component = "module.wasm"
capabilities = ["clocks"]
[requires]
architectures = ["x86_64"]
ram-mib = 64
[[inputs]]
name = "bytes"
datatype = "INT32"
shape = [-1, 4]
[[outputs]]
name = "scores"
datatype = "FP32"
shape = [1]
[[models]]
name = "net"
file = "net.onnx"
[acceptance]
cases = ["cases/a.json"]
[settings]
threshold = "0.5"
"#;

fn main() {
    manifest();
    chunk_index();
    envelope();
    bundle();
}

fn put(target: &str, name: &str, bytes: &[u8]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(name), bytes).unwrap();
}

fn manifest() {
    put("manifest", "draft", DRAFT.as_bytes());
    let manifest = Draft::from_toml(DRAFT).unwrap().finish().unwrap();
    let mut builder = Builder::new(manifest);
    builder.bytes("cases/a.json".parse().unwrap(), b"{}").unwrap();
    builder.bytes("net.onnx".parse().unwrap(), b"model").unwrap();
    builder.bytes("labels.txt".parse().unwrap(), b"a\nb\n").unwrap();
    builder.bytes("module.wasm".parse().unwrap(), &vec![0; 70_000]).unwrap();
    let built = builder.build().unwrap();
    let named = built.bundle.oci().config.digest;
    let (_, config) = built.blobs.iter().find(|(digest, _)| *digest == named).unwrap();
    put("manifest", "package", &[&built.manifest[..], b"\0", config].concat());
}

fn chunk_index() {
    let indexed = Indexed::of(&vec![7; CHUNK as usize + 5]);
    put("chunk_index", "two", &[&indexed.size.to_le_bytes()[..], &indexed.indexes[0].1].concat());
    put("chunk_index", "none", &0_u64.to_le_bytes());
}

fn envelope() {
    let enrol = Enrol { proof: vec![3; 32], public_key: vec![1; 32], csr: vec![2; 40] };
    let bodies = [
        ("heartbeat", Body::Heartbeat(Heartbeat { generation: 1, desired: 2 })),
        ("enrol", Body::Enrol(enrol)),
    ];
    for (name, body) in bodies {
        let envelope = Envelope { id: 7, epoch: 2, sequence: 3, at_ms: -5, body };
        put("envelope", name, &envelope.encode().unwrap());
    }
    put(
        "envelope",
        "json",
        br#"{"v":1,"id":1,"ep":2,"sq":3,"ts":4,"ty":"hb","body":{"generation":1,"desired":2}}"#,
    );
    put("envelope", "topic", b"sv/v1/d/edge-1/up/report");
}

fn file(signed: Value) -> Vec<u8> {
    serde_json::to_vec(&json!({ "signed": signed, "signatures": [] })).unwrap()
}

fn role(kind: &str, rest: Value) -> Vec<u8> {
    let mut signed = json!({
        "_type": kind, "spec_version": "1.0.31", "version": 2, "expires": "2027-01-01T00:00:00Z",
    });
    signed.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    file(signed)
}

fn online(targets: Vec<u8>, delegated: Vec<DelegatedFile>) -> RepositoryMetadata {
    RepositoryMetadata {
        roots: Vec::new(),
        timestamp: role("timestamp", json!({ "meta": { "snapshot.json": { "version": 2 } } })),
        snapshot: role("snapshot", json!({ "meta": {} })),
        targets,
        delegated,
    }
}

/// Unsigned: the harness signs them, and fills in keys and pins.
fn bundle() {
    let name = "echo-1.0.0.pkg.json";
    let digest = Digest::of(b"x").hex();
    let custom = json!({
        "package": "echo", "version": "1.0.0", "release": 3, "min-release": 2, "architectures": ["x86_64"],
    });
    let listed = json!({ name: { "length": 1, "hashes": { "sha256": digest }, "custom": custom } });
    let assignment = json!({
        "format": 1, "device": "edge-1", "sequence": 1, "issued-at": "2026-03-01T12:00:00Z", "nonce": "01",
        "assignments": [{
            "package": "echo", "target": name, "digest": format!("sha256:{digest}"), "length": 1, "release": 3,
            "settings": { "threshold": "0.5" },
        }],
    });
    let director = role("targets", json!({ "targets": { "edge-1.json": {} } }));
    let of = |image| MetadataBundle {
        image,
        director: online(director.clone(), Vec::new()),
        assignment: serde_json::to_vec(&assignment).unwrap(),
    };
    let flat = of(online(role("targets", json!({ "targets": &listed })), Vec::new()));
    let bin = bins::branch(name).swap_remove(0);
    let roles: Vec<_> = bins::children("")
        .map(|prefix| {
            json!({
                "name": bins::role(&prefix), "keyids": [], "threshold": 1, "terminating": true,
                "path_hash_prefixes": [prefix],
            })
        })
        .collect();
    let split = json!({ "targets": {}, "delegations": { "keys": {}, "roles": roles } });
    let delegated = DelegatedFile { role: bin, file: role("targets", json!({ "targets": &listed })) };
    let binned = of(online(role("targets", split), vec![delegated]));
    let paths = json!({ "targets": {}, "delegations": { "keys": {}, "roles": [
        { "name": "a", "keyids": [], "threshold": 1, "terminating": false, "paths": ["other-*", "*/*"] },
        { "name": "b", "keyids": [], "threshold": 1, "terminating": false, "paths": ["echo-*"] },
    ] } });
    let delegated = ["a", "b"].map(|name| DelegatedFile {
        role: name.into(),
        file: role("targets", json!({ "targets": if name == "b" { listed.clone() } else { json!({}) } })),
    });
    let mut globs = of(online(role("targets", paths), delegated.to_vec()));
    globs.image.roots = vec![role("root", json!({ "keys": {}, "roles": {}, "consistent_snapshot": true }))];
    let all = BTreeMap::from([("flat", flat), ("bins", binned), ("globs", globs)]);
    let world = World::default();
    for (name, bundle) in &all {
        put("bundle", name, &to_cbor(bundle).unwrap());
        // A seed that is refused at the door would lead nowhere.
        accept(&world.state(), &world.signed(bundle), &world.device, Some(world.now)).unwrap();
    }
    let metadata = MetadataFiles::of(&all["bins"], Some(&"edge-1".parse().unwrap())).unwrap();
    let mut writer = Writer::new(Vec::new(), br#"{"schemaVersion":2,"manifests":[]}"#, &metadata).unwrap();
    writer.blob(Digest::of(b"x"), 1, &b"x"[..]).unwrap();
    put("archive", "bins", &writer.finish().unwrap());
    let writer = Writer::new(Vec::new(), b"{}", &MetadataFiles::default()).unwrap();
    put("archive", "empty", &writer.finish().unwrap());
}
