//! What the device keeps: blobs by digest, packages laid out for the host, and one database.
//!
//! Everything durable goes through the [`disk::Disk`] trait, so that a test can put a disk under
//! it that loses power at any write. A file is never seen half-written: it is written beside its
//! place, synced, renamed, and its directory synced. What is read back is checked against its
//! digest; bytes that have changed are an error that names them, never a result.

mod beside;
mod bitmap;
mod blobs;
mod collect;
mod database;
pub mod disk;
mod keeper;
mod layout;
mod outbox;
mod partial;
mod prefetched;
mod record;
mod reserve;
mod saving;
mod whole;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use selvedge_package::Digest;

pub use beside::Settled;
pub use bitmap::Bitmap;
pub use collect::Collected;
pub use database::{Database, Key, Transaction};
pub use disk::{Disk, RealDisk};
pub use outbox::{Replaces, Row};
pub use partial::{Partial, Put};
pub use reserve::MARGIN;

/// What went wrong with the device's storage.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file operation failed.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The database failed.
    #[error("the database failed to {action}")]
    Database {
        /// The operation.
        action: &'static str,
        /// What it said.
        #[source]
        source: Box<redb::Error>,
    },
    /// The database's content is damaged, beyond what it repairs itself.
    #[error(
        "the database {} is damaged; move it away and start the agent with a new enrolment file (made by \
         `selvedge target enrol NAME --out FILE`): what lies in blobs/ is kept and not fetched again",
        path.display()
    )]
    Unusable {
        /// Its file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: Box<redb::Error>,
    },
    /// The database was closed because it could not be written, and is not open again.
    #[error("the database is closed until the disk takes writes again")]
    Closed,
    /// A committed record is not what was written.
    #[error("the database record `{key}` is damaged: {why}{}", advice(key))]
    Record {
        /// Which record.
        key: String,
        /// What is wrong with it.
        why: String,
    },
    /// A stored blob does not have its digest. It has been removed, so that it can be fetched again.
    #[error("blob {digest} is damaged on disk; it was removed and has to be fetched again")]
    Damaged {
        /// The blob.
        digest: Digest,
    },
    /// Every chunk of a blob is what its signed index says, and the whole is not what its digest says:
    /// whoever made the package lied or erred, and no transfer helps. What had come was removed.
    #[error(
        "the chunk index of blob {digest} is not that of this blob; the package is made wrong and has to be \
         built and released again"
    )]
    Contradicted {
        /// The blob.
        digest: Digest,
    },
    /// A blob that is needed is not stored.
    #[error("blob {digest} is not stored")]
    Missing {
        /// The blob.
        digest: Digest,
    },
    /// A blob is larger than its reader allows.
    #[error("blob {digest} has {size} bytes, more than the {most} allowed here")]
    TooLarge {
        /// The blob.
        digest: Digest,
        /// Its size.
        size: u64,
        /// The limit.
        most: u64,
    },
    /// A chunk does not fit the blob's index.
    #[error("a received chunk of {digest} is not the one that its index promises")]
    Chunk {
        /// The blob.
        digest: Digest,
        /// What is wrong.
        #[source]
        source: selvedge_package::chunks::ChunkError,
    },
}

impl StoreError {
    /// For `map_err` of file operations.
    fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }

    /// Whether the disk is full.
    pub fn is_full(&self) -> bool {
        self.system().is_some_and(is_full)
    }

    /// Whether the disk did not do what was asked, full or not: it may do so later. Of content that is
    /// damaged, or does not fit, that is not so.
    pub fn is_disk(&self) -> bool {
        matches!(self, Self::Closed) || self.was_refused() || self.system().is_some()
    }

    /// What the system said.
    fn system(&self) -> Option<&std::io::Error> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Database { source, .. } => match &**source {
                redb::Error::Io(source) => Some(source),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether the database refused it because something before has failed.
    fn was_refused(&self) -> bool {
        matches!(self, Self::Database { source, .. } if matches!(&**source, redb::Error::PreviousIo))
    }

    /// An error of opening the database: what the disk did not cause is damage.
    fn unless_io(self, path: &Path) -> Self {
        use std::io::ErrorKind::{InvalidData, UnexpectedEof};
        let damaged = |source: &redb::Error| match source {
            redb::Error::Io(why) => matches!(why.kind(), InvalidData | UnexpectedEof),
            redb::Error::PreviousIo => false,
            _ => true,
        };
        match self {
            Self::Database { source, .. } if damaged(&source) => {
                Self::Unusable { path: path.to_owned(), source }
            }
            other => other,
        }
    }
}

