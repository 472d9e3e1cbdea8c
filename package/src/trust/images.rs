//! What the Image repository lists: every release, with what its signer says of it.
//!
//! A target is `<name>-<version>.pkg.json`, its bytes the OCI manifest, its `custom` part
//! [`ImageCustom`]. Entries that are malformed stop only those who want them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use semver::Version;
use serde::{Deserialize, Serialize};
use sigstore_tuf::TargetFile;

use super::TrustError;
use super::assignment::{AssignedPackage, Assignment};
use super::update::shown;
use crate::digest::Digest;
use crate::name::PackageName;

/// The `custom` part of an Image target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ImageCustom {
    /// Name of the package.
    pub package: PackageName,
    /// Its version for people.
    pub version: Version,
    /// Its release counter.
    pub release: u64,
    /// No device that committed it may later run a release below this one.
    pub min_release: u64,
    /// Architectures that it runs on; empty: any.
    pub architectures: Vec<String>,
}

/// A release as the Image repository lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleasedTarget {
    /// Name of the target.
    pub target: String,
    /// SHA-256 of the OCI manifest.
    pub digest: Digest,
    /// Bytes of the OCI manifest.
    pub length: u64,
    /// What its signer says of it.
    pub custom: ImageCustom,
}

/// The verified targets of an Image repository.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageTargets {
    /// Version of `targets.json`.
    pub version: u64,
    /// When the first of the files expires.
    pub expires: Timestamp,
    /// Every release, by target name.
    pub releases: Vec<ReleasedTarget>,
    /// The version of every file, by role: `targets` and the bins.
    pub roles: BTreeMap<String, u64>,
}

/// The name of the target of a release.
pub fn target_name(package: &PackageName, version: &Version) -> String {
    format!("{package}-{version}.pkg.json")
}

/// Reads one entry.
pub(super) fn released(name: &str, target: &TargetFile) -> Result<ReleasedTarget, TrustError> {
    let wrong = |reason: String| TrustError::Target { target: shown(name), reason };
    let custom = target.custom.clone().ok_or_else(|| wrong("it has no `custom` part".into()))?;
    let custom: ImageCustom = serde_json::from_value(custom).map_err(|source| wrong(source.to_string()))?;
    let expected = target_name(&custom.package, &custom.version);
    if name != expected {
        return Err(wrong(format!("its name should be `{expected}`")));
    }
    if custom.release == 0 || custom.min_release > custom.release {
        return Err(wrong("its release counter is below 1 or below `min-release`".into()));
    }
    Ok(ReleasedTarget {
        target: name.to_owned(),
        digest: sha256(name, target)?,
        length: target.length,
        custom,
    })
}

/// Joins one assignment with its release; all that both say must be equal.
pub(super) fn join(target: Option<&TargetFile>, assigned: AssignedPackage) -> Result<Assignment, TrustError> {
    let Some(target) = target else {
        return Err(TrustError::NotReleased { target: shown(&assigned.target) });
    };
    let release = released(&assigned.target, target)?;
    for (what, assigned_value, released_value) in [
        ("package name", assigned.package.to_string(), release.custom.package.to_string()),
        ("length", assigned.length.to_string(), release.length.to_string()),
        ("digest", assigned.digest.to_string(), release.digest.to_string()),
        ("release", assigned.release.to_string(), release.custom.release.to_string()),
    ] {
        if assigned_value != released_value {
            return Err(TrustError::Disagree {
                target: release.target,
                what,
                assigned: assigned_value,
                released: released_value,
            });
        }
    }
    Ok(Assignment {
        package: assigned.package,
        version: release.custom.version,
        target: release.target,
        digest: release.digest,
        length: release.length,
        release: release.custom.release,
        min_release: release.custom.min_release,
        architectures: release.custom.architectures,
        settings: assigned.settings,
    })
}

/// The SHA-256 that a target's entry pins; an entry without one is refused.
pub(super) fn sha256(name: &str, target: &TargetFile) -> Result<Digest, TrustError> {
    let wrong = |reason: &str| TrustError::Target { target: shown(name), reason: reason.into() };
    let hex = target.hashes.get("sha256").ok_or_else(|| wrong("it has no sha256"))?;
    Digest::from_hex(&hex.to_ascii_lowercase()).map_err(|_| wrong("its sha256 is malformed"))
}
