//! What happened without being asked for, kept for those who ask late and waited for by those who
//! ask early. Bounded: who asks too late misses the oldest.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use selvedge_control::{Event, Events, PackageRef};
use tokio::sync::watch;

/// Events that are kept.
const KEPT: usize = 256;

/// Events, numbered from 1.
#[derive(Debug)]
pub struct Journal {
    kept: Mutex<VecDeque<Event>>,
    newest: watch::Sender<u64>,
}

impl Default for Journal {
    fn default() -> Self {
        Self { kept: Mutex::default(), newest: watch::Sender::new(0) }
    }
}

impl Journal {
    /// Adds an event and wakes those who wait.
    pub fn add(&self, package: PackageRef, what: String, fatal: bool) -> Event {
        let event = {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            let number = *self.newest.borrow() + 1;
            let event = Event { number, package, what, fatal };
            if kept.len() == KEPT {
                kept.pop_front();
            }
            kept.push_back(event.clone());
            self.newest.send_replace(number);
            event
        };
        let (name, what) = (&event.package.name, &event.what);
        if fatal {
            tracing::warn!(package = %name, fatal, %what, "event");
        } else {
            tracing::info!(package = %name, %what, "event");
        }
        event
    }

    /// Events newer than `since`, waiting for one at most for `patience`. A `since` above the newest
    /// comes from the time before a restart: everything is new then.
    pub async fn since(&self, since: u64, patience: Duration) -> Events {
        let mut newest = self.newest.subscribe();
        let news = newest.wait_for(|&newest| newest != since);
        drop(tokio::time::timeout(patience, news).await);
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let last = *self.newest.borrow();
        let since = if since > last { 0 } else { since };
        let events = kept.iter().filter(|event| event.number > since).cloned().collect();
        Events { last, events }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_package::Digest;
    use std::sync::Arc;

    fn package() -> PackageRef {
        PackageRef { name: "m".parse().unwrap(), digest: Digest::of(b"") }
    }

    /// Long enough to be there when an event comes, short enough to wait for none.
    const PATIENCE: Duration = Duration::from_millis(200);

    async fn numbers(journal: &Journal, since: u64) -> (u64, Vec<u64>) {
        let patience = if since == 2 { PATIENCE * 100 } else { PATIENCE };
        let events = journal.since(since, patience).await;
        (events.last, events.events.iter().map(|event| event.number).collect())
    }

    #[tokio::test]
    async fn gives_what_is_newer_and_waits_for_it() {
        let journal = Arc::new(Journal::default());
        assert_eq!(numbers(&journal, 0).await, (0, vec![]));
        journal.add(package(), "a".to_owned(), false);
        journal.add(package(), "b".to_owned(), false);
        assert_eq!(numbers(&journal, 0).await, (2, vec![1, 2]));
        assert_eq!(numbers(&journal, 1).await, (2, vec![2]));
        assert_eq!(numbers(&journal, 7).await, (2, vec![1, 2]), "after a restart");
        let waiting = tokio::spawn({
            let journal = Arc::clone(&journal);
            async move { numbers(&journal, 2).await }
        });
        tokio::task::yield_now().await;
        journal.add(package(), "c".to_owned(), true);
        assert_eq!(waiting.await.unwrap(), (3, vec![3]));
    }

    #[tokio::test]
    async fn keeps_a_bounded_number() {
        let journal = Journal::default();
        for _ in 0..KEPT + 10 {
            journal.add(package(), String::new(), false);
        }
        let (last, numbers) = numbers(&journal, 0).await;
        assert_eq!((last, numbers.len(), numbers[0]), (KEPT as u64 + 10, KEPT, 11));
    }
}
