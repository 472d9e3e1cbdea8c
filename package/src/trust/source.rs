//! Where the files of a TUF repository come from: an offer that a device was sent, or a server that
//! is asked for one file after another. [`super::update::Update`] treats both alike.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;

use sigstore_tuf::{Error as TufError, Metadata, Root};

use super::repository::{RepositoryMetadata, refused};
use super::{Repository, TrustError, sized};
use crate::limits::MetadataLimits;

/// One file. `version` is `None` where the repository has no versions in its file names (its root
/// says that it makes no consistent snapshots).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted<'a> {
    /// The root of this version.
    Root(u64),
    /// `timestamp.json`.
    Timestamp,
    /// `snapshot.json`.
    Snapshot {
        /// The version that the timestamp pins.
        version: Option<u64>,
    },
    /// `targets.json`, or a delegated role. A name of a role is a stranger's text: it may hold
    /// anything, such as `../`.
    Targets {
        /// Name of the role.
        role: &'a str,
        /// The version that the snapshot pins.
        version: Option<u64>,
    },
}

/// Gives the files of one repository. Nothing of what it gives is believed.
pub trait Source {
    /// The file, or `None` where there is none. At most `most` bytes are of use; a source that reads
    /// from outside must not read more.
    fn fetch(&mut self, wanted: Wanted<'_>, most: usize) -> Result<Option<Vec<u8>>, SourceError>;
}

/// Why a source could not tell whether there is a file.
pub type SourceError = Box<dyn Error + Send + Sync>;

/// No files: what is held is all there is.
pub(super) struct Nothing;

impl Source for Nothing {
    fn fetch(&mut self, _: Wanted<'_>, _: usize) -> Result<Option<Vec<u8>>, SourceError> {
        Ok(None)
    }
}

/// The part of a bundle that concerns one repository.
pub(super) struct Offer<'a> {
    roots: BTreeMap<u64, &'a [u8]>,
    metadata: &'a RepositoryMetadata,
}

impl<'a> Offer<'a> {
    /// Checks sizes, and that the roots follow one another and reach the one that is held.
    pub fn new(
        which: Repository,
        metadata: &'a RepositoryMetadata,
        held_root: u64,
    ) -> Result<Self, TrustError> {
        let limits = MetadataLimits::DEVICE;
        let targets_limit = match which {
            Repository::Image => limits.image_targets_bytes,
            Repository::Director => limits.director_targets_bytes,
        };
        sized("timestamp.json", &metadata.timestamp, limits.timestamp_bytes)?;
        sized("snapshot.json", &metadata.snapshot, limits.snapshot_bytes)?;
        sized("targets.json", &metadata.targets, targets_limit)?;
        let (found, most) = (metadata.delegated.len(), limits.delegated);
        if found > most {
            return Err(TrustError::TooMany { what: "delegated roles", found, most });
        }
        let mut names = BTreeSet::new();
        for delegated in &metadata.delegated {
            sized("the name of a delegated role", delegated.role.as_bytes(), limits.role_name_bytes)?;
            sized("a delegated role", &delegated.file, limits.delegated_bytes)?;
            if !names.insert(&delegated.role) {
                let twice = TufError::Malformed("it is in the offer twice".into());
                return Err(refused(which, &delegated.role, twice));
            }
        }
        Ok(Self { roots: roots(which, &metadata.roots, held_root)?, metadata })
    }

    /// The same with regard to the roots alone.
    pub fn roots_only(
        which: Repository,
        metadata: &'a RepositoryMetadata,
        held_root: u64,
    ) -> Result<Self, TrustError> {
        Ok(Self { roots: roots(which, &metadata.roots, held_root)?, metadata })
    }
}

fn roots(which: Repository, roots: &[Vec<u8>], held: u64) -> Result<BTreeMap<u64, &[u8]>, TrustError> {
    let limits = MetadataLimits::DEVICE;
    if roots.len() > limits.roots {
        return Err(TrustError::TooMany { what: "roots", found: roots.len(), most: limits.roots });
    }
    let (mut chain, mut last) = (BTreeMap::new(), None);
    for root in roots {
        sized("a root", root, limits.root_bytes)?;
        let read = Metadata::<Root>::from_slice(root).map_err(|source| refused(which, "root", source))?;
        let new = read.signed().version;
        // The first may be any that is held, or the next one.
        let follows = match last {
            None => new <= held.saturating_add(1),
            Some(last) => u64::checked_add(last, 1) == Some(new),
        };
        if !follows {
            let gap = TufError::BadRootVersion { trusted: last.unwrap_or(held), new };
            return Err(refused(which, "root", gap));
        }
        chain.insert(new, root.as_slice());
        last = Some(new);
    }
    Ok(chain)
}

impl Source for Offer<'_> {
    fn fetch(&mut self, wanted: Wanted<'_>, _: usize) -> Result<Option<Vec<u8>>, SourceError> {
        let given = |file: &[u8]| (!file.is_empty()).then(|| file.to_vec());
        Ok(match wanted {
            Wanted::Root(version) => self.roots.get(&version).map(|root| root.to_vec()),
            Wanted::Timestamp => Some(self.metadata.timestamp.clone()),
            Wanted::Snapshot { .. } => given(&self.metadata.snapshot),
            Wanted::Targets { role: "targets", .. } => given(&self.metadata.targets),
            Wanted::Targets { role, .. } => {
                let mut delegated = self.metadata.delegated.iter();
                delegated.find(|delegated| delegated.role == role).and_then(|found| given(&found.file))
            }
        })
    }
}
