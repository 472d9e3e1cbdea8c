//! The keys that a push signs with, and the roots that name them.
//!
//! The directory of the keys holds the newest root of each repository; the memory of earlier pushes
//! holds the chain to it, for devices that trust an older one. A root that does not follow from the
//! chain is refused: every device would refuse it too.

use std::path::{Path, PathBuf};

use selvedge_signing::key::Passphrases;
use selvedge_signing::keyring::{RootFiles, files_of};
use selvedge_signing::roots::{RoleKeys, RootSpec};
use selvedge_signing::signatures::standing;
use selvedge_signing::{OnlineKeys, Signer, SigningKey, metadata};

use super::repository::Image;
use crate::ceremony::chain::{Which, follows};
use crate::ceremony::signers;
use crate::failure::{Cause, Failure};
use crate::keyring::failed;

/// Keys of people and of a registry: a push is both.
pub struct Ring {
    /// Sign releases: as many of them as must. The keys that sign roots are not needed.
    pub releasers: Vec<SigningKey>,
    /// Sign assignments and what expires soon.
    pub online: OnlineKeys,
    dir: PathBuf,
}

impl Ring {
    /// Reads a directory that `selvedge keys init` made; `passphrases` is asked for what is encrypted.
    pub fn load(dir: &Path, passphrases: &dyn Passphrases) -> Result<Self, Failure> {
        let reading = |error| failed(format!("read the keys in {}", dir.display()), error);
        let roots = newest(dir)?;
        let image = RootSpec::read(&roots.image).map_err(reading)?;
        let director = RootSpec::read(&roots.director).map_err(reading)?;
        for (which, spec) in [(Which::Image, &image), (Which::Director, &director)] {
            one_key_will_do(dir, which, spec)?;
        }
        let there = files_of(&dir.join("offline"), "image-targets");
        let there = there.iter().filter(|path| path.exists()).count();
        // Told before a passphrase is asked for in vain.
        enough(dir, &image.targets, there)?;
        let mut releasers = signers::releasers(dir, &[], &image.targets, passphrases)?;
        releasers.retain(|key| image.targets.keys.contains(&key.public_key()));
        enough(dir, &image.targets, releasers.len())?;
        let online = OnlineKeys::for_roots(&dir.join("online"), &roots).map_err(reading)?;
        Ok(Self { releasers, online, dir: dir.to_owned() })
    }

    /// The keys that sign releases, as what signs.
    pub fn signers(&self) -> Vec<&dyn Signer> {
        signers::dynamic(&self.releasers)
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

/// Whether so many keys can sign releases alone.
fn enough(dir: &Path, role: &RoleKeys, found: usize) -> Result<(), Failure> {
    let (threshold, named) = (role.threshold, role.keys.len());
    if found as u64 >= threshold {
        return Ok(());
    }
    let offline = dir.join("offline");
    if threshold == 1 {
        return Err(Failure::Untrusted {
            what: format!("{} has no key that may sign releases by the Image root", offline.display()),
            advice: "use the directory of the keys that the root names; where another person holds them: \
                     `selvedge release --propose` and a registry"
                .to_owned(),
            source: None,
        });
    }
    Err(Failure::Untrusted {
        what: format!(
            "{threshold} of {named} keys must sign releases (the threshold of `targets` in the Image root), \
             {} has {found} of them",
            offline.display()
        ),
        advice: "a push is signed by one person: where several must sign, use a registry, with `selvedge release \
                 PACKAGE --propose DIR`, `selvedge trust sign` by each, and `selvedge release PACKAGE --signed DIR`"
            .to_owned(),
        source: None,
    })
}

/// For each role that is signed online there is one key here: a root that wants several is not met.
fn one_key_will_do(dir: &Path, which: Which, spec: &RootSpec) -> Result<(), Failure> {
    let mut online = spec.roles().into_iter().filter(|(name, _)| match *name {
        "root" => false,
        "targets" => which == Which::Director,
        _ => true,
    });
    let Some((name, role)) = online.find(|(_, role)| role.threshold > 1) else { return Ok(()) };
    Err(Failure::Untrusted {
        what: format!(
            "the {} root in {} wants {} signatures of `{name}`; a push signs with one key",
            which.name(),
            dir.join("roots").display(),
            role.threshold
        ),
        advice: "publish a root with a threshold of 1 for it (`selvedge trust rotate`)".to_owned(),
        source: None,
    })
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
    use crate::ceremony::passphrase::PassphraseArgs;
    use crate::exit::Exit;
    use selvedge_signing::key::Passphrase;
    use selvedge_signing::keyring::init_with;
    use selvedge_signing::roots::sign_root;

    fn load(dir: &Path) -> Result<Ring, Failure> {
        Ring::load(dir, &PassphraseArgs::default())
    }

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
        assert!(!load(dir.path()).unwrap().take_roots(&mut image).unwrap());
        let failure = load(other.path()).unwrap().take_roots(&mut image).unwrap_err();
        assert_eq!(failure.exit(), Exit::Untrusted);
    }

    #[test]
    fn encrypted_keys_sign_with_their_passphrase_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let keys = dir.path().join("keys");
        let passphrase = Passphrase::new("correct horse battery".to_owned()).unwrap();
        init_with(&keys, crate::clock::now(), Some(&passphrase)).unwrap();
        let exit = |said: &str| {
            let file = dir.path().join("passphrase");
            std::fs::write(&file, said).unwrap();
            let asked = PassphraseArgs { passphrase_file: Some(file) };
            Ring::load(&keys, &asked).map(|ring| ring.releasers.len()).map_err(|failure| failure.exit())
        };
        assert_eq!(exit("correct horse battery\n"), Ok(1));
        assert_eq!(exit("wrong horse battery\n"), Err(Exit::Untrusted));
        // Who only pushes needs no key that signs roots.
        std::fs::remove_file(keys.join("offline/image-root.pem")).unwrap();
        std::fs::remove_file(keys.join("offline/director-root.pem")).unwrap();
        assert_eq!(exit("correct horse battery\n"), Ok(1));
    }

