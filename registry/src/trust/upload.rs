//! Checking a release: the uploaded package, and the metadata that a person signed for it.
//!
//! The registry signs nothing for a package of which a blob is missing or changed, for an entry
//! that says anything else than the package itself, or on top of anything but the newest targets.

use std::collections::BTreeMap;

use jiff::Timestamp;
use selvedge_package::Digest;
use selvedge_package::bundle::{Bundle, parse_oci};
use selvedge_package::limits::Limits;
use selvedge_package::trust::{ReleasedTarget, target_name, verify_targets};

use super::chain;
use crate::blobs::Blobs;
use crate::error::Error;
use crate::refusal::Refusal;

/// The package with this OCI manifest, all of its blobs present and unchanged.
pub(super) async fn uploaded(blobs: &Blobs, digest: Digest) -> Result<Bundle, Refusal> {
    let blobs = blobs.clone();
    tokio::task::spawn_blocking(move || check_blobs(&blobs, digest)).await.map_err(|error| Error::File {
        action: "check the blobs of",
        path: digest.hex().into(),
        source: std::io::Error::other(error),
    })?
}

fn check_blobs(blobs: &Blobs, digest: Digest) -> Result<Bundle, Refusal> {
    let invalid = |why: String| Refusal::Package { digest, why };
    let read = |digest: Digest, limit| blobs.read(&digest, limit)?.ok_or(Refusal::MissingBlob { digest });
    let manifest = read(digest, Limits::PACKAGE.oci_manifest_bytes)?;
    let oci = parse_oci(&Limits::PACKAGE, &manifest).map_err(|error| invalid(chain(&error)))?;
    let config = read(oci.config.digest, Limits::PACKAGE.config_bytes)?;
    let bundle = Bundle::parse(&manifest, &config).map_err(|error| invalid(chain(&error)))?;
    for blob in bundle.blobs() {
        let size = blobs.size(&blob.digest)?.ok_or(Refusal::MissingBlob { digest: blob.digest })?;
        let mismatch = |why: String| Refusal::BlobMismatch { digest: blob.digest, why };
        if size != blob.size {
            return Err(mismatch(format!("it has {size} bytes, the package says {}", blob.size)));
        }
        if !blobs.verify(&blob.digest)? {
            return Err(mismatch("it was changed on the registry's disk: upload it again".to_owned()));
        }
    }
    Ok(bundle)
}

/// What is asked of an upload of targets metadata.
pub(super) struct Expected<'a> {
    /// The newest Image root.
    pub root: &'a [u8],
    /// The newest targets, if there are any.
    pub previous: Option<&'a [u8]>,
    /// The package that is released.
    pub bundle: &'a Bundle,
    /// The last release counter of its name; 0: none.
    pub last: u64,
}

/// Check uploaded targets metadata. Gives its version, its expiry and the entry of the package.
pub(super) fn check_targets(
    expected: &Expected<'_>,
    targets: &[u8],
    now: Timestamp,
) -> Result<(u64, Timestamp, ReleasedTarget), Refusal> {
    let untrusted = |error| Refusal::Untrusted { why: chain(&error) };
    let offered = verify_targets(expected.root, targets, now).map_err(untrusted)?;
    let manifest = expected.bundle.manifest();
    if manifest.release <= expected.last {
        return Err(Refusal::ReleaseNotGrowing {
            package: manifest.name.clone(),
            got: manifest.release,
            last: expected.last,
        });
    }
    let (mut earlier, last_version) = match expected.previous {
        None => (BTreeMap::new(), 0),
        Some(previous) => {
            // It may have expired, or its keys may be gone since: it is only compared with.
            let previous = verify_targets(expected.root, previous, Timestamp::MIN).map_err(untrusted)?;
            (by_name(previous.releases), previous.version)
        }
    };
    if Some(offered.version) != last_version.checked_add(1) {
        return Err(Refusal::TargetsVersion { got: offered.version, want: last_version.saturating_add(1) });
    }
    let name = target_name(&manifest.name, &manifest.version);
    let mut entry = None;
    for release in offered.releases {
        match earlier.remove(&release.target) {
            Some(before) if before == release => {}
            Some(_) => {
                return Err(Refusal::TargetsLost { target: release.target });
            }
            None if release.target == name => entry = Some(release),
            None => {
                let why = "it is signed, but this is not the package that is being released".to_owned();
                return Err(Refusal::EntryMismatch { target: release.target, why });
            }
        }
    }
    if let Some((target, _)) = earlier.pop_first() {
        return Err(Refusal::TargetsLost { target });
    }
    let Some(entry) = entry else {
        return Err(Refusal::EntryMismatch {
            target: name,
            why: "the metadata does not list it anew".to_owned(),
        });
    };
    check_entry(&entry, expected.bundle)?;
    Ok((offered.version, offered.expires, entry))
}

fn by_name(releases: Vec<ReleasedTarget>) -> BTreeMap<String, ReleasedTarget> {
    releases.into_iter().map(|release| (release.target.clone(), release)).collect()
}

fn check_entry(entry: &ReleasedTarget, bundle: &Bundle) -> Result<(), Refusal> {
    let manifest = bundle.manifest();
    let custom = &entry.custom;
    let pairs = [
        ("digest", entry.digest.to_string(), bundle.digest().to_string()),
        ("length", entry.length.to_string(), bundle.length().to_string()),
        ("package", custom.package.to_string(), manifest.name.to_string()),
        ("version", custom.version.to_string(), manifest.version.to_string()),
        ("release", custom.release.to_string(), manifest.release.to_string()),
        ("min-release", custom.min_release.to_string(), manifest.min_release.to_string()),
        ("architectures", custom.architectures.join(","), manifest.requires.architectures.join(",")),
    ];
    for (what, signed, actual) in pairs {
        if signed != actual {
            let why = format!("its {what} is signed as `{signed}`, the package has `{actual}`");
            return Err(Refusal::EntryMismatch { target: entry.target.clone(), why });
        }
    }
    Ok(())
}
