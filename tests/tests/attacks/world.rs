//! What the honest side knows: both repositories with all their keys, what was released, and what
//! the device shall run. A copy of it with some keys is an attacker.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use selvedge_package::bundle::Builder;
use selvedge_package::trust::{AssignedPackage, DirectorAssignment, MetadataBundle, RepositoryMetadata};
use selvedge_package::{DeviceId, Digest, Manifest};
use selvedge_tests::{clock, onnx_writer};
use serde_json::{Map, Value, json};

use crate::forge::{self, Key};

/// A time from now.
pub fn days(count: i64) -> Timestamp {
    let now = Timestamp::from_second(clock::date().as_second()).unwrap();
    now.checked_add(SignedDuration::from_hours(24 * count)).unwrap()
}

/// A repository with all its keys, and the newest files.
#[derive(Clone)]
pub struct Repository {
    pub root_keys: Vec<Key>,
    /// Signs roots and targets: how many must.
    pub threshold: usize,
    pub targets_keys: Vec<Key>,
    pub targets_threshold: usize,
    pub snapshot_key: Vec<Key>,
    pub timestamp_key: Vec<Key>,
    pub roots: Vec<Vec<u8>>,
    pub timestamp_version: u64,
    pub snapshot_version: u64,
    pub targets_version: u64,
    pub listed: Map<String, Value>,
    /// Days until what is signed from now on expires: root, targets, snapshot, timestamp.
    pub lives: [i64; 4],
    pub files: RepositoryMetadata,
}

impl Repository {
    /// New keys: roots are signed by 2 of 3, targets by `targets` of as many.
    pub fn new(targets: usize, lives: [i64; 4]) -> Self {
        let mut repository = Self {
            root_keys: forge::keys(3),
            threshold: 2,
            targets_keys: forge::keys(targets),
            targets_threshold: targets,
            snapshot_key: forge::keys(1),
            timestamp_key: forge::keys(1),
            roots: Vec::new(),
            timestamp_version: 0,
            snapshot_version: 0,
            targets_version: 0,
            listed: Map::new(),
            lives,
            files: RepositoryMetadata::default(),
        };
        let root = forge::sign(&repository.root(), &repository.root_keys[..2]);
        repository.roots.push(root);
        repository.publish();
        repository
    }

    /// The next root, unsigned, with the keys of now.
    pub fn root(&self) -> Value {
        let roles: [(&str, &[Key], usize); 4] = [
            ("root", &self.root_keys, self.threshold),
            ("targets", &self.targets_keys, self.targets_threshold),
            ("snapshot", &self.snapshot_key, 1),
            ("timestamp", &self.timestamp_key, 1),
        ];
        forge::root(self.roots.len() as u64 + 1, days(self.lives[0]), &roles)
    }

    /// Publishes a root with the keys of now, signed by two of the root's.
    pub fn rotate(&mut self) {
        self.roots.push(forge::sign(&self.root(), &self.root_keys[..2]));
        self.publish();
    }

    /// Signs all three roles, each with its next version.
    pub fn publish(&mut self) {
        self.targets_version += 1;
        let targets = forge::targets(self.targets_version, days(self.lives[1]), &self.listed);
        self.files.targets = forge::sign(&targets, &self.targets_keys);
        self.refresh();
    }

    /// Signs snapshot and timestamp again.
    pub fn refresh(&mut self) {
        self.snapshot_version += 1;
        let targets = &self.files.targets;
        let snapshot =
            forge::pinning("snapshot", self.snapshot_version, days(self.lives[2]), "targets.json", targets);
        self.files.snapshot = forge::sign(&snapshot, &self.snapshot_key);
        self.stamp();
    }

    /// Signs the timestamp again.
    pub fn stamp(&mut self) {
        self.timestamp_version += 1;
        let snapshot = &self.files.snapshot;
        let timestamp = forge::pinning(
            "timestamp",
            self.timestamp_version,
            days(self.lives[3]),
            "snapshot.json",
            snapshot,
        );
        self.files.timestamp = forge::sign(&timestamp, &self.timestamp_key);
    }

    /// As a device gets it, with every root but the first.
    pub fn metadata(&self) -> RepositoryMetadata {
        RepositoryMetadata { roots: self.roots[1..].to_vec(), ..self.files.clone() }
    }
}

/// A release with its bytes.
#[derive(Clone)]
pub struct Package {
    pub manifest: Manifest,
    pub digest: Digest,
    pub oci: Vec<u8>,
    pub blobs: Vec<(Digest, Vec<u8>)>,
}

