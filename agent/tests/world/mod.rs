//! Keys, packages and signed metadata, as a registry and its people make them.

#![allow(dead_code)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use selvedge_agent::enrolment::Enrolment;
use selvedge_agent::identity::Identity;
use selvedge_agent::store::{RealDisk, Store};
use selvedge_package::archive::{MetadataFiles, Writer};
use selvedge_package::bundle::{Builder, Built};
use selvedge_package::trust::{
    AssignedPackage, DirectorAssignment, ImageFiles, MetadataBundle, RepositoryMetadata,
};
use selvedge_package::{Digest, Manifest};
use selvedge_signing::director::sign_device;
use selvedge_signing::image::{ImageTarget, add_target};
use selvedge_signing::keyring::{self, Keyring, OnlineKeys, RootFiles};
use selvedge_signing::online::{sign_image_snapshot, sign_timestamp};
use serde_json::{Value, json};

pub const DEVICE: &str = "edge-1";

pub struct World {
    pub place: tempfile::TempDir,
    pub keys: Keyring,
    pub online: OnlineKeys,
    pub roots: RootFiles,
    pub packages: Vec<Package>,
    pub now: Timestamp,
}

/// A package with every blob of it, the manifest first.
pub struct Package {
    pub built: Built,
    pub blobs: Vec<Vec<u8>>,
}

pub fn package(name: &str, release: u64, more: Value) -> Package {
    let mut manifest = json!({
        "format": 1, "name": name, "version": format!("{release}.0.0"), "release": release,
        "models": [{ "name": "m", "file": "models/m.onnx" }],
        "inputs": [{ "name": "x", "datatype": "FP32", "shape": [1] }],
        "outputs": [{ "name": "y", "datatype": "FP32", "shape": [1] }],
        "acceptance": { "cases": ["c.json"] },
    });
    for (key, value) in more.as_object().unwrap() {
        manifest[key] = value.clone();
    }
    let manifest: Manifest = serde_json::from_value(manifest).unwrap();
    // Of more than one chunk, so that it has an index.
    let model: Vec<u8> = (0..200_000u32).map(|n| (n * 31 + n / 977 + release as u32) as u8).collect();
    let case = format!("{{\"{name}\":{release}}}").into_bytes();
    let mut builder = Builder::new(manifest);
    builder.bytes("models/m.onnx".parse().unwrap(), &model).unwrap();
    builder.bytes("c.json".parse().unwrap(), &case).unwrap();
    let built = builder.build().unwrap();
    let known: BTreeMap<Digest, Vec<u8>> = built
        .blobs
        .iter()
        .map(|(_, bytes)| bytes.clone())
        .chain([model, case])
        .map(|bytes| (Digest::of(&bytes), bytes))
        .collect();
    let rest = built.bundle.blobs().iter().map(|blob| known[&blob.digest].clone()).collect::<Vec<_>>();
    let blobs = std::iter::once(built.manifest.clone()).chain(rest).collect();
    Package { built, blobs }
}

/// The beginning of the day, by the machine's date: what is signed then is good whenever the tests run.
#[allow(clippy::disallowed_methods)]
fn today() -> Timestamp {
    let now = Timestamp::now().as_second();
    Timestamp::from_second(now - now % 86_400).unwrap()
}

impl World {
    pub fn new(packages: Vec<Package>) -> Self {
        let place = tempfile::tempdir().unwrap();
        let now = today();
        let keys = place.path().join("keys");
        let roots = keyring::init(&keys, now).unwrap();
        let online = OnlineKeys::load(&keys.join("online")).unwrap();
        let keys = Keyring::load(&keys).unwrap();
        Self { place, keys, online, roots, packages, now }
    }

    pub fn after(&self, days: i64) -> Timestamp {
        self.now + SignedDuration::from_hours(24 * days)
    }

    pub fn enrolment(&self) -> Value {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        json!({
            "format": 1, "device": DEVICE, "kind": "device", "broker": "mqtt://127.0.0.1:1", "token": "t",
            "image_root": text(&self.roots.image), "director_root": text(&self.roots.director),
        })
    }

