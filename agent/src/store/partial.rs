//! Blobs that are on their way: a file with holes, and a bitmap of the chunks that are in it.
//!
//! A chunk is checked against the signed index before it is written. The bitmap is made durable at
//! checkpoints, after the chunks that it names. What lies in the file beyond the bitmap (the agent
//! was killed between two checkpoints) is hashed again when the transfer is resumed, and kept where
//! it is right; so a kill costs no chunk, and a lie in the bitmap costs a chunk, never the blob.

use std::sync::Arc;

use redb::ReadableTable;
use selvedge_package::Digest;
use selvedge_package::chunks::ChunkIndex;

use super::beside::Settled;
use super::bitmap::Bitmap;
use super::blobs::hash;
use super::database::{BITMAPS, failed};
use super::disk::DiskFile;
use super::keeper::{Keeper, keep};
use super::saving::Saver;
use super::whole::{InOrder, sync_and_read_back};
use super::{Store, StoreError, record};

/// What became of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// It is right, and kept.
    Kept,
    /// It was there already.
    Known,
    /// It is not the chunk that the index promises; nothing was written.
    Spoiled,
    /// That is still to be said: [`Partial::settled`] will.
    Later,
}

/// A blob on its way.
#[derive(Debug)]
pub struct Partial {
    pub(super) store: Store,
    pub(super) digest: Digest,
    pub(super) index: Arc<ChunkIndex>,
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) have: Bitmap,
    bytes: u64,
    pub(super) unsaved: bool,
    /// A checkpoint failed: what is on the disk is not known, and no later sync says so.
    pub(super) doubtful: bool,
    pub(super) saver: Saver,
    /// The digest so far, where all chunks have come since the blob was begun, about in order. The keeper has
    /// it while there is one.
    pub(super) whole: Option<InOrder>,
    pub(super) keeper: Option<Keeper>,
    /// What it has said and nobody asked for yet.
    pub(super) settled: Vec<Settled>,
}

impl Store {
    /// Begins or resumes a blob of the index's size. `index` must come from signed data.
    pub fn partial(&self, digest: Digest, index: ChunkIndex) -> Result<Partial, StoreError> {
        let path = self.partial_path(&digest);
        let mut there = self.disk.size(&path).map_err(StoreError::io("look at", &path))?;
        if there.is_some_and(|size| size > index.size()) {
            // Whatever this is, it is not a part of the blob.
            self.drop_partial(&digest)?;
            there = None;
        }
        let new = there.is_none();
        let file = self.disk.open_or_create(&path).map_err(StoreError::io("open", &path))?;
        if new && index.len() > 1 {
            // What a checkpoint makes durable must keep its name, too.
            self.sync_directory_of(&path)?;
        }
        let saved = self.bitmap(&digest)?;
        let have = Bitmap::from_bits(saved.as_deref().unwrap_or_default(), index.len());
        let mut partial = Partial {
            store: self.clone(),
            digest,
            index: Arc::new(index),
            file: file.into(),
            have,
            bytes: 0,
            unsaved: false,
            doubtful: false,
            saver: Saver::default(),
            whole: None,
            keeper: None,
            settled: Vec::new(),
        };
        partial.look_again(Recheck::Unknown)?;
        partial.whole = (partial.bytes == 0).then(InOrder::default);
        Ok(partial)
    }

    /// Bytes that lie in a partial blob's file, for people; 0 where there is none.
    pub fn partial_bytes(&self, digest: &Digest) -> u64 {
        self.disk.size(&self.partial_path(digest)).ok().flatten().unwrap_or(0)
    }

    fn bitmap(&self, digest: &Digest) -> Result<Option<Vec<u8>>, StoreError> {
        self.database.look(|read| {
            let table = read.open_table(BITMAPS).map_err(failed("open the bitmaps"))?;
            let found = table.get(digest.as_bytes()).map_err(failed("read a bitmap"))?;
            // A damaged bitmap is worth no more than none: chunks are then hashed again.
            Ok(found
                .and_then(|bytes| record::decode::<serde_bytes::ByteBuf>(bytes.value()).ok())
                .map(|b| b.into_vec()))
        })
    }

    pub(super) fn drop_bitmaps(&self, keep: impl Fn(&Digest) -> bool) -> Result<(), StoreError> {
        let gone = self.database.look(|read| {
            let table = read.open_table(BITMAPS).map_err(failed("open the bitmaps"))?;
            let mut gone = Vec::new();
            for entry in table.iter().map_err(failed("read the bitmaps"))? {
                let digest = Digest::from_bytes(*entry.map_err(failed("read the bitmaps"))?.0.value());
                if !keep(&digest) {
                    gone.push(digest);
                }
            }
            Ok(gone)
        })?;
        if gone.is_empty() {
            return Ok(());
        }
        self.database.write(|transaction| {
            let mut table = transaction.inner.open_table(BITMAPS).map_err(failed("open the bitmaps"))?;
            for digest in &gone {
                table.remove(digest.as_bytes()).map_err(failed("remove a bitmap"))?;
            }
            Ok(())
        })
    }

    /// Throws a partial blob away; it may be gone already.
    pub fn drop_partial(&self, digest: &Digest) -> Result<(), StoreError> {
        self.remove_if_there(&self.partial_path(digest))?;
        self.drop_bitmaps(|other| other != digest)
    }
}

