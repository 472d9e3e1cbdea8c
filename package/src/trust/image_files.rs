//! The signed files that list every release, and their verification as a whole.
//!
//! A device never has them all; who releases and who serves does. They hold a stricter form than a
//! TUF client would insist on: nothing but the bins of [`super::bins`], each signed by the keys that
//! the root names for its targets role.

use std::collections::BTreeMap;

use jiff::Timestamp;
use sigstore_tuf::{
    DelegatedRole, Delegations, Error as TufError, Key, Metadata, RoleKeys, Root, Targets, TrustedMetadataSet,
};

use super::images::{ImageTargets, released};
use super::repository::refused;
use super::{Repository, TrustError, bins, distinct, sized};
use crate::limits::MetadataLimits;

const IMAGE: Repository = Repository::Image;

/// The signed targets of an Image repository, whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageFiles {
    /// `targets.json`.
    pub targets: Vec<u8>,
    /// The bins that exist, by role. One without targets has no file.
    pub bins: BTreeMap<String, Vec<u8>>,
}

impl ImageFiles {
    /// A repository that is not split.
    pub fn unsplit(targets: impl Into<Vec<u8>>) -> Self {
        Self { targets: targets.into(), bins: BTreeMap::new() }
    }

    /// Every file, by role.
    pub fn roles(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let bins = self.bins.iter().map(|(role, file)| (role.as_str(), file.as_slice()));
        std::iter::once(("targets", self.targets.as_slice())).chain(bins)
    }

    /// Puts `file` in the place of the role's last one.
    pub fn set(&mut self, role: &str, file: Vec<u8>) {
        if role == "targets" {
            self.targets = file;
        } else {
            self.bins.insert(role.to_owned(), file);
        }
    }
}

/// Verifies the files of an Image repository against a trusted Image root: signatures, expiry, the
/// form of the tree, and that every entry is a well-formed release in the bin where it is looked for.
/// A file that the tree does not lead to is refused. Versions are the caller's to compare.
pub fn verify_image(root: &[u8], files: &ImageFiles, now: Timestamp) -> Result<ImageTargets, TrustError> {
    read(root, files, now, Signatures::Required)
}

/// The same for files that have not been signed by enough people yet, the root perhaps among them:
/// everything is checked but the signatures. For whoever is asked to sign them: what they list is only
/// proposed.
pub fn read_proposed_image(
    root: &[u8],
    files: &ImageFiles,
    now: Timestamp,
) -> Result<ImageTargets, TrustError> {
    read(root, files, now, Signatures::StillMissing)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Signatures {
    Required,
    StillMissing,
}

fn read(
    root: &[u8],
    files: &ImageFiles,
    now: Timestamp,
    signatures: Signatures,
) -> Result<ImageTargets, TrustError> {
    // The bins have the keys of the root's targets role, so this goes for them, too.
    distinct::in_root(IMAGE, root)?;
    let not_root = |source| refused(IMAGE, "root", source);
    if signatures == Signatures::Required {
        TrustedMetadataSet::from_root(root).map_err(not_root)?;
    }
    let root = Metadata::<Root>::from_slice(root).map_err(not_root)?.into_signed();
    if root.expires <= now {
        return Err(TrustError::Expired {
            repository: IMAGE,
            role: "root".to_owned(),
            expires: root.expires,
        });
    }
    let keys = root
        .role("targets")
        .ok_or_else(|| refused(IMAGE, "targets", TufError::UnknownRole("targets".into())))?;
    let authority = (&root.keys, keys);
    let mut tree = Tree { files, authority, signatures, now, read: ImageTargets::default() };
    let targets = tree.role("targets", "", &files.targets)?;
    tree.read.version = targets.version;
    if let Some(lost) = files.bins.keys().find(|role| !tree.read.roles.contains_key(*role)) {
        return Err(shape(lost, "nothing delegates to it"));
    }
    tree.read.releases.sort_by(|one, other| one.target.cmp(&other.target));
    Ok(tree.read)
}

struct Tree<'a> {
    files: &'a ImageFiles,
    authority: (&'a BTreeMap<String, Key>, &'a RoleKeys),
    signatures: Signatures,
    now: Timestamp,
    read: ImageTargets,
}