    /// A device that was enrolled and accepted nothing yet.
    pub fn enrol(&self, data: &Path) -> Store {
        let enrolment: Enrolment = serde_json::from_value(self.enrolment()).unwrap();
        let store = Store::open(Arc::new(RealDisk), data).unwrap();
        Identity::establish(&store, Some(&enrolment)).unwrap();
        store
    }

    /// The Image repository with every package.
    pub fn image(&self) -> RepositoryMetadata {
        let mut targets: Option<Vec<u8>> = None;
        for package in &self.packages {
            let target = ImageTarget::of(&package.built.bundle);
            let next = add_target(targets.as_deref(), &target, self.after(365), &[&self.keys.image_targets]);
            targets = Some(next.unwrap());
        }
        let targets = targets.unwrap();
        let files = ImageFiles::unsplit(targets.clone());
        let version = self.packages.len() as u64;
        let snapshot =
            sign_image_snapshot(version, &files, self.after(30), &self.online.image_snapshot).unwrap();
        let timestamp =
            sign_timestamp(version, &snapshot, self.after(14), &self.online.image_timestamp).unwrap();
        let roots = vec![self.roots.image.clone()];
        RepositoryMetadata { roots, timestamp, snapshot, targets, ..RepositoryMetadata::default() }
    }

    /// What this device shall run: these packages.
    pub fn bundle(&self, sequence: u64, device: &str, packages: &[usize]) -> MetadataBundle {
        let assigned = |n: &usize| {
            let bundle = &self.packages[*n].built.bundle;
            let target = ImageTarget::of(bundle);
            AssignedPackage {
                package: target.custom.package.clone(),
                target: target.name(),
                digest: target.digest,
                length: target.length,
                release: target.custom.release,
                settings: BTreeMap::new(),
            }
        };
        let assignment = DirectorAssignment {
            format: 1,
            device: device.parse().unwrap(),
            sequence,
            issued_at: self.now,
            nonce: Vec::new(),
            assignments: packages.iter().map(assigned).collect(),
        };
        let signed = sign_device(sequence, &assignment, self.after(7), self.online.director()).unwrap();
        let director = signed.metadata(vec![self.roots.director.clone()]);
        MetadataBundle { image: self.image(), director, assignment: signed.assignment }
    }

    /// A file of these packages, with the metadata of a bundle.
    pub fn file(&self, bundle: &MetadataBundle, device: Option<&str>, packages: &[usize]) -> Vec<u8> {
        let device = device.map(|device| device.parse().unwrap());
        let metadata = MetadataFiles::of(bundle, device.as_ref()).unwrap();
        self.archive(&metadata, packages, &[])
    }

    /// A file of the Image repository alone.
    pub fn image_file(&self, packages: &[usize]) -> Vec<u8> {
        let bundle = MetadataBundle { image: self.image(), ..MetadataBundle::default() };
        self.file(&bundle, None, packages)
    }

    pub fn archive(&self, metadata: &MetadataFiles, packages: &[usize], more: &[&[u8]]) -> Vec<u8> {
        let manifests: Vec<_> = packages
            .iter()
            .map(|n| {
                let bundle = &self.packages[*n].built.bundle;
                json!({ "mediaType": "application/vnd.oci.image.manifest.v1+json",
                    "digest": bundle.digest(), "size": bundle.length() })
            })
            .collect();
        let index = json!({ "schemaVersion": 2, "manifests": manifests }).to_string();
        let mut writer = Writer::new(Vec::new(), index.as_bytes(), metadata).unwrap();
        let blobs = packages.iter().flat_map(|n| &self.packages[*n].blobs).map(Vec::as_slice);
        for blob in blobs.chain(more.iter().copied()) {
            writer.blob(Digest::of(blob), blob.len() as u64, blob).unwrap();
        }
        writer.finish().unwrap()
    }
}
