//! What is signed again and when, judged by the device's own verification.

use jiff::{SignedDuration, Timestamp};
use selvedge_package::trust::{Accepted, ImageCustom, MetadataBundle, TrustError, TrustState, accept};
use selvedge_package::{DeviceId, Digest};
use selvedge_protocol::envelope::from_cbor;
use selvedge_signing::image::{ImageTarget, add_target};
use selvedge_signing::roots::{RoleKeys, RootSpec, sign_root};
use selvedge_signing::{Keyring, SigningKey, keyring};

use super::*;
use crate::store::metadata::Signed;
use crate::store::targets::Kind;

const DAY: i64 = 24;

struct Scene {
    folder: tempfile::TempDir,
    store: Store,
    trust: Trust,
    start: Timestamp,
}

impl Scene {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let start: Timestamp = "2026-03-01T12:00:00.5Z".parse().unwrap();
        keyring::init(&folder.path().join("keys"), start).unwrap();
        let store = Store::open(&folder.path().join("db")).await.unwrap();
        let trust = Trust::open(&options(folder.path()), &store, start).await.unwrap();
        Self { folder, store, trust, start }
    }

    fn after(&self, days: i64) -> Timestamp {
        self.start + SignedDuration::from_hours(DAY * days)
    }

    /// Targets with one release, as if it had been uploaded.
    async fn list_a_release(&self) {
        let target = ImageTarget {
            digest: Digest::of(b"package"),
            length: 7,
            custom: ImageCustom {
                package: "file-type".parse().unwrap(),
                version: "1.0.0".parse().unwrap(),
                release: 1,
                min_release: 0,
                architectures: Vec::new(),
            },
        };
        let key = Keyring::load(&self.folder.path().join("keys")).unwrap().image_targets;
        let expires = self.after(365);
        let body = String::from_utf8(add_target(None, &target, expires, &[&key]).unwrap()).unwrap();
        let signed = Signed {
            role: Role::Targets,
            version: 1,
            signed_ms: self.start.as_millisecond(),
            expires_ms: expires.as_millisecond(),
            body,
        };
        let mut change = self.store.change().await.unwrap();
        change.keep_metadata(&Repository::Image, &signed).await.unwrap();
        change.commit().await.unwrap();
        self.trust.refresh_image(&self.store, self.start).await.unwrap();
    }

    /// Versions of the Image snapshot and timestamp.
    async fn versions(&self) -> (u64, u64) {
        let version =
            async |role| self.store.newest(&Repository::Image, role).await.unwrap().unwrap().version;
        (version(Role::Snapshot).await, version(Role::Timestamp).await)
    }

    async fn offer(
        &self,
        device: &DeviceId,
        state: &TrustState,
        now: Timestamp,
    ) -> Result<Accepted, TrustError> {
        let bytes = self.trust.bundle(&self.store, device, &Claims::default()).await.unwrap().unwrap();
        let bundle: MetadataBundle = from_cbor(&bytes).unwrap();
        accept(state, &bundle, device, Some(now))
    }
}

fn options(folder: &std::path::Path) -> Options {
    let keys = folder.join("keys");
    Options {
        online_keys: keys.join("online"),
        roots: keys.join("roots"),
        files: folder.join("tuf"),
        lifetimes: Lifetimes::default(),
    }
}

