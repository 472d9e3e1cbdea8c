//! A blob that is held in memory, and checked as a whole because nothing signed lists its chunks.

use std::convert::Infallible;

use selvedge_package::Digest;
use selvedge_protocol::block::{Bitmap, CHUNK};

use super::Chunks;
use crate::store::Put;

/// Largest blob that is pulled into memory, in bytes: a desired state with its metadata.
pub const LARGEST_PULL: u64 = 1024 * 1024;

#[derive(Debug)]
pub(super) struct Memory {
    digest: Digest,
    bytes: Vec<u8>,
    have: Bitmap,
    mismatches: u32,
}

impl Memory {
    /// For a blob of `size` bytes; `None` if that is too large.
    pub fn new(digest: Digest, size: u64) -> Option<Self> {
        (size <= LARGEST_PULL).then(|| Self {
            digest,
            bytes: vec![0; size as usize],
            have: Bitmap::default(),
            mismatches: 0,
        })
    }

    /// The bytes, if they have the digest. Otherwise everything is missing again, and how often
    /// that happened is returned.
    pub fn finish(&mut self) -> Result<Vec<u8>, u32> {
        if Digest::of(&self.bytes) == self.digest {
            return Ok(std::mem::take(&mut self.bytes));
        }
        self.have = Bitmap::default();
        self.mismatches += 1;
        Err(self.mismatches)
    }
}

impl Chunks for Memory {
    type Error = Infallible;

    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn have(&self, n: u32) -> bool {
        self.have.has(n)
    }

    fn put(&mut self, n: u32, bytes: &[u8]) -> Result<Put, Infallible> {
        let start = n as usize * CHUNK as usize;
        let Some(place) = self.bytes.get_mut(start..).and_then(|rest| rest.get_mut(..bytes.len())) else {
            return Ok(Put::Spoiled);
        };
        place.copy_from_slice(bytes);
        self.have.set(n);
        Ok(Put::Kept)
    }

    fn checkpoint(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}
