//! What the Image repository lists: every release, with what its signer says of it.
//!
//! A target is `<name>-<version>.pkg.json`, its bytes the OCI manifest, its `custom` part
//! [`ImageCustom`]. Entries that are malformed stop only those who want them.

use jiff::Timestamp;
use semver::Version;
use serde::{Deserialize, Serialize};
use sigstore_tuf::{Metadata, Root, TargetFile, Targets, TrustedMetadataSet};

use super::assignment::{AssignedPackage, Assignment};
use super::repository::refused;
use super::{Repository, TrustError, sized};
use crate::digest::Digest;
use crate::limits::MetadataLimits;
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

/// A verified Image `targets.json`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageTargets {
    /// Version of the file.
    pub version: u64,
    /// When it expires.
    pub expires: Timestamp,
    /// Every release, by target name.
    pub releases: Vec<ReleasedTarget>,
}

/// The name of the target of a release.
pub fn target_name(package: &PackageName, version: &Version) -> String {
    format!("{package}-{version}.pkg.json")
}

/// Verifies an Image `targets.json` against a trusted Image root: signatures, expiry, and that
/// every entry is a well-formed release. Versions are the caller's to compare.
pub fn verify_targets(root: &[u8], targets: &[u8], now: Timestamp) -> Result<ImageTargets, TrustError> {
    let limits = MetadataLimits::DEVICE;
    let image = Repository::Image;
    sized("a root", root, limits.root_bytes)?;
    sized("targets.json", targets, limits.image_targets_bytes)?;
    let set = TrustedMetadataSet::from_root(root).map_err(|source| refused(image, "root", source))?;
    set.check_root_expired(now).map_err(|source| refused(image, "root", source))?;
    let read =
        Metadata::<Targets>::from_slice(targets).map_err(|source| refused(image, "targets", source))?;
    let trusted: &Root = set.root();
    let keys = trusted
        .role("targets")
        .ok_or_else(|| refused(image, "targets", sigstore_tuf::Error::UnknownRole("targets".into())))?;
    read.verify_threshold(&trusted.keys, keys, "targets")
        .map_err(|source| refused(image, "targets", source))?;
    let signed = read.signed();
    if signed.expires <= now {
        return Err(TrustError::Expired { repository: image, role: "targets", expires: signed.expires });
    }
    if signed.delegations.as_ref().is_some_and(|delegations| !delegations.roles.is_empty()) {
        return Err(TrustError::Delegations { repository: image });
    }
    let releases =
        signed.targets.iter().map(|(name, target)| released(name, target)).collect::<Result<_, _>>()?;
    Ok(ImageTargets { version: signed.version, expires: signed.expires, releases })
}

/// Reads one entry.
fn released(name: &str, target: &TargetFile) -> Result<ReleasedTarget, TrustError> {
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
pub(super) fn join(image: &Targets, assigned: AssignedPackage) -> Result<Assignment, TrustError> {
    let Some(target) = image.target(&assigned.target) else {
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

/// A name from outside as an error may show it.
fn shown(text: &str) -> String {
    text.chars().take(120).collect::<String>().escape_debug().to_string()
}
