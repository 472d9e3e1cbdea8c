//! The Director repository of one device: a single target that says what the device shall run.
//!
//! All three roles are signed together and share one version, so the registry keeps one number for
//! a device. A version must never be used twice with different contents.

use std::collections::HashMap;

use jiff::Timestamp;
use selvedge_package::Digest;
use selvedge_package::trust::{DirectorAssignment, RepositoryMetadata};
use tough::TargetName;
use tough::schema::{Target, Targets};

use crate::lifetimes::whole_seconds;
use crate::metadata::{self, SPEC};
use crate::{Signer, SigningError, online};

/// The keys that sign for the Director.
#[derive(Debug, Clone, Copy)]
pub struct DirectorSigners<'a> {
    /// Signs targets.
    pub targets: &'a dyn Signer,
    /// Signs snapshots.
    pub snapshot: &'a dyn Signer,
    /// Signs timestamps.
    pub timestamp: &'a dyn Signer,
}

/// What was signed for one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedDevice {
    /// Version of all three roles.
    pub version: u64,
    /// `timestamp.json`.
    pub timestamp: Vec<u8>,
    /// `<version>.snapshot.json`.
    pub snapshot: Vec<u8>,
    /// `<version>.targets.json`.
    pub targets: Vec<u8>,
    /// Bytes of the target `<device>.json`.
    pub assignment: Vec<u8>,
}

impl SignedDevice {
    /// The repository as a device gets it, with the chain of roots, oldest first.
    pub fn metadata(&self, roots: Vec<Vec<u8>>) -> RepositoryMetadata {
        RepositoryMetadata {
            roots,
            timestamp: self.timestamp.clone(),
            snapshot: self.snapshot.clone(),
            targets: self.targets.clone(),
            ..RepositoryMetadata::default()
        }
    }
}

/// Signs what one device shall run. `version` is one more than that of the last time, from 1.
pub fn sign_device(
    version: u64,
    assignment: &DirectorAssignment,
    expires: Timestamp,
    signers: DirectorSigners<'_>,
) -> Result<SignedDevice, SigningError> {
    let bytes = assignment.to_bytes().map_err(SigningError::Assignment)?;
    let text = DirectorAssignment::target_name(&assignment.device);
    let name = TargetName::new(&text)
        .map_err(|source| SigningError::TargetName { name: text, source: Box::new(source) })?;
    let entry = Target {
        length: bytes.len() as u64,
        hashes: metadata::hashes(Digest::of(&bytes)),
        custom: HashMap::new(),
        _extra: HashMap::new(),
    };
    let targets = Targets {
        spec_version: SPEC.to_owned(),
        version: metadata::version("targets", version)?,
        expires: whole_seconds(expires),
        targets: HashMap::from([(name, entry)]),
        delegations: None,
        _extra: HashMap::new(),
    };
    let targets = metadata::sign("targets", targets, &[signers.targets])?;
    let snapshot = online::sign_snapshot(version, &targets, expires, signers.snapshot)?;
    let timestamp = online::sign_timestamp(version, &snapshot, expires, signers.timestamp)?;
    Ok(SignedDevice { version, timestamp, snapshot, targets, assignment: bytes })
}
