//! A registry and its people in memory: keys, both repositories, and offers to a device.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use selvedge_package::trust::{
    Accepted, AssignedPackage, DirectorAssignment, ImageCustom, MetadataBundle, RepositoryMetadata,
    TrustError, TrustState, accept,
};
use selvedge_package::{DeviceId, Digest};
use selvedge_signing::director::{DirectorSigners, sign_device};
use selvedge_signing::image::{ImageTarget, add_target};
use selvedge_signing::lifetimes::{self, expiry};
use selvedge_signing::online::{sign_snapshot, sign_timestamp};
use selvedge_signing::roots::{RoleKeys, RootSpec, sign_root};
use selvedge_signing::{Signer, SigningKey};

pub const DAY: SignedDuration = SignedDuration::from_hours(24);

pub fn start() -> Timestamp {
    "2026-03-01T12:00:00Z".parse().unwrap()
}

/// The keys of one repository.
pub struct Keys {
    pub root: SigningKey,
    pub targets: SigningKey,
    pub snapshot: SigningKey,
    pub timestamp: SigningKey,
}

impl Keys {
    pub fn new() -> Self {
        let key = || SigningKey::generate().unwrap();
        Self { root: key(), targets: key(), snapshot: key(), timestamp: key() }
    }

    pub fn spec(&self, version: u64, expires: Timestamp) -> RootSpec {
        let single = |key: &SigningKey| RoleKeys::single(key.public_key());
        RootSpec {
            version,
            expires,
            root: single(&self.root),
            targets: single(&self.targets),
            snapshot: single(&self.snapshot),
            timestamp: single(&self.timestamp),
        }
    }
}

/// Everything that a registry and its people hold, and the time.
pub struct World {
    pub image: Keys,
    pub director: Keys,
    pub image_roots: Vec<Vec<u8>>,
    pub director_roots: Vec<Vec<u8>>,
    pub image_targets: Vec<u8>,
    pub image_version: u64,
    pub director_version: u64,
    pub sequence: u64,
    pub now: Timestamp,
}

pub fn device(name: &str) -> DeviceId {
    name.parse().unwrap()
}

pub fn custom(package: &str, version: &str, release: u64) -> ImageCustom {
    ImageCustom {
        package: package.parse().unwrap(),
        version: version.parse().unwrap(),
        release,
        min_release: 0,
        architectures: vec!["x86_64".into()],
    }
}

pub fn target(package: &str, version: &str, release: u64) -> ImageTarget {
    let bytes = format!("{package} {version} {release}");
    ImageTarget {
        digest: Digest::of(bytes.as_bytes()),
        length: bytes.len() as u64,
        custom: custom(package, version, release),
    }
}

pub fn assigned(target: &ImageTarget) -> AssignedPackage {
    AssignedPackage {
        package: target.custom.package.clone(),
        target: target.name(),
        digest: target.digest,
        length: target.length,
        release: target.custom.release,
        settings: BTreeMap::from([("threshold".into(), "0.5".into())]),
    }
}

impl World {
    /// A registry in which `file-type` 1.0.0 was released.
    pub fn new() -> Self {
        let now = start();
        let (image, director) = (Keys::new(), Keys::new());
        let expires = expiry(now, lifetimes::ROOT);
        let image_roots = vec![sign_root(&image.spec(1, expires), &[&image.root]).unwrap()];
        let director_roots = vec![sign_root(&director.spec(1, expires), &[&director.root]).unwrap()];
        let image_targets = add_target(
            None,
            &target("file-type", "1.0.0", 1),
            expiry(now, lifetimes::IMAGE_TARGETS),
            &[&image.targets],
        )
        .unwrap();
        Self {
            image,
            director,
            image_roots,
            director_roots,
            image_targets,
            image_version: 1,
            director_version: 0,
            sequence: 0,
            now,
        }
    }

    pub fn enrol(&self) -> TrustState {
        TrustState::enrol(&self.image_roots[0], &self.director_roots[0], start() - DAY).unwrap()
    }

    pub fn release(&mut self, target: &ImageTarget) {
        let expires = expiry(self.now, lifetimes::IMAGE_TARGETS);
        self.image_targets =
            add_target(Some(&self.image_targets), target, expires, &[&self.image.targets]).unwrap();
        self.image_version += 1;
    }

    /// The Image repository with its online roles signed now.
    pub fn image_metadata(&self) -> RepositoryMetadata {
        self.image_metadata_signed_by(&self.image.snapshot, &self.image.timestamp)
    }

    pub fn image_metadata_signed_by(
        &self,
        snapshot_key: &dyn Signer,
        timestamp_key: &dyn Signer,
    ) -> RepositoryMetadata {
        let snapshot = sign_snapshot(
            self.image_version,
            &self.image_targets,
            expiry(self.now, lifetimes::IMAGE_SNAPSHOT),
            snapshot_key,
        )
        .unwrap();
        let timestamp = sign_timestamp(
            self.image_version,
            &snapshot,
            expiry(self.now, lifetimes::IMAGE_TIMESTAMP),
            timestamp_key,
        )
        .unwrap();
        RepositoryMetadata {
            roots: self.image_roots.clone(),
            timestamp,
            snapshot,
            targets: self.image_targets.clone(),
            ..RepositoryMetadata::default()
        }
    }

    pub fn assignment(&self, to: &str, targets: &[&ImageTarget]) -> DirectorAssignment {
        DirectorAssignment {
            format: 1,
            device: device(to),
            sequence: self.sequence,
            issued_at: self.now,
            nonce: vec![1, 2, 3],
            assignments: targets.iter().copied().map(assigned).collect(),
        }
    }

    /// Signs what the Director says, whatever it says, as the next version.
    pub fn offer_of(&mut self, assignment: &DirectorAssignment) -> MetadataBundle {
        self.director_version += 1;
        let signers = DirectorSigners {
            targets: &self.director.targets,
            snapshot: &self.director.snapshot,
            timestamp: &self.director.timestamp,
        };
        let expires = expiry(self.now, lifetimes::DIRECTOR);
        let signed = sign_device(self.director_version, assignment, expires, signers).unwrap();
        MetadataBundle {
            image: self.image_metadata(),
            director: signed.metadata(self.director_roots.clone()),
            assignment: signed.assignment,
        }
    }

    /// Assigns `targets` to the device `to` in a new sequence.
    pub fn offer(&mut self, to: &str, targets: &[&ImageTarget]) -> MetadataBundle {
        self.sequence += 1;
        let assignment = self.assignment(to, targets);
        self.offer_of(&assignment)
    }

    pub fn accept(&self, state: &TrustState, offer: &MetadataBundle) -> Result<Accepted, TrustError> {
        accept(state, offer, &device("edge-1"), Some(self.now))
    }
}

/// The reason of a refusal, which must be one.
pub fn refusal(result: Result<Accepted, TrustError>) -> (&'static str, String) {
    let error = result.map(|accepted| accepted.desired).unwrap_err();
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    (error.reason(), text)
}

/// Checks that an offer is refused for `reason`, with `words` in the message.
pub fn check_refused(result: Result<Accepted, TrustError>, reason: &str, words: &str) {
    let (found, text) = refusal(result);
    assert_eq!(found, reason, "{text}");
    assert!(text.contains(words), "{text:?} lacks {words:?}");
}