    /// Writes a root in which so many of these keys sign a role.
    fn reroot(dir: &Path, which: Which, role: &str, keys: Vec<SigningKey>, threshold: u64) {
        let path = dir.join(format!("roots/{}.root.json", which.name()));
        let mut spec = RootSpec::read(&std::fs::read(&path).unwrap()).unwrap();
        let keys = keys.iter().map(SigningKey::public_key).collect();
        *spec.role_mut(role).unwrap() = RoleKeys { keys, threshold };
        let signer = SigningKey::load(&dir.join(format!("offline/{}-root.pem", which.name()))).unwrap();
        std::fs::write(&path, sign_root(&spec, &[&signer]).unwrap()).unwrap();
    }

    #[test]
    fn a_ring_of_which_several_must_sign_is_told_with_its_threshold() {
        let dir = tempfile::tempdir().unwrap();
        let keys = dir.path();
        crate::commands::keys::init(keys).unwrap();
        let own = || SigningKey::load(&keys.join("offline/image-targets.pem")).unwrap();
        let other = SigningKey::generate().unwrap();
        let second = keys.join("offline/image-targets.2.pem");
        other.save(&second).unwrap();
        let other = || SigningKey::load(&second).unwrap();
        let third = SigningKey::generate().unwrap();

        reroot(keys, Which::Image, "targets", vec![own(), other(), third], 2);
        // Two keys are here, and both may sign: that is enough.
        assert_eq!(load(keys).unwrap().releasers.len(), 2);
        std::fs::remove_file(&second).unwrap();
        let failure = load(keys).err().unwrap();
        assert_eq!(failure.exit(), Exit::Untrusted);
        assert!(failure.to_string().contains("2 of 3 keys must sign releases"), "{failure}");
        assert!(failure.to_string().contains("has 1 of them"), "{failure}");
        let advice = failure.advice().unwrap();
        assert!(advice.contains("--propose") && advice.contains("--signed"), "{advice}");
        // A key that the root does not name counts for nothing.
        reroot(keys, Which::Image, "targets", vec![SigningKey::generate().unwrap()], 1);
        assert_eq!(load(keys).err().unwrap().exit(), Exit::Untrusted);

        reroot(keys, Which::Image, "targets", vec![own()], 1);
        let named = vec![SigningKey::generate().unwrap(), SigningKey::generate().unwrap()];
        reroot(keys, Which::Director, "targets", named, 2);
        let failure = load(keys).err().unwrap();
        assert!(failure.to_string().contains("wants 2 signatures of `targets`"), "{failure}");
    }
}
