//! The Image repository's targets: what was released.
//!
//! A version is released once and a release counter only grows; what breaks this is not signed.

use std::collections::HashMap;

use jiff::Timestamp;
use selvedge_package::trust::{ImageCustom, target_name};
use selvedge_package::{Bundle, Digest};
use tough::TargetName;
use tough::schema::{Signed, Target, Targets};

use crate::lifetimes::whole_seconds;
use crate::metadata::{self, SPEC};
use crate::{Signer, SigningError};

/// A release to be listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageTarget {
    /// SHA-256 of the OCI manifest.
    pub digest: Digest,
    /// Bytes of the OCI manifest.
    pub length: u64,
    /// Name, version, release and what else devices decide by.
    pub custom: ImageCustom,
}

impl ImageTarget {
    /// What is listed of a package: all of it is in its own manifests.
    pub fn of(bundle: &Bundle) -> Self {
        let manifest = bundle.manifest();
        Self {
            digest: bundle.digest(),
            length: bundle.length(),
            custom: ImageCustom {
                package: manifest.name.clone(),
                version: manifest.version.clone(),
                release: manifest.release,
                min_release: manifest.min_release,
                architectures: manifest.requires.architectures.clone(),
            },
        }
    }

    /// The target's name: `<name>-<version>.pkg.json`.
    pub fn name(&self) -> String {
        target_name(&self.custom.package, &self.custom.version)
    }
}

/// The next `targets.json`: what `previous` lists and one release more. The first one has version
/// 1. `previous` must have been verified (`selvedge_package::trust::verify_targets`).
pub fn add_target(
    previous: Option<&[u8]>,
    target: &ImageTarget,
    expires: Timestamp,
    signers: &[&dyn Signer],
) -> Result<Vec<u8>, SigningError> {
    let mut targets = next(previous, expires)?;
    let ImageCustom { package, release, min_release, .. } = &target.custom;
    if min_release > release {
        return Err(SigningError::MinRelease { release: *release, min_release: *min_release });
    }
    let text = target.name();
    let name = TargetName::new(&text)
        .map_err(|source| SigningError::TargetName { name: text.clone(), source: Box::new(source) })?;
    if targets.targets.contains_key(&name) {
        return Err(SigningError::Released { name: text });
    }
    let last = targets
        .targets
        .values()
        .filter(|listed| listed.custom.get("package").and_then(|v| v.as_str()) == Some(package.as_str()))
        .filter_map(|listed| listed.custom.get("release").and_then(|v| v.as_u64()))
        .max()
        .unwrap_or(0);
    if *release <= last {
        return Err(SigningError::ReleaseNotAbove { package: package.clone(), release: *release, last });
    }
    let custom = serde_json::to_value(&target.custom)
        .and_then(serde_json::from_value)
        .map_err(|source| SigningError::Json { what: "release", source })?;
    let entry = Target {
        length: target.length,
        hashes: metadata::hashes(target.digest),
        custom,
        _extra: HashMap::new(),
    };
    targets.targets.insert(name, entry);
    metadata::sign("targets", targets, signers)
}

/// The next `targets.json`, listing what `previous` lists, with a new expiry.
pub fn renew(previous: &[u8], expires: Timestamp, signers: &[&dyn Signer]) -> Result<Vec<u8>, SigningError> {
    metadata::sign("targets", next(Some(previous), expires)?, signers)
}

fn next(previous: Option<&[u8]>, expires: Timestamp) -> Result<Targets, SigningError> {
    let expires = whole_seconds(expires);
    let Some(bytes) = previous else {
        let first = metadata::version("targets", 1)?;
        let mut targets = Targets::new(SPEC.to_owned(), first, expires);
        targets.delegations = None;
        return Ok(targets);
    };
    let signed: Signed<Targets> = metadata::read("targets", bytes)?;
    let mut targets = signed.signed;
    let version = targets.version.get();
    targets.version =
        targets.version.checked_add(1).ok_or(SigningError::Version { what: "targets", version })?;
    targets.expires = expires;
    Ok(targets)
}
