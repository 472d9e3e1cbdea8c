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
    let mut longer = whole.clone().filter(|whole| whole.is_next(n));
    let found = longer.as_mut().map_or_else(|| Digest::of(bytes), |whole| whole.take(bytes));
    if found != chunk.digest {
        return Ok(Put::Spoiled);
    }
    file.write_at(chunk.offset, bytes)?;
    *whole = longer;
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
