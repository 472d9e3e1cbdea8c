//! Several sessions of one model: as many of its runs side by side.
//!
//! Each is a [`Model`] of its own, with its own weights where ONNX Runtime does not share them. A run takes the
//! first that is free; when all are taken it waits within its deadline.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Semaphore, SemaphorePermit};

use super::{Model, RunError};
use crate::deadline::Deadline;

/// The sessions of one model.
pub struct Lanes {
    /// Each with whether it is taken.
    all: Vec<(Model, AtomicBool)>,
    free: Semaphore,
}

impl Lanes {
    /// Over these, of which there is at least one.
    pub fn new(all: Vec<Model>) -> Self {
        Self {
            free: Semaphore::new(all.len()),
            all: all.into_iter().map(|model| (model, AtomicBool::new(false))).collect(),
        }
    }

    /// The first that is free.
    pub async fn take(&self, deadline: Deadline) -> Result<Lane<'_>, RunError> {
        let permit = match self.free.try_acquire() {
            Ok(permit) => permit,
            Err(_) => match tokio::time::timeout_at(deadline.answer.into(), self.free.acquire()).await {
                Ok(Ok(permit)) => permit,
                // The semaphore is never closed; if it were, nobody would get a turn.
                Ok(Err(_)) | Err(_) => return Err(RunError::Deadline),
            },
        };
        // There are as many permits as lanes, and a lane is free before its permit is.
        let found = self.all.iter().find(|(_, taken)| !taken.swap(true, Ordering::Acquire));
        match found {
            Some((model, taken)) => Ok(Lane { model, taken, _permit: permit }),
            None => Err(RunError::Model("no session of the model is free".to_owned())),
        }
    }
}

/// A session that nobody else uses.
pub struct Lane<'a> {
    /// It.
    pub model: &'a Model,
    taken: &'a AtomicBool,
    _permit: SemaphorePermit<'a>,
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        // Before the permit, which is a field.
        self.taken.store(false, Ordering::Release);
    }
}