/// An identity model as release `release` of `name`; `more` is merged into its manifest.
pub fn identity(name: &str, release: u64, more: Value) -> Package {
    let tensor = |name: &str| json!({ "name": name, "datatype": "FP32", "shape": [2, 3] });
    let valued =
        |name: &str| json!({ "name": name, "datatype": "FP32", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6] });
    let mut manifest = json!({
        "format": 1, "name": name, "version": format!("1.0.{release}"), "release": release,
        "models": [{ "name": "model", "file": "model.onnx" }],
        "inputs": [tensor("x")], "outputs": [tensor("y")],
        "acceptance": { "cases": ["golden.json"] },
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        manifest[key] = value.clone();
    }
    let manifest: Manifest = serde_json::from_value(manifest).unwrap();
    let case = json!({ "name": "golden", "inputs": [valued("x")], "outputs": [valued("y")] });
    let files = [
        // Each release has bytes of its own, so that each is fetched.
        ("model.onnx", onnx_writer::identity_padded(1000 + usize::try_from(release).unwrap())),
        ("golden.json", case.to_string().into_bytes()),
    ];
    let mut builder = Builder::new(manifest.clone());
    for (path, bytes) in &files {
        builder.bytes(path.parse().unwrap(), bytes).unwrap();
    }
    let built = builder.build().unwrap();
    let digest = built.bundle.digest();
    let mut blobs = built.blobs;
    blobs.push((digest, built.manifest.clone()));
    blobs.extend(files.map(|(_, bytes)| (Digest::of(&bytes), bytes)));
    Package { manifest, digest, oci: built.manifest, blobs }
}

impl Package {
    /// The name of its target.
    pub fn target(&self) -> String {
        format!("{}-{}.pkg.json", self.manifest.name, self.manifest.version)
    }

    /// What the Image repository says of it.
    pub fn entry(&self) -> Value {
        let Manifest { name, version, release, min_release, requires, .. } = &self.manifest;
        let custom = json!({
            "package": name, "version": version, "release": release, "min-release": min_release,
            "architectures": requires.architectures,
        });
        forge::entry(&self.oci, custom)
    }

    /// What the Director says of it.
    pub fn assigned(&self) -> AssignedPackage {
        AssignedPackage {
            package: self.manifest.name.clone(),
            target: self.target(),
            digest: self.digest,
            length: self.oci.len() as u64,
            release: self.manifest.release,
            settings: BTreeMap::new(),
        }
    }
}

/// Registry and releasers of one device.
#[derive(Clone)]
pub struct World {
    pub device: DeviceId,
    pub image: Repository,
    pub director: Repository,
    pub sequence: u64,
    pub assignments: Vec<AssignedPackage>,
    /// The nonce that the Director echoes.
    pub nonce: Vec<u8>,
    /// When the Director says that it signed.
    pub issued_at: Option<Timestamp>,
    pub assignment: Vec<u8>,
}

impl World {
    /// New keys, nothing released.
    pub fn new(device: &str) -> Self {
        Self {
            device: device.parse().unwrap(),
            image: Repository::new(2, [730, 365, 30, 14]),
            director: Repository::new(1, [730, 7, 7, 7]),
            sequence: 0,
            assignments: Vec::new(),
            nonce: Vec::new(),
            issued_at: None,
            assignment: Vec::new(),
        }
    }

    /// Lists a release.
    pub fn release(&mut self, package: &Package) {
        self.image.listed.insert(package.target(), package.entry());
        self.image.publish();
    }

    /// Signs that the device shall run these.
    pub fn assign(&mut self, assignments: Vec<AssignedPackage>) -> MetadataBundle {
        self.assignments = assignments;
        self.next()
    }

    /// Signs the next sequence with the same assignments.
    pub fn next(&mut self) -> MetadataBundle {
        self.sequence += 1;
        self.image.refresh();
        self.sign()
    }

    /// Signs what the Director says as it is, in the director's next version.
    pub fn sign(&mut self) -> MetadataBundle {
        let said = DirectorAssignment {
            format: 1,
            device: self.device.clone(),
            sequence: self.sequence,
            issued_at: self.issued_at.unwrap_or_else(|| days(0)),
            nonce: self.nonce.clone(),
            assignments: self.assignments.clone(),
        };
        self.assignment = said.to_bytes().unwrap();
        let name = DirectorAssignment::target_name(&self.device);
        self.director.listed = Map::from_iter([(name, forge::entry(&self.assignment, json!({})))]);
        self.director.publish();
        self.bundle()
    }

    /// The newest of everything.
    pub fn bundle(&self) -> MetadataBundle {
        MetadataBundle {
            image: self.image.metadata(),
            director: self.director.metadata(),
            assignment: self.assignment.clone(),
        }
    }
}
