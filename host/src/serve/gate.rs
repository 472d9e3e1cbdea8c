//! How many requests of one package run, and how many may wait for that.
//!
//! A request that finds no place to wait is turned away at once; one whose deadline passes while it
//! waits has cost nothing but the wait.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Waiting requests for each that may run.
const WAITING_PER_RUNNING: u32 = 8;

/// Fewest waiting requests: a burst, or the moments in which a swap takes the processor, refuse nobody
/// (at 200 requests a second this is more than half a second).
const FEWEST_WAITING: u32 = 128;

/// Bounds the requests of one package.
#[derive(Debug)]
pub struct Gate {
    /// Running and waiting together.
    places: Arc<Semaphore>,
    running: Arc<Semaphore>,
    all: u32,
    concurrency: u32,
}

/// Why a request did not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turned {
    /// No place to wait.
    Full,
    /// Waited until its deadline.
    Late,
}

/// A request that runs. Dropping it lets the next one in.
#[derive(Debug)]
pub struct Pass {
    _place: OwnedSemaphorePermit,
    _running: OwnedSemaphorePermit,
}

impl Gate {
    /// Lets `concurrency` requests run side by side, at least one.
    pub fn new(concurrency: u32) -> Self {
        let concurrency = concurrency.clamp(1, 1024);
        let waiting = (concurrency * WAITING_PER_RUNNING).max(FEWEST_WAITING);
        Self {
            places: Arc::new(Semaphore::new((concurrency + waiting) as usize)),
            running: Arc::new(Semaphore::new(concurrency as usize)),
            all: concurrency + waiting,
            concurrency,
        }
    }

    /// Whether a request would be turned away now.
    pub fn full(&self) -> bool {
        self.places.available_permits() == 0
    }

    /// Requests that run now.
    #[cfg(test)]
    pub fn running(&self) -> usize {
        (self.concurrency as usize).saturating_sub(self.running.available_permits())
    }

    /// Requests that wait for their turn now.
    pub fn waiting(&self) -> u64 {
        let taken =
            |all: u32, semaphore: &Semaphore| (all as usize).saturating_sub(semaphore.available_permits());
        let inside = taken(self.all, &self.places);
        inside.saturating_sub(taken(self.concurrency, &self.running)) as u64
    }

    /// Waits for its turn, at most for `patience`.
    pub async fn enter(&self, patience: Duration) -> Result<Pass, Turned> {
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| Turned::Full)?;
        let turn = Arc::clone(&self.running).acquire_owned();
        match tokio::time::timeout(patience, turn).await {
            Ok(Ok(running)) => Ok(Pass { _place: place, _running: running }),
            // The semaphore is never closed; if it were, nobody would get a turn.
            Ok(Err(_)) | Err(_) => Err(Turned::Late),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn runs_so_many_and_lets_so_many_wait() {
        let gate = Arc::new(Gate::new(1));
        let soon = Duration::from_millis(10);
        let first = gate.enter(soon).await.unwrap();
        assert_eq!(gate.waiting(), 0);
        assert_eq!(gate.enter(soon).await.unwrap_err(), Turned::Late);
        let waiting: Vec<_> = (0..FEWEST_WAITING)
            .map(|_| {
                let gate = Arc::clone(&gate);
                tokio::spawn(async move { gate.enter(Duration::from_secs(60)).await })
            })
            .collect();
        while !gate.full() {
            tokio::task::yield_now().await;
        }
        assert_eq!(gate.enter(soon).await.unwrap_err(), Turned::Full);
        assert_eq!(gate.waiting(), u64::from(FEWEST_WAITING));
        drop(first);
        for task in waiting {
            drop(task.await.unwrap().unwrap());
        }
        assert!(gate.enter(soon).await.is_ok());
    }
}
