//! Checking a release: the uploaded package, and the metadata that a person signed for it.
//!
//! The registry signs nothing for a package of which a blob is missing or changed, for an entry
//! that says anything else than the package itself, or on top of anything but the newest targets.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use selvedge_package::Digest;
use selvedge_package::bundle::{Bundle, parse_oci};
use selvedge_package::limits::Limits;
use selvedge_package::trust::{ImageFiles, ImageTargets, ReleasedTarget, target_name, verify_image};
use selvedge_signing::metadata;

use super::{BELIEVED, chain};
use crate::blobs::Blobs;
use crate::error::Error;
use crate::refusal::Refusal;
use crate::store::metadata::{ImageRoles, Role, Signed};

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

/// Changed roles that people signed, with what they make of the whole.
pub(super) struct Offered {
    /// The changed roles.
    pub signed: Vec<Signed>,
    /// All roles as they would be.
    pub roles: ImageRoles,
    read: ImageTargets,
}

/// Verify changed roles together with those that stay: signatures, expiry, and the form of the whole.
pub(super) fn verify(
    root: &[u8],
    held: &ImageRoles,
    changed: &BTreeMap<String, String>,
    now: Timestamp,
) -> Result<Offered, Refusal> {
    let refuse = |why: String| Refusal::Untrusted { why };
    if changed.is_empty() {
        return Err(refuse("there are no roles in it".to_owned()));
    }
    let mut signed = Vec::new();
    let mut roles = held.clone();
    for (name, body) in changed {
        let shown: String = name.chars().take(80).collect();
        let role = Role::of_image(name).ok_or_else(|| refuse(format!("`{shown}` is not a role of it")))?;
        let head =
            metadata::head(body.as_bytes()).map_err(|error| refuse(format!("{shown}: {}", chain(&error))))?;
        let one = Signed {
            role,
            version: head.version,
            signed_ms: now.as_millisecond(),
            expires_ms: head.expires.as_millisecond(),
            body: body.clone(),
        };
        roles.insert(name.clone(), one.clone());
        signed.push(one);
    }
    let read = verify_image(root, &files(&roles), now).map_err(|error| refuse(chain(&error)))?;
    Ok(Offered { signed, roles, read })
}

/// The roles as files.
pub(super) fn files(roles: &ImageRoles) -> ImageFiles {
    let mut files = ImageFiles::default();
    for (name, signed) in roles {
        files.set(name, signed.body.as_bytes().to_vec());
    }
    files
}

/// Whether the package's release counter is above the last one.
pub(super) fn grows(bundle: &Bundle, last: u64) -> Result<(), Refusal> {
    let manifest = bundle.manifest();
    if manifest.release <= last {
        let (package, got) = (manifest.name.clone(), manifest.release);
        return Err(Refusal::ReleaseNotGrowing { package, got, last });
    }
    Ok(())
}

impl Offered {
    /// Every changed role must have the next version, or one above it: devices may have accepted more than
    /// a registry knows that was restored from a backup.
    pub fn check_versions(&self, held: &ImageRoles) -> Result<(), Refusal> {
        for signed in &self.signed {
            let name = signed.role.name();
            let want = held.get(name).map_or(0, |held| held.version).saturating_add(1);
            let got = self.read.roles.get(name).copied().unwrap_or(0);
            let next = got >= want && got - want <= BELIEVED;
            if !next || got != signed.version {
                return Err(Refusal::TargetsVersion { role: name.to_owned(), got, want });
            }
        }
        Ok(())
    }

    /// The one release more that it lists, which must be this package's.
    pub fn adds(
        &self,
        released: &BTreeMap<String, ReleasedTarget>,
        bundle: &Bundle,
    ) -> Result<ReleasedTarget, Refusal> {
        let manifest = bundle.manifest();
        let name = target_name(&manifest.name, &manifest.version);
        let mut entry = None;
        for release in self.compared(released)? {
            if release.target != name {
                let why = "it is signed, but this is not the package that is being released".to_owned();
                return Err(Refusal::EntryMismatch { target: release.target.clone(), why });
            }
            entry = Some(release.clone());
        }
        let Some(entry) = entry else {
            let why = "the metadata does not list it anew".to_owned();
            return Err(Refusal::EntryMismatch { target: name, why });
        };
        check_entry(&entry, bundle)?;
        Ok(entry)
    }

    /// It must list what was released, and nothing else.
    pub fn same(&self, released: &BTreeMap<String, ReleasedTarget>) -> Result<(), Refusal> {
        match self.compared(released)?.first() {
            None => Ok(()),
            Some(release) => {
                let why = "it is signed, but was never released here".to_owned();
                Err(Refusal::EntryMismatch { target: release.target.clone(), why })
            }
        }
    }

    /// The versions of the changed roles, for the audit log.
    pub fn changed(&self) -> BTreeMap<&str, u64> {
        self.signed.iter().map(|signed| (signed.role.name(), signed.version)).collect()
    }

    /// What it lists that was not released; nothing that was may be gone or changed.
    fn compared(&self, released: &BTreeMap<String, ReleasedTarget>) -> Result<Vec<&ReleasedTarget>, Refusal> {
        let (mut new, mut found) = (Vec::new(), 0);
        for release in &self.read.releases {
            match released.get(&release.target) {
                Some(before) if before == release => found += 1,
                Some(_) => return Err(Refusal::TargetsLost { target: release.target.clone() }),
                None => new.push(release),
            }
        }
        if found == released.len() {
            return Ok(new);
        }
        let listed: BTreeSet<&str> =
            self.read.releases.iter().map(|release| release.target.as_str()).collect();
        let lost = released.keys().find(|target| !listed.contains(target.as_str()));
        Err(Refusal::TargetsLost { target: lost.cloned().unwrap_or_default() })
    }
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
