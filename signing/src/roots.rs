//! Roots: which keys, and how many of them, speak for each role.
//!
//! A new root is signed by the keys of the last root and by its own, so pass signers of both.
//! Signatures of other people are added to the file with [`countersign`].

use std::collections::HashMap;
use std::num::NonZeroU64;

use jiff::Timestamp;
use tough::schema::decoded::{Decoded, Hex};
use tough::schema::key::Key;
use tough::schema::{RoleKeys as TufRoleKeys, RoleType, Root, Signed};

use crate::lifetimes::whole_seconds;
use crate::metadata::{self, SPEC};
use crate::{PublicKey, Signer, SigningError};

type Listed = (HashMap<Decoded<Hex>, Key>, Vec<Decoded<Hex>>);

/// The keys of one role and how many of them must sign.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleKeys {
    /// The keys.
    pub keys: Vec<PublicKey>,
    /// How many must sign: 1 to the number of keys.
    pub threshold: u64,
}

impl RoleKeys {
    /// One key that signs alone.
    pub fn single(key: PublicKey) -> Self {
        Self { keys: vec![key], threshold: 1 }
    }

    /// The keys as metadata lists them, and their ids, each once.
    pub(crate) fn listed(&self) -> Result<Listed, SigningError> {
        let (mut keys, mut ids) = (HashMap::new(), Vec::new());
        for key in &self.keys {
            let id = key.tuf_key_id()?;
            keys.insert(id.clone(), key.tuf_key());
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        Ok((keys, ids))
    }

    /// The threshold, where so many keys can meet it.
    pub(crate) fn checked_threshold(
        &self,
        role: &'static str,
        keys: usize,
    ) -> Result<NonZeroU64, SigningError> {
        let impossible = SigningError::Threshold { role, threshold: self.threshold, keys };
        match NonZeroU64::new(self.threshold) {
            Some(threshold) if self.threshold <= keys as u64 => Ok(threshold),
            _ => Err(impossible),
        }
    }
}

/// What a root says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootSpec {
    /// Version, from 1; the next one must be exactly one more.
    pub version: u64,
    /// When it expires; a fraction of a second is cut off.
    pub expires: Timestamp,
    /// Who signs roots.
    pub root: RoleKeys,
    /// Who signs targets.
    pub targets: RoleKeys,
    /// Who signs snapshots.
    pub snapshot: RoleKeys,
    /// Who signs timestamps.
    pub timestamp: RoleKeys,
}

impl RootSpec {
    /// What a root file says. Its signatures are not checked; only ed25519 keys are read.
    pub fn read(root: &[u8]) -> Result<Self, SigningError> {
        let Root { version, expires, keys, roles, .. } = metadata::read::<Root>("root", root)?.signed;
        let role = |role: RoleType| {
            let what = "root with its four roles";
            let held = roles.get(&role).ok_or(SigningError::NotRead { what, reason: "a role is missing" })?;
            let keys = held.keyids.iter().map(|id| match keys.get(id) {
                Some(Key::Ed25519 { keyval, .. }) => <[u8; 32]>::try_from(&*keyval.public)
                    .map(PublicKey::from_bytes)
                    .map_err(|_| SigningError::NotRead { what, reason: "a key is not an ed25519 key" }),
                Some(_) => Err(SigningError::NotRead { what, reason: "a key is not an ed25519 key" }),
                None => Err(SigningError::NotRead { what, reason: "a role names a key that is not listed" }),
            });
            Ok(RoleKeys { keys: keys.collect::<Result<_, _>>()?, threshold: held.threshold.get() })
        };
        Ok(Self {
            version: version.get(),
            expires,
            root: role(RoleType::Root)?,
            targets: role(RoleType::Targets)?,
            snapshot: role(RoleType::Snapshot)?,
            timestamp: role(RoleType::Timestamp)?,
        })
    }