/// Which chunks are hashed again.
enum Recheck {
    /// Those that the bitmap does not name.
    Unknown,
    /// All.
    Everything,
}

impl Partial {
    /// The blob's digest.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// The blob's size in bytes.
    pub fn size(&self) -> u64 {
        self.index.size()
    }

    /// Bytes of the chunks that are here.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of chunks.
    pub fn len(&self) -> u32 {
        self.index.len()
    }

    /// Whether the blob has no chunk at all, being empty.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Whether chunk `n` is here.
    pub fn have(&self, n: u32) -> bool {
        self.have.has(n)
    }

    /// Whether every chunk is here.
    pub fn is_whole(&self) -> bool {
        self.have.is_full()
    }

    /// Takes a chunk: checks it, and writes it where it is right and new.
    ///
    /// # Errors
    /// Also that of a checkpoint that has ended since ([`Partial::checkpoint_beside`]).
    pub fn put(&mut self, n: u32, bytes: &[u8]) -> Result<Put, StoreError> {
        self.saved(Saver::look)?;
        if self.have.has(n) {
            return Ok(Put::Known);
        }
        let put = keep(&*self.file, &self.index, &mut self.whole, n, bytes);
        self.note(n, bytes.len(), put)
    }

    /// Takes note of what has become of a chunk of so many bytes.
    pub(super) fn note(
        &mut self,
        n: u32,
        bytes: usize,
        put: std::io::Result<Put>,
    ) -> Result<Put, StoreError> {
        let path = self.store.partial_path(&self.digest);
        let put = put.map_err(StoreError::io("write", &path))?;
        if put == Put::Kept {
            self.have.set(n);
            self.bytes += bytes as u64;
            self.unsaved = true;
        }
        Ok(put)
    }

    /// Makes the whole blob a stored one: it is durable, its digest is right, and so are its bytes on disk.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] where the bytes on disk do not have the digest; then every chunk has
    /// been looked at again, those that are wrong are missing again, and the transfer can go on with
    /// [`Store::partial`]. [`StoreError::Contradicted`] where every chunk is right and the whole is not.
    /// What a sync before this one had failed with: nobody knows what of the file is on the disk, and no
    /// later sync says so again.
    pub fn finish(mut self) -> Result<(), StoreError> {
        self.keep_here()?;
        self.saved(Saver::wait)?;
        let path = self.store.partial_path(&self.digest);
        if self.doubtful {
            let why = std::io::Error::other("it could not be made durable before");
            return Err(StoreError::io("sync", &path)(why));
        }
        let came = self.whole.take().and_then(|whole| whole.digest(self.index.len()));
        let is_there = if came == Some(self.digest) {
            // What came was right, chunk by chunk and as a whole. What was written is read back.
            let (synced, right) = sync_and_read_back(&*self.file, &self.index);
            synced.map_err(StoreError::io("sync", &path))?;
            right.map_err(StoreError::io("read", &path))?
        } else {
            self.file.sync().map_err(StoreError::io("sync", &path))?;
            self.has_digest()?
        };
        if !is_there {
            self.look_again(Recheck::Everything)?;
            if !self.have.is_full() {
                self.unsaved = true;
                self.checkpoint()?;
                return Err(StoreError::Damaged { digest: self.digest });
            }
            // A byte may have been read wrong once. Where it was not, the index contradicts the digest.
            if !self.has_digest()? {
                self.store.drop_partial(&self.digest)?;
                return Err(StoreError::Contradicted { digest: self.digest });
            }
        }
        let place = self.store.blob_path(&self.digest);
        self.store.disk.rename(&path, &place).map_err(StoreError::io("rename to", &place))?;
        self.store.sync_directory_of(&place)?;
        if self.index.len() > 1 {
            self.store.drop_bitmaps(|other| *other != self.digest)?;
        }
        Ok(())
    }

    /// Whether the file has the digest.
    fn has_digest(&self) -> Result<bool, StoreError> {
        let path = self.store.partial_path(&self.digest);
        Ok(self.file.size().map_err(StoreError::io("look at", &path))? == self.index.size()
            && hash(&*self.file).map_err(StoreError::io("read", &path))? == self.digest)
    }

    /// Hashes chunks in the file again, so that the bitmap says what is there.
    fn look_again(&mut self, recheck: Recheck) -> Result<(), StoreError> {
        let path = self.store.partial_path(&self.digest);
        let end = self.file.size().map_err(StoreError::io("look at", &path))?;
        let mut buffer = Vec::new();
        self.bytes = 0;
        for n in 0..self.index.len() {
            let Some(chunk) = self.index.chunk(n) else {
                continue;
            };
            let reaches = chunk.offset + u64::from(chunk.length) <= end;
            if !reaches {
                self.have.clear(n);
            } else if matches!(recheck, Recheck::Everything) || !self.have.has(n) {
                buffer.resize(chunk.length as usize, 0);
                self.file.read_at(chunk.offset, &mut buffer).map_err(StoreError::io("read", &path))?;
                if Digest::of(&buffer) == chunk.digest {
                    self.unsaved |= !self.have.has(n);
                    self.have.set(n);
                } else {
                    self.have.clear(n);
                }
            }
            if self.have.has(n) {
                self.bytes += u64::from(chunk.length);
            }
        }
        Ok(())
    }
}
