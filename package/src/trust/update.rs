//! The client workflow of the TUF specification 1.0, chapter 5, from what is held and a source.
//!
//! All checks of signatures, hashes and expiry are `sigstore-tuf`'s; this module feeds it in the right
//! order: the newest root that was ever accepted, then the lower roles that are held (their versions
//! are floors even where they have expired), then what the source gives. What is held is used before
//! the source is asked, and only if it is exactly what the role above pins.
//!
//! Whatever fails, [`Update::held`] is what was verified until then. A device takes all of an update
//! or nothing of it but the roots; that is [`super::accept`]'s part.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use sigstore_tuf::{Error as TufError, Metadata, Root, Snapshot, TargetFile, Targets, TrustedMetadataSet};

use super::repository::{BEFORE_EVERYTHING, Held, belongs, refused};
use super::source::{Source, Wanted};
use super::{Repository, TrustError, distinct, sized};
use crate::limits::MetadataLimits;

/// Whether what is held may be an update that stopped half-way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holding {
    /// A device's, stored as a whole: a part that does not fit is damage. Keys of a role must be distinct.
    Whole,
    /// A general client's. A file may be newer than the one above it pinned; then its versions are floors and no more.
    Partly,
}

/// One update of one repository.
pub(super) struct Update<S> {
    which: Repository,
    holding: Holding,
    held: Held,
    set: TrustedMetadataSet,
    /// Versions that the held snapshot pins, below which no new one may go (5.5.5).
    floors: BTreeMap<String, u64>,
    /// Delegated roles that a search has visited.
    used: BTreeSet<String>,
    source: S,
    now: Timestamp,
}

impl<S: Source> Update<S> {
    /// Loads what is held. It was verified before it was stored, so a failure means that the store is
    /// damaged: it is never taken for "nothing is held".
    pub fn new(
        which: Repository,
        held: &Held,
        holding: Holding,
        source: S,
        now: Timestamp,
    ) -> Result<Self, TrustError> {
        let damaged = |source| TrustError::Damaged { repository: which, source };
        let set = TrustedMetadataSet::from_root(&held.root).map_err(damaged)?;
        let mut update = Self {
            which,
            holding,
            held: held.clone(),
            set,
            floors: BTreeMap::new(),
            used: BTreeSet::new(),
            source,
            now,
        };
        let gap = match (&held.timestamp, &held.snapshot, &held.targets) {
            (None, None, None) => false,
            (Some(_), Some(_), _) => false,
            (Some(_), None, None) => holding == Holding::Whole,
            _ => true,
        };
        if gap {
            return Err(damaged(TufError::Malformed("part of the stored metadata is missing".into())));
        }
        let fits = update.load_online().map_err(damaged)? & update.load_targets().map_err(damaged)?;
        if holding == Holding::Whole && !fits {
            return Err(damaged(TufError::Malformed("the stored metadata does not fit together".into())));
        }
        Ok(update)
    }

    /// Loads the held timestamp and snapshot under the trusted root. An error: one is not signed for.
    /// `false`: the timestamp does not pin the snapshot.
    fn load_online(&mut self) -> Result<bool, TufError> {
        self.floors.clear();
        if let Some(timestamp) = &self.held.timestamp {
            self.set.update_timestamp(timestamp, BEFORE_EVERYTHING)?;
        }
        let Some(snapshot) = &self.held.snapshot else {
            return Ok(true);
        };
        let read = Metadata::<Snapshot>::from_slice(snapshot)?;
        self.signed_by_root(&read, "snapshot")?;
        self.floors =
            read.signed().meta.iter().map(|(name, pinned)| (name.clone(), pinned.version)).collect();
        Ok(self.set.update_snapshot(snapshot, BEFORE_EVERYTHING).is_ok())
    }

    /// The same for `targets.json`.
    fn load_targets(&mut self) -> Result<bool, TufError> {
        let Some(targets) = &self.held.targets else {
            return Ok(true);
        };
        self.signed_by_root(&Metadata::<Targets>::from_slice(targets)?, "targets")?;
        Ok(self.set.update_targets(targets, BEFORE_EVERYTHING).is_ok())
    }

