//! Chunks: the unit in which blobs are verified, transferred and stored.
//!
//! A blob is cut into chunks of [`CHUNK`] bytes, the last one shorter. Its index lists for each
//! chunk the length (u32, little-endian) and the SHA-256, 36 bytes a chunk. A blob of at most one
//! chunk has no index: its own digest is that of its only chunk. An index larger than one chunk is
//! a blob with an index of its own. An empty blob has no chunk.
//!
//! An index with other lengths than these is refused, since then two devices could disagree on
//! which bytes a chunk number means.

use sha2::{Digest as _, Sha256};

use crate::digest::Digest;

/// Bytes of every chunk but the last.
pub const CHUNK: u64 = 65536;
/// Bytes of one entry of an index.
pub const ENTRY: u64 = 36;

/// One chunk of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// Offset of its first byte in the blob.
    pub offset: u64,
    /// Its length in bytes, 1 to [`CHUNK`].
    pub length: u32,
    /// SHA-256 of its bytes.
    pub digest: Digest,
}

/// The digests of all chunks of one blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkIndex {
    size: u64,
    digests: Vec<Digest>,
}

/// An index that does not fit its blob, or a chunk that does not fit its index.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum ChunkError {
    #[error(
        "a chunk index of {found} bytes does not describe a blob of {size} bytes, whose index has {expected}"
    )]
    IndexLength { size: u64, expected: u64, found: u64 },
    #[error("entry {chunk} of a chunk index says {found} bytes where the chunk has {expected}")]
    EntryLength { chunk: u32, expected: u32, found: u32 },
    #[error("a blob of {size} bytes has {count} chunks; there is no chunk {chunk}")]
    NoSuchChunk { chunk: u32, count: u32, size: u64 },
    #[error("chunk {chunk} has {found} bytes instead of {expected}")]
    ChunkLength { chunk: u32, expected: u32, found: u64 },
    #[error("chunk {chunk} has digest {found} instead of {expected}")]
    ChunkDigest { chunk: u32, expected: Digest, found: Digest },
    #[error("a blob of {size} bytes has too many chunks to number")]
    TooLarge { size: u64 },
}

/// The number of chunks of a blob of `size` bytes.
pub fn chunk_count(size: u64) -> u64 {
    size.div_ceil(CHUNK)
}

/// The size of the index of a blob of `size` bytes; `None` where a blob that small has none.
pub fn index_size(size: u64) -> Option<u64> {
    (size > CHUNK).then(|| chunk_count(size) * ENTRY)
}

impl ChunkIndex {
    /// Reads the index of a blob of `size` bytes. For a blob of at most one chunk use
    /// [`ChunkIndex::without_index`].
    pub fn parse(bytes: &[u8], size: u64) -> Result<Self, ChunkError> {
        let count = u32::try_from(chunk_count(size)).map_err(|_| ChunkError::TooLarge { size })?;
        let expected = u64::from(count) * ENTRY;
        if bytes.len() as u64 != expected {
            return Err(ChunkError::IndexLength { size, expected, found: bytes.len() as u64 });
        }
        let mut digests = Vec::with_capacity(count as usize);
        for (chunk, entry) in (0u32..).zip(bytes.chunks_exact(ENTRY as usize)) {
            let (length, digest) = entry.split_at(4);
            let found = u32::from_le_bytes(length.try_into().expect("four bytes were split off"));
            let expected = length_of(chunk, size);
            if found != expected {
                return Err(ChunkError::EntryLength { chunk, expected, found });
            }
            digests.push(Digest::from_bytes(digest.try_into().expect("an entry has 32 bytes more")));
        }
        Ok(Self { size, digests })
    }

    /// The index of a blob that has none, being at most one chunk long.
    pub fn without_index(digest: Digest, size: u64) -> Result<Self, ChunkError> {
        match index_size(size) {
            Some(expected) => Err(ChunkError::IndexLength { size, expected, found: 0 }),
            None if size == 0 => Ok(Self { size, digests: Vec::new() }),
            None => Ok(Self { size, digests: vec![digest] }),
        }
    }

    /// The number of chunks; 0 for an empty blob.
    pub fn len(&self) -> u32 {
        self.digests.len() as u32
    }

    /// Whether the blob is empty.
    pub fn is_empty(&self) -> bool {
        self.digests.is_empty()
    }

    /// The blob's size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Chunk number `n`, counted from 0.
    pub fn chunk(&self, n: u32) -> Option<Chunk> {
        let digest = *self.digests.get(n as usize)?;
        Some(Chunk { offset: u64::from(n) * CHUNK, length: length_of(n, self.size), digest })
    }

    /// Every chunk in order.
    pub fn chunks(&self) -> impl Iterator<Item = Chunk> + '_ {
        (0..self.len()).filter_map(|n| self.chunk(n))
    }

    /// Checks that `bytes` are chunk number `n`.
    pub fn verify(&self, n: u32, bytes: &[u8]) -> Result<Chunk, ChunkError> {
        let chunk =
            self.chunk(n).ok_or(ChunkError::NoSuchChunk { chunk: n, count: self.len(), size: self.size })?;
        if bytes.len() as u64 != u64::from(chunk.length) {
            return Err(ChunkError::ChunkLength {
                chunk: n,
                expected: chunk.length,
                found: bytes.len() as u64,
            });
        }
        let found = Digest::of(bytes);
        if found != chunk.digest {
            return Err(ChunkError::ChunkDigest { chunk: n, expected: chunk.digest, found });
        }
        Ok(chunk)
    }
}

