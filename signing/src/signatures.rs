//! Files that people sign, one after another and on machines of their own: adding a signature, and
//! saying whose there are and whose are missing.
//!
//! A file travels as it is; a signature is added and nothing else of it changes. Whoever signs looks
//! at [`standing`] first. It decides nothing: devices and the registry verify for themselves.

use std::collections::BTreeMap;

use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tough::schema::decoded::{Decoded, Hex};
use tough::schema::{Role, Root, Signed, Targets};

use crate::metadata::{self, Head};
use crate::roots::{RoleKeys, RootSpec};
use crate::{PublicKey, Signer, SigningError};

/// Most signatures that a file may have.
const MOST_SIGNATURES: usize = 64;

/// Who has signed a file, and who may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Its role, version and expiry.
    pub head: Head,
    /// Everyone whose word it needs; it is accepted where all of them are content.
    pub groups: Vec<Group>,
    /// Ids of signatures that count for nobody: of a key that is not named, or not over these bytes.
    pub strangers: Vec<String>,
}

/// Keys that must sign together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Where they are named, as in `root version 2`.
    pub named_by: String,
    /// How many of them must sign.
    pub threshold: u64,
    /// The keys, by id, and whether each has signed.
    pub keys: BTreeMap<String, (PublicKey, bool)>,
}

impl Group {
    /// How many have signed.
    pub fn signed(&self) -> u64 {
        self.keys.values().filter(|(_, signed)| *signed).count() as u64
    }

    /// Whether enough have.
    pub fn is_content(&self) -> bool {
        self.signed() >= self.threshold
    }
}

impl Standing {
    /// Whether enough have signed everywhere.
    pub fn is_complete(&self) -> bool {
        self.groups.iter().all(Group::is_content)
    }

    /// Whether a signature of `key` counts.
    pub fn wants(&self, key: &PublicKey) -> bool {
        self.groups.iter().any(|group| group.keys.values().any(|(named, _)| named == key))
    }

    /// Whether `key` has signed already.
    pub fn has(&self, key: &PublicKey) -> bool {
        let mut all = self.groups.iter().flat_map(|group| group.keys.values());
        all.any(|(named, signed)| named == key && *signed)
    }
}

/// How a file stands. A root needs itself and the one before it, where `root` is that one; a list of
/// releases needs `root`. A root without an older one needs only itself.
pub fn standing(file: &[u8], root: Option<&[u8]>) -> Result<Standing, SigningError> {
    let head = metadata::head(file)?;
    let mut named = Vec::new();
    match (head.role.as_str(), root.map(RootSpec::read).transpose()?) {
        ("root", before) => {
            if let Some(before) = before {
                named.push((format!("root version {}, the one before", before.version), before.root));
            }
            let own = RootSpec::read(file)?;
            named.push((format!("root version {} itself", own.version), own.root));
            judge::<Root>("root", head, file, named)
        }
        ("targets", Some(root)) => {
            named.push((format!("the targets role of root version {}", root.version), root.targets));
            judge::<Targets>("targets", head, file, named)
        }
        ("targets", None) => judge::<Targets>("targets", head, file, named),
        (role, _) => Err(SigningError::NotForPeople { role: role.to_owned() }),
    }
}

fn judge<T: Role + Serialize + DeserializeOwned>(
    what: &'static str,
    head: Head,
    file: &[u8],
    named: Vec<(String, RoleKeys)>,
) -> Result<Standing, SigningError> {
    let signed: Signed<T> = whole(what, file)?;
    let message = signed
        .signed
        .canonical_form()
        .map_err(|source| SigningError::Canonical { what, source: Box::new(source) })?;
    let mut groups = Vec::new();
    for (named_by, RoleKeys { keys, threshold }) in named {
        let mut judged = BTreeMap::new();
        for key in keys {
            let id = key.tuf_key_id()?;
            let mut own = signed.signatures.iter().filter(|signature| signature.keyid == id);
            let holds = own.any(|signature| {
                UnparsedPublicKey::new(&ED25519, key.as_bytes()).verify(&message, &signature.sig).is_ok()
            });
            judged.insert(text(&id), (key, holds));
        }
        groups.push(Group { named_by, threshold, keys: judged });
    }
    let counts =
        |id: &String| groups.iter().any(|group| group.keys.get(id).is_some_and(|(_, signed)| *signed));
    let ids = signed.signatures.iter().map(|signature| text(&signature.keyid));
    let strangers = ids.filter(|id| !counts(id)).collect();
    Ok(Standing { head, groups, strangers })
}

/// Adds a signature of each signer to a root or a list of releases that others may have signed.
pub fn add(file: &[u8], signers: &[&dyn Signer]) -> Result<Vec<u8>, SigningError> {
    match metadata::head(file)?.role.as_str() {
        "root" => add_to::<Root>("root", file, signers),
        "targets" => add_to::<Targets>("targets", file, signers),
        role => Err(SigningError::NotForPeople { role: role.to_owned() }),
    }
}

fn add_to<T: Role + Serialize + DeserializeOwned>(
    what: &'static str,
    file: &[u8],
    signers: &[&dyn Signer],
) -> Result<Vec<u8>, SigningError> {
    let mut signed: Signed<T> = whole(what, file)?;
    let mine: Vec<_> =
        signers.iter().map(|signer| signer.public_key().tuf_key_id()).collect::<Result<_, _>>()?;
    // A signature of ours that is not over these bytes is replaced.
    signed.signatures.retain(|signature| !mine.contains(&signature.keyid));
    metadata::add_signatures(what, &mut signed, signers)?;
    metadata::write(what, &signed)
}

/// Reads a file of which nothing may get lost: what others have signed is written again.
fn whole<T: Role + Serialize + DeserializeOwned>(
    what: &'static str,
    file: &[u8],
) -> Result<Signed<T>, SigningError> {
    let unread = |source| SigningError::NotMetadata { what, source };
    let signed: Signed<T> = metadata::read(what, file)?;
    if signed.signatures.len() > MOST_SIGNATURES {
        return Err(SigningError::NotRead { what, reason: "it has more than 64 signatures" });
    }
    let read: serde_json::Value = serde_json::from_slice(file).map_err(unread)?;
    if serde_json::to_value(&signed).map_err(unread)? != read {
        return Err(SigningError::Unknown { what });
    }
    Ok(signed)
}

fn text(id: &Decoded<Hex>) -> String {
    hex::encode(&**id)
}
