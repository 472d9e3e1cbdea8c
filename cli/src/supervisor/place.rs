//! The data directory of `selvedge up`: what lies where, and the lock that lets one `up` at a time
//! use it.

use std::fs::File;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::failure::Failure;
use crate::supervisor::record::Record;

/// A data directory that this process holds alone. Dropping it releases the lock.
#[derive(Debug)]
pub struct Place {
    dir: PathBuf,
    _lock: File,
}

impl Place {
    /// Makes the directory (0700) where it is missing, and takes it. A second `up` is told who has it.
    pub fn take(dir: &Path) -> Result<Self, Failure> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(Failure::file("make", dir))?;
        let dir = dir.canonicalize().map_err(Failure::file("open", dir))?;
        let path = dir.join("up.lock");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(Failure::file("open", &path))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { dir, _lock: lock }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(held(&dir)),
            Err(error) => Err(Failure::File { doing: "lock", path, source: error.into() }),
        }
    }

    /// The directory itself.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where keys are made when none are named.
    pub fn keys(&self) -> PathBuf {
        self.dir.join("keys")
    }

    /// The broker's data.
    pub fn broker(&self) -> PathBuf {
        self.dir.join("broker")
    }

    /// The registry's data.
    pub fn registry(&self) -> PathBuf {
        self.dir.join("registry")
    }

    /// The file with the registry's token.
    pub fn token_file(&self) -> PathBuf {
        self.registry().join("token")
    }

    /// The agent's data.
    pub fn agent(&self) -> PathBuf {
        self.dir.join("agent")
    }

    /// The agent's enrolment.
    pub fn enrolment(&self) -> PathBuf {
        self.dir.join("enrolment.json")
    }

    /// A file in which a child says where it listens.
    pub fn address_file(&self, child: &str) -> PathBuf {
        self.dir.join("run").join(format!("{child}.address"))
    }

    /// A child's log.
    pub fn log(&self, child: &str) -> PathBuf {
        self.dir.join("logs").join(format!("{child}.log"))
    }

    /// Makes the directories that children write into.
    pub fn prepare(&self) -> Result<(), Failure> {
        for dir in [self.broker(), self.registry(), self.agent(), self.dir.join("run"), self.dir.join("logs")]
        {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&dir)
                .map_err(Failure::file("make", &dir))?;
        }
        Ok(())
    }
}

fn held(dir: &Path) -> Failure {
    let by = Record::read(dir).ok().flatten().and_then(|record| record.pids.get("up").copied());
    let who = by.map_or_else(|| "another process".to_owned(), |process| format!("process {}", process.pid));
    Failure::Conflict {
        what: format!("`selvedge up` already runs in {} ({who})", dir.display()),
        advice: "use it as it is, stop it with Ctrl-C or SIGTERM, or say another directory with --data"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_who_holds_it() {
        let dir = tempfile::tempdir().unwrap();
        let first = Place::take(dir.path()).unwrap();
        let mut record = Record::default();
        let me = crate::supervisor::process::Process::of(std::process::id()).unwrap();
        record.pids.insert("up".into(), me);
        record.write(dir.path()).unwrap();
        let refused = Place::take(dir.path()).unwrap_err();
        assert_eq!(refused.exit(), crate::exit::Exit::Conflict);
        assert!(refused.to_string().contains(&me.pid.to_string()), "{refused}");
        drop(first);
        assert!(Place::take(dir.path()).is_ok());
    }
}
