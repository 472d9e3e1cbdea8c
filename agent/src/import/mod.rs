//! Packages from a file: a stick, a download, anything. The same verifier as for what comes over MQTT.
//!
//! The file is read as a stream. Its metadata comes first and is judged by whoever keeps the trust state
//! ([`Gate`]); then the manifests, which must be released ones (and, in a file for this device, assigned
//! ones); then their blobs, each compared with its digest or its signed index before it counts. Nothing
//! else in the file is stored. A file for this device ends in the same acceptance as an offer from the
//! registry; one of the Image repository alone leaves its blobs for a later assignment.

mod client;
mod offline;
mod serve;
mod take;

use std::collections::BTreeSet;

use selvedge_package::archive::ArchiveError;
use selvedge_package::trust::{
    Desired, MetadataBundle, RepositoryMetadata, TrustError, TrustState, accept, adopt_roots, released,
};
use selvedge_package::{Bundle, DeviceId, Digest};
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::identity::Identity;
use crate::store::{Key, Store, StoreError};

pub use client::{ImportFailure, import, import_into};
pub use serve::Taker;
pub use take::take;

/// Where a running agent takes a file.
pub const PATH: &str = "/v1/import";
/// Packages of one file.
pub const MOST_PACKAGES: usize = 32;

/// Why a file is not taken.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// It is no archive of packages.
    #[error("the file is refused")]
    Archive(#[from] ArchiveError),
    /// Its metadata is not trusted.
    #[error("what the file says is not trusted ({})", .0.reason())]
    Trust(#[from] TrustError),
    /// The device says no; a word and a sentence.
    #[error("the file is refused ({reason}): {what}")]
    Refused {
        /// For programs.
        reason: String,
        /// For people.
        what: String,
    },
    /// What it holds does not fit together.
    #[error("the file is refused: {0}")]
    Content(String),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ImportError {
    /// A word for programs.
    pub fn reason(&self) -> &str {
        match self {
            Self::Archive(_) => "bad-archive",
            Self::Trust(error) => error.reason(),
            Self::Refused { reason, .. } => reason,
            Self::Content(_) => "bad-package",
            Self::Store(error) if error.is_full() => "disk-full",
            Self::Store(_) => "store",
        }
    }

    pub(crate) fn refused(reason: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Refused { reason: reason.into(), what: what.into() }
    }
}

/// What the metadata of a file allows.
#[derive(Debug, Clone)]
pub struct Permit {
    /// What the device trusts, the file's newer roots included.
    pub trust: TrustState,
    /// The file's part of the Image repository.
    pub image: RepositoryMetadata,
    /// The time, where the clock is trusted.
    pub clock: Option<jiff::Timestamp>,
    /// What the device is to run, where the file is for it.
    pub desired: Option<Desired>,
}

impl Permit {
    /// Whether a package may be stored: it was released, and assigned where the file is for this device.
    fn admits(&self, bundle: &Bundle) -> Result<(), ImportError> {
        let manifest = bundle.manifest();
        if let Some(desired) = &self.desired {
            let assigned = desired.assignments.iter().any(|assigned| {
                assigned.digest == bundle.digest()
                    && assigned.length == bundle.length()
                    && assigned.package == manifest.name
            });
            return if assigned {
                Ok(())
            } else {
                let what = format!("`{}` {} is not assigned to this device", manifest.name, manifest.version);
                Err(ImportError::refused("not-assigned", what))
            };
        }
        let target = selvedge_package::trust::target_name(&manifest.name, &manifest.version);
        let found = released(&self.trust, &self.image, &target, self.clock)?;
        if found.digest != bundle.digest() || found.length != bundle.length() {
            let what = format!("`{target}` was released with other bytes than the file has");
            return Err(ImportError::refused("not-released", what));
        }
        Ok(())
    }
}

/// Whoever keeps the trust state and the deployment.
pub trait Gate {
    /// Judges the metadata of a file that is for this device, or for nobody in particular. Newer roots are
    /// kept; nothing else changes.
    fn judge(&mut self, bundle: &MetadataBundle, device: Option<&DeviceId>) -> Result<Permit, ImportError>;
    /// From now on these packages are worth keeping, whoever collects garbage.
    fn keep(&mut self, packages: &BTreeSet<Digest>) -> Result<(), ImportError>;
    /// Everything is stored: a file for this device is accepted now.
    fn accept(&mut self, bundle: &MetadataBundle) -> Result<(), ImportError>;
    /// Nothing comes of it: what is not needed otherwise goes.
    fn give_up(&mut self, packages: &BTreeSet<Digest>);
}

/// What a file brought.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Imported {
    /// Packages that are stored now: name, version and release.
    pub packages: Vec<String>,
    /// Blobs that were stored; the others were there.
    pub blobs: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Whether the file was for this device, and was accepted as its desired state.
    pub accepted: bool,
}

/// Judges the metadata of a file against what the device trusts; see [`Gate::judge`].
pub(crate) fn judge(
    store: &Store,
    identity: &Identity,
    trust: &mut Option<TrustState>,
    distrust: Option<&str>,
    bundle: &MetadataBundle,
    device: Option<&DeviceId>,
) -> Result<Permit, ImportError> {
    if let Some(why) = distrust {
        return Err(ImportError::refused("store-fault", format!("nothing is accepted: {why}")));
    }
    let Some(held) = trust else {
        let what = "this device belongs to no registry, so it trusts nobody's packages";
        return Err(ImportError::refused("detached", what));
    };
    if let Some(named) = device
        && *named != identity.device
    {
        let device = identity.device.clone();
        return Err(TrustError::WrongDevice { device, named: named.to_string() }.into());
    }
    if let Some(rooted) = adopt_roots(held, bundle)? {
        store.database().write(|transaction| transaction.put(Key::Trust, &rooted))?;
        *held = rooted;
    }
    let clock = clock::synchronised(held.floor());
    let desired = match device {
        Some(device) => Some(accept(held, bundle, device, clock)?.desired),
        None => None,
    };
    Ok(Permit { trust: held.clone(), image: bundle.image.clone(), clock, desired })
}
