//! Blobs by content: `blobs/sha256/<hex>`. Nothing gets that name before its digest was checked.
//!
//! An upload is written to `incoming/`, hashed on the way, synced and renamed. What a dead process
//! left in `incoming/` is removed at the start.

use std::fs;
use std::io::{self, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::{ReadWriteFlags, preadv2};
use selvedge_package::Digest;
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncWriteExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::clock;
use crate::durable;
use crate::error::Error;
use crate::refusal::Refusal;

/// What uploads may take.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of one blob: stops one that never ends from filling the disk.
    pub blob: u64,
    /// Uploads side by side: stops many slow ones from holding files and memory.
    pub uploads: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { blob: 4 << 30, uploads: 16 }
    }
}

/// Pause between two warnings about damaged files.
const PAUSE: Duration = Duration::from_secs(60);

/// The blob store.
#[derive(Debug, Clone)]
pub struct Blobs {
    directory: PathBuf,
    incoming: PathBuf,
    limits: Limits,
    uploads: Arc<Semaphore>,
    warned: Arc<Mutex<Option<Instant>>>,
}

/// What became of an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// It is new.
    New,
    /// It was there.
    Known,
}

impl Blobs {
    /// Open the store below `data`, making it.
    pub fn open(data: &Path, limits: Limits) -> Result<Self, Error> {
        let directory = data.join("blobs").join("sha256");
        let incoming = data.join("blobs").join("incoming");
        durable::private_directory(&directory)?;
        match fs::remove_dir_all(&incoming) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::file("clear", &incoming)(error)),
        }
        durable::private_directory(&incoming)?;
        let uploads = Arc::new(Semaphore::new(limits.uploads));
        Ok(Self { directory, incoming, limits, uploads, warned: Arc::default() })
    }

    /// Largest blob, in bytes.
    pub fn limit(&self) -> u64 {
        self.limits.blob
    }

    /// Size of a stored blob.
    pub fn size(&self, digest: &Digest) -> Result<Option<u64>, Error> {
        let path = self.path(digest);
        match fs::metadata(&path) {
            Ok(metadata) => Ok(Some(metadata.len())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::file("look at", &path)(error)),
        }
    }

    /// A small blob as a whole, its digest checked again. `None`: not here.
    pub fn read(&self, digest: &Digest, limit: u64) -> Result<Option<Vec<u8>>, Refusal> {
        let path = self.path(digest);
        let Some(size) = self.size(digest)? else {
            return Ok(None);
        };
        if size > limit {
            let why = format!("it has {size} bytes, more than the {limit} allowed here");
            return Err(Refusal::BlobMismatch { digest: *digest, why });
        }
        let Some(bytes) = durable::read_limited(&path, limit)? else {
            return Ok(None);
        };
        if Digest::of(&bytes) != *digest {
            let why = "it was changed on the registry's disk".to_owned();
            return Err(Refusal::BlobMismatch { digest: *digest, why });
        }
        Ok(Some(bytes))
    }

    /// Hash a stored blob of any size again. Reads the whole file: call it off the runtime.
    pub fn verify(&self, digest: &Digest) -> Result<bool, Error> {
        let path = self.path(digest);
        let mut file = fs::File::open(&path).map_err(Error::file("open", &path))?;
        let mut hash = Sha256::new();
        io::copy(&mut file, &mut hash).map_err(Error::file("read", &path))?;
        Ok(Digest::from_bytes(hash.finalize().into()) == *digest)
    }

    /// Open a blob of `size` bytes to read parts of it; `None`: not here, or its file has another
    /// size, which is as good as not here.
    pub fn reader(&self, digest: &Digest, size: u64) -> Result<Option<Reader>, Error> {
        let path = self.path(digest);
        let file = match fs::File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::file("open", &path)(error)),
        };
        let actual = file.metadata().map_err(Error::file("look at", &path))?.len();
        Ok(self.is_whole(&path, actual, size).then_some(Reader { file, path }))
    }

    /// Size of a stored blob that was recorded with the size `recorded`; `None`: not here, or its
    /// file has another size.
    pub fn whole(&self, digest: &Digest, recorded: u64) -> Result<Option<u64>, Error> {
        let size = self.size(digest)?;
        Ok(size.filter(|size| self.is_whole(&self.path(digest), *size, recorded)))
    }

    /// Whether a file has the size that it should; if not, the log says so, once a minute at most.
    fn is_whole(&self, path: &Path, actual: u64, recorded: u64) -> bool {
        if actual == recorded {
            return true;
        }
        let now = clock::instant();
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.is_none_or(|at| now.saturating_duration_since(at) >= PAUSE) {
            *warned = Some(now);
            tracing::error!(
                "{} is damaged: it has {actual} bytes of {recorded}; releasing its package again heals it",
                path.display()
            );
        }
        false
    }

    /// Begin to receive a blob.
    pub async fn begin(&self, digest: Digest) -> Result<Upload, Refusal> {
        let permit =
            Arc::clone(&self.uploads).try_acquire_owned().map_err(|_| Refusal::Busy { what: "uploads" })?;
        let mut random = [0; 16];
        aws_lc_rs::rand::fill(&mut random).map_err(|_| Error::Random)?;
        let temporary = self.incoming.join(hex::encode(random));
        let file = tokio::fs::File::create_new(&temporary).await.map_err(Error::file("make", &temporary))?;
        Ok(Upload {
            digest,
            file,
            temporary: Temporary { path: temporary },
            destination: self.path(&digest),
            hash: Sha256::new(),
            written: 0,
            limit: self.limits.blob,
            _permit: permit,
        })
    }

    fn path(&self, digest: &Digest) -> PathBuf {
        self.directory.join(digest.hex())
    }
}

