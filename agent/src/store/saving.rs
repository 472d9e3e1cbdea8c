//! Checkpoints of partial blobs, also beside whoever fills them: a sync of 16 MiB takes longer than a fast
//! link needs to bring the next.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use selvedge_package::Digest;

use super::database::{BITMAPS, failed};
use super::disk::DiskFile;
use super::{Store, StoreError};

/// Stack of the thread: it calls the disk and the database.
const STACK: usize = 256 * 1024;

/// Chunks that are in the file, and are to be durable before the bitmap that names them is.
#[derive(Debug)]
pub(super) struct Saving {
    pub store: Store,
    pub digest: Digest,
    pub file: Arc<dyn DiskFile>,
    /// As of before the sync: what comes meanwhile is not named.
    pub bitmap: Vec<u8>,
}

impl Saving {
    pub fn run(&self) -> Result<(), StoreError> {
        let path = self.store.partial_path(&self.digest);
        self.file.sync().map_err(StoreError::io("sync", &path))?;
        self.store.database.write(|transaction| {
            let mut table = transaction.inner.open_table(BITMAPS).map_err(failed("open the bitmaps"))?;
            table.insert(self.digest.as_bytes(), self.bitmap.as_slice()).map_err(failed("write a bitmap"))?;
            Ok(())
        })
    }
}

/// The checkpoint that runs beside, if one does.
#[derive(Debug, Default)]
pub(super) struct Saver(Option<JoinHandle<Result<(), StoreError>>>);

impl Saver {
    /// Begins one. The one before must have been waited for.
    pub fn begin(&mut self, saving: Saving) -> Result<(), StoreError> {
        let saving = Arc::new(saving);
        let shared = Arc::clone(&saving);
        match Builder::new().name("checkpoint".to_owned()).stack_size(STACK).spawn(move || shared.run()) {
            Ok(thread) => {
                self.0 = Some(thread);
                Ok(())
            }
            // No thread can be had: then here.
            Err(_) => saving.run(),
        }
    }

    /// How one ended that has, and was not asked for yet.
    pub fn look(&mut self) -> Result<(), StoreError> {
        self.0.take_if(|thread| thread.is_finished()).map_or(Ok(()), ended)
    }

    /// Waits for it.
    pub fn wait(&mut self) -> Result<(), StoreError> {
        self.0.take().map_or(Ok(()), ended)
    }
}

fn ended(thread: JoinHandle<Result<(), StoreError>>) -> Result<(), StoreError> {
    let panicked = |_| Err(StoreError::io("save", Path::new("partial"))(io::Error::other("it panicked")));
    thread.join().unwrap_or_else(panicked)
}
