//! Keys and roots of one registry as files.
//!
//! ```text
//! <dir>/offline/{image-root,image-targets,director-root}.pem      for people who release
//! <dir>/online/{image-snapshot,image-timestamp,director-targets,director-snapshot,director-timestamp}.pem
//! <dir>/roots/{image,director}.root.json                          public
//! ```
//!
//! The registry gets `online/` and `roots/` only. [`init`] refuses where any of the three is.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use crate::director::DirectorSigners;
use crate::key::{Passphrase, Passphrases};
use crate::lifetimes::{self, expiry};
use crate::roots::{RoleKeys, RootSpec, countersign, unsigned_root};
use crate::{PublicKey, SigningError, SigningKey};

const OFFLINE: &str = "offline";
const ONLINE: &str = "online";
const ROOTS: &str = "roots";
const LARGEST_ROOT: u64 = 64 << 10;
/// Keys of one role that a folder may hold, one after another.
const MOST_SUCCESSORS: u32 = 99;

/// The keys of people who release. They never come near a registry.
#[derive(Debug)]
pub struct Keyring {
    /// Signs Image roots.
    pub image_root: SigningKey,
    /// Signs releases.
    pub image_targets: SigningKey,
    /// Signs Director roots.
    pub director_root: SigningKey,
}

/// The keys that a registry holds.
#[derive(Debug)]
pub struct OnlineKeys {
    /// Signs Image snapshots.
    pub image_snapshot: SigningKey,
    /// Signs Image timestamps.
    pub image_timestamp: SigningKey,
    /// Signs what devices shall run.
    pub director_targets: SigningKey,
    /// Signs Director snapshots.
    pub director_snapshot: SigningKey,
    /// Signs Director timestamps.
    pub director_timestamp: SigningKey,
}

/// The newest root file of each repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootFiles {
    /// Bytes of the Image root.
    pub image: Vec<u8>,
    /// Bytes of the Director root.
    pub director: Vec<u8>,
}

impl Keyring {
    /// Reads `<dir>/offline`, where all three keys are plain.
    pub fn load(dir: &Path) -> Result<Self, SigningError> {
        Self::read(dir, SigningKey::load)
    }

    /// Reads `<dir>/offline`; `passphrases` is asked for each key that is encrypted.
    pub fn load_with(dir: &Path, passphrases: &dyn Passphrases) -> Result<Self, SigningError> {
        Self::read(dir, |path| SigningKey::load_with(path, passphrases))
    }

    fn read(
        dir: &Path,
        read: impl Fn(&Path) -> Result<SigningKey, SigningError>,
    ) -> Result<Self, SigningError> {
        let load = |name: &str| read(&dir.join(OFFLINE).join(format!("{name}.pem")));
        Ok(Self {
            image_root: load("image-root")?,
            image_targets: load("image-targets")?,
            director_root: load("director-root")?,
        })
    }

    fn generate() -> Result<Self, SigningError> {
        Ok(Self {
            image_root: SigningKey::generate()?,
            image_targets: SigningKey::generate()?,
            director_root: SigningKey::generate()?,
        })
    }

    fn named(&self) -> [(&'static str, &SigningKey); 3] {
        [
            ("image-root", &self.image_root),
            ("image-targets", &self.image_targets),
            ("director-root", &self.director_root),
        ]
    }
}

impl OnlineKeys {
    /// Reads the folder `online` itself: `<dir>/online` of a key ring.
    pub fn load(dir: &Path) -> Result<Self, SigningError> {
        Ok(Self {
            image_snapshot: load(dir, "image-snapshot")?,
            image_timestamp: load(dir, "image-timestamp")?,
            director_targets: load(dir, "director-targets")?,
            director_snapshot: load(dir, "director-snapshot")?,
            director_timestamp: load(dir, "director-timestamp")?,
        })
    }

    /// Reads of the folder `online` the keys that these roots name. There may be several for a role:
    /// `NAME.pem`, `NAME.2.pem`, `NAME.3.pem`, …, so that the next ones are there before the root that
    /// names them is. Where a root names none of them, the first is taken: whoever looks at the root
    /// says so.
    pub fn for_roots(dir: &Path, roots: &RootFiles) -> Result<Self, SigningError> {
        let (image, director) = (RootSpec::read(&roots.image)?, RootSpec::read(&roots.director)?);
        Ok(Self {
            image_snapshot: load_named(dir, "image-snapshot", &image.snapshot)?,
            image_timestamp: load_named(dir, "image-timestamp", &image.timestamp)?,
            director_targets: load_named(dir, "director-targets", &director.targets)?,
            director_snapshot: load_named(dir, "director-snapshot", &director.snapshot)?,
            director_timestamp: load_named(dir, "director-timestamp", &director.timestamp)?,
        })
    }

