//! Files that are either there as a whole or not at all: temp, fsync, rename, fsync the directory.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::Error;

/// How often a lock is tried for, and the pause between.
const TRIES: u32 = 40;
const BETWEEN_TRIES: Duration = Duration::from_millis(50);

/// Who may read a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The owner alone (0600).
    Owner,
    /// As the umask says (0644 at most).
    All,
}

/// Replace `path` by a file with these bytes.
pub fn write(path: &Path, bytes: &[u8], access: Access) -> Result<(), Error> {
    let temporary = temporary(path);
    write_temporary(&temporary, bytes, access).map_err(Error::file("write", &temporary))?;
    fs::rename(&temporary, path).map_err(Error::file("put into place", path))?;
    sync_parent(path)
}

/// Make the entry of `path` in its directory durable.
pub fn sync_parent(path: &Path) -> Result<(), Error> {
    let parent = parent(path);
    File::open(parent).and_then(|directory| directory.sync_all()).map_err(Error::file("sync", parent))
}

/// Make a directory for the owner alone, with those above it; one that exists stays as it is.
pub fn private_directory(path: &Path) -> Result<(), Error> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(Error::file("make the directory", path))
}

/// Read a file that may not be larger than `limit` bytes; `None` if there is none.
pub fn read_limited(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, Error> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::file("open", path)(error)),
    };
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(Error::file("read", path))?;
    if bytes.len() as u64 > limit {
        let source = io::Error::other(format!("it is larger than {limit} bytes"));
        return Err(Error::file("read", path)(source));
    }
    Ok(Some(bytes))
}

/// Take a lock that lives as long as the returned handle. Whoever holds it may be on its way out, so
/// that it is tried for two seconds.
pub async fn lock(path: &Path) -> Result<File, Error> {
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(Error::file("open", path))?;
    for _ in 0..TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => tokio::time::sleep(BETWEEN_TRIES).await,
            Err(TryLockError::Error(error)) => return Err(Error::file("lock", path)(error)),
        }
    }
    Err(Error::InUse { path: path.to_owned() })
}

fn write_temporary(path: &Path, bytes: &[u8], access: Access) -> io::Result<()> {
    let mode = match access {
        Access::Owner => 0o600,
        Access::All => 0o644,
    };
    // A left-over of a crash may have another mode: it must not be reused.
    match fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn temporary(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    parent(path).join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lock_is_waited_for_a_little() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let held = lock(&path).await.unwrap();
        let (waiting, ()) = tokio::join!(lock(&path), async {
            tokio::task::yield_now().await;
            drop(held);
        });
        let held = waiting.unwrap();
        assert!(matches!(lock(&path).await, Err(Error::InUse { .. })));
        drop(held);
    }
}
