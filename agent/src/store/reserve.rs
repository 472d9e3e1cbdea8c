//! Room that is kept for the database: a file that is given up when the disk is full.
//!
//! What the agent has to write down on a full disk (what was accepted, what ended, that the disk is
//! full) is small. It is not for packages: those are not begun where less than [`MARGIN`] would stay.

use std::path::Path;

use selvedge_package::Digest;

use super::disk::Disk;
use super::{Store, StoreError};

/// The file's name in the data directory.
const NAME: &str = "reserve";
/// It is written in pieces of so many bytes: after a large allocation the allocator keeps more memory.
const PIECE: usize = 32 * 1024;
/// Its size in bytes.
const SIZE: usize = 1 << 20;
/// Bytes that packages leave free, for the database, logs and other programs.
pub const MARGIN: u64 = 8 << 20;

/// Gives the reserve up. Whether there was one.
pub(super) fn give_up(disk: &dyn Disk, root: Option<&Path>) -> bool {
    let given = root.is_some_and(|root| disk.remove_file(&root.join(NAME)).is_ok());
    if given {
        tracing::warn!("the disk is full: the reserve is given up for the database");
    }
    given
}

impl Store {
    /// Makes the reserve, unless it is there or would take what little is left. Whether it is there.
    pub fn keep_reserve(&self) -> Result<bool, StoreError> {
        let path = self.root.join(NAME);
        if self.disk.size(&path).map_err(StoreError::io("look at", &path))? == Some(SIZE as u64) {
            return Ok(true);
        }
        if self.free() < MARGIN {
            return Ok(false);
        }
        match self.write_repeated(&path, &[0; PIECE], (SIZE / PIECE) as u64) {
            Ok(()) => Ok(true),
            Err(error) => {
                self.remove_if_there(&super::disk::beside(&path))?;
                if error.is_full() { Ok(false) } else { Err(error) }
            }
        }
    }

    /// Bytes that may still be written; more than anyone needs where that is not known.
    pub fn free(&self) -> u64 {
        self.disk.free(&self.root).unwrap_or(u64::MAX)
    }

    /// Of a blob's bytes those that still have to be written.
    pub fn still_to_write(&self, digest: &Digest, size: u64) -> u64 {
        if self.has(digest).unwrap_or(false) {
            return 0;
        }
        size.saturating_sub(self.disk.used(&self.partial_path(digest)).unwrap_or(0))
    }

    /// Takes a partial blob's file away, leaving its bitmap: that is looked at with the file, and is
    /// collected later. It works on a full disk.
    pub fn discard_partial(&self, digest: &Digest) -> Result<(), StoreError> {
        self.remove_if_there(&self.partial_path(digest))
    }
}