    /// The four roles by name.
    pub fn roles(&self) -> [(&'static str, &RoleKeys); 4] {
        [
            ("root", &self.root),
            ("targets", &self.targets),
            ("snapshot", &self.snapshot),
            ("timestamp", &self.timestamp),
        ]
    }

    /// A role by its name.
    pub fn role_mut(&mut self, name: &str) -> Option<&mut RoleKeys> {
        match name {
            "root" => Some(&mut self.root),
            "targets" => Some(&mut self.targets),
            "snapshot" => Some(&mut self.snapshot),
            "timestamp" => Some(&mut self.timestamp),
            _ => None,
        }
    }

    /// What changes from `before` to this, in words, a line each.
    pub fn changes(&self, before: &Self) -> Result<Vec<String>, SigningError> {
        let mut lines = Vec::new();
        for ((name, new), (_, old)) in self.roles().into_iter().zip(before.roles()) {
            for key in old.keys.iter().filter(|key| !new.keys.contains(key)) {
                lines.push(format!("{name}: the key {} is revoked", key.key_id()?));
            }
            for key in new.keys.iter().filter(|key| !old.keys.contains(key)) {
                lines.push(format!("{name}: the key {} is new", key.key_id()?));
            }
            let (was, is) = ((old.threshold, old.keys.len()), (new.threshold, new.keys.len()));
            if was != is {
                lines.push(format!(
                    "{name}: {} of {} keys must sign, {} of {} before",
                    is.0, is.1, was.0, was.1
                ));
            }
        }
        if self.expires != before.expires {
            lines.push(format!("it expires at {}, the one before at {}", self.expires, before.expires));
        }
        Ok(lines)
    }
}

/// The field by which a root says to which repository it belongs, so that people who sign for both
/// see which one it is, and nobody publishes it for the other. TUF lets a root have further fields.
const BELONGS: &str = "x-selvedge-repository";

/// Makes a root and signs it with every signer given.
pub fn sign_root(spec: &RootSpec, signers: &[&dyn Signer]) -> Result<Vec<u8>, SigningError> {
    metadata::sign("root", root(spec, None)?, signers)
}

/// A root of the repository `image` or `director` that nobody has signed yet.
pub fn unsigned_root(repository: &str, spec: &RootSpec) -> Result<Vec<u8>, SigningError> {
    metadata::write("root", &Signed { signed: root(spec, Some(repository))?, signatures: Vec::new() })
}

/// To which repository a root says that it belongs; `None` where it does not say.
pub fn repository(root: &[u8]) -> Result<Option<String>, SigningError> {
    let read = metadata::read::<Root>("root", root)?.signed;
    Ok(read._extra.get(BELONGS).and_then(|name| name.as_str()).map(str::to_owned))
}

fn root(spec: &RootSpec, repository: Option<&str>) -> Result<Root, SigningError> {
    let mut root = Root {
        spec_version: SPEC.to_owned(),
        consistent_snapshot: true,
        version: metadata::version("root", spec.version)?,
        expires: whole_seconds(spec.expires),
        keys: HashMap::new(),
        roles: HashMap::new(),
        _extra: repository.map(|name| (BELONGS.to_owned(), name.into())).into_iter().collect(),
    };
    for ((name, keys), role) in spec.roles().into_iter().zip([
        RoleType::Root,
        RoleType::Targets,
        RoleType::Snapshot,
        RoleType::Timestamp,
    ]) {
        let (listed, keyids) = keys.listed()?;
        root.keys.extend(listed);
        let threshold = keys.checked_threshold(name, keyids.len())?;
        root.roles.insert(role, TufRoleKeys { keyids, threshold, _extra: HashMap::new() });
    }
    Ok(root)
}

/// Adds signatures to a root that others have signed. The file grows; nothing else changes.
pub fn countersign(root: &[u8], signers: &[&dyn Signer]) -> Result<Vec<u8>, SigningError> {
    let mut signed: Signed<Root> = metadata::read("root", root)?;
    metadata::add_signatures("root", &mut signed, signers)?;
    metadata::write("root", &signed)
}