/// An open blob.
#[derive(Debug)]
pub struct Reader {
    file: fs::File,
    path: PathBuf,
}

impl Reader {
    /// The bytes from `offset` on that fill `buffer`; an error when there are fewer.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), Error> {
        self.file.read_exact_at(buffer, offset).map_err(Error::file("read", &self.path))
    }

    /// The same where it need not wait for the disk; else what `buffer` holds means nothing.
    pub fn read_now(&self, buffer: &mut [u8], offset: u64) -> bool {
        let mut done = 0;
        while done < buffer.len() {
            let rest = &mut [IoSliceMut::new(&mut buffer[done..])];
            match preadv2(&self.file, rest, offset + done as u64, ReadWriteFlags::NOWAIT) {
                // A file that is too short is for `read_at` to complain about.
                Ok(0) | Err(_) => return false,
                Ok(read) => done += read,
            }
        }
        true
    }
}

/// A blob on its way in. Dropping it forgets what came.
#[derive(Debug)]
pub struct Upload {
    digest: Digest,
    file: tokio::fs::File,
    temporary: Temporary,
    destination: PathBuf,
    hash: Sha256,
    written: u64,
    limit: u64,
    _permit: OwnedSemaphorePermit,
}

/// Removes the file when it was not renamed away.
#[derive(Debug)]
struct Temporary {
    path: PathBuf,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Nothing to remove after the rename; what cannot be removed goes at the next start.
        let _ = fs::remove_file(&self.path);
    }
}

