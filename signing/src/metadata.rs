//! Signed metadata files as bytes: making one, and reading what is needed to make the next.
//!
//! The canonical form that signatures cover and the layout of the files are `tough`'s. Reading here
//! verifies nothing; that is `selvedge_package::trust`.

use std::collections::HashMap;
use std::num::NonZeroU64;

use jiff::Timestamp;
use selvedge_package::Digest;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tough::schema::{Hashes, Metafile, Role, Signature, Signed};

use crate::{Signer, SigningError};

/// Largest metadata file that is read here.
const LARGEST: u64 = 16 << 20;
/// The TUF specification that the files follow.
pub(crate) const SPEC: &str = "1.0.31";

/// The head of any metadata file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// `root`, `timestamp`, `snapshot` or `targets`.
    pub role: String,
    /// Its version.
    pub version: u64,
    /// When it expires.
    pub expires: Timestamp,
}

/// Reads role, version and expiry of a metadata file, whose signatures are not checked.
pub fn head(bytes: &[u8]) -> Result<Head, SigningError> {
    #[derive(serde::Deserialize)]
    struct File {
        signed: Part,
    }
    #[derive(serde::Deserialize)]
    struct Part {
        #[serde(rename = "_type")]
        role: String,
        version: u64,
        expires: Timestamp,
    }
    sized("metadata", bytes)?;
    let File { signed: Part { role, version, expires } } = serde_json::from_slice(bytes)
        .map_err(|source| SigningError::NotMetadata { what: "metadata file", source })?;
    Ok(Head { role, version, expires })
}

/// Signs a role with every signer given and returns the file's bytes.
pub(crate) fn sign<T: Role>(
    what: &'static str,
    role: T,
    signers: &[&dyn Signer],
) -> Result<Vec<u8>, SigningError> {
    if signers.is_empty() {
        return Err(SigningError::NoSigner);
    }
    propose(what, role, signers)
}

/// The same where others sign too: there may be no signer yet.
pub(crate) fn propose<T: Role>(
    what: &'static str,
    role: T,
    signers: &[&dyn Signer],
) -> Result<Vec<u8>, SigningError> {
    let mut signed = Signed { signed: role, signatures: Vec::new() };
    add_signatures(what, &mut signed, signers)?;
    write(what, &signed)
}

/// Adds signatures; a key that has signed already is left alone.
pub(crate) fn add_signatures<T: Role>(
    what: &'static str,
    signed: &mut Signed<T>,
    signers: &[&dyn Signer],
) -> Result<(), SigningError> {
    let message = signed
        .signed
        .canonical_form()
        .map_err(|source| SigningError::Canonical { what, source: Box::new(source) })?;
    for signer in signers {
        let keyid = signer.public_key().tuf_key_id()?;
        if signed.signatures.iter().any(|signature| signature.keyid == keyid) {
            continue;
        }
        let sig = signer.sign(&message)?.to_vec().into();
        signed.signatures.push(Signature { keyid, sig });
    }
    Ok(())
}

pub(crate) fn write<T: Serialize>(what: &'static str, signed: &Signed<T>) -> Result<Vec<u8>, SigningError> {
    // `tough` keeps maps in random order; sorted, equal contents give equal bytes.
    let value = serde_json::to_value(signed).map_err(|source| SigningError::Json { what, source })?;
    serde_json::to_vec(&value).map_err(|source| SigningError::Json { what, source })
}

pub(crate) fn read<T: DeserializeOwned>(what: &'static str, bytes: &[u8]) -> Result<Signed<T>, SigningError> {
    sized(what, bytes)?;
    serde_json::from_slice(bytes).map_err(|source| SigningError::NotMetadata { what, source })
}

/// The entry by which one metadata file pins another.
pub(crate) fn pin(bytes: &[u8]) -> Result<Metafile, SigningError> {
    Ok(Metafile {
        length: Some(bytes.len() as u64),
        hashes: Some(hashes(Digest::of(bytes))),
        version: version("metadata", head(bytes)?.version)?,
        _extra: HashMap::new(),
    })
}

pub(crate) fn hashes(digest: Digest) -> Hashes {
    Hashes { sha256: digest.as_bytes().to_vec().into(), _extra: HashMap::new() }
}

pub(crate) fn version(what: &'static str, version: u64) -> Result<NonZeroU64, SigningError> {
    NonZeroU64::new(version).ok_or(SigningError::Version { what, version })
}

fn sized(what: &'static str, bytes: &[u8]) -> Result<(), SigningError> {
    let found = bytes.len() as u64;
    if found <= LARGEST { Ok(()) } else { Err(SigningError::TooLarge { what, found, most: LARGEST }) }
}
