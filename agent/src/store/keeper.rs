//! Keeps chunks beside whoever receives them: checked and written by a thread of the blob's own, so that the
//! next are received meanwhile.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{Builder, JoinHandle};

use selvedge_package::Digest;
use selvedge_package::chunks::ChunkIndex;

use super::disk::DiskFile;
use super::partial::Put;
use super::whole::InOrder;

/// Stack of the thread: it hashes and writes.
const STACK: usize = 128 * 1024;

/// Checks a chunk against the signed index, and writes it where it is right.
pub(super) fn keep(
    file: &dyn DiskFile,
    index: &ChunkIndex,
    whole: &mut Option<InOrder>,
    n: u32,
    bytes: &[u8],
) -> io::Result<Put> {
    let Some(chunk) = index.chunk(n).filter(|chunk| chunk.length as usize == bytes.len()) else {
        return Ok(Put::Spoiled);
    };
    let mut longer = whole.as_ref().filter(|whole| whole.is_next(n)).cloned();
    let found = longer.as_mut().map_or_else(|| Digest::of(bytes), |whole| whole.take(bytes));
    if found != chunk.digest {
        return Ok(Put::Spoiled);
    }
    file.write_at(chunk.offset, bytes)?;
    *whole = match longer {
        Some(longer) => longer.catch_up(file, index),
        None => whole.take().and_then(|whole| whole.passed(n)),
    };
    Ok(Put::Kept)
}

/// A chunk that was handed over, and what became of it.
#[derive(Debug)]
pub(super) struct Kept {
    pub chunk: u32,
    pub put: io::Result<Put>,
    /// Its bytes: memory to be used again.
    pub bytes: Vec<u8>,
}

/// The thread, and what is on its way to it and back. How much that is, is for the caller to bound.
#[derive(Debug)]
pub(super) struct Keeper {
    todo: Option<Sender<(u32, Vec<u8>)>>,
    done: Receiver<Kept>,
    /// Whether the caller was told of what is done and has not looked yet.
    told: Arc<AtomicBool>,
    thread: JoinHandle<Option<InOrder>>,
    pending: usize,
}

impl Keeper {
    /// Starts one. `tell` is called when something is done, and not again until that is looked at.
    pub fn start(
        file: Arc<dyn DiskFile>,
        index: Arc<ChunkIndex>,
        mut whole: Option<InOrder>,
        tell: impl Fn() + Send + 'static,
    ) -> io::Result<Self> {
        let (todo, chunks) = channel::<(u32, Vec<u8>)>();
        let (say, done) = channel();
        let told = Arc::new(AtomicBool::new(false));
        let telling = Arc::clone(&told);
        let thread = Builder::new().name("keeper".to_owned()).stack_size(STACK).spawn(move || {
            for (chunk, bytes) in chunks {
                let put = keep(&*file, &index, &mut whole, chunk, &bytes);
                if say.send(Kept { chunk, put, bytes }).is_ok() && !telling.swap(true, Ordering::SeqCst) {
                    tell();
                }
            }
            whole
        })?;
        Ok(Self { todo: Some(todo), done, told, thread, pending: 0 })
    }

    /// Hands a chunk over.
    pub fn take(&mut self, chunk: u32, bytes: Vec<u8>) -> io::Result<()> {
        let todo = self.todo.as_ref().ok_or_else(gone)?;
        todo.send((chunk, bytes)).map_err(|_| gone())?;
        self.pending += 1;
        Ok(())
    }

    /// Something that is done, if anything is.
    pub fn next(&mut self) -> io::Result<Option<Kept>> {
        self.told.store(false, Ordering::SeqCst);
        match self.done.try_recv() {
            Ok(kept) => {
                self.pending -= 1;
                Ok(Some(kept))
            }
            Err(TryRecvError::Disconnected) if self.pending > 0 => Err(gone()),
            Err(_) => Ok(None),
        }
    }

    /// The next thing that is done, waited for; `None` when everything is.
    pub fn wait(&mut self) -> io::Result<Option<Kept>> {
        if self.pending == 0 {
            return Ok(None);
        }
        let kept = self.done.recv().map_err(|_| gone())?;
        self.pending -= 1;
        Ok(Some(kept))
    }

    /// Ends the thread once everything is done, which is to be waited for before.
    pub fn end(mut self) -> Option<InOrder> {
        self.todo = None;
        // Without the digest so far the file is hashed from end to end.
        self.thread.join().unwrap_or_default()
    }
}

fn gone() -> io::Error {
    io::Error::other("the thread that keeps chunks has ended")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::disk::{Disk as _, RealDisk};
    use selvedge_package::chunks::{CHUNK, Indexed};

    /// The digest so far after chunks came in this order.
    fn digest_after(order: &[u32]) -> Option<Digest> {
        let chunks = order.len();
        let bytes: Vec<u8> = (0..(chunks - 1) * CHUNK as usize + 9).map(|n| ((n * 31) >> 3) as u8).collect();
        let indexed = Indexed::of(&bytes);
        let index = ChunkIndex::parse(&indexed.indexes[0].1, indexed.size).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = RealDisk.open_or_create(&folder.path().join("blob")).unwrap();
        let mut whole = Some(InOrder::default());
        for &n in order {
            let from = n as usize * CHUNK as usize;
            let chunk = &bytes[from..(from + CHUNK as usize).min(bytes.len())];
            let wrong: Vec<u8> = chunk.iter().map(|byte| byte ^ 1).collect();
            for spoiled in [&chunk[1..], &wrong] {
                assert_eq!(keep(&*file, &index, &mut whole, n, spoiled).unwrap(), Put::Spoiled);
            }
            assert_eq!(keep(&*file, &index, &mut whole, n, chunk).unwrap(), Put::Kept);
        }
        let digest = whole.and_then(|whole| whole.digest(index.len()));
        assert!(digest.is_none_or(|digest| digest == indexed.digest), "{order:?} made another digest");
        digest
    }

    #[test]
    fn what_came_a_little_out_of_order_was_hashed_as_it_came() {
        for order in [&[0, 1, 2, 3, 4][..], &[1, 0, 3, 4, 2], &[4, 3, 2, 1, 0], &[2, 4, 0, 1, 3]] {
            assert!(digest_after(order).is_some(), "{order:?}");
        }
        // The first comes last, after more than are kept in mind: the file is hashed in the end.
        let late: Vec<u32> = (1..80).chain([0]).collect();
        assert_eq!(digest_after(&late), None);
    }
}