impl Upload {
    /// Take the next bytes.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        self.written = self.written.saturating_add(bytes.len() as u64);
        if self.written > self.limit {
            return Err(Refusal::TooLarge { limit: self.limit });
        }
        self.hash.update(bytes);
        self.file.write_all(bytes).await.map_err(Error::file("write", &self.temporary.path))?;
        Ok(())
    }

    /// All has come: check the digest and put the blob into place.
    pub async fn finish(mut self) -> Result<Stored, Refusal> {
        let actual = Digest::from_bytes(self.hash.finalize().into());
        if actual != self.digest {
            return Err(Refusal::WrongDigest { expected: self.digest, actual });
        }
        self.file.flush().await.map_err(Error::file("write", &self.temporary.path))?;
        self.file.sync_all().await.map_err(Error::file("sync", &self.temporary.path))?;
        let known = self.destination.exists();
        let (from, to) = (self.temporary.path.clone(), self.destination.clone());
        tokio::task::spawn_blocking(move || {
            fs::rename(&from, &to).map_err(Error::file("put into place", &to))?;
            durable::sync_parent(&to)
        })
        .await
        .map_err(|error| Error::File {
            action: "put into place",
            path: self.destination.clone(),
            source: io::Error::other(error),
        })??;
        Ok(if known { Stored::Known } else { Stored::New })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn put(blobs: &Blobs, digest: Digest, parts: &[&[u8]]) -> Result<Stored, Refusal> {
        let mut upload = blobs.begin(digest).await?;
        for part in parts {
            upload.write(part).await?;
        }
        upload.finish().await
    }

    #[tokio::test]
    async fn only_what_has_the_digest_gets_the_name() {
        let data = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(data.path(), Limits::default()).unwrap();
        let digest = Digest::of(b"abcdef");
        let refused = put(&blobs, digest, &[b"abc", b"deg"]).await;
        assert!(matches!(refused, Err(Refusal::WrongDigest { .. })));
        assert_eq!(blobs.size(&digest).unwrap(), None);
        assert_eq!(put(&blobs, digest, &[b"abc", b"def"]).await.unwrap(), Stored::New);
        assert_eq!(put(&blobs, digest, &[b"abcdef"]).await.unwrap(), Stored::Known);
        assert_eq!(blobs.read(&digest, 6).unwrap().unwrap(), b"abcdef");
        assert!(blobs.read(&digest, 5).is_err());
        assert!(fs::read_dir(data.path().join("blobs/incoming")).unwrap().next().is_none());
    }

    #[tokio::test]
    async fn what_is_read_without_waiting_is_right_or_nothing() {
        let data = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(data.path(), Limits::default()).unwrap();
        let bytes: Vec<u8> = (0..100_000_u32).map(|n| ((n * 31) >> 3) as u8).collect();
        let digest = Digest::of(&bytes);
        put(&blobs, digest, &[&bytes]).await.unwrap();
        let reader = blobs.reader(&digest, 100_000).unwrap().unwrap();
        let mut buffer = vec![0; 30_000];
        for offset in [0, 30_000, 70_000] {
            // It was written a moment ago.
            assert!(reader.read_now(&mut buffer, offset), "does this file system know RWF_NOWAIT?");
            assert_eq!(buffer, bytes[offset as usize..][..30_000]);
        }
        assert!(!reader.read_now(&mut buffer, 70_001), "there are fewer bytes");
        assert!(reader.read_at(&mut buffer, 70_001).is_err());
    }

    #[tokio::test]
    async fn too_many_bytes_and_too_many_uploads_are_refused() {
        let data = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(data.path(), Limits { blob: 4, uploads: 1 }).unwrap();
        let digest = Digest::of(b"abcde");
        let mut upload = blobs.begin(digest).await.unwrap();
        assert!(matches!(blobs.begin(digest).await, Err(Refusal::Busy { .. })));
        upload.write(b"abcd").await.unwrap();
        assert!(matches!(upload.write(b"e").await, Err(Refusal::TooLarge { limit: 4 })));
        drop(upload);
        assert!(blobs.begin(digest).await.is_ok());
    }

    #[test]
    fn a_file_of_another_size_is_not_here() {
        let data = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(data.path(), Limits::default()).unwrap();
        let digest = Digest::of(b"abc");
        let path = data.path().join("blobs/sha256").join(digest.hex());
        for (bytes, here) in [(&b"abc"[..], true), (b"ab", false), (b"abcd", false), (b"", false)] {
            fs::write(&path, bytes).unwrap();
            assert_eq!(blobs.whole(&digest, 3).unwrap(), here.then_some(3));
            assert_eq!(blobs.reader(&digest, 3).unwrap().is_some(), here);
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(blobs.whole(&digest, 3).unwrap(), None);
        assert!(blobs.reader(&digest, 3).unwrap().is_none());
    }

    #[test]
    fn a_byte_changed_on_disk_is_noticed() {
        let data = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(data.path(), Limits::default()).unwrap();
        let digest = Digest::of(b"abc");
        fs::write(data.path().join("blobs/sha256").join(digest.hex()), b"abd").unwrap();
        assert!(matches!(blobs.read(&digest, 10), Err(Refusal::BlobMismatch { .. })));
        assert!(!blobs.verify(&digest).unwrap());
    }
}
