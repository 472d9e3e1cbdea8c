//! Packages for tests: real bundles with made-up models, and metadata signed for them.

use reqwest::Method;
use selvedge_package::bundle::{Builder, Built};
use selvedge_package::trust::ImageCustom;
use selvedge_package::{Digest, FilePath, Manifest};
use selvedge_signing::image::{ImageTarget, add_target};
use selvedge_signing::{Keyring, SigningKey};
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

    /// The newest targets, as the registry shows them.
    pub async fn newest_targets(&self) -> Option<String> {
        let (status, value) = self.get("/v1/trust/image").await;
        assert_eq!(status, 200);
        assert!(value["root"].is_string());
        value["targets"].as_str().map(str::to_owned)
    }

    /// Targets with one release more than the newest, signed by `key`.
    pub async fn sign(&self, package: &Package, key: &SigningKey) -> String {
        let previous = self.newest_targets().await;
        sign_on(previous.as_deref(), package, key)
    }

    /// Upload, sign, release.
    pub async fn release(&self, package: &Package) -> Value {
        self.upload(package, &[]).await;
        let targets = self.sign(package, &self.keys().image_targets).await;
        let body = json!({"package": package.digest(), "targets": targets});
        let (status, value) = self.post("/v1/workspaces/default/releases", body).await;
        assert_eq!(status, 201, "{value}");
        value
    }
}

/// Targets with one release more than `previous`.
pub fn sign_on(previous: Option<&str>, package: &Package, key: &SigningKey) -> String {
    let expires = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1000);
    let bytes = add_target(previous.map(str::as_bytes), &package.entry(), expires, &[key]).unwrap();
    String::from_utf8(bytes).unwrap()
}
