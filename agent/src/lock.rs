//! One agent a data directory: a lock that lives as long as its process, and says who holds it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::clock;

/// Longest wait for a holder that is ending: a killed process keeps its lock while a write of it is
/// on its way to the disk, which takes seconds on a busy one.
const ENDING: Duration = Duration::from_secs(60);

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
    /// Takes the directory, making it (mode 0700) where it is not there. Waits so long for a holder
    /// to end, and longer for one that is ending.
    pub fn take(directory: &Path, patience: Duration) -> Result<Self, LockError> {
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
        let began = clock::since_boot();
        loop {
            let waited = clock::since_boot().saturating_sub(began);
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock)
                    if waited < patience
                        || waited < ENDING && holder_pid(&mut file).is_none_or(is_ending) =>
                {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(TryLockError::WouldBlock) => {
                    let holder = holder(&mut file);
                    return Err(LockError::Held { directory: directory.to_owned(), holder });
                }
                Err(TryLockError::Error(source)) => return Err(failed("lock")(source)),
            }
        }
        file.rewind().map_err(failed("rewind"))?;
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
    match holder_pid(file) {
        Some(pid) => format!("an agent, process {pid}"),
        None => "another agent".to_owned(),
    }
}

fn holder_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(20).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Whether a process is gone, or was killed and waits for its last write to the disk.
fn is_ending(pid: u32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else {
        return true;
    };
    const KILLED: u64 = 1 << 8;
    status.lines().filter_map(|line| line.split_once(':')).any(|(name, value)| match name {
        "State" => value.trim_start().starts_with(['Z', 'X']),
        "SigPnd" | "ShdPnd" => {
            u64::from_str_radix(value.trim(), 16).is_ok_and(|pending| pending & KILLED != 0)
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_taker_learns_who_holds_it() {
        let place = tempfile::tempdir().unwrap();
        assert_eq!(Lock::held_by(place.path()), None);
        let lock = Lock::take(place.path(), Duration::from_millis(30)).unwrap();
        let error = Lock::take(place.path(), Duration::from_millis(30)).unwrap_err().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        assert!(Lock::held_by(place.path()).is_some());
        drop(lock);
        assert_eq!(Lock::held_by(place.path()), None);
        let again = Lock::take(place.path(), Duration::from_millis(30)).unwrap();
        let text = std::fs::read_to_string(place.path().join("lock")).unwrap();
        assert_eq!(text, format!("{}\n", std::process::id()));
        drop(again);
    }
}
