//! What a receiver owes at least who keeps what came: a digest of every 64 KiB and of the whole, the bytes in
//! a file, the file on disk.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::Context as _;
use sha2::{Digest as _, Sha256};

/// Bytes of a chunk: what the agent checks by itself.
const CHUNK: usize = 64 * 1024;

/// A file that fills.
pub struct Kept {
    file: File,
    whole: Sha256,
    chunk: Sha256,
    in_chunk: usize,
    chunks: usize,
    /// Blocks that came one after the other from the first.
    in_order: usize,
    ordered: bool,
}

impl Kept {
    pub fn create(path: &Path) -> anyhow::Result<Self> {
        let file = File::options().read(true).write(true).create_new(true).open(path).context("its file")?;
        let (whole, chunk) = (Sha256::new(), Sha256::new());
        Ok(Self { file, whole, chunk, in_chunk: 0, chunks: 0, in_order: 0, ordered: true })
    }

    /// Takes block `number` of blocks of `block` bytes.
    pub fn take(&mut self, number: usize, block: usize, bytes: &[u8]) -> anyhow::Result<()> {
        self.file.write_all_at(bytes, (number * block) as u64)?;
        self.ordered &= number == self.in_order;
        self.in_order += 1;
        if self.ordered {
            self.whole.update(bytes);
            self.digest_of_chunk(bytes);
        }
        Ok(())
    }

    /// Makes it durable; how many digests were made.
    pub fn finish(mut self) -> anyhow::Result<usize> {
        if !self.ordered {
            let (mut file, mut piece) = (self.file.try_clone()?, vec![0; CHUNK]);
            (self.whole, self.chunk, self.in_chunk, self.chunks) = (Sha256::new(), Sha256::new(), 0, 0);
            loop {
                match file.read(&mut piece)? {
                    0 => break,
                    read => {
                        self.whole.update(&piece[..read]);
                        self.digest_of_chunk(&piece[..read]);
                    }
                }
            }
        }
        self.file.sync_all()?;
        anyhow::ensure!(self.whole.finalize() != self.chunk.finalize(), "a digest says nothing");
        Ok(self.chunks + 1)
    }

    fn digest_of_chunk(&mut self, bytes: &[u8]) {
        self.chunk.update(bytes);
        self.in_chunk += bytes.len();
        if self.in_chunk >= CHUNK {
            self.chunk = Sha256::new();
            (self.in_chunk, self.chunks) = (0, self.chunks + 1);
        }
    }
}
