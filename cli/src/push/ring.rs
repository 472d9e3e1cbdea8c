//! The keys that a push signs with, and the roots that name them.
//!
//! The directory of the keys holds the newest root of each repository; the memory of earlier pushes
//! holds the chain to it, for devices that trust an older one. A root that does not follow from the
//! chain is refused: every device would refuse it too.

use std::path::{Path, PathBuf};

use selvedge_signing::keyring::RootFiles;
use selvedge_signing::signatures::standing;
use selvedge_signing::{Keyring, OnlineKeys, metadata};

use super::repository::Image;
use crate::ceremony::chain::{Which, follows};
use crate::failure::{Cause, Failure};
use crate::keyring::failed;

/// Keys of people and of a registry: a push is both.
pub struct Ring {
    /// Sign releases.
    pub offline: Keyring,
    /// Sign assignments and what expires soon.
    pub online: OnlineKeys,
    dir: PathBuf,
}

impl Ring {
    /// Reads a directory that `selvedge keys init` made.
    pub fn load(dir: &Path) -> Result<Self, Failure> {
        let reading = |error| failed(format!("read the keys in {}", dir.display()), error);
        Ok(Self {
            offline: Keyring::load(dir).map_err(reading)?,
            online: OnlineKeys::load(&dir.join("online")).map_err(reading)?,
            dir: dir.to_owned(),
        })
    }

    /// Takes the newest roots over into `image`. Says whether there was an older one: then
    /// everything is to be signed again.
    pub fn take_roots(&self, image: &mut Image) -> Result<bool, Failure> {
        let roots = newest(&self.dir)?;
        let mut moved = false;
        for (which, chain, offered) in [
            (Which::Image, &mut image.image_roots, roots.image),
            (Which::Director, &mut image.director_roots, roots.director),
        ] {
            let first = chain.is_empty();
            let grown = extend(which, chain, &offered)
                .map_err(|source| untrusted(&self.dir, which.name(), source))?;
            moved |= grown && !first;
        }
        Ok(moved)
    }
}

/// The newest roots in a directory of keys.
pub fn newest(keys: &Path) -> Result<RootFiles, Failure> {
    RootFiles::load(&keys.join("roots"))
        .map_err(|error| failed(format!("read the roots in {}", keys.display()), error))
}

fn untrusted(dir: &Path, name: &str, source: Cause) -> Failure {
    Failure::Untrusted {
        what: format!("the {name} root in {} does not follow from the one of the last push", dir.display()),
        advice: "use the keys of the earlier pushes, or another --repository for other keys".to_owned(),
        source: Some(source),
    }
}

/// Adds a newer root to the chain; an older one or the same changes nothing.
fn extend(which: Which, chain: &mut Vec<String>, offered: &[u8]) -> Result<bool, Cause> {
    let text = String::from_utf8(offered.to_vec())?;
    let Some(last) = chain.last() else {
        // A root must be signed by itself.
        if !standing(offered, None)?.is_complete() {
            return Err("it is not signed by enough of its own keys".into());
        }
        chain.push(text);
        return Ok(true);
    };
    let version = |bytes: &[u8]| Ok::<_, Cause>(metadata::head(bytes)?.version);
    let (held, new) = (version(last.as_bytes())?, version(offered)?);
    if new < held || *last == text {
        return Ok(false);
    }
    if new == held {
        return Err(format!("version {held} differs from the one that devices trust").into());
    }
    follows(which, last.as_bytes(), offered)?;
    chain.push(text);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;
    use selvedge_signing::SigningKey;
    use selvedge_signing::roots::{RoleKeys, RootSpec, sign_root};

    fn root(version: u64, key: &SigningKey, signers: &[&SigningKey]) -> Vec<u8> {
        let single = || RoleKeys::single(key.public_key());
        let spec = RootSpec {
            version,
            expires: "2040-01-01T00:00:00Z".parse().unwrap(),
            root: single(),
            targets: single(),
            snapshot: single(),
            timestamp: single(),
        };
        let signers: Vec<&dyn selvedge_signing::Signer> =
            signers.iter().map(|key| *key as &dyn selvedge_signing::Signer).collect();
        sign_root(&spec, &signers).unwrap()
    }

    #[test]
    fn a_chain_of_roots_only_grows_and_only_by_what_follows() {
        let (one, two, thief) = (
            SigningKey::generate().unwrap(),
            SigningKey::generate().unwrap(),
            SigningKey::generate().unwrap(),
        );
        let mut chain = Vec::new();
        let mut add =
            |bytes: &[u8]| extend(Which::Image, &mut chain, bytes).map_err(|error| error.to_string());
        assert_eq!(add(&root(1, &one, &[&one])), Ok(true));
        assert_eq!(add(&root(1, &one, &[&one])), Ok(false));
        assert!(add(&root(1, &two, &[&two])).unwrap_err().contains("differs"));
        assert!(add(&root(2, &thief, &[&thief])).is_err());
        assert_eq!(add(&root(2, &two, &[&one, &two])), Ok(true));
        assert_eq!(add(&root(1, &one, &[&one])), Ok(false));
        assert_eq!(chain.len(), 2);
        assert!(extend(Which::Image, &mut Vec::new(), b"{}").is_err());
    }

    #[test]
    fn keys_of_another_ring_are_told() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for dir in [&dir, &other] {
            crate::commands::keys::init(dir.path()).unwrap();
        }
        let mut image = Image::default();
        assert!(!Ring::load(dir.path()).unwrap().take_roots(&mut image).unwrap());
        let failure = Ring::load(other.path()).unwrap().take_roots(&mut image).unwrap_err();
        assert_eq!(failure.exit(), Exit::Untrusted);
    }
}
