//! What of a package is still to be fetched, from what is stored of it.
//!
//! Nothing is remembered between two looks: the signed digest leads to the OCI manifest, that to
//! the config and the indexes, those to the files. A blob that turns out damaged is simply missing
//! again. A package that this device cannot use is found before its large files are fetched.

use selvedge_deployment::{Budget, Release, Rules};
use selvedge_package::bundle::{self, Bundle};
use selvedge_package::chunks::{ChunkError, ChunkIndex};
use selvedge_package::limits::Limits;
use selvedge_package::{Digest, Origin, PackageName};

use crate::failure::chain;
use crate::store::{Store, StoreError};

/// How far a package is.
#[derive(Debug)]
pub enum Stock {
    /// Something is to be fetched.
    Lacks {
        /// To be fetched now; there may be more once they have come.
        blobs: Vec<Lacking>,
        /// Web servers that have them, too.
        sources: Vec<Origin>,
        /// Bytes of the package that still have to be written, as far as that is known.
        bytes: u64,
        /// Bytes that must stay free besides.
        besides: u64,
    },
    /// Everything is stored.
    Whole(Box<Bundle>),
    /// This device cannot use it: a word and a sentence.
    Unusable {
        /// For programs.
        reason: &'static str,
        /// For people.
        what: String,
    },
}

/// A blob that is to be fetched. Its index stays on disk until its turn comes: that of 2 GiB has a
/// megabyte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lacking {
    /// Which.
    pub digest: Digest,
    /// Its size in bytes.
    pub size: u64,
    /// Its chunk index, which is stored; `None` for a blob that needs none.
    pub index: Option<Digest>,
}

impl Lacking {
    /// A blob of at most one chunk.
    fn small(digest: Digest, size: u64) -> Result<Self, ChunkError> {
        ChunkIndex::without_index(digest, size)?;
        Ok(Self { digest, size, index: None })
    }
}

/// What the device is, as far as packages may ask for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hardware {
    /// `x86_64`, `aarch64`.
    pub architecture: &'static str,
    /// Memory of the machine in MiB.
    pub memory_mib: u64,
}

/// Looks at what is stored of a release.
pub fn stock(
    store: &Store,
    name: &PackageName,
    release: &Release,
    hardware: &Hardware,
) -> Result<Stock, StoreError> {
    match look(store, name, release, hardware) {
        // What was damaged is gone: a second look finds it missing. Both manifests may be.
        Err(StoreError::Damaged { .. }) => match look(store, name, release, hardware) {
            Err(StoreError::Damaged { .. }) => look(store, name, release, hardware),
            other => other,
        },
        other => other,
    }
}

fn look(
    store: &Store,
    name: &PackageName,
    release: &Release,
    hardware: &Hardware,
) -> Result<Stock, StoreError> {
    let limits = &Limits::PACKAGE;
    let unusable = |reason, what: String| Ok(Stock::Unusable { reason, what });
    if !store.has(&release.digest)? {
        return match Lacking::small(release.digest, release.length) {
            Ok(blob) => Ok(lacks(blob)),
            Err(error) => unusable("bad-manifest", format!("its OCI manifest is too large: {error}")),
        };
    }
    let manifest = match store.read_small(&release.digest, limits.oci_manifest_bytes) {
        Err(error @ StoreError::TooLarge { .. }) => return unusable("bad-manifest", error.to_string()),
        other => other?,
    };
    let oci = match bundle::parse_oci(limits, &manifest) {
        Ok(oci) => oci,
        Err(error) => return unusable("bad-manifest", chain(&error)),
    };
    if !store.has(&oci.config.digest)? {
        return match Lacking::small(oci.config.digest, oci.config.size) {
            Ok(blob) => Ok(lacks(blob)),
            Err(error) => unusable("bad-manifest", format!("its config is too large: {error}")),
        };
    }
    let config = match store.read_small(&oci.config.digest, limits.config_bytes) {
        Err(error @ StoreError::TooLarge { .. }) => return unusable("bad-manifest", error.to_string()),
        other => other?,
    };
    let bundle = match Bundle::parse(&manifest, &config) {
        Ok(bundle) => bundle,
        Err(error) => return unusable("bad-manifest", chain(&error)),
    };
    if let Some((reason, what)) = unfit(&bundle, name, release, hardware) {
        return unusable(reason, what);
    }
    let mut blobs = Vec::new();
    for blob in bundle.blobs() {
        if store.has(&blob.digest)? {
            continue;
        }
        let lacking = match bundle.index_of(&blob.digest) {
            None => Lacking::small(blob.digest, blob.size),
            Some(index) if store.has(&index.digest)? => {
                Ok(Lacking { digest: blob.digest, size: blob.size, index: Some(index.digest) })
            }
            // It comes with the next look, once its index is there.
            Some(_) => continue,
        };
        match lacking {
            Ok(blob) => blobs.push(blob),
            Err(error) => return unusable("bad-index", error.to_string()),
        }
    }
    if blobs.is_empty() {
        return Ok(Stock::Whole(Box::new(bundle)));
    }
    let bytes = bundle.blobs().iter().map(|blob| store.still_to_write(&blob.digest, blob.size)).sum();
    let sources = bundle.manifest().sources.clone();
    Ok(Stock::Lacks { blobs, sources, bytes, besides: besides(&bundle) })
}

/// A manifest is lacking: nothing is known of the rest.
fn lacks(blob: Lacking) -> Stock {
    Stock::Lacks { blobs: vec![blob], sources: Vec::new(), bytes: blob.size, besides: 0 }
}

/// Bytes that a package wants free beyond itself.
pub fn besides(bundle: &Bundle) -> u64 {
    u64::from(bundle.manifest().requires.disk_mib) << 20
}

/// Why a package is not for this device, or not the one that was assigned.
fn unfit(
    bundle: &Bundle,
    name: &PackageName,
    release: &Release,
    hardware: &Hardware,
) -> Option<(&'static str, String)> {
    let manifest = bundle.manifest();
    if manifest.name != *name || manifest.release != release.release {
        let what = format!(
            "it was assigned as `{name}` release {}, but says that it is `{}` release {}",
            release.release, manifest.name, manifest.release
        );
        return Some(("other-package", what));
    }
    let requires = &manifest.requires;
    let fits = requires.architectures.iter().any(|architecture| architecture == hardware.architecture);
    if !requires.architectures.is_empty() && !fits {
        let what = format!(
            "it is for {}, this device is {}",
            requires.architectures.join(", "),
            hardware.architecture
        );
        return Some(("wrong-hardware", what));
    }
    if u64::from(requires.ram_mib) > hardware.memory_mib {
        let what =
            format!("it needs {} MiB of memory, this device has {}", requires.ram_mib, hardware.memory_mib);
        return Some(("too-little-memory", what));
    }
    None
}

/// How the package wants to take over.
pub fn rules(bundle: &Bundle) -> Rules {
    let activation = &bundle.manifest().activation;
    Rules {
        swap: activation.swap,
        probation_ms: u64::from(activation.probation_seconds) * 1000,
        probation_requests: u64::from(activation.probation_requests),
        budget: Budget {
            failures_percent: activation.probation_failures,
            latency_ms: activation.probation_latency_ms,
            memory_mib: activation.probation_memory_mib,
        },
    }
}
