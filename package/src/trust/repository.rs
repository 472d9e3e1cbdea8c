//! One TUF repository as a device holds it, and as it comes to a device.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sigstore_tuf::{Error as TufError, Metadata, Root, TrustedMetadataSet};

use super::{Repository, TrustError, sized};
use crate::limits::MetadataLimits;

/// The metadata of one repository on its way to a device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RepositoryMetadata {
    /// Consecutive root files, oldest first. They may start at any version that the device has.
    #[serde(with = "super::octets::list")]
    pub roots: Vec<Vec<u8>>,
    /// `timestamp.json`.
    #[serde(with = "super::octets")]
    pub timestamp: Vec<u8>,
    /// `snapshot.json`; empty: the one that the device holds.
    #[serde(with = "super::octets")]
    pub snapshot: Vec<u8>,
    /// `targets.json`; empty: the one that the device holds.
    #[serde(with = "super::octets")]
    pub targets: Vec<u8>,
    /// Delegated roles that the assignments need and the device does not hold in this version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub delegated: Vec<DelegatedFile>,
}

/// One delegated targets role.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DelegatedFile {
    /// Its name, such as `bin-3`.
    pub role: String,
    /// Its metadata.
    #[serde(with = "super::octets")]
    pub file: Vec<u8>,
}

/// The newest metadata of one repository that a device accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Held {
    #[serde(with = "super::octets")]
    pub root: Vec<u8>,
    #[serde(with = "super::octets::option")]
    pub timestamp: Option<Vec<u8>>,
    #[serde(with = "super::octets::option")]
    pub snapshot: Option<Vec<u8>>,
    #[serde(with = "super::octets::option")]
    pub targets: Option<Vec<u8>>,
    /// Delegated roles that the accepted assignments need, by name.
    #[serde(default, with = "super::octets::map", skip_serializing_if = "BTreeMap::is_empty")]
    pub delegated: BTreeMap<String, Vec<u8>>,
}

/// The version that a metadata file says it has; 0 for one that says none.
pub fn file_version(file: &[u8]) -> u64 {
    #[derive(Deserialize)]
    struct File {
        signed: Signed,
    }
    #[derive(Deserialize)]
    struct Signed {
        version: u64,
    }
    serde_json::from_slice::<File>(file).map_or(0, |file| file.signed.version)
}

/// Nothing has expired at this time: stored metadata is loaded for its versions only.
pub(super) const BEFORE_EVERYTHING: Timestamp = Timestamp::MIN;

impl Held {
    /// A repository of which only a root is known (5.2). The root must be signed by itself.
    pub fn from_root(which: Repository, root: &[u8]) -> Result<Self, TrustError> {
        sized("a root", root, MetadataLimits::DEVICE.root_bytes)?;
        belongs(which, root)?;
        TrustedMetadataSet::from_root(root).map_err(|source| refused(which, "root", source))?;
        Ok(Self::bare(root.to_vec()))
    }

    /// The same for a root that was verified.
    pub fn bare(root: Vec<u8>) -> Self {
        Self { root, timestamp: None, snapshot: None, targets: None, delegated: BTreeMap::new() }
    }

    /// The version of the held root.
    pub fn root_version(&self, which: Repository) -> Result<u64, TrustError> {
        let root = Metadata::<Root>::from_slice(&self.root)
            .map_err(|source| TrustError::Damaged { repository: which, source })?;
        Ok(root.signed().version)
    }

    /// Versions of timestamp, snapshot and targets as they are held; 0 where there is none. They were
    /// verified before they were stored, and are not verified again for this.
    pub fn versions(&self) -> [u64; 3] {
        [&self.timestamp, &self.snapshot, &self.targets].map(|held| held.as_deref().map_or(0, file_version))
    }

    /// The ed25519 keys that the held root names for its targets role.
    pub fn targets_keys(&self, which: Repository) -> Result<Vec<[u8; 32]>, TrustError> {
        let root = Metadata::<Root>::from_slice(&self.root)
            .map_err(|source| TrustError::Damaged { repository: which, source })?;
        let root = root.signed();
        let ids = root.role("targets").map(|role| role.keyids.as_slice()).unwrap_or_default();
        let keys = ids.iter().filter_map(|id| root.keys.get(id));
        Ok(keys
            .filter(|key| key.keytype == "ed25519" && key.scheme == "ed25519")
            .filter_map(|key| {
                let mut bytes = [0; 32];
                hex::decode_to_slice(&key.keyval.public, &mut bytes).ok()?;
                Some(bytes)
            })
            .collect())
    }
}

/// Where a root says which repository it is of, as ours do, it must be this one: the same people may sign
/// for both, and a root of one would pass for the next root of the other.
pub(super) fn belongs(which: Repository, root: &[u8]) -> Result<(), TrustError> {
    let read = Metadata::<Root>::from_slice(root).map_err(|source| refused(which, "root", source))?;
    let named = read.signed().extra.get("x-selvedge-repository").and_then(|named| named.as_str());
    match (named, which) {
        (None, _) | (Some("image"), Repository::Image) | (Some("director"), Repository::Director) => Ok(()),
        (Some(_), _) => {
            Err(refused(which, "root", TufError::Malformed("it is of another repository".into())))
        }
    }
}

/// The error for a role that was not accepted; expiry has a variant of its own, since it says
/// nothing against the signer.
pub(super) fn refused(repository: Repository, role: &str, source: TufError) -> TrustError {
    let role = role.to_owned();
    match source {
        TufError::Expired { expires, .. } => TrustError::Expired { repository, role, expires },
        TufError::Rollback { role, trusted, new } => {
            TrustError::Rollback { repository, role, held: trusted, offered: new }
        }
        source => TrustError::Role { repository, role, source },
    }
}