    /// The three that sign for the Director.
    pub fn director(&self) -> DirectorSigners<'_> {
        DirectorSigners {
            targets: &self.director_targets,
            snapshot: &self.director_snapshot,
            timestamp: &self.director_timestamp,
        }
    }

    /// Five new keys.
    pub fn generate() -> Result<Self, SigningError> {
        Ok(Self {
            image_snapshot: SigningKey::generate()?,
            image_timestamp: SigningKey::generate()?,
            director_targets: SigningKey::generate()?,
            director_snapshot: SigningKey::generate()?,
            director_timestamp: SigningKey::generate()?,
        })
    }

    fn named(&self) -> [(&'static str, &SigningKey); 5] {
        [
            ("image-snapshot", &self.image_snapshot),
            ("image-timestamp", &self.image_timestamp),
            ("director-targets", &self.director_targets),
            ("director-snapshot", &self.director_snapshot),
            ("director-timestamp", &self.director_timestamp),
        ]
    }
}

impl Keyring {
    /// The public halves by name.
    pub fn public_keys(&self) -> [(&'static str, PublicKey); 3] {
        self.named().map(|(name, key)| (name, key.public_key()))
    }
}

impl OnlineKeys {
    /// The public halves by name.
    pub fn public_keys(&self) -> [(&'static str, PublicKey); 5] {
        self.named().map(|(name, key)| (name, key.public_key()))
    }
}

impl RootFiles {
    /// Reads the folder `roots` itself: `<dir>/roots` of a key ring.
    pub fn load(dir: &Path) -> Result<Self, SigningError> {
        let read = |name: &str| {
            let path = dir.join(name);
            let failed = |source| SigningError::File { action: "read", path: path.clone(), source };
            let mut bytes = Vec::new();
            let file = File::open(&path).map_err(failed)?;
            file.take(LARGEST_ROOT + 1).read_to_end(&mut bytes).map_err(failed)?;
            let found = bytes.len() as u64;
            if found > LARGEST_ROOT {
                return Err(SigningError::TooLarge { what: "a root", found, most: LARGEST_ROOT });
            }
            Ok(bytes)
        };
        Ok(Self { image: read("image.root.json")?, director: read("director.root.json")? })
    }
}

/// Every key of a key ring by name, for people: offline ones first.
pub fn public_keys(offline: &Keyring, online: &OnlineKeys) -> Vec<(&'static str, PublicKey)> {
    offline.public_keys().into_iter().chain(online.public_keys()).collect()
}

/// Makes a new key ring in `dir`: eight keys and two roots of version 1, thresholds 1 of 1. Refuses
/// where `offline`, `online` or `roots` is already there. Folders are readable by their owner only.
pub fn init(dir: &Path, now: Timestamp) -> Result<RootFiles, SigningError> {
    init_with(dir, now, None)
}

/// The same; with a passphrase the offline keys are encrypted with it, and their public halves lie
/// beside them.
pub fn init_with(
    dir: &Path,
    now: Timestamp,
    passphrase: Option<&Passphrase>,
) -> Result<RootFiles, SigningError> {
    let offline = Keyring::generate()?;
    let online = OnlineKeys::generate()?;
    let roots = first_roots(&offline, &online, now)?;
    place(dir, &roots, &online, Some((&offline, passphrase)))?;
    Ok(roots)
}

/// Lays out a new directory of a registry whose offline keys are elsewhere: `online` and `roots`.
/// Refuses where one of the folders is already there.
pub fn place_online(dir: &Path, roots: &RootFiles, online: &OnlineKeys) -> Result<(), SigningError> {
    place(dir, roots, online, None)
}

type Offline<'a> = Option<(&'a Keyring, Option<&'a Passphrase>)>;

fn place(
    dir: &Path,
    roots: &RootFiles,
    online: &OnlineKeys,
    offline: Offline<'_>,
) -> Result<(), SigningError> {
    folder(dir, true)?;
    let parts = match offline {
        Some(_) => &[OFFLINE, ONLINE, ROOTS][..],
        None => &[ONLINE, ROOTS],
    };
    for part in parts {
        let path = dir.join(part);
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => {
                return Err(SigningError::File { action: "look at", path, source });
            }
            Ok(_) => return Err(SigningError::Exists { path }),
        }
    }
    // All is made aside first, so that a failure half-way leaves nothing that looks like a ring.
    let aside = dir.join(format!(".init-{}", std::process::id()));
    let made = make(&aside, roots, online, offline).and_then(|()| {
        for part in parts {
            let (from, to) = (aside.join(part), dir.join(part));
            fs::rename(&from, &to).map_err(|source| SigningError::File {
                action: "move into place",
                path: to,
                source,
            })?;
        }
        sync(dir)
    });
    // What is left aside is empty, or keys that nobody has used.
    let _ = fs::remove_dir_all(&aside);
    made
}

fn make(
    aside: &Path,
    roots: &RootFiles,
    online: &OnlineKeys,
    offline: Offline<'_>,
) -> Result<(), SigningError> {
    folder(aside, false)?;
    if let Some((keys, passphrase)) = offline {
        let dir = aside.join(OFFLINE);
        folder(&dir, false)?;
        for (name, key) in keys.named() {
            let path = dir.join(format!("{name}.pem"));
            match passphrase {
                Some(passphrase) => {
                    key.save_encrypted(&path, passphrase)?;
                    key.public_key().save(&dir.join(format!("{name}.pub")))?;
                }
                None => key.save(&path)?,
            }
        }
        sync(&dir)?;
    }
    let dir = aside.join(ONLINE);
    folder(&dir, false)?;
    for (name, key) in online.named() {
        key.save(&dir.join(format!("{name}.pem")))?;
    }
    sync(&dir)?;
    let dir = aside.join(ROOTS);
    folder(&dir, false)?;
    for (name, bytes) in [("image.root.json", &roots.image), ("director.root.json", &roots.director)] {
        let path = dir.join(name);
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
            .map_err(|source| SigningError::File { action: "write", path, source })?;
    }
    sync(&dir)
}

/// Roots of version 1 for these keys, each role with a single key.
pub fn first_roots(
    offline: &Keyring,
    online: &OnlineKeys,
    now: Timestamp,
) -> Result<RootFiles, SigningError> {
    let single = |key: &SigningKey| RoleKeys::single(key.public_key());
    let expires = expiry(now, lifetimes::ROOT);
    let image = RootSpec {
        version: 1,
        expires,
        root: single(&offline.image_root),
        targets: single(&offline.image_targets),
        snapshot: single(&online.image_snapshot),
        timestamp: single(&online.image_timestamp),
    };
    let director = RootSpec {
        version: 1,
        expires,
        root: single(&offline.director_root),
        targets: single(&online.director_targets),
        snapshot: single(&online.director_snapshot),
        timestamp: single(&online.director_timestamp),
    };
    Ok(RootFiles {
        image: countersign(&unsigned_root("image", &image)?, &[&offline.image_root])?,
        director: countersign(&unsigned_root("director", &director)?, &[&offline.director_root])?,
    })
}

fn load(dir: &Path, name: &str) -> Result<SigningKey, SigningError> {
    SigningKey::load(&dir.join(format!("{name}.pem")))
}

/// The files of a key that has successors, in their order: `NAME.pem`, `NAME.2.pem`, ….
pub fn files_of(dir: &Path, name: &str) -> Vec<PathBuf> {
    let first = std::iter::once(dir.join(format!("{name}.pem")));
    let others = (2..=MOST_SUCCESSORS).map(|number| dir.join(format!("{name}.{number}.pem")));
    first.chain(others.filter(|path| path.exists())).collect()
}

fn load_named(dir: &Path, name: &str, role: &RoleKeys) -> Result<SigningKey, SigningError> {
    let files = files_of(dir, name);
    for path in &files {
        let key = match SigningKey::load(path) {
            Err(SigningError::File { source, .. })
                if files.len() > 1 && source.kind() == std::io::ErrorKind::NotFound =>
            {
                continue;
            }
            other => other?,
        };
        if role.keys.contains(&key.public_key()) {
            return Ok(key);
        }
    }
    load(dir, name)
}

fn folder(path: &Path, may_exist: bool) -> Result<(), SigningError> {
    DirBuilder::new().recursive(may_exist).mode(0o700).create(path).map_err(|source| SigningError::File {
        action: "make the folder",
        path: PathBuf::from(path),
        source,
    })
}

fn sync(dir: &Path) -> Result<(), SigningError> {
    File::open(dir).and_then(|file| file.sync_all()).map_err(|source| SigningError::File {
        action: "write the folder",
        path: dir.to_owned(),
        source,
    })
}
