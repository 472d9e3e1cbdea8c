//! What a receiver owes at least who keeps what came: a digest of every 64 KiB and of the whole, which must be
//! the right one, the bytes in a file, the file on disk. A thread of its own does it, as the agent's does.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use anyhow::Context as _;
use sha2::{Digest as _, Sha256};

/// Bytes of a chunk: what the agent checks by itself.
const CHUNK: usize = 64 * 1024;

/// A file that fills.
pub struct Keeper {
    blocks: Sender<(usize, Vec<u8>)>,
    thread: JoinHandle<anyhow::Result<String>>,
    digest: String,
}

impl Keeper {
    /// A file at `path` for blocks of `block` bytes, each behind `header` other bytes. In the end it must have
    /// this digest, in hexadecimal.
    pub fn start(path: &Path, block: usize, header: usize, digest: &str) -> anyhow::Result<Self> {
        let file = File::options().read(true).write(true).create_new(true).open(path).context("its file")?;
        let (blocks, come) = channel();
        let thread = std::thread::spawn(move || keep(&file, &come, block, header));
        Ok(Self { blocks, thread, digest: digest.to_owned() })
    }

    /// Takes block `number`.
    pub fn take(&self, number: usize, block: Vec<u8>) -> anyhow::Result<()> {
        self.blocks.send((number, block)).context("the keeper has ended")
    }

    /// Waits until everything is durable, and looks at the digest.
    pub fn finish(self) -> anyhow::Result<()> {
        drop(self.blocks);
        let digest = self.thread.join().map_err(|_| anyhow::anyhow!("the keeper panicked"))??;
        anyhow::ensure!(digest == self.digest, "it has the digest {digest} instead of {}", self.digest);
        Ok(())
    }
}

fn keep(
    mut file: &File,
    come: &Receiver<(usize, Vec<u8>)>,
    block: usize,
    header: usize,
) -> anyhow::Result<String> {
    let mut digests = Digests::default();
    let (mut next, mut in_order) = (0, true);
    for (number, payload) in come {
        let bytes = &payload[header..];
        file.write_all_at(bytes, (number * block) as u64)?;
        in_order &= number == next;
        next += 1;
        if in_order {
            digests.take(bytes);
        }
    }
    if !in_order {
        digests = Digests::default();
        let mut piece = vec![0; CHUNK];
        loop {
            match file.read(&mut piece)? {
                0 => break,
                read => digests.take(&piece[..read]),
            }
        }
    }
    file.sync_all()?;
    anyhow::ensure!(digests.chunks > 0, "no chunk was whole");
    Ok(digests.whole.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[derive(Default)]
struct Digests {
    whole: Sha256,
    chunk: Sha256,
    in_chunk: usize,
    chunks: usize,
}

impl Digests {
    fn take(&mut self, bytes: &[u8]) {
        self.whole.update(bytes);
        self.chunk.update(bytes);
        self.in_chunk += bytes.len();
        if self.in_chunk >= CHUNK {
            std::hint::black_box(std::mem::take(&mut self.chunk).finalize());
            (self.in_chunk, self.chunks) = (0, self.chunks + 1);
        }
    }
}
