//! Compiled modules on disk: machine code, so trusted only where nobody else can have written it.
//!
//! A file's name is a digest of everything that the engine's code depends on, and the digest of the
//! component; its content begins with the SHA-256 of the rest. The directory must be ours with mode 0700: another is
//! refused when the host starts. A file that does not match is removed and the component compiled
//! again; a cache that cannot be written costs time and nothing else.

use std::hash::{Hash as _, Hasher};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use wasmtime::Engine;
use wasmtime::component::Component;

use super::collect::{self, BOUNDS, COMPILED, UNFINISHED};
use crate::failure::RuntimeError;

/// Length of the digest that a file begins with.
const HEADER: usize = 32;
/// Largest file read back.
const LARGEST: u64 = 1 << 30;

/// A directory of compiled modules.
#[derive(Debug, Clone)]
pub struct Cache {
    directory: PathBuf,
}

impl Cache {
    /// Opens `directory`, and makes it where it is missing.
    pub fn open(directory: &Path) -> Result<Self, RuntimeError> {
        let refused = |why: String| RuntimeError::Cache { path: directory.to_owned(), why };
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(|error| refused(error.to_string()))?;
        let found = std::fs::symlink_metadata(directory).map_err(|error| refused(error.to_string()))?;
        if !found.is_dir() {
            return Err(refused("it is not a directory".to_owned()));
        }
        let user = rustix::process::geteuid().as_raw();
        if found.uid() != user {
            return Err(refused(format!("it belongs to user {}, and this is user {user}", found.uid())));
        }
        let mode = found.permissions().mode() & 0o777;
        if mode != 0o700 {
            return Err(refused(format!(
                "its mode is {mode:03o}, so others could put code there: make it 0700, or remove it"
            )));
        }
        Ok(Self { directory: directory.to_owned() })
    }

    /// The compiled form of `component`, if it is there and whole.
    pub fn get(&self, engine: &Engine, component: &[u8]) -> Option<Component> {
        let path = self.path(engine, component);
        let found = std::fs::symlink_metadata(&path).ok()?;
        let ours = found.is_file()
            && found.len() <= LARGEST
            && found.uid() == rustix::process::geteuid().as_raw()
            && found.permissions().mode() & 0o022 == 0;
        let component = ours.then(|| std::fs::read(&path).ok()).flatten().and_then(|content| {
            let (digest, code) = content.split_at_checked(HEADER)?;
            (Sha256::digest(code).as_slice() == digest).then(|| load(engine, code)).flatten()
        });
        if component.is_none() {
            tracing::warn!(path = %path.display(), "a compiled module was damaged and is made again");
            let _ = std::fs::remove_file(&path);
        } else {
            used_now(&path);
        }
        component
    }

    /// Removes what is of no use any more, or too much.
    pub fn collect(&self, engine: &Engine) {
        match collect::collect(&self.directory, &prefix(engine), BOUNDS) {
            Ok(0) => {}
            Ok(gone) => tracing::info!(gone, "compiled modules that nobody needs were removed"),
            Err(error) => tracing::warn!(%error, "compiled modules could not be looked through"),
        }
    }

    /// Keeps the compiled form of `component`.
    pub fn put(&self, engine: &Engine, component: &[u8], compiled: &Component) {
        let path = self.path(engine, component);
        let write = || -> anyhow::Result<()> {
            let code = compiled.serialize().map_err(anyhow::Error::from)?;
            let temporary = self.directory.join(format!(
                "{}.{}{UNFINISHED}",
                path.file_name().unwrap_or_default().display(),
                std::process::id()
            ));
            let mut file = std::fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&temporary)?;
            file.write_all(&Sha256::digest(&code))?;
            file.write_all(&code)?;
            file.sync_data()?;
            std::fs::rename(&temporary, &path)?;
            Ok(())
        };
        if let Err(error) = write() {
            tracing::warn!(path = %path.display(), "a compiled module could not be kept: {error:#}");
        }
        self.collect(engine);
    }

    fn path(&self, engine: &Engine, component: &[u8]) -> PathBuf {
        let digest = hex::encode(Sha256::digest(component));
        self.directory.join(format!("{}{digest}{COMPILED}", prefix(engine)))
    }
}

/// What the names of an engine's files begin with.
fn prefix(engine: &Engine) -> String {
    let mut key = Key(Sha256::new());
    engine.precompile_compatibility_hash().hash(&mut key);
    format!("{}-", hex::encode(key.0.finalize()))
}

/// So that what is used stays.
fn used_now(path: &Path) {
    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, utimensat};
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    // It is only taken for older than it is.
    let _ = utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW);
}

#[allow(unsafe_code)]
fn load(engine: &Engine, code: &[u8]) -> Option<Component> {
    // SAFETY: `code` came out of `Component::serialize` of this program: it lay whole, by its digest,
    // in a directory that only this user can write to. wasmtime checks its own version on top.
    unsafe { Component::deserialize(engine, code) }.ok()
}

/// SHA-256 as a hasher, since wasmtime tells what its code depends on through `Hash` alone.
struct Key(Sha256);

impl Hasher for Key {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        0
    }
}