    fn signed_by_root<T: sigstore_tuf::Role>(&self, read: &Metadata<T>, role: &str) -> Result<(), TufError> {
        let root = self.set.root();
        let keys = root.role(role).ok_or_else(|| TufError::UnknownRole(role.to_owned()))?;
        read.verify_threshold(&root.keys, keys, role)
    }

    /// Follows the chain of roots (5.3). Lower roles whose keys a new root has changed are let go
    /// of (5.3.11): their versions are no floors any more, or a thief of the old keys could have
    /// set them beyond reach.
    pub fn roots(&mut self) -> Result<(), TrustError> {
        let first = self.set.root().version;
        let followed = self.chain();
        if self.set.root().version != first {
            self.let_go()?;
        }
        followed
    }

    fn chain(&mut self) -> Result<(), TrustError> {
        let limits = MetadataLimits::DEVICE;
        for _ in 0..limits.roots {
            let Some(next) = self.set.root().version.checked_add(1) else {
                break;
            };
            let Some(root) = self.fetch(Wanted::Root(next), limits.root_bytes)? else {
                break;
            };
            belongs(self.which, &root)?;
            if self.holding == Holding::Whole {
                distinct::in_root(self.which, &root)?;
            }
            self.set.update_root(&root).map_err(|source| refused(self.which, "root", source))?;
            self.held.root = root;
        }
        Ok(())
    }

    fn let_go(&mut self) -> Result<(), TrustError> {
        if self.load_online().is_err() {
            self.set = TrustedMetadataSet::from_root(&self.held.root)
                .map_err(|source| refused(self.which, "root", source))?;
            self.floors.clear();
            self.held = Held::bare(std::mem::take(&mut self.held.root));
        } else if self.load_targets().is_err() {
            self.held.targets = None;
            self.held.delegated.clear();
        }
        Ok(())
    }

    /// The whole workflow up to `targets.json` (5.3 to 5.6).
    pub fn refresh(&mut self) -> Result<(), TrustError> {
        self.roots()?;
        self.top_level()
    }

    /// From the timestamp on (5.3.10 to 5.6).
    pub fn top_level(&mut self) -> Result<(), TrustError> {
        let (which, now) = (self.which, self.now);
        self.set.check_root_expired(now).map_err(|source| refused(which, "root", source))?;
        self.timestamp()?;
        self.snapshot()?;
        self.top_targets()
    }

    /// 5.4; an equal version is no update, and what is held must still be fresh.
    fn timestamp(&mut self) -> Result<(), TrustError> {
        let (which, now) = (self.which, self.now);
        let file = self.must_fetch(Wanted::Timestamp, MetadataLimits::DEVICE.timestamp_bytes)?;
        match self.set.update_timestamp(&file, now) {
            Ok(()) => self.held.timestamp = Some(file),
            Err(TufError::EqualVersion { .. }) => {}
            Err(source) => return Err(refused(which, "timestamp", source)),
        }
        self.set.check_timestamp_expired(now).map_err(|source| refused(which, "timestamp", source))
    }

    /// 5.5
    fn snapshot(&mut self) -> Result<(), TrustError> {
        let (which, now) = (self.which, self.now);
        let failed = |source| refused(which, "snapshot", source);
        let kept =
            self.held.snapshot.as_ref().is_some_and(|held| self.set.update_snapshot(held, now).is_ok());
        if !kept {
            let pin = self.set.timestamp().and_then(|timestamp| timestamp.snapshot_meta());
            let pin =
                pin.ok_or_else(|| failed(TufError::Malformed("the timestamp pins no snapshot".into())))?;
            let most = bounded(pin.length, MetadataLimits::DEVICE.snapshot_bytes);
            let version = self.named(pin.version);
            let file = self.must_fetch(Wanted::Snapshot { version }, most)?;
            self.set.update_snapshot(&file, now).map_err(failed)?;
            self.above_floors()?;
            self.held.snapshot = Some(file);
        }
        self.set.check_snapshot_expired(now).map_err(failed)
    }

