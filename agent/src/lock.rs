//! One agent a data directory: a lock that lives as long as its process, and says who holds it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

/// Why the directory cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another agent runs on it.
    #[error(
        "{} is in use by {holder}; stop that one first, or give another --data directory",
        directory.display()
    )]
    Held {
        /// The data directory.
        directory: PathBuf,
        /// `process 123`, as far as known.
        holder: String,
    },
    /// The lock file cannot be used.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What failed.
        action: &'static str,
        /// The lock file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

/// The held lock. Dropping it, or the end of the process, frees the directory.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the directory, making it (mode 0700) where it is not there.
    pub fn take(directory: &Path) -> Result<Self, LockError> {
        use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
        let path = directory.join("lock");
        let failed = |action| {
            let path = path.clone();
            move |source| LockError::Io { action, path, source }
        };
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(failed("make the directory of"))?;
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed("open"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(LockError::Held { directory: directory.to_owned(), holder: holder(&mut file) });
            }
            Err(TryLockError::Error(source)) => return Err(failed("lock")(source)),
        }
        file.set_len(0).map_err(failed("empty"))?;
        writeln!(file, "{}", std::process::id()).map_err(failed("write"))?;
        Ok(Self { _file: file })
    }

    /// Who holds the directory's lock, if anyone does.
    pub fn held_by(directory: &Path) -> Option<String> {
        let mut file = OpenOptions::new().read(true).open(directory.join("lock")).ok()?;
        match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => Some(holder(&mut file)),
            _ => None,
        }
    }
}

fn holder(file: &mut File) -> String {
    let mut text = String::new();
    let _ = file.rewind();
    let _ = file.take(20).read_to_string(&mut text);
    match text.trim().parse::<u32>() {
        Ok(pid) => format!("an agent, process {pid}"),
        Err(_) => "another agent".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_taker_learns_who_holds_it() {
        let place = tempfile::tempdir().unwrap();
        assert_eq!(Lock::held_by(place.path()), None);
        let lock = Lock::take(place.path()).unwrap();
        let error = Lock::take(place.path()).unwrap_err().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        assert!(Lock::held_by(place.path()).is_some());
        drop(lock);
        assert_eq!(Lock::held_by(place.path()), None);
        Lock::take(place.path()).unwrap();
    }
}
