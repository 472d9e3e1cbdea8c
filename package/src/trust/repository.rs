//! One TUF repository as a device sees it: what it holds, and one step of the client workflow.
//!
//! The numbers are those of the TUF specification 1.0. All checks of signatures, versions, hashes
//! and expiry are `sigstore-tuf`'s; this module feeds it in the right order: the newest root that
//! was ever accepted, then the stored lower roles (their versions are floors even where they have
//! expired), then what is offered. It refuses delegations, which nothing here resolves yet.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sigstore_tuf::{Error as TufError, Metadata, Root, Targets, TrustedMetadataSet};

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
}

/// A repository after one step, with what its targets role lists.
pub(super) struct Accepted {
    pub held: Held,
    pub targets: Targets,
    pub root: Root,
}

/// The version that a metadata file says it has; 0 for one that says none.
fn version(file: &[u8]) -> u64 {
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
const BEFORE_EVERYTHING: Timestamp = Timestamp::MIN;

impl Held {
    /// A repository of which only a root is known (5.2). The root must be signed by itself.
    pub fn from_root(which: Repository, root: &[u8]) -> Result<Self, TrustError> {
        sized("a root", root, MetadataLimits::DEVICE.root_bytes)?;
        TrustedMetadataSet::from_root(root).map_err(|source| refused(which, "root", source))?;
        Ok(Self { root: root.to_vec(), timestamp: None, snapshot: None, targets: None })
    }

    /// The stored metadata, verified again. It was verified before it was stored, so a failure
    /// means that the store is damaged: it is never taken for "nothing is stored".
    fn load(&self, which: Repository) -> Result<TrustedMetadataSet, TrustError> {
        let damaged = |source| TrustError::Damaged { repository: which, source };
        let mut set = TrustedMetadataSet::from_root(&self.root).map_err(damaged)?;
        let missing = |text: &str| damaged(TufError::Malformed(text.to_owned()));
        match (&self.timestamp, &self.snapshot, &self.targets) {
            (None, None, None) => {}
            (Some(timestamp), Some(snapshot), targets) => {
                set.update_timestamp(timestamp, BEFORE_EVERYTHING).map_err(damaged)?;
                set.update_snapshot(snapshot, BEFORE_EVERYTHING).map_err(damaged)?;
                if let Some(targets) = targets {
                    set.update_targets(targets, BEFORE_EVERYTHING).map_err(damaged)?;
                }
            }
            _ => return Err(missing("part of the stored metadata is missing")),
        }
        Ok(set)
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
        [&self.timestamp, &self.snapshot, &self.targets].map(|held| held.as_deref().map_or(0, version))
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

    /// The held targets role, verified again but with no regard to expiry.
    pub fn targets(&self, which: Repository) -> Result<Option<Targets>, TrustError> {
        Ok(self.load(which)?.targets_role("targets").cloned())
    }

    /// Follows the chain of roots (5.3). Lower roles whose keys a new root has changed are let go
    /// of (5.3.11): their versions are no floors any more, or a thief of the old keys could have
    /// set them beyond reach.
    pub fn follow_roots(&self, which: Repository, roots: &[Vec<u8>]) -> Result<Self, TrustError> {
        let limits = MetadataLimits::DEVICE;
        if roots.len() > limits.roots {
            return Err(TrustError::TooMany { what: "roots", found: roots.len(), most: limits.roots });
        }
        let mut set = self.load(which)?;
        let mut moved = false;
        for root in roots {
            sized("a root", root, limits.root_bytes)?;
            let offered =
                Metadata::<Root>::from_slice(root).map_err(|source| refused(which, "root", source))?;
            if offered.signed().version <= set.root().version {
                continue;
            }
            set.update_root(root).map_err(|source| refused(which, "root", source))?;
            moved = true;
        }
        if !moved {
            return Ok(self.clone());
        }
        let mut next = self.clone();
        next.root = set.root_bytes().to_vec();
        let (Some(timestamp), Some(snapshot)) = (&self.timestamp, &self.snapshot) else {
            return Ok(next);
        };
        let lower = set
            .update_timestamp(timestamp, BEFORE_EVERYTHING)
            .and_then(|()| set.update_snapshot(snapshot, BEFORE_EVERYTHING));
        let targets_hold = match &self.targets {
            Some(targets) if lower.is_ok() => set.update_targets(targets, BEFORE_EVERYTHING).is_ok(),
            _ => false,
        };
        if lower.is_err() {
            next.timestamp = None;
            next.snapshot = None;
        }
        if !targets_hold {
            next.targets = None;
        }
        Ok(next)
    }

    /// The whole workflow (5.3 to 5.6) against what is offered, at the time `now`.
    pub fn update(
        &self,
        which: Repository,
        offered: &RepositoryMetadata,
        now: Timestamp,
    ) -> Result<Accepted, TrustError> {
        let limits = MetadataLimits::DEVICE;
        let targets_limit = match which {
            Repository::Image => limits.image_targets_bytes,
            Repository::Director => limits.director_targets_bytes,
        };
        sized("timestamp.json", &offered.timestamp, limits.timestamp_bytes)?;
        sized("snapshot.json", &offered.snapshot, limits.snapshot_bytes)?;
        sized("targets.json", &offered.targets, targets_limit)?;

        let mut held = self.follow_roots(which, &offered.roots)?;
        let mut set = held.load(which)?;
        // 5.3.10
        set.check_root_expired(now).map_err(|source| refused(which, "root", source))?;

        // 5.4; an equal version is no update, and what is held must still be fresh.
        match set.update_timestamp(&offered.timestamp, now) {
            Ok(()) => {
                held.timestamp = Some(offered.timestamp.clone());
                held.snapshot = None;
            }
            Err(TufError::EqualVersion { .. }) => {}
            Err(source) => return Err(refused(which, "timestamp", source)),
        }
        set.check_timestamp_expired(now).map_err(|source| refused(which, "timestamp", source))?;

        // 5.5; with a new timestamp always from the offer, so that its pin is checked.
        if held.snapshot.is_none() {
            set.update_snapshot(&offered.snapshot, now)
                .map_err(|source| refused(which, "snapshot", source))?;
            held.snapshot = Some(offered.snapshot.clone());
            held.targets = None;
        }
        set.check_snapshot_expired(now).map_err(|source| refused(which, "snapshot", source))?;

        // 5.6
        if held.targets.is_none() {
            set.update_targets(&offered.targets, now).map_err(|source| refused(which, "targets", source))?;
            held.targets = Some(offered.targets.clone());
        }
        let targets = set
            .targets_role("targets")
            .cloned()
            .ok_or_else(|| refused(which, "targets", TufError::NotRefreshed))?;
        if targets.expires <= now {
            let expired = TufError::Expired { role: "targets".into(), expires: targets.expires };
            return Err(refused(which, "targets", expired));
        }
        if targets.delegations.as_ref().is_some_and(|delegations| !delegations.roles.is_empty()) {
            return Err(TrustError::Delegations { repository: which });
        }
        Ok(Accepted { held, root: set.root().clone(), targets })
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