    /// 5.5.5, also where the held snapshot is not the one that the held timestamp pins.
    fn above_floors(&mut self) -> Result<(), TrustError> {
        let Some(snapshot) = self.set.snapshot() else {
            return Ok(());
        };
        for (name, held) in &self.floors {
            let back = match snapshot.meta.get(name) {
                None => TufError::IntegrityMismatch(format!("it no longer lists {}", shown(name))),
                Some(new) if new.version < *held => TufError::Rollback {
                    role: format!("{} (via snapshot)", shown(name)),
                    trusted: *held,
                    new: new.version,
                },
                Some(_) => continue,
            };
            return Err(refused(self.which, "snapshot", back));
        }
        self.floors = snapshot.meta.iter().map(|(name, pinned)| (name.clone(), pinned.version)).collect();
        Ok(())
    }

    /// 5.6
    fn top_targets(&mut self) -> Result<(), TrustError> {
        let (which, now) = (self.which, self.now);
        let kept = self.held.targets.as_ref().is_some_and(|held| self.set.update_targets(held, now).is_ok());
        if !kept {
            let limits = MetadataLimits::DEVICE;
            let most = match which {
                Repository::Image => limits.image_targets_bytes,
                Repository::Director => limits.director_targets_bytes,
            };
            let (version, most) = self.pinned("targets", most)?.ok_or_else(|| {
                refused(which, "targets", TufError::Malformed("the snapshot does not list it".into()))
            })?;
            let file = self.must_fetch(Wanted::Targets { role: "targets", version }, most)?;
            self.set.update_targets(&file, now).map_err(|source| refused(which, "targets", source))?;
            self.held.targets = Some(file);
        }
        self.fresh("targets")
    }

    /// Looks for a target (5.6.7): in `targets.json`, then depth first through the delegations that
    /// match its name.
    pub fn find(&mut self, target: &str) -> Result<Option<TargetFile>, TrustError> {
        let mut waiting = vec![("targets".to_owned(), String::new())];
        let mut visited = BTreeSet::new();
        while let Some((role, delegator)) = waiting.pop() {
            // 5.6.7.1: a role is asked once, so a cycle ends.
            if visited.contains(&role) {
                continue;
            }
            let most = MetadataLimits::DEVICE.visited;
            if visited.len() >= most {
                return Err(TrustError::TooMany {
                    what: "roles that one target is looked for in",
                    found: visited.len() + 1,
                    most,
                });
            }
            if role != "targets" && !self.delegated(&role, &delegator)? {
                continue;
            }
            let targets = self
                .set
                .targets_role(&role)
                .ok_or_else(|| refused(self.which, &role, TufError::NotRefreshed))?;
            if let Some(found) = targets.target(target) {
                return Ok(Some(found.clone()));
            }
            let mut children = Vec::new();
            for child in targets.delegations.iter().flat_map(|split| &split.roles) {
                if is_top_level(&child.name) {
                    continue;
                }
                if child.matches_path(target).map_err(|source| refused(self.which, &role, source))? {
                    children.push((child.name.clone(), role.clone()));
                    if child.terminating {
                        waiting.clear();
                        break;
                    }
                }
            }
            waiting.extend(children.into_iter().rev());
            visited.insert(role);
        }
        Ok(None)
    }

    /// Loads a delegated role, as the delegator signs for it. `false`: the snapshot does not list it,
    /// so it does not exist.
    fn delegated(&mut self, role: &str, delegator: &str) -> Result<bool, TrustError> {
        let (which, now, limits) = (self.which, self.now, MetadataLimits::DEVICE);
        let failed = |source| refused(which, role, source);
        sized("the name of a delegated role", role.as_bytes(), limits.role_name_bytes)?;
        let Some((version, most)) = self.pinned(role, limits.delegated_bytes)? else {
            return Ok(false);
        };
        if self.holding == Holding::Whole {
            let split = self.set.targets_role(delegator).and_then(|targets| targets.delegations.as_ref());
            distinct::in_delegation(which, split, role)?;
        }
        if self.set.targets_role(role).is_some() {
            // It may have come by another delegator, with other keys.
            self.set.verify_delegated_targets(role, delegator, now).map_err(failed)?;
        } else {
            let held = self.held.delegated.get(role);
            let kept = held
                .is_some_and(|held| self.set.update_delegated_targets(held, role, delegator, now).is_ok());
            if !kept {
                let file = self.must_fetch(Wanted::Targets { role, version }, most)?;
                self.set.update_delegated_targets(&file, role, delegator, now).map_err(failed)?;
                self.held.delegated.insert(role.to_owned(), file);
            }
        }
        self.used.insert(role.to_owned());
        self.fresh(role)?;
        Ok(true)
    }

