//! Ends sequences that no request comes for, by a task that sleeps until the next one is due. Where there is no
//! sequence, there is no task.

use std::sync::{Arc, Weak};

use super::kept::Inner;
use crate::clock;

/// Has a task end those that no request comes for, unless one does. To be called without the lock. Where there is
/// no tokio, they end when the next request comes.
pub(super) fn watch(inner: &Arc<Inner>) {
    let Ok(tokio) = tokio::runtime::Handle::try_current() else { return };
    let wanted = {
        let mut table = inner.lock();
        !table.entries.is_empty() && !std::mem::replace(&mut table.watched, true)
    };
    if wanted {
        tokio.spawn(end_idle(Watching(Some(Arc::downgrade(inner)))));
    }
}

/// Says that a task watches. When that ends with its runtime, another may.
struct Watching(Option<Weak<Inner>>);

impl Watching {
    fn inner(&self) -> Option<Arc<Inner>> {
        self.0.as_ref()?.upgrade()
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        if let Some(inner) = self.inner() {
            inner.lock().watched = false;
        }
    }
}

async fn end_idle(mut watching: Watching) {
    // The sequences may go away with their package meanwhile: they are not held while this sleeps.
    while let Some(inner) = watching.inner() {
        let now = clock::now();
        let (idle, next) = {
            let mut table = inner.lock();
            let idle = inner.sweep(&mut table, now);
            let next = inner.next_end(&table, now);
            table.watched = next.is_some();
            (idle, next)
        };
        if !idle.is_empty() {
            tracing::debug!(sequences = idle.len(), "ended for want of requests");
            // Freeing memories takes its time.
            drop(tokio::task::spawn_blocking(move || drop(idle)).await);
        }
        drop(inner);
        let Some(next) = next else {
            // Another task may watch by now: this one has nothing more to say.
            watching.0 = None;
            return;
        };
        tokio::time::sleep_until(next.into()).await;
    }
}