impl Tree<'_> {
    /// Verifies one file and everything below it. It is at most [`bins::DEEPEST`] deep.
    fn role(&mut self, role: &str, prefix: &str, file: &[u8]) -> Result<Targets, TrustError> {
        let limits = MetadataLimits::DEVICE;
        match role {
            "targets" => sized("targets.json", file, limits.image_targets_bytes)?,
            _ => sized("a bin", file, limits.delegated_bytes)?,
        }
        let read = Metadata::<Targets>::from_slice(file).map_err(|source| refused(IMAGE, role, source))?;
        if self.signatures == Signatures::Required {
            let (keys, role_keys) = self.authority;
            read.verify_threshold(keys, role_keys, role).map_err(|source| refused(IMAGE, role, source))?;
        }
        let signed = read.into_signed();
        if signed.expires <= self.now {
            return Err(TrustError::Expired {
                repository: IMAGE,
                role: role.to_owned(),
                expires: signed.expires,
            });
        }
        self.read.expires = match self.read.roles.is_empty() {
            true => signed.expires,
            false => self.read.expires.min(signed.expires),
        };
        self.read.roles.insert(role.to_owned(), signed.version);
        for (name, target) in &signed.targets {
            if !bins::holds(prefix, name) {
                return Err(shape(role, "it lists a target that falls into another bin"));
            }
            self.read.releases.push(released(name, target)?);
        }
        if let Some(delegations) = signed.delegations.as_ref().filter(|split| !split.roles.is_empty()) {
            if !signed.targets.is_empty() {
                return Err(shape(role, "it is split and lists targets all the same"));
            }
            self.children(role, prefix, delegations)?;
        }
        Ok(signed)
    }

    fn children(&mut self, role: &str, prefix: &str, split: &Delegations) -> Result<(), TrustError> {
        if prefix.len() >= bins::DEEPEST {
            return Err(shape(role, "it is split deeper than bins go"));
        }
        let wanted: Vec<String> = bins::children(prefix).collect();
        if split.roles.len() != wanted.len() {
            return Err(shape(role, "it is not split into sixteen"));
        }
        for (child, prefix) in split.roles.iter().zip(&wanted) {
            self.check_child(role, child, prefix, split)?;
            if let Some(file) = self.files.bins.get(&child.name) {
                self.role(&child.name, prefix, file)?;
            }
        }
        Ok(())
    }

    /// A bin is what its name says, and nobody but the signers of the root's targets role signs it.
    fn check_child(
        &self,
        role: &str,
        child: &DelegatedRole,
        prefix: &str,
        split: &Delegations,
    ) -> Result<(), TrustError> {
        let wrong = |reason| Err(shape(role, reason));
        if child.name != bins::role(prefix) {
            return wrong("its bins are not in their order");
        }
        if child.path_hash_prefixes.as_deref() != Some(&[prefix.to_owned()]) || child.paths.is_some() {
            return wrong("a bin is delegated something other than its prefix");
        }
        if !child.terminating {
            return wrong("a bin is not terminating");
        }
        let (keys, role_keys) = self.authority;
        let sorted = |ids: &[String]| {
            let mut ids = ids.to_vec();
            ids.sort();
            ids.dedup();
            ids
        };
        let same_keys = sorted(&child.keyids) == sorted(&role_keys.keyids)
            && child.keyids.iter().all(|id| keys.get(id).is_some_and(|key| split.keys.get(id) == Some(key)));
        if !same_keys || child.threshold != role_keys.threshold {
            return wrong("a bin has other keys, or another threshold, than the root's targets role");
        }
        Ok(())
    }
}

fn shape(role: &str, reason: &'static str) -> TrustError {
    TrustError::Tree { role: role.chars().take(80).collect::<String>().escape_debug().to_string(), reason }
}
