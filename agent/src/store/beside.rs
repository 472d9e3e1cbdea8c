//! A partial blob whose chunks are kept beside whoever receives them.

use std::io;
use std::sync::Arc;

use super::StoreError;
use super::keeper::{Keeper, Kept};
use super::partial::{Partial, Put};
use super::saving::Saver;
use super::whole::{MANY, may_work_beside};

/// What became of a chunk that was to be kept beside.
#[derive(Debug)]
pub struct Settled {
    /// The chunk.
    pub chunk: u32,
    /// What became of it.
    pub put: Put,
    /// Its bytes: memory to be used again.
    pub bytes: Vec<u8>,
}

impl Partial {
    /// As [`Partial::put`], for bytes that are given away. Where there is a keeper it gets them, and the answer is
    /// [`Put::Later`]; else they come back.
    pub fn take(&mut self, n: u32, bytes: Vec<u8>) -> Result<(Put, Vec<u8>), StoreError> {
        self.saved(Saver::look)?;
        match &mut self.keeper {
            Some(keeper) if !self.have.has(n) => {
                let path = self.store.partial_path(&self.digest);
                keeper.take(n, bytes).map_err(StoreError::io("write", &path))?;
                Ok((Put::Later, Vec::new()))
            }
            _ => Ok((self.put(n, &bytes)?, bytes)),
        }
    }

    /// From now on chunks are checked and written beside, where there is more than one processor for it and
    /// the blob is large. `tell` is called when there is something to ask [`Partial::settled`] for.
    pub fn keep_beside(&mut self, tell: impl Fn() + Send + 'static) {
        if self.keeper.is_none() && self.index.len() >= MANY && may_work_beside() {
            let whole = self.whole.clone();
            match Keeper::start(Arc::clone(&self.file), Arc::clone(&self.index), whole, tell) {
                Ok(keeper) => (self.keeper, self.whole) = (Some(keeper), None),
                Err(error) => tracing::debug!(%error, "no thread to keep chunks beside"),
            }
        }
    }

    /// From now on they are not. Waits for those that are on their way.
    pub fn keep_here(&mut self) -> Result<(), StoreError> {
        let kept = self.wait();
        if let Some(keeper) = self.keeper.take() {
            self.whole = keeper.end();
        }
        kept
    }

    /// What has become of chunks since this was last asked.
    pub fn settled(&mut self) -> Result<Vec<Settled>, StoreError> {
        self.take_from_keeper(Keeper::next)?;
        Ok(std::mem::take(&mut self.settled))
    }

    /// Waits for every chunk that is on its way.
    pub(super) fn wait(&mut self) -> Result<(), StoreError> {
        self.take_from_keeper(Keeper::wait)
    }

    fn take_from_keeper(
        &mut self,
        next: impl Fn(&mut Keeper) -> io::Result<Option<Kept>>,
    ) -> Result<(), StoreError> {
        while let Some(keeper) = &mut self.keeper {
            let path = self.store.partial_path(&self.digest);
            let Some(kept) = next(keeper).map_err(StoreError::io("write", &path))? else { break };
            let Kept { chunk, put, bytes } = kept;
            let put = self.note(chunk, bytes.len(), put)?;
            self.settled.push(Settled { chunk, put, bytes });
        }
        Ok(())
    }
}
