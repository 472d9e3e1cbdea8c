//! What the device would say to an offer: a file of packages, or a metadata bundle. Nothing is changed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};

use selvedge_package::archive::{ArchiveError, ArchiveLimits, Entry, MetadataFiles, Reader};
use selvedge_package::bundle::parse_oci;
use selvedge_package::limits::Limits;
use selvedge_package::trust::{MetadataBundle, accept, adopt_roots, released, target_name};
use selvedge_package::{Bundle, Digest, PackageName};
use selvedge_protocol::envelope::{LARGEST, from_cbor};
use serde::{Deserialize, Serialize};

use super::Held;
use crate::clock;
use crate::failure::chain;

/// What would become of an offer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferView {
    /// Whether it is for a device; else it is of the Image repository alone.
    pub for_device: bool,
    /// Versions of the roots after it, Image and Director, where they are newer.
    pub newer_roots: Option<(u64, u64)>,
    /// Whether it would be accepted.
    pub accepted: bool,
    /// A word for why it would not.
    pub reason: Option<String>,
    /// Why, for people.
    pub why: Option<String>,
    /// Sequence of the desired state in it.
    pub sequence: Option<u64>,
    /// Its packages.
    pub packages: Vec<Planned>,
}

/// A package of an offer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planned {
    /// Its name.
    pub package: PackageName,
    /// Version for people.
    pub version: String,
    /// Release counter.
    pub release: u64,
    /// Why it would not be installed or kept: a word, and a sentence.
    pub refused: Option<(String, String)>,
}

/// A file that is no offer.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum OfferError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{} is neither a file of packages (`selvedge export`) nor a metadata bundle: {why}", path.display())]
    Neither { path: PathBuf, why: String },
    #[error("{} cannot be read", path.display())]
    Archive { path: PathBuf, source: ArchiveError },
}

/// Reads an offer and judges it as the device would.
pub fn judge(held: &Held, path: &Path) -> Result<OfferView, OfferError> {
    let read = |source| OfferError::Read { path: path.to_owned(), source };
    let mut start = Vec::new();
    let mut file = std::fs::File::open(path).map_err(read)?;
    (&mut file).take(16).read_to_end(&mut start).map_err(read)?;
    let file = start.as_slice().chain(file);
    if start.starts_with(b"oci-layout") {
        let archive = |source| OfferError::Archive { path: path.to_owned(), source };
        let (files, bundles) = archived(std::io::BufReader::new(file)).map_err(archive)?;
        let bundle = files.bundle().map_err(archive)?;
        return Ok(said(held, &bundle, files.device().is_some(), &bundles));
    }
    let mut bytes = Vec::new();
    file.take(LARGEST as u64 + 1).read_to_end(&mut bytes).map_err(read)?;
    let bundle: MetadataBundle =
        from_cbor(&bytes).map_err(|why| OfferError::Neither { path: path.to_owned(), why })?;
    Ok(said(held, &bundle, true, &[]))
}

/// The metadata of an archive, and its packages as far as their manifests say.
fn archived(file: impl Read) -> Result<(MetadataFiles, Vec<Bundle>), ArchiveError> {
    let limits = &Limits::PACKAGE;
    let mut reader = Reader::new(file, ArchiveLimits::PACKAGES);
    let mut files = MetadataFiles::default();
    let (mut halves, mut bundles) = (BTreeMap::new(), Vec::new());
    let mut listed = BTreeSet::new();
    while let Some(entry) = reader.next_entry()? {
        match entry {
            Entry::Layout => {}
            Entry::Index(bytes) => {
                let index: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
                let manifests = index["manifests"].as_array().cloned().unwrap_or_default();
                let digests = manifests.iter().filter_map(|one| one["digest"].as_str()?.parse().ok());
                listed = digests.collect::<BTreeSet<Digest>>();
            }
            Entry::Metadata { repository, name, bytes } => files.insert(repository, name, bytes),
            Entry::Blob(blob) if listed.remove(&blob.digest) => {
                let manifest = blob.bytes(limits.oci_manifest_bytes)?;
                if let Ok(oci) = parse_oci(limits, &manifest) {
                    halves.insert(oci.config.digest, manifest);
                }
            }
            Entry::Blob(blob) => {
                if let Some(manifest) = halves.remove(&blob.digest)
                    && let Ok(bundle) = Bundle::parse(&manifest, &blob.bytes(limits.config_bytes)?)
                {
                    bundles.push(bundle);
                }
            }
        }
    }
    Ok((files, bundles))
}

fn said(held: &Held, offered: &MetadataBundle, for_device: bool, bundles: &[Bundle]) -> OfferView {
    let mut view = OfferView { for_device, ..OfferView::default() };
    let refuse = |view: &mut OfferView, reason: &str, why: String| {
        (view.accepted, view.reason, view.why) = (false, Some(reason.to_owned()), Some(why));
    };
    if let Some(why) = &held.distrust {
        refuse(&mut view, "store-fault", why.clone());
        return view;
    }
    let Some(trust) = &held.trust else {
        refuse(&mut view, "detached", "the device belongs to no registry".to_owned());
        return view;
    };
    let trust = match adopt_roots(trust, offered) {
        Ok(None) => trust.clone(),
        Ok(Some(rooted)) => {
            view.newer_roots =
                Some((rooted.image_root_version().unwrap_or(0), rooted.director_root_version().unwrap_or(0)));
            rooted
        }
        Err(error) => {
            refuse(&mut view, error.reason(), chain(&error));
            return view;
        }
    };
    let clock = clock::synchronised(trust.floor());
    if for_device {
        match accept(&trust, offered, &held.device, clock) {
            Ok(accepted) => {
                view.accepted = true;
                view.sequence = Some(accepted.desired.sequence);
                view.packages = accepted
                    .desired
                    .assignments
                    .iter()
                    .map(|assigned| {
                        let floor = held.floors.get(&assigned.package).copied().unwrap_or(0);
                        let checked = assigned
                            .check_floor(floor)
                            .and_then(|()| assigned.check_hardware(std::env::consts::ARCH));
                        Planned {
                            package: assigned.package.clone(),
                            version: assigned.version.to_string(),
                            release: assigned.release,
                            refused: checked.err().map(|e| (e.reason().to_owned(), chain(&e))),
                        }
                    })
                    .collect();
            }
            Err(error) => refuse(&mut view, error.reason(), chain(&error)),
        }
        return view;
    }
    view.packages = bundles
        .iter()
        .map(|bundle| {
            let manifest = bundle.manifest();
            let target = target_name(&manifest.name, &manifest.version);
            let refused = match released(&trust, &offered.image, &target, clock) {
                Ok(found) if found.digest == bundle.digest() => None,
                Ok(_) => Some(("not-released".to_owned(), "it was released with other bytes".to_owned())),
                Err(error) => Some((error.reason().to_owned(), chain(&error))),
            };
            Planned {
                package: manifest.name.clone(),
                version: manifest.version.to_string(),
                release: manifest.release,
                refused,
            }
        })
        .collect();
    view.accepted =
        !view.packages.is_empty() && view.packages.iter().all(|package| package.refused.is_none());
    if view.packages.is_empty() {
        refuse(&mut view, "bad-package", "it holds no package".to_owned());
    }
    view
}