    /// 5.6.5; the library lets the very second of the expiry pass.
    fn fresh(&self, role: &str) -> Result<(), TrustError> {
        match self.set.targets_role(role) {
            Some(targets) if targets.expires > self.now => Ok(()),
            Some(targets) => {
                let expired = TufError::Expired { role: role.to_owned(), expires: targets.expires };
                Err(refused(self.which, role, expired))
            }
            None => Err(refused(self.which, role, TufError::NotRefreshed)),
        }
    }

    /// The version in the file name of a targets role, and the most bytes that it may have. `None`:
    /// the snapshot does not list it.
    fn pinned(&self, role: &str, most: usize) -> Result<Option<(Option<u64>, usize)>, TrustError> {
        let snapshot =
            self.set.snapshot().ok_or_else(|| refused(self.which, "snapshot", TufError::NotRefreshed))?;
        let pin = snapshot.meta.get(&format!("{role}.json"));
        Ok(pin.map(|pin| (self.named(pin.version), bounded(pin.length, most))))
    }

    fn named(&self, version: u64) -> Option<u64> {
        self.set.root().consistent_snapshot.then_some(version)
    }

    fn fetch(&mut self, wanted: Wanted<'_>, most: usize) -> Result<Option<Vec<u8>>, TrustError> {
        let fetched = self.source.fetch(wanted, most).map_err(|source| TrustError::Source {
            repository: self.which,
            role: shown(name(wanted)),
            source,
        })?;
        if let Some(file) = &fetched {
            sized(&format!("the {} repository's {}", self.which, shown(name(wanted))), file, most)?;
        }
        Ok(fetched)
    }

    fn must_fetch(&mut self, wanted: Wanted<'_>, most: usize) -> Result<Vec<u8>, TrustError> {
        let missing = TrustError::Missing { repository: self.which, role: shown(name(wanted)) };
        self.fetch(wanted, most)?.ok_or(missing)
    }

    /// What was verified so far.
    pub fn held(&self) -> &Held {
        &self.held
    }

    /// What to keep: of the delegated roles those that the searches needed.
    pub fn finish(mut self) -> Result<Held, TrustError> {
        let most = MetadataLimits::DEVICE.delegated;
        let used = &self.used;
        self.held.delegated.retain(|role, _| used.contains(role));
        let found = self.held.delegated.len();
        if found > most {
            return Err(TrustError::TooMany { what: "delegated roles", found, most });
        }
        Ok(self.held)
    }

    /// The trusted root.
    pub fn root(&self) -> &Root {
        self.set.root()
    }

    /// `targets.json`, once it is loaded.
    pub fn targets(&self) -> Result<&Targets, TrustError> {
        self.loaded().ok_or_else(|| refused(self.which, "targets", TufError::NotRefreshed))
    }

    /// The same where it may be absent.
    pub fn loaded(&self) -> Option<&Targets> {
        self.set.targets_role("targets")
    }

    /// When the first of the targets roles that were used expires.
    pub fn targets_expire(&self) -> Option<Timestamp> {
        let used = self.used.iter().map(String::as_str).chain(["targets"]);
        used.filter_map(|role| self.set.targets_role(role)).map(|targets| targets.expires).min()
    }
}

/// The least of a pinned length and a limit.
fn bounded(pinned: Option<u64>, most: usize) -> usize {
    pinned.and_then(|length| usize::try_from(length).ok()).map_or(most, |length| length.min(most))
}

fn name(wanted: Wanted<'_>) -> &str {
    match wanted {
        Wanted::Root(_) => "root",
        Wanted::Timestamp => "timestamp",
        Wanted::Snapshot { .. } => "snapshot",
        Wanted::Targets { role, .. } => role,
    }
}

/// The names of the roles that a root names; a delegation may not take one.
fn is_top_level(role: &str) -> bool {
    matches!(role, "root" | "timestamp" | "snapshot" | "targets")
}

/// A name from outside as an error may show it.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(120).collect::<String>().escape_debug().to_string()
}
