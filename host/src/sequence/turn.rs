//! A request's turn in its sequence, and its place among those that wait for theirs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::OwnedMutexGuard;

use super::idle;
use super::kept::{Ended, Inner, State};
use super::part::{Id, Part};
use crate::clock;

/// A request's place among those of its sequence.
pub(super) struct Seat {
    inner: Arc<Inner>,
    id: Id,
}

impl Seat {
    /// A seat that is counted already.
    pub(super) fn new(inner: &Arc<Inner>, id: Id) -> Self {
        Self { inner: Arc::clone(inner), id }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // What is left of one that has ended; dropped when the lock is not held any more.
        let mut rest = None;
        {
            let mut table = self.inner.lock();
            let Some(entry) = table.entries.get_mut(&self.id) else { return };
            entry.users -= 1;
            entry.since = clock::now();
            let empty = entry.place.try_lock().is_ok_and(|state| state.is_none());
            let ending = entry.ending;
            if entry.users == 0 && (empty || ending.is_some()) {
                rest = table.entries.remove(&self.id);
                if let (Some(why), false) = (ending, empty) {
                    table.remember(self.id.clone(), why);
                }
                self.inner.tell(&table);
            }
        }
        drop(rest);
        idle::watch(&self.inner);
    }
}

/// A request's turn: no other of its sequence runs. Dropping it before [`Turn::take`] leaves everything as it was,
/// and afterwards, without [`Turn::keep`], it ends the sequence.
pub struct Turn {
    state: OwnedMutexGuard<Option<State>>,
    /// How the sequence has ended, unless something is kept.
    taken: Option<Ended>,
    part: Part,
    // Dropped last, when the next one can have its turn.
    seat: Seat,
}

impl Turn {
    pub(super) fn new(state: OwnedMutexGuard<Option<State>>, part: Part, seat: Seat) -> Self {
        Self { state, taken: None, part, seat }
    }

    /// The request's place in the sequence.
    pub fn part(&self) -> &Part {
        &self.part
    }

    /// What the sequence has kept; nothing where it begins.
    pub fn take(&mut self) -> Option<State> {
        self.taken = Some(Ended::Failed);
        let state = self.state.take();
        if self.part.first {
            self.seat.inner.begun.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        state
    }

    /// Keeps the state for the next request, unless this one is the last.
    pub fn keep(mut self, state: State) {
        let ending = {
            let table = self.seat.inner.lock();
            table.entries.get(&self.seat.id).map_or(Some(Ended::Gone), |entry| entry.ending)
        };
        match (self.part.last, ending) {
            (true, _) => self.taken = Some(Ended::Last),
            (false, Some(why)) => self.taken = Some(why),
            (false, None) => {
                *self.state = Some(state);
                self.taken = None;
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(why) = self.taken {
            self.seat.inner.lock().remember(self.seat.id.clone(), why);
        }
    }
}
