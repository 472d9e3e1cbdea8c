//! Packages for tests: real bundles with made-up models, and metadata signed for them.

use std::collections::BTreeMap;

use reqwest::Method;
use selvedge_package::bundle::{Builder, Built};
use selvedge_package::trust::{ImageCustom, ImageFiles};
use selvedge_package::{Digest, FilePath, Manifest};
use selvedge_signing::image::{ImageTarget, add_target};
use selvedge_signing::tree::{ChangedFiles, add_release};
use selvedge_signing::{Keyring, Signer, SigningKey};
use serde_json::{Value, json};

use super::Registry;

/// A built package and the bytes of every blob but the OCI manifest.
pub struct Package {
    pub built: Built,
    pub blobs: Vec<(Digest, Vec<u8>)>,
}

/// What a package asks for.
#[derive(Default)]
pub struct Wish {
    pub architectures: &'static [&'static str],
    pub min_release: u64,
}

/// A package with a model of `size` bytes that are made from its release.
pub fn package(name: &str, version: &str, release: u64, size: usize) -> Package {
    build(name, version, release, size, Wish::default(), &["threshold"])
}

/// A package that asks for something.
pub fn wish(name: &str, version: &str, release: u64, size: usize, wish: Wish) -> Package {
    build(name, version, release, size, wish, &["threshold"])
}

/// A package with these settings.
pub fn with_settings(name: &str, version: &str, release: u64, settings: &[&str]) -> Package {
    build(name, version, release, 100, Wish::default(), settings)
}

fn build(name: &str, version: &str, release: u64, size: usize, wish: Wish, settings: &[&str]) -> Package {
    let settings: std::collections::BTreeMap<&str, &str> = settings.iter().map(|key| (*key, "0.5")).collect();
    let path = |text: &str| text.parse::<FilePath>().unwrap();
    let manifest: Manifest = serde_json::from_value(json!({
        "format": 1,
        "name": name,
        "version": version,
        "release": release,
        "models": [{"name": "main", "file": "model.onnx"}],
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1]}],
        "acceptance": {"cases": ["cases/one.json"]},
        "settings": settings,
        "min-release": wish.min_release,
        "requires": {"architectures": wish.architectures},
    }))
    .unwrap();
    let model: Vec<u8> = (0..size).map(|at| (at as u64 * 31 + at as u64 / 257 + release) as u8).collect();
    let case = b"{}".to_vec();
    let mut builder = Builder::new(manifest);
    builder.bytes(path("model.onnx"), &model).unwrap();
    builder.bytes(path("cases/one.json"), &case).unwrap();
    let built = builder.build().unwrap();
    let mut blobs = built.blobs.clone();
    blobs.push((Digest::of(&model), model));
    blobs.push((Digest::of(&case), case));
    Package { built, blobs }
}

impl Package {
    pub fn digest(&self) -> Digest {
        self.built.bundle.digest()
    }

    /// What is signed for it.
    pub fn entry(&self) -> ImageTarget {
        let manifest = self.built.bundle.manifest();
        ImageTarget {
            digest: self.digest(),
            length: self.built.bundle.length(),
            custom: ImageCustom {
                package: manifest.name.clone(),
                version: manifest.version.clone(),
                release: manifest.release,
                min_release: manifest.min_release,
                architectures: manifest.requires.architectures.clone(),
            },
        }
    }

    /// The model's blob.
    pub fn model(&self) -> (Digest, &[u8]) {
        let digest = self.built.bundle.descriptor(&"model.onnx".parse().unwrap()).unwrap().digest;
        let (_, bytes) = self.blobs.iter().find(|(known, _)| *known == digest).unwrap();
        (digest, bytes)
    }
}

impl Registry {
    pub fn keys(&self) -> Keyring {
        Keyring::load(&self.path("keys")).unwrap()
    }

    pub async fn put(&self, digest: Digest, bytes: &[u8]) -> (u16, Value) {
        let request = self.request(Method::PUT, &format!("/v1/blobs/{digest}")).body(bytes.to_vec());
        let (status, value) = self.send(request).await;
        (status.as_u16(), value)
    }

    /// Upload every blob of a package but those of `except`.
    pub async fn upload(&self, package: &Package, except: &[Digest]) {
        let manifest = (package.digest(), package.built.manifest.clone());
        for (digest, bytes) in package.blobs.iter().chain([&manifest]) {
            if !except.contains(digest) {
                let (status, value) = self.put(*digest, bytes).await;
                assert!(status == 201 || status == 200, "{value}");
            }
        }
    }

    /// The newest `targets.json`, as the registry shows it.
    pub async fn newest_targets(&self) -> Option<String> {
        self.image().await.1.remove("targets")
    }

    /// The Image root and every role that lists releases, as the registry shows them.
    pub async fn image(&self) -> (String, BTreeMap<String, String>) {
        let (status, value) = self.get("/v1/trust/image").await;
        assert_eq!(status, 200);
        let root = value["root"].as_str().unwrap().to_owned();
        (root, serde_json::from_value(value["roles"].clone()).unwrap())
    }

    /// The roles that one release more changes, signed by these keys.
    pub async fn sign(&self, package: &Package, keys: &[&dyn Signer]) -> BTreeMap<String, String> {
        let (root, roles) = self.image().await;
        let expires = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1000);
        let files = files(&roles);
        let previous = (!roles.is_empty()).then_some(&files);
        let changed = add_release(root.as_bytes(), previous, &package.entry(), expires, keys).unwrap();
        texts(changed)
    }

    /// Upload, sign, release.
    pub async fn release(&self, package: &Package) -> Value {
        self.upload(package, &[]).await;
        let roles = self.sign(package, &[&self.keys().image_targets]).await;
        let body = json!({"package": package.digest(), "roles": roles});
        let (status, value) = self.post("/v1/workspaces/default/releases", body).await;
        assert_eq!(status, 201, "{value}");
        value
    }
}

/// Roles as files.
pub fn files(roles: &BTreeMap<String, String>) -> ImageFiles {
    let mut files = ImageFiles::default();
    for (role, text) in roles {
        files.set(role, text.clone().into_bytes());
    }
    files
}

/// Signed files as text.
pub fn texts(changed: ChangedFiles) -> BTreeMap<String, String> {
    let text = |(role, bytes)| (role, String::from_utf8(bytes).unwrap());
    changed.0.into_iter().map(text).collect()
}

/// Targets with one release more than `previous`.
pub fn sign_on(previous: Option<&str>, package: &Package, key: &SigningKey) -> String {
    let expires = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1000);
    let bytes = add_target(previous.map(str::as_bytes), &package.entry(), expires, &[key]).unwrap();
    String::from_utf8(bytes).unwrap()
}
