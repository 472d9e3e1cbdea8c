//! Whether a blob that has come is whole: the digest of what came, made while it came, and every byte of the
//! file read back against the signed index.
//!
//! The two together say what hashing the file from end to end says, in a fraction of the time: chunks can
//! be read back by two threads, and two digests at once take hardly longer than one.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use selvedge_package::Digest;
use selvedge_package::chunks::{CHUNK, ChunkIndex};
use sha2::{Digest as _, Sha256};

use super::disk::DiskFile;

/// Bytes after which the other digest has its turn. Each step of a digest waits for the one before it, and a
/// processor fills such waits with another digest's steps, as long as they are near.
const TURN: usize = 128;
/// Chunks that are read back at a time.
const PAIR: u32 = 2;
/// Blobs of fewer chunks are no work for two threads (4 MiB).
pub(super) const MANY: u32 = 64;
/// Stack of the other thread.
const STACK: usize = 128 * 1024;

/// Chunks that may have come before one that is still to come: a few requests are on their way at a time.
const AHEAD: usize = 64;

/// The digest of chunks that came about one after the other from the first.
#[derive(Debug, Clone, Default)]
pub(super) struct InOrder {
    hasher: Sha256,
    next: u32,
    /// Chunks that are in the file already, behind the next.
    ahead: BTreeSet<u32>,
}

impl InOrder {
    /// Whether chunk `n` goes on where the last one ended.
    pub fn is_next(&self, n: u32) -> bool {
        self.next == n
    }

    /// Takes the next chunk; the chunk's own digest.
    pub fn take(&mut self, bytes: &[u8]) -> Digest {
        let mut chunk = Sha256::new();
        both((&mut chunk, bytes), (&mut self.hasher, bytes));
        self.next += 1;
        digest(chunk)
    }

    /// Chunk `n` is in the file, and is not the next. Too many of them are not worth the books.
    pub fn passed(mut self, n: u32) -> Option<Self> {
        if n > self.next {
            self.ahead.insert(n);
        }
        (self.ahead.len() <= AHEAD).then_some(self)
    }

    /// Takes what follows and is in the file already. Where that cannot be read there is no digest so far.
    pub fn catch_up(mut self, file: &dyn DiskFile, index: &ChunkIndex) -> Option<Self> {
        while self.ahead.remove(&self.next) {
            let chunk = index.chunk(self.next)?;
            let mut bytes = vec![0; chunk.length as usize];
            file.read_at(chunk.offset, &mut bytes).ok().filter(|read| *read == bytes.len())?;
            self.hasher.update(&bytes);
            self.next += 1;
        }
        Some(self)
    }

    /// The digest of the whole, if these were its chunks.
    pub fn digest(self, chunks: u32) -> Option<Digest> {
        (self.next == chunks).then(|| digest(self.hasher))
    }
}

/// Whether there is another processor to work on.
pub(super) fn may_work_beside() -> bool {
    thread::available_parallelism().is_ok_and(|processors| processors.get() > 1)
}

/// Makes a file durable, and reads it back meanwhile: whether every chunk is what the index says, and
/// nothing follows the last.
pub(super) fn sync_and_read_back(
    file: &dyn DiskFile,
    index: &ChunkIndex,
) -> (io::Result<()>, io::Result<bool>) {
    let (next, wrong) = (AtomicU32::new(0), AtomicBool::new(false));
    let look = || look(file, index, &next, &wrong);
    if index.len() < MANY || !may_work_beside() {
        return (file.sync(), look());
    }
    thread::scope(|scope| {
        let helper = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, look);
        let (synced, own) = (file.sync(), look());
        // Where no thread could be had this one has looked at everything.
        let helped = helper.map_or(Ok(true), |helper| {
            helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        let right = own.and_then(|own| Ok(own && helped?));
        (synced, right)
    })
}

/// Looks at chunks that nobody else looks at until there are none.
fn look(file: &dyn DiskFile, index: &ChunkIndex, next: &AtomicU32, wrong: &AtomicBool) -> io::Result<bool> {
    if file.size()? != index.size() {
        return Ok(false);
    }
    let mut buffer = vec![0; (u64::from(PAIR) * CHUNK).min(index.size()) as usize];
    while !wrong.load(Ordering::Relaxed) {
        let n = next.fetch_add(PAIR, Ordering::Relaxed);
        let Some(chunk) = index.chunk(n) else { return Ok(true) };
        let other = index.chunk(n + 1);
        let length = chunk.length + other.map_or(0, |other| other.length);
        let bytes = &mut buffer[..length as usize];
        let read = file.read_at(chunk.offset, bytes)?;
        let (first, second) = bytes.split_at(chunk.length as usize);
        let (mut one, mut two) = (Sha256::new(), Sha256::new());
        both((&mut one, first), (&mut two, second));
        let right = read == bytes.len()
            && digest(one) == chunk.digest
            && other.is_none_or(|other| digest(two) == other.digest);
        if !right {
            wrong.store(true, Ordering::Relaxed);
        }
    }
    Ok(false)
}

/// Hashes two things at once.
fn both((one, first): (&mut Sha256, &[u8]), (other, second): (&mut Sha256, &[u8])) {
    let mut seconds = second.chunks(TURN);
    for piece in first.chunks(TURN) {
        one.update(piece);
        if let Some(piece) = seconds.next() {
            other.update(piece);
        }
    }
    for piece in seconds {
        other.update(piece);
    }
}

fn digest(hasher: Sha256) -> Digest {
    Digest::from_bytes(hasher.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_at_once_are_what_each_is_alone() {
        let bytes: Vec<u8> = (0..100_000u32).map(|n| ((n * 31) >> 3) as u8).collect();
        for (first, second) in
            [(0, 0), (1, 0), (0, 1), (65_536, 65_536), (65_536, 1000), (1000, 65_536), (129, 127)]
        {
            let (first, second) = (&bytes[..first], &bytes[100_000 - second..]);
            let (mut one, mut other) = (Sha256::new(), Sha256::new());
            both((&mut one, first), (&mut other, second));
            assert_eq!((digest(one), digest(other)), (Digest::of(first), Digest::of(second)));
        }
    }

    #[test]
    fn chunks_in_order_make_the_digest_of_the_whole() {
        let bytes: Vec<u8> = (0..150_000u32).map(|n| ((n * 31) >> 3) as u8).collect();
        let mut whole = InOrder::default();
        for (n, chunk) in (0u32..).zip(bytes.chunks(CHUNK as usize)) {
            assert!(whole.is_next(n) && !whole.is_next(n + 1));
            assert_eq!(whole.take(chunk), Digest::of(chunk));
        }
        assert_eq!(whole.clone().digest(2), None);
        assert_eq!(whole.digest(3), Some(Digest::of(&bytes)));
    }
}
