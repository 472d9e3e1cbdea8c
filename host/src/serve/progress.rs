//! Whether a client gets on with the head of its request: looked at now and then, since a timer for each request would
//! cost more than reading it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What happened on a connection, counted: odd while the server has a request to answer.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<AtomicU64>);

impl Progress {
    /// The head of a request is here.
    pub fn begins(&self) {
        self.0.fetch_or(1, Ordering::Relaxed);
    }

    /// Its answer is ready.
    pub fn answered(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// A part of an answer was taken.
    pub fn taken(&self) {
        self.0.fetch_add(2, Ordering::Relaxed);
    }

    /// Waits until the server has waited for a head for `time`, and for less than twice that.
    pub async fn stalled(&self, time: Duration) {
        let mut seen = Some(self.count());
        while let Some(before) = seen {
            tokio::time::sleep(time).await;
            seen = self.since(before);
        }
    }

    /// What happened so far, unless the server has waited for a head ever since it was `before`.
    fn since(&self, before: u64) -> Option<u64> {
        let now = self.count();
        (now != before || now % 2 == 1).then_some(now)
    }

    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_who_lets_the_server_wait_for_a_head_has_stalled() {
        let progress = Progress::default();
        progress.stalled(Duration::from_millis(1)).await;
        progress.begins();
        let working = progress.since(0).expect("a head came");
        assert_eq!(progress.since(working), Some(working), "the server works on it");
        progress.taken();
        let taking = progress.since(working).expect("a part of its answer was taken");
        progress.answered();
        let answered = progress.since(taking).expect("it was answered");
        assert_eq!(progress.since(answered), None, "it waits for the next one");
        progress.taken();
        assert!(progress.since(answered).is_some(), "the client takes its answer still");
    }
}
