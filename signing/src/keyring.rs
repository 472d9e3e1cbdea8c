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
    /// Reads `<dir>/offline`.
    pub fn load(dir: &Path) -> Result<Self, SigningError> {
        let dir = dir.join(OFFLINE);
        Ok(Self {
            image_root: load(&dir, "image-root")?,
            image_targets: load(&dir, "image-targets")?,
            director_root: load(&dir, "director-root")?,
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
    let named = offline.named().into_iter().chain(online.named());
    named.map(|(name, key)| (name, key.public_key())).collect()
}

/// Makes a new key ring in `dir`: eight keys and two roots of version 1, thresholds 1 of 1. Refuses
/// where `offline`, `online` or `roots` is already there. Folders are readable by their owner only.
pub fn init(dir: &Path, now: Timestamp) -> Result<RootFiles, SigningError> {
    folder(dir, true)?;
    for part in [OFFLINE, ONLINE, ROOTS] {
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
    let made = make(&aside, now).and_then(|roots| {
        for part in [OFFLINE, ONLINE, ROOTS] {
            let (from, to) = (aside.join(part), dir.join(part));
            fs::rename(&from, &to).map_err(|source| SigningError::File {
                action: "move into place",
                path: to,
                source,
            })?;
        }
        sync(dir)?;
        Ok(roots)
    });
    // What is left aside is empty, or keys that nobody has used.
    let _ = fs::remove_dir_all(&aside);
    made
}

fn make(aside: &Path, now: Timestamp) -> Result<RootFiles, SigningError> {
    let offline = Keyring {
        image_root: SigningKey::generate()?,
        image_targets: SigningKey::generate()?,
        director_root: SigningKey::generate()?,
    };
    let online = OnlineKeys {
        image_snapshot: SigningKey::generate()?,
        image_timestamp: SigningKey::generate()?,
        director_targets: SigningKey::generate()?,
        director_snapshot: SigningKey::generate()?,
        director_timestamp: SigningKey::generate()?,
    };
    let roots = first_roots(&offline, &online, now)?;
    folder(aside, false)?;
    for (part, keys) in [(OFFLINE, &offline.named()[..]), (ONLINE, &online.named()[..])] {
        let dir = aside.join(part);
        folder(&dir, false)?;
        for (name, key) in keys {
            key.save(&dir.join(format!("{name}.pem")))?;
        }
        sync(&dir)?;
    }
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
    sync(&dir)?;
    Ok(roots)
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
