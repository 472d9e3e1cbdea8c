//! Private keys that a command is given, by file or by directory.

use std::path::{Path, PathBuf};

use selvedge_signing::key::Passphrases;
use selvedge_signing::roots::RoleKeys;
use selvedge_signing::{Signer, SigningError, SigningKey, keyring};

use crate::failure::Failure;
use crate::keyring::failed;

/// Reads key files.
pub fn load(paths: &[PathBuf], passphrases: &dyn Passphrases) -> Result<Vec<SigningKey>, Failure> {
    paths.iter().map(|path| load_one(path, passphrases)).collect()
}

/// Reads one key file.
pub fn load_one(path: &Path, passphrases: &dyn Passphrases) -> Result<SigningKey, Failure> {
    SigningKey::load_with(path, passphrases).map_err(|error| match &error {
        SigningError::File { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            Failure::no_file(path, "`selvedge keys new FILE` makes a key")
        }
        _ => failed(format!("read the key {}", path.display()), error),
    })
}

/// The keys that sign releases: those that were named, and of the directory those that are there and
/// that the root names. A directory may have none: then others sign.
pub fn releasers(
    dir: &Path,
    named: &[PathBuf],
    role: &RoleKeys,
    passphrases: &dyn Passphrases,
) -> Result<Vec<SigningKey>, Failure> {
    let mut keys = load(named, passphrases)?;
    if named.is_empty() {
        for path in keyring::files_of(&dir.join("offline"), "image-targets") {
            if !path.exists() {
                continue;
            }
            let key = load_one(&path, passphrases)?;
            // One that the root does not name any more is no mistake where there is another.
            keys.push(key);
        }
        if keys.len() > 1 {
            keys.retain(|key| role.keys.contains(&key.public_key()));
        }
    }
    Ok(keys)
}

/// As what signs.
pub fn dynamic(keys: &[SigningKey]) -> Vec<&dyn Signer> {
    keys.iter().map(|key| key as &dyn Signer).collect()
}
