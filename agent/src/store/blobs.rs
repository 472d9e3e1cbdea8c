//! Blobs: immutable files named by their digest.
//!
//! A blob that is read is hashed again; what does not have its digest is removed and reported as
//! [`StoreError::Damaged`], so that the next plan fetches it anew.

use selvedge_package::Digest;
use sha2::{Digest as _, Sha256};

use super::disk::beside;
use super::{Store, StoreError};

/// Bytes hashed at a time.
const PIECE: usize = 64 * 1024;

impl Store {
    /// Whether the blob is stored. Its bytes are checked when they are read.
    pub fn has(&self, digest: &Digest) -> Result<bool, StoreError> {
        let path = self.blob_path(digest);
        Ok(self.disk.size(&path).map_err(StoreError::io("look at", &path))?.is_some())
    }

    /// Reads a whole small blob.
    ///
    /// # Errors
    /// [`StoreError::Missing`], [`StoreError::TooLarge`], and [`StoreError::Damaged`] where the
    /// bytes have changed (the blob is gone then).
    pub fn read_small(&self, digest: &Digest, most: u64) -> Result<Vec<u8>, StoreError> {
        let path = self.blob_path(digest);
        let size = self.disk.size(&path).map_err(StoreError::io("look at", &path))?;
        let Some(size) = size else {
            return Err(StoreError::Missing { digest: *digest });
        };
        if size > most {
            return Err(StoreError::TooLarge { digest: *digest, size, most });
        }
        let file = self.disk.open(&path).map_err(StoreError::io("open", &path))?;
        let mut bytes = vec![0; size as usize];
        let read = readable(file.read_at(0, &mut bytes)).map_err(StoreError::io("read", &path))?;
        bytes.truncate(read.unwrap_or(0));
        if read.is_none() || Digest::of(&bytes) != *digest {
            self.remove_blob(digest)?;
            return Err(StoreError::Damaged { digest: *digest });
        }
        Ok(bytes)
    }

    /// Hashes a stored blob from end to end.
    ///
    /// # Errors
    /// [`StoreError::Missing`] and [`StoreError::Damaged`] (the blob is gone then).
    pub fn check_blob(&self, digest: &Digest) -> Result<(), StoreError> {
        let path = self.blob_path(digest);
        if !self.has(digest)? {
            return Err(StoreError::Missing { digest: *digest });
        }
        let file = self.disk.open(&path).map_err(StoreError::io("open", &path))?;
        let found = readable(hash(&*file)).map_err(StoreError::io("read", &path))?;
        if found != Some(*digest) {
            self.remove_blob(digest)?;
            return Err(StoreError::Damaged { digest: *digest });
        }
        Ok(())
    }

    /// Stores bytes that are at hand under their digest.
    pub fn put_blob(&self, bytes: &[u8]) -> Result<Digest, StoreError> {
        let digest = Digest::of(bytes);
        let path = self.blob_path(&digest);
        self.write_whole(&path, bytes)?;
        Ok(digest)
    }

    /// Removes a blob; it may be gone already.
    pub fn remove_blob(&self, digest: &Digest) -> Result<(), StoreError> {
        self.remove_if_there(&self.blob_path(digest))
    }

    /// Writes a file so that it is there whole or not at all.
    pub(super) fn write_whole(&self, path: &std::path::Path, bytes: &[u8]) -> Result<(), StoreError> {
        self.write_repeated(path, bytes, 1)
    }

    /// Writes a file of the same bytes so many times over, whole or not at all.
    pub(super) fn write_repeated(
        &self,
        path: &std::path::Path,
        bytes: &[u8],
        times: u64,
    ) -> Result<(), StoreError> {
        let temporary = beside(path);
        let file = self.disk.create(&temporary).map_err(StoreError::io("make", &temporary))?;
        for n in 0..times {
            file.write_at(n * bytes.len() as u64, bytes).map_err(StoreError::io("write", &temporary))?;
        }
        file.sync().map_err(StoreError::io("sync", &temporary))?;
        self.disk.rename(&temporary, path).map_err(StoreError::io("rename to", path))?;
        self.sync_directory_of(path)
    }

    pub(super) fn remove_if_there(&self, path: &std::path::Path) -> Result<(), StoreError> {
        match self.disk.remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(StoreError::io("remove", path)(error))
            }
            _ => Ok(()),
        }
    }
}

/// A sector that cannot be read is a damaged blob, not a reason to give up: `None`.
fn readable<T>(read: std::io::Result<T>) -> std::io::Result<Option<T>> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.raw_os_error() == Some(libc::EIO) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The digest of a file.
pub(super) fn hash(file: &dyn super::disk::DiskFile) -> std::io::Result<Digest> {
    let mut hasher = Sha256::new();
    let mut piece = vec![0; PIECE];
    let mut offset = 0;
    loop {
        let read = file.read_at(offset, &mut piece)?;
        hasher.update(&piece[..read]);
        offset += read as u64;
        if read < PIECE {
            return Ok(Digest::from_bytes(hasher.finalize().into()));
        }
    }
}