#[tokio::test]
async fn the_image_roles_are_signed_again_at_half_of_their_lives() {
    let scene = Scene::new().await;
    scene.list_a_release().await;
    assert_eq!(scene.versions().await, (1, 1));
    // Timestamps live for 14 days, snapshots for 30.
    for (days, expected) in
        [(6, (1, 1)), (8, (1, 2)), (14, (1, 2)), (16, (2, 3)), (20, (2, 3)), (400, (3, 4))]
    {
        scene.trust.refresh_image(&scene.store, scene.after(days)).await.unwrap();
        assert_eq!(scene.versions().await, expected, "after {days} days");
    }
    let files: Vec<String> = std::fs::read_dir(scene.folder.path().join("tuf/image"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(files.len(), 4, "{files:?}");
}

#[tokio::test]
async fn what_a_device_shall_run_is_signed_when_that_is_due_and_only_then() {
    let scene = Scene::new().await;
    let device: DeviceId = "edge-1".parse().unwrap();
    let mut change = scene.store.change().await.unwrap();
    let labels = std::collections::BTreeMap::new();
    change.add_target("default", &device, Kind::Device, &labels, "", 0).await.unwrap();
    change.commit().await.unwrap();
    let roots = scene.trust.roots(&scene.store).await.unwrap();
    let state = TrustState::enrol(roots.image.as_bytes(), roots.director.as_bytes(), scene.start).unwrap();
    let direct = async |nonce: &[u8], days| {
        let claims = Claims { nonce: nonce.to_vec(), ..Claims::default() };
        scene.trust.direct(&scene.store, &device, &claims, scene.after(days)).await.unwrap()
    };
    assert_eq!(direct(b"a", 0).await, Directed::Nothing);
    assert_eq!(scene.trust.bundle(&scene.store, &device, &Claims::default()).await.unwrap(), None);
    scene.list_a_release().await;
    let version = async || {
        let mine = Repository::Director(device.clone());
        scene.store.newest(&mine, Role::Timestamp).await.unwrap().unwrap().version
    };
    // Lives are 7 days.
    for (nonce, days, expected) in [(b"a", 0, 1), (b"a", 3, 1), (b"b", 3, 2), (b"b", 5, 2), (b"b", 7, 3)] {
        assert_eq!(direct(nonce, days).await, Directed::Signed);
        assert_eq!(version().await, expected, "after {days} days");
    }
    let accepted = scene.offer(&device, &state, scene.after(7)).await.unwrap();
    assert_eq!((accepted.desired.sequence, &accepted.desired.nonce[..]), (1, &b"b"[..]));
    assert_eq!(accepted.desired.issued_at, scene.after(7));
    assert!(!scene.trust.behind(&scene.store, &device, 1).await.unwrap());
    assert!(scene.trust.behind(&scene.store, &device, 0).await.unwrap());
    // Offered to another device, or too late, it is refused by the device.
    let other: DeviceId = "edge-2".parse().unwrap();
    let bytes = scene.trust.bundle(&scene.store, &device, &Claims::default()).await.unwrap().unwrap();
    let bundle: MetadataBundle = from_cbor(&bytes).unwrap();
    assert!(accept(&state, &bundle, &other, Some(scene.after(7))).is_err());
    let late = scene.offer(&device, &state, scene.after(15)).await;
    assert!(matches!(late, Err(TrustError::Expired { .. })), "{late:?}");
}

#[tokio::test]
async fn a_start_signs_again_what_is_due() {
    let scene = Scene::new().await;
    scene.list_a_release().await;
    let again = Trust::open(&options(scene.folder.path()), &scene.store, scene.after(8)).await.unwrap();
    assert_eq!(scene.versions().await, (1, 2));
    assert_eq!(again.roots(&scene.store).await.unwrap(), scene.trust.roots(&scene.store).await.unwrap());
}

#[tokio::test]
async fn a_root_with_other_releasers_than_those_of_the_list_is_told() {
    let scene = Scene::new().await;
    scene.list_a_release().await;
    assert_eq!(scene.trust.watched(&scene.store, scene.start).await.unwrap().warnings, [""; 0]);
    let keys = Keyring::load(&scene.folder.path().join("keys")).unwrap();
    let path = scene.folder.path().join("keys/roots/image.root.json");
    let mut spec = RootSpec::read(&std::fs::read(&path).unwrap()).unwrap();
    spec.version = 2;
    spec.targets = RoleKeys::single(SigningKey::generate().unwrap().public_key());
    std::fs::write(&path, sign_root(&spec, &[&keys.image_root]).unwrap()).unwrap();
    let again = Trust::open(&options(scene.folder.path()), &scene.store, scene.start).await.unwrap();
    let warnings = again.watched(&scene.store, scene.start).await.unwrap().warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("devices refuse the list of releases"), "{warnings:?}");
}
