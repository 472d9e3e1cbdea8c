//! Checkpoints of partial blobs, also beside whoever fills them: a sync of 16 MiB takes longer than a fast
//! link needs to bring the next.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use selvedge_package::Digest;

use super::database::{BITMAPS, failed};
use super::disk::DiskFile;
use super::partial::Partial;
use super::{Store, StoreError, record};

/// Stack of the thread: it calls the disk and the database.
const STACK: usize = 256 * 1024;

impl Partial {
    /// Makes what has come durable, then the bitmap that says so.
    pub fn checkpoint(&mut self) -> Result<(), StoreError> {
        self.wait()?;
        self.saved(Saver::wait)?;
        if let Some(saving) = self.saving()? {
            self.saved(|_| saving.run())?;
        }
        self.unsaved = false;
        Ok(())
    }

    /// The same beside the caller, who learns from a later call how it ended. There is one at a time:
    /// another waits for it.
    pub fn checkpoint_beside(&mut self) -> Result<(), StoreError> {
        self.saved(Saver::wait)?;
        if let Some(saving) = self.saving()? {
            self.saved(|saver| saver.begin(saving))?;
        }
        self.unsaved = false;
        Ok(())
    }

    /// Takes note of how a checkpoint ended.
    pub(super) fn saved(
        &mut self,
        end: impl FnOnce(&mut Saver) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let ended = end(&mut self.saver);
        self.doubtful |= ended.is_err();
        ended
    }

    /// What is to be made durable, as of now. A blob of one chunk is cheaper to fetch again than to keep
    /// books on.
    fn saving(&self) -> Result<Option<Saving>, StoreError> {
        if !self.unsaved || self.index.len() <= 1 {
            return Ok(None);
        }
        let bitmap = record::encode(&serde_bytes::Bytes::new(&self.have.bits))
            .map_err(|why| StoreError::Record { key: format!("bitmap {}", self.digest), why })?;
        let (store, file) = (self.store.clone(), Arc::clone(&self.file));
        Ok(Some(Saving { store, digest: self.digest, file, bitmap }))
    }
}

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
