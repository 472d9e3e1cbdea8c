//! What the Director says that one device shall run: the target `<device>.json`.
//!
//! The bytes are covered by the Director's `targets.json`. Unknown fields are refused.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use semver::Version;
use serde::{Deserialize, Serialize};

use super::TrustError;
use super::update::shown;
use crate::digest::Digest;
use crate::limits::{Limits, MetadataLimits};
use crate::name::{DeviceId, PackageName};
use crate::rules;

/// Version of the format of [`DirectorAssignment`].
pub const FORMAT: u32 = 1;

/// `<device>.json`, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DirectorAssignment {
    /// [`FORMAT`].
    pub format: u32,
    /// The device that this is for.
    pub device: DeviceId,
    /// From 1; grows with every change of what this device shall run.
    pub sequence: u64,
    /// When the Director signed; a device without a clock takes it as a floor of its time.
    pub issued_at: Timestamp,
    /// The nonce of the device's last report; empty before the first.
    #[serde(with = "hex")]
    pub nonce: Vec<u8>,
    /// Everything that the device shall run; what is absent is uninstalled.
    pub assignments: Vec<AssignedPackage>,
}

/// One package of a [`DirectorAssignment`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct AssignedPackage {
    /// Its name.
    pub package: PackageName,
    /// Its target in the Image repository, such as `file-type-1.0.0.pkg.json`.
    pub target: String,
    /// SHA-256 of its OCI manifest.
    pub digest: Digest,
    /// Bytes of its OCI manifest.
    pub length: u64,
    /// Its release counter.
    pub release: u64,
    /// Settings that differ from the package's defaults.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
}

impl DirectorAssignment {
    /// The name of the target that carries this: `<device>.json`.
    pub fn target_name(device: &DeviceId) -> String {
        format!("{device}.json")
    }

    /// Reads `<device>.json`, whose bytes must have been verified already.
    pub fn parse(bytes: &[u8]) -> Result<Self, TrustError> {
        let limits = MetadataLimits::DEVICE;
        super::sized("the assignment", bytes, limits.assignment_bytes)?;
        let read: Self = serde_json::from_slice(bytes).map_err(TrustError::AssignmentJson)?;
        if read.format != FORMAT {
            return Err(TrustError::AssignmentFormat { found: read.format });
        }
        if read.sequence == 0 {
            return Err(TrustError::NoSequence);
        }
        let (found, most) = (read.assignments.len(), limits.assignments);
        if found > most {
            return Err(TrustError::TooMany { what: "assignments", found, most });
        }
        super::sized("the nonce", &read.nonce, limits.nonce_bytes)?;
        let mut names = BTreeSet::new();
        for assigned in &read.assignments {
            let package = &assigned.package;
            if !names.insert(package) {
                return Err(TrustError::AssignedTwice { package: package.clone() });
            }
            rules::check_settings("settings", &assigned.settings, &Limits::PACKAGE)
                .map_err(|source| TrustError::Settings { package: package.clone(), source })?;
        }
        Ok(read)
    }

    /// The bytes that are signed for.
    pub fn to_bytes(&self) -> Result<Vec<u8>, TrustError> {
        serde_json::to_vec(self).map_err(TrustError::AssignmentJson)
    }
}

/// What this device shall run, confirmed by both repositories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Desired {
    /// Grows with every change.
    pub sequence: u64,
    /// When the Director signed.
    pub issued_at: Timestamp,
    /// The nonce that the Director echoes.
    pub nonce: Vec<u8>,
    /// Every package, in the Director's order; no name twice.
    pub assignments: Vec<Assignment>,
}

/// One package that this device shall run: the Director's choice and what the Image repository
/// says of it, which agree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// Its name.
    pub package: PackageName,
    /// Its version for people.
    pub version: Version,
    /// Its target in the Image repository, such as `file-type-1.0.0.pkg.json`.
    pub target: String,
    /// SHA-256 of its OCI manifest.
    pub digest: Digest,
    /// Bytes of its OCI manifest.
    pub length: u64,
    /// Its release counter.
    pub release: u64,
    /// Once it is committed, no release below this one may run.
    pub min_release: u64,
    /// Architectures that it runs on; empty: any.
    pub architectures: Vec<String>,
    /// Settings that differ from the package's defaults.
    pub settings: BTreeMap<String, String>,
}

impl Assignment {
    /// Whether it runs on this device's architecture, such as `aarch64`.
    pub fn check_hardware(&self, device: &str) -> Result<(), TrustError> {
        if self.architectures.is_empty() || self.architectures.iter().any(|known| known == device) {
            return Ok(());
        }
        Err(TrustError::WrongHardware {
            package: self.package.clone(),
            architectures: shown(&self.architectures.join(", ")),
            device: device.to_owned(),
        })
    }

    /// Whether it is at or above its floor: the highest `min-release` that the device has committed of
    /// that name; 0 for none.
    pub fn check_floor(&self, floor: u64) -> Result<(), TrustError> {
        if self.release >= floor {
            return Ok(());
        }
        let (package, release) = (self.package.clone(), self.release);
        Err(TrustError::BelowFloor { package, release, floor })
    }
}