/// What can be done about a damaged record: of some their readers know better.
fn advice(key: &str) -> &'static str {
    let names = [Key::Device, Key::Epoch, Key::Deployment].map(Key::name);
    if !names.contains(&key) {
        return "";
    }
    "; move agent.redb away and start the agent with a new enrolment file (made by `selvedge target enrol NAME \
     --again --out FILE`): what lies in blobs/ is kept and not fetched again"
}

/// Whether that is what a full disk says.
pub fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}

/// The device's storage under one data directory. Cheap to clone: clones share it.
#[derive(Debug, Clone)]
pub struct Store {
    disk: Arc<dyn Disk>,
    root: PathBuf,
    database: Arc<Database>,
}

impl Store {
    /// Opens, or makes, the storage under `root`.
    ///
    /// The caller holds the directory's lock: two stores on one directory would undo one another.
    /// On a full disk the reserve and what was on its way are given up for it.
    pub fn open(disk: Arc<dyn Disk>, root: &Path) -> Result<Self, StoreError> {
        match Self::try_open(&disk, root) {
            Err(error) if error.is_full() => {
                tracing::warn!("{}: making room", crate::failure::chain(&error));
                reserve::give_up(&*disk, Some(root));
                let partial = root.join("partial");
                for name in disk.list(&partial).unwrap_or_default() {
                    let path = partial.join(name);
                    disk.remove_file(&path).map_err(StoreError::io("remove", &path))?;
                }
                Self::try_open(&disk, root)
            }
            result => result,
        }
    }

    fn try_open(disk: &Arc<dyn Disk>, root: &Path) -> Result<Self, StoreError> {
        for place in ["blobs/sha256", "partial", "packages"] {
            let path = root.join(place);
            disk.make_directory(&path).map_err(StoreError::io("make", &path))?;
        }
        let database = Arc::new(Database::open(disk, &root.join("agent.redb"))?);
        // The names of what was just made, down to the data directory's own.
        let parent = match root.parent() {
            Some(parent) if parent.as_os_str().is_empty() => Some(Path::new(".")),
            parent => parent,
        };
        for directory in [root.join("blobs"), root.to_owned()].iter().map(PathBuf::as_path).chain(parent) {
            disk.sync_directory(directory).map_err(StoreError::io("sync", directory))?;
        }
        Ok(Self { disk: Arc::clone(disk), root: root.to_owned(), database })
    }

    /// The database.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// The data directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Writes a small file of the data directory whole or not at all (mode 0600).
    pub fn write_file(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.write_whole(&self.root.join(name), bytes)
    }

    /// A small file of the data directory, of so many bytes at most; `None` where there is none.
    pub fn read_file(&self, name: &str, most: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let path = self.root.join(name);
        let Some(size) = self.disk.size(&path).map_err(StoreError::io("look at", &path))? else {
            return Ok(None);
        };
        let file = self.disk.open(&path).map_err(StoreError::io("open", &path))?;
        let mut bytes = vec![0; usize::try_from(size.min(most)).unwrap_or(0)];
        let read = file.read_at(0, &mut bytes).map_err(StoreError::io("read", &path))?;
        bytes.truncate(read);
        Ok(Some(bytes))
    }

    /// Removes a small file of the data directory; it may be gone already.
    pub fn remove_file(&self, name: &str) -> Result<(), StoreError> {
        let path = self.root.join(name);
        self.remove_if_there(&path)?;
        self.sync_directory_of(&path)
    }

    fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.root.join("blobs/sha256").join(digest.hex())
    }

    fn partial_path(&self, digest: &Digest) -> PathBuf {
        self.root.join("partial").join(digest.hex())
    }

    /// Where a package is laid out for the host.
    pub fn package_path(&self, digest: &Digest) -> PathBuf {
        self.root.join("packages").join(digest.hex())
    }

    fn sync_directory_of(&self, path: &Path) -> Result<(), StoreError> {
        let directory = path.parent().unwrap_or(&self.root);
        self.disk.sync_directory(directory).map_err(StoreError::io("sync", directory))
    }
}
