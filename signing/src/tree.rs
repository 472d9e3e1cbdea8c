//! The Image repository's targets as a tree of bins (`selvedge_package::trust::bins`): releasing,
//! splitting, and signing all of it again.
//!
//! Only the files that change are signed and given a new version. Every file is signed by the keys
//! that the root names for its targets role, and every split delegates to exactly those. Fewer signers
//! than it takes, or none, make a proposal for the others to sign.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use selvedge_package::trust::ImageFiles;
use selvedge_package::trust::bins;
use tough::TargetName;
use tough::schema::{DelegatedRole, Delegations, PathHashPrefix, PathSet, Signed, Targets};

use crate::image::{ImageTarget, advance, first};
use crate::metadata::{self, Head};
use crate::roots::{RoleKeys, RootSpec};
use crate::{Signer, SigningError};

/// The name of the role that is the trunk.
const TRUNK: &str = "targets";

/// The files that were signed, by role.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChangedFiles(pub BTreeMap<String, Vec<u8>>);

impl ChangedFiles {
    /// The repository with these in place of the last ones.
    pub fn on(&self, previous: Option<&ImageFiles>) -> ImageFiles {
        let mut files = previous.cloned().unwrap_or_default();
        for (role, file) in &self.0 {
            files.set(role, file.clone());
        }
        files
    }
}

/// How files are signed again.
#[derive(Debug, Clone, Copy)]
pub struct Renewal<'a> {
    /// The root whose targets role speaks for them from now on.
    pub root: &'a [u8],
    /// When they expire.
    pub expires: Timestamp,
    /// No version is below this.
    pub least: u64,
}

/// What `previous` lists and one release more: the file that lists it, or what that was split into.
/// `previous` must have been verified (`selvedge_package::trust::verify_image`) against `root`.
pub fn add_release(
    root: &[u8],
    previous: Option<&ImageFiles>,
    target: &ImageTarget,
    expires: Timestamp,
    signers: &[&dyn Signer],
) -> Result<ChangedFiles, SigningError> {
    let mut tree = match previous {
        Some(files) => read(files)?,
        None => BTreeMap::new(),
    };
    target.check_above(tree.values())?;
    let branch = bins::branch(&target.name());
    let mut path = std::iter::once(TRUNK).chain(branch.iter().map(String::as_str));
    let innermost = |role: &&str| tree.get(*role).is_none_or(|file| !is_split(file));
    let role = path
        .find(innermost)
        .ok_or(SigningError::NotRead { what: "list of releases", reason: "its deepest bins are split" })?;

    let mut list = match tree.remove(role) {
        Some(mut held) => {
            advance(&mut held, expires, 0)?;
            held
        }
        None => first(expires)?,
    };
    let (name, entry) = target.entry()?;
    list.targets.insert(name, entry);
    let keys = RootSpec::read(root)?.targets;
    let mut lists = BTreeMap::new();
    grow(role, list, &keys, expires, &mut lists)?;
    let sign = |(role, list)| Ok((role, metadata::propose("targets", list, signers)?));
    Ok(ChangedFiles(lists.into_iter().map(sign).collect::<Result<_, SigningError>>()?))
}

/// Files signed again: those that `which` picks, or all of them. Nothing is listed or split anew; the
/// keys of the splits become those of the root.
pub fn renew_files(
    files: &ImageFiles,
    renewal: Renewal<'_>,
    signers: &[&dyn Signer],
    which: impl Fn(&str, &Head) -> bool,
) -> Result<ChangedFiles, SigningError> {
    let keys = RootSpec::read(renewal.root)?.targets;
    let mut changed = BTreeMap::new();
    for (role, mut list) in read(files)? {
        let head = Head { role: TRUNK.to_owned(), version: list.version.get(), expires: list.expires };
        if !which(&role, &head) {
            continue;
        }
        advance(&mut list, renewal.expires, renewal.least)?;
        if is_split(&list) {
            list.delegations = Some(split(prefix(&role), &keys)?);
        }
        changed.insert(role, metadata::propose("targets", list, signers)?);
    }
    Ok(ChangedFiles(changed))
}

/// Puts a list among the changed ones, split as often as it must be.
fn grow(
    role: &str,
    mut list: Targets,
    keys: &RoleKeys,
    expires: Timestamp,
    lists: &mut BTreeMap<String, Targets>,
) -> Result<(), SigningError> {
    let prefix = prefix(role);
    if list.targets.len() > bins::LARGEST_BIN && prefix.len() < bins::DEEPEST {
        let mut moved: Vec<(TargetName, _)> = list.targets.drain().collect();
        list.delegations = Some(split(prefix, keys)?);
        for child in bins::children(prefix) {
            let (own, others): (Vec<_>, _) =
                moved.into_iter().partition(|(name, _)| bins::holds(&child, name.raw()));
            moved = others;
            if !own.is_empty() {
                let mut bin = first(expires)?;
                bin.targets.extend(own);
                grow(&bins::role(&child), bin, keys, expires, lists)?;
            }
        }
    }
    lists.insert(role.to_owned(), list);
    Ok(())
}

/// Sixteen delegations to the keys of the targets role.
fn split(prefix: &str, keys: &RoleKeys) -> Result<Delegations, SigningError> {
    let (listed, keyids) = keys.listed()?;
    let threshold = keys.checked_threshold(TRUNK, keyids.len())?;
    let roles = bins::children(prefix).map(|child| {
        let what = "list of releases";
        let paths = PathHashPrefix::new(&child)
            .map_err(|source| SigningError::Canonical { what, source: Box::new(source) })?;
        Ok(DelegatedRole {
            name: bins::role(&child),
            keyids: keyids.clone(),
            threshold,
            paths: PathSet::PathHashPrefixes(vec![paths]),
            terminating: true,
            targets: None,
        })
    });
    let roles = roles.collect::<Result<_, SigningError>>()?;
    Ok(Delegations { keys: listed.into_iter().collect::<HashMap<_, _>>(), roles })
}

fn read(files: &ImageFiles) -> Result<BTreeMap<String, Targets>, SigningError> {
    let read = |(role, file): (&str, &[u8])| {
        let signed: Signed<Targets> = metadata::read("targets", file)?;
        Ok((role.to_owned(), signed.signed))
    };
    files.roles().map(read).collect()
}

fn is_split(list: &Targets) -> bool {
    list.delegations.as_ref().is_some_and(|delegations| !delegations.roles.is_empty())
}

/// The prefix of a role; that of the trunk is empty.
fn prefix(role: &str) -> &str {
    bins::prefix(role).unwrap_or_default()
}
