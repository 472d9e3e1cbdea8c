//! Roots: which keys, and how many of them, speak for each role.
//!
//! A new root is signed by the keys of the last root and by its own, so pass signers of both.
//! Signatures of other people are added to the file with [`countersign`].

use std::collections::HashMap;

use jiff::Timestamp;
use tough::schema::{RoleKeys as TufRoleKeys, RoleType, Root, Signed};

use crate::lifetimes::whole_seconds;
use crate::metadata::{self, SPEC};
use crate::{PublicKey, Signer, SigningError};

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

/// Makes a root and signs it with every signer given.
pub fn sign_root(spec: &RootSpec, signers: &[&dyn Signer]) -> Result<Vec<u8>, SigningError> {
    let mut root = Root {
        spec_version: SPEC.to_owned(),
        consistent_snapshot: true,
        version: metadata::version("root", spec.version)?,
        expires: whole_seconds(spec.expires),
        keys: HashMap::new(),
        roles: HashMap::new(),
        _extra: HashMap::new(),
    };
    for (name, role, keys) in [
        ("root", RoleType::Root, &spec.root),
        ("targets", RoleType::Targets, &spec.targets),
        ("snapshot", RoleType::Snapshot, &spec.snapshot),
        ("timestamp", RoleType::Timestamp, &spec.timestamp),
    ] {
        let mut keyids = Vec::new();
        for key in &keys.keys {
            let id = key.tuf_key_id()?;
            root.keys.insert(id.clone(), key.tuf_key());
            if !keyids.contains(&id) {
                keyids.push(id);
            }
        }
        let impossible =
            SigningError::Threshold { role: name, threshold: keys.threshold, keys: keyids.len() };
        if keys.threshold > keyids.len() as u64 {
            return Err(impossible);
        }
        let threshold = keys.threshold.try_into().map_err(|_| impossible)?;
        root.roles.insert(role, TufRoleKeys { keyids, threshold, _extra: HashMap::new() });
    }
    metadata::sign("root", root, signers)
}

/// Adds signatures to a root that others have signed. The file grows; nothing else changes.
pub fn countersign(root: &[u8], signers: &[&dyn Signer]) -> Result<Vec<u8>, SigningError> {
    let mut signed: Signed<Root> = metadata::read("root", root)?;
    metadata::add_signatures("root", &mut signed, signers)?;
    metadata::write("root", &signed)
}
