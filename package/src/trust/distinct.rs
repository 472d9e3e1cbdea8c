//! A threshold counts key ids, and an id is any text: one key under two ids would count for two people.
//! A device, and whoever verifies for it, refuses a role of which that could be so.

use std::collections::{BTreeMap, BTreeSet};

use sigstore_tuf::{Delegations, Error as TufError, Key, Metadata, Root};

use super::repository::refused;
use super::{Repository, TrustError, sized};
use crate::limits::MetadataLimits;

/// Checks the four roles of a root.
pub(super) fn in_root(which: Repository, root: &[u8]) -> Result<(), TrustError> {
    sized("a root", root, MetadataLimits::DEVICE.root_bytes)?;
    let read = Metadata::<Root>::from_slice(root).map_err(|source| refused(which, "root", source))?;
    let root = read.signed();
    for (name, role) in &root.roles {
        check(name, &role.keyids, &root.keys).map_err(|source| refused(which, "root", source))?;
    }
    Ok(())
}

/// Checks what a targets role says of a role that it delegates to.
pub(super) fn in_delegation(
    which: Repository,
    split: Option<&Delegations>,
    role: &str,
) -> Result<(), TrustError> {
    let Some(split) = split else { return Ok(()) };
    for child in split.roles.iter().filter(|child| child.name == role) {
        check(role, &child.keyids, &split.keys).map_err(|source| refused(which, role, source))?;
    }
    Ok(())
}

/// Only ed25519 keys in hexadecimal, the only ones that our signing makes, can surely be told apart: other
/// kinds have several forms for one key. A role of one key id has nothing to tell apart.
fn check(role: &str, ids: &[String], keys: &BTreeMap<String, Key>) -> Result<(), TufError> {
    let wrong = |what: &str| {
        let role = role.chars().take(80).collect::<String>();
        Err(TufError::Malformed(format!("the keys of {} {what}", role.escape_debug())))
    };
    let ids: BTreeSet<&String> = ids.iter().collect();
    if ids.len() < 2 {
        return Ok(());
    }
    let mut publics = BTreeSet::new();
    // An id without a key signs nothing.
    for key in ids.into_iter().filter_map(|id| keys.get(id)) {
        let mut public = [0; 32];
        let read = hex::decode_to_slice(key.keyval.public.trim(), &mut public);
        if key.keytype != "ed25519" || key.scheme != "ed25519" || read.is_err() {
            return wrong("cannot be told apart: where there are several, all must be ed25519 keys");
        }
        if !publics.insert(public) {
            return wrong("are not distinct: one has two key ids, and would count twice");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn checked(keys: serde_json::Value, ids: &[&str]) -> Result<(), String> {
        let keys: BTreeMap<String, Key> = serde_json::from_value(keys).unwrap();
        let ids: Vec<_> = ids.iter().map(|id| (*id).to_owned()).collect();
        check("targets", &ids, &keys).map_err(|error| error.to_string())
    }

    #[test]
    fn one_key_counts_once_however_it_is_written() {
        let key = |public: &str| json!({ "keytype": "ed25519", "scheme": "ed25519", "keyval": { "public": public } });
        let (one, other) = ("ab".repeat(32), "cd".repeat(32));
        let pem = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA\n-----END PUBLIC KEY-----";
        let mut named = key(&one);
        named["x-owner"] = json!("another person");
        let keys = json!({
            "one": key(&one), "other": key(&other), "again": key(&one), "loud": key(&one.to_uppercase()),
            "spaced": key(&format!(" {one}\n")), "named": named, "pem": key(pem),
            "rsa": { "keytype": "rsa", "scheme": "rsassa-pss-sha256", "keyval": { "public": one } },
        });
        for twin in ["again", "loud", "spaced", "named"] {
            let error = checked(keys.clone(), &["other", "one", twin]).unwrap_err();
            assert!(error.contains("count twice"), "{twin}: {error}");
        }
        for odd in ["pem", "rsa"] {
            let error = checked(keys.clone(), &["one", odd]).unwrap_err();
            assert!(error.contains("told apart"), "{odd}: {error}");
            checked(keys.clone(), &[odd]).unwrap();
        }
        checked(keys.clone(), &["one", "other", "absent"]).unwrap();
        // The same id twice is one id to whoever counts.
        checked(keys, &["one", "one"]).unwrap();
    }
}
