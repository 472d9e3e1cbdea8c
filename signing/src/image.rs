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

/// The next `targets.json` of a repository that is not split, as [`crate::tree::add_release`] makes it
/// of any. It is not split here however long it gets. The first one has version 1.
pub fn add_target(
    previous: Option<&[u8]>,
    target: &ImageTarget,
    expires: Timestamp,
    signers: &[&dyn Signer],
) -> Result<Vec<u8>, SigningError> {
    let mut targets = next(previous, expires)?;
    target.check_above([&targets])?;
    let (name, entry) = target.entry()?;
    targets.targets.insert(name, entry);
    metadata::sign("targets", targets, signers)
}

/// The next `targets.json` of a repository that is not split, listing the same, with a new expiry.
pub fn renew(previous: &[u8], expires: Timestamp, signers: &[&dyn Signer]) -> Result<Vec<u8>, SigningError> {
    metadata::sign("targets", next(Some(previous), expires)?, signers)
}

impl ImageTarget {
    /// That this may be released after all that the files list: a version is released once, and a
    /// release counter only grows.
    pub(crate) fn check_above<'a>(
        &self,
        files: impl IntoIterator<Item = &'a Targets>,
    ) -> Result<(), SigningError> {
        let ImageCustom { package, release, min_release, .. } = &self.custom;
        if min_release > release {
            return Err(SigningError::MinRelease { release: *release, min_release: *min_release });
        }
        let name = self.target_name()?;
        let mut last = 0;
        for file in files {
            if file.targets.contains_key(&name) {
                return Err(SigningError::Released { name: self.name() });
            }
            let word = |listed: &Target, key: &str| listed.custom.get(key).cloned().unwrap_or_default();
            let same =
                file.targets.values().filter(|one| word(one, "package").as_str() == Some(package.as_str()));
            last = same.filter_map(|one| word(one, "release").as_u64()).fold(last, u64::max);
        }
        if *release <= last {
            return Err(SigningError::ReleaseNotAbove { package: package.clone(), release: *release, last });
        }
        Ok(())
    }

    /// Its entry in a list.
    pub(crate) fn entry(&self) -> Result<(TargetName, Target), SigningError> {
        let custom = serde_json::to_value(&self.custom)
            .and_then(serde_json::from_value)
            .map_err(|source| SigningError::Json { what: "release", source })?;
        let hashes = metadata::hashes(self.digest);
        Ok((self.target_name()?, Target { length: self.length, hashes, custom, _extra: HashMap::new() }))
    }

    fn target_name(&self) -> Result<TargetName, SigningError> {
        let name = self.name();
        TargetName::new(&name).map_err(|source| SigningError::TargetName { name, source: Box::new(source) })
    }
}

/// An empty list of version 1.
pub(crate) fn first(expires: Timestamp) -> Result<Targets, SigningError> {
    let version = metadata::version("targets", 1)?;
    let mut targets = Targets::new(SPEC.to_owned(), version, whole_seconds(expires));
    targets.delegations = None;
    Ok(targets)
}

/// Gives a list the next version, which is at least `least`.
pub(crate) fn advance(targets: &mut Targets, expires: Timestamp, least: u64) -> Result<(), SigningError> {
    let version = targets.version.get();
    let next = version.checked_add(1).ok_or(SigningError::Version { what: "targets", version })?;
    targets.version = metadata::version("targets", next.max(least))?;
    targets.expires = whole_seconds(expires);
    Ok(())
}

fn next(previous: Option<&[u8]>, expires: Timestamp) -> Result<Targets, SigningError> {
    let Some(bytes) = previous else { return first(expires) };
    let signed: Signed<Targets> = metadata::read("targets", bytes)?;
    let mut targets = signed.signed;
    advance(&mut targets, expires, 0)?;
    Ok(targets)
}