fn length_of(chunk: u32, size: u64) -> u32 {
    let left = size.saturating_sub(u64::from(chunk) * CHUNK);
    left.min(CHUNK) as u32
}

/// A blob's digest, size and indexes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Indexed {
    /// SHA-256 of the whole blob.
    pub digest: Digest,
    /// Its size in bytes.
    pub size: u64,
    /// Its index, then the index of that index, and so on until one fits a chunk; empty for a blob
    /// of at most one chunk.
    pub indexes: Vec<(Digest, Vec<u8>)>,
}

impl Indexed {
    /// Digest, size and indexes of bytes that are in memory.
    pub fn of(bytes: &[u8]) -> Self {
        let mut indexer = ChunkIndexer::new();
        indexer.update(bytes);
        indexer.finish()
    }
}

/// Makes digest and index of a blob that passes by in pieces of any size, without holding it.
#[derive(Debug, Clone, Default)]
pub struct ChunkIndexer {
    whole: Sha256,
    chunk: Sha256,
    filled: u64,
    size: u64,
    index: Vec<u8>,
}

impl ChunkIndexer {
    /// An indexer that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        self.whole.update(bytes);
        self.size += bytes.len() as u64;
        while !bytes.is_empty() {
            let room = (CHUNK - self.filled) as usize;
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.chunk.update(now);
            self.filled += now.len() as u64;
            bytes = later;
            if self.filled == CHUNK {
                self.close_chunk();
            }
        }
    }

    /// Digest, size and indexes of all bytes taken.
    pub fn finish(mut self) -> Indexed {
        if self.filled > 0 {
            self.close_chunk();
        }
        let digest = Digest::from_bytes(self.whole.finalize().into());
        let mut indexes = Vec::new();
        if self.size > CHUNK {
            let above = Indexed::of(&self.index);
            indexes.push((above.digest, self.index));
            indexes.extend(above.indexes);
        }
        Indexed { digest, size: self.size, indexes }
    }

    fn close_chunk(&mut self) {
        self.index.extend_from_slice(&(self.filled as u32).to_le_bytes());
        self.index.extend_from_slice(&self.chunk.finalize_reset());
        self.filled = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob(size: usize) -> Vec<u8> {
        (0..size).map(|n| (n * 31 + n / 251) as u8).collect()
    }

    #[test]
    fn sizes_around_a_chunk() {
        for (size, chunks, levels) in [
            (0, 0, 0),
            (1, 1, 0),
            (65535, 1, 0),
            (65536, 1, 0),
            (65537, 2, 1),
            (131072, 2, 1),
            (131073, 3, 1),
        ] {
            let bytes = blob(size);
            let indexed = Indexed::of(&bytes);
            assert_eq!(indexed.digest, Digest::of(&bytes));
            assert_eq!(indexed.indexes.len(), levels, "{size}");
            let index = match indexed.indexes.first() {
                Some((digest, bytes)) => {
                    assert_eq!(*digest, Digest::of(bytes));
                    assert_eq!(Some(bytes.len() as u64), index_size(size as u64));
                    ChunkIndex::parse(bytes, size as u64).unwrap()
                }
                None => ChunkIndex::without_index(indexed.digest, size as u64).unwrap(),
            };
            assert_eq!(index.len(), chunks, "{size}");
            for (n, chunk) in (0..).zip(index.chunks()) {
                let end = chunk.offset + u64::from(chunk.length);
                index.verify(n, &bytes[chunk.offset as usize..end as usize]).unwrap();
            }
            assert_eq!(index.chunks().map(|c| u64::from(c.length)).sum::<u64>(), size as u64);
        }
    }

    #[test]
    fn a_large_index_has_an_index() {
        // 1821 chunks: the index has 65 556 bytes, more than one chunk.
        let mut indexer = ChunkIndexer::new();
        let piece = blob(CHUNK as usize);
        for _ in 0..1821 {
            indexer.update(&piece);
        }
        let indexed = indexer.finish();
        assert_eq!(indexed.indexes.len(), 2);
        let (first, second) = (&indexed.indexes[0].1, &indexed.indexes[1].1);
        assert_eq!((first.len(), second.len()), (1821 * 36, 2 * 36));
        let above = ChunkIndex::parse(second, first.len() as u64).unwrap();
        above.verify(1, &first[CHUNK as usize..]).unwrap();
    }

    #[test]
    fn an_index_that_cuts_elsewhere_is_refused() {
        let bytes = blob(140_000);
        let (_, good) = Indexed::of(&bytes).indexes.remove(0);
        let mut shifted = good.clone();
        shifted[0..4].copy_from_slice(&65535u32.to_le_bytes());
        assert!(matches!(
            ChunkIndex::parse(&shifted, 140_000),
            Err(ChunkError::EntryLength { chunk: 0, expected: 65536, found: 65535 })
        ));
        for (bytes, size) in
            [(&good[..], 140_001), (&good[1..], 140_000), (&good[36..], 140_000), (&[], 140_000)]
        {
            assert!(ChunkIndex::parse(bytes, size).is_err());
        }
        assert!(matches!(ChunkIndex::parse(&[], u64::MAX), Err(ChunkError::TooLarge { .. })));
        assert!(ChunkIndex::without_index(Digest::of(&bytes), 140_000).is_err());
    }
}
