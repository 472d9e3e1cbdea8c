//! The sequences of one package: what each has kept, whose turn it is, and when it ends.
//!
//! One request of a sequence runs at a time, in the order in which they came; the others wait without taking a
//! place of those that run. What a sequence keeps is lost when it is taken and not kept again: by a trap, a missed
//! deadline, a panic. A request that never took it has changed nothing.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use selvedge_package::manifest;
use tokio::sync::watch;

use super::part::{Id, Part};
use super::turn::{Seat, Turn};
use crate::clock;

/// What a package keeps for a sequence; only the package knows what it is.
pub type State = Box<dyn Any + Send>;

/// Requests of one sequence, the running one included: a client that asks faster than it is answered.
const MOST_WAITING: usize = 16;

/// Ends that are remembered, to say why a sequence is not here any more.
const REMEMBERED: usize = 256;

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Its last request was answered.
    Last,
    /// No request came for so long.
    Idle(Duration),
    /// A request of it failed so that nothing of the state can be relied on, or its first one failed at all.
    Failed,
    /// The release that had it was taken out of service.
    Gone,
    /// A first request began it anew on the release that took over.
    Anew,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Last => f.write_str("a request ended it with `sequence_end`"),
            Self::Idle(time) => write!(f, "it ended after {} s without a request", time.as_secs_f64()),
            Self::Failed => f.write_str("a request of it failed, which ended it"),
            Self::Gone => f.write_str("the release that had it was taken out of service"),
            Self::Anew => f.write_str("it began anew on the release that took over"),
        }
    }
}

/// Why a request got no turn.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SequenceError {
    /// It goes on with a sequence that is not here.
    #[error(
        "there is no sequence `{id}`: {}; begin it with `sequence_start`",
        why.map_or_else(|| "no request began it here".to_owned(), |why| why.to_string())
    )]
    Unknown {
        /// Its id.
        id: String,
        /// Why it ended, if it did a short while ago.
        why: Option<Ended>,
    },
    /// No place for one more sequence.
    #[error(
        "the model keeps {0} sequences at once, and all are in use; end one with `sequence_end`, or try again later"
    )]
    TooMany(usize),
    /// None begins any more.
    #[error("the release is being taken out of service and begins no sequences; try again later")]
    Closed,
    /// No place for one more request.
    #[error("{MOST_WAITING} requests of sequence `{0}` are here; wait for an answer before the next")]
    Crowded(String),
    /// The deadline passed while others of the sequence ran.
    #[error("other requests of sequence `{0}` took until the deadline; try again later")]
    Late(String),
}

/// The sequences of a package.
#[derive(Clone)]
pub struct Sequences(Arc<Inner>);

pub(super) struct Inner {
    most: usize,
    idle: Duration,
    table: Mutex<Table>,
    live: watch::Sender<usize>,
    pub(super) begun: AtomicU64,
}

#[derive(Default)]
pub(super) struct Table {
    pub(super) entries: HashMap<Id, Entry>,
    ended: VecDeque<(Id, Ended)>,
    /// No sequence begins.
    closed: bool,
    /// A task waits for the next one to be idle for too long.
    pub(super) watched: bool,
}

/// What a sequence has kept, held by the request whose turn it is.
type Place = Arc<tokio::sync::Mutex<Option<State>>>;

pub(super) struct Entry {
    pub(super) place: Place,
    /// Requests that run or wait.
    pub(super) users: usize,
    /// When the last of them was over.
    pub(super) since: Instant,
    /// Nothing is kept any more when the running one is over, for this reason.
    pub(super) ending: Option<Ended>,
}

impl Sequences {
    /// None so far.
    pub fn new(bounds: &manifest::Sequences) -> Self {
        Self::within(bounds.most.max(1) as usize, Duration::from_secs(bounds.idle_seconds.into()))
    }

    fn within(most: usize, idle: Duration) -> Self {
        let (table, live) = (Mutex::default(), watch::Sender::new(0));
        Self(Arc::new(Inner { most, idle, table, live, begun: AtomicU64::new(0) }))
    }

    /// Waits for the request's turn, at most until `deadline`.
    pub async fn enter(&self, part: Part, deadline: Instant) -> Result<Turn, SequenceError> {
        let (place, seat) = self.0.admit(&part)?;
        let late = |_| SequenceError::Late(part.id_in_words());
        let mut state = tokio::time::timeout_at(deadline.into(), place.lock_owned()).await.map_err(late)?;
        // What is left of a sequence that has ended; dropped when the lock is not held any more.
        let mut rest = None;
        let refused = {
            let mut table = self.0.lock();
            let begins = part.first && !table.closed;
            let entry = table.entries.get_mut(&part.id);
            let ending = entry.and_then(|entry| if begins { entry.ending.take() } else { entry.ending });
            if let Some(why) = ending {
                rest = state.take();
                if rest.is_some() {
                    table.remember(part.id.clone(), why);
                }
            }
            match part.first {
                true if table.closed => Some(SequenceError::Closed),
                false if state.is_none() => Some(self.0.unknown(&table, &part)),
                _ => None,
            }
        };
        drop(rest);
        match refused {
            Some(error) => Err(error),
            None => Ok(Turn::new(state, part, seat)),
        }
    }

    /// Whether there is one of this id.
    pub fn has(&self, id: &Id) -> bool {
        self.0.lock().entries.contains_key(id)
    }

    /// How many there are, now and whenever that changes.
    pub fn live(&self) -> watch::Receiver<usize> {
        self.0.live.subscribe()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        *self.0.live.borrow()
    }

    /// How many have begun.
    pub fn begun(&self) -> u64 {
        self.0.begun.load(Ordering::Relaxed)
    }

    /// How long one is kept without a request.
    pub fn idle_time(&self) -> Duration {
        self.0.idle
    }

    /// Begins no more, and none goes on, until they are opened again. What they keep is still there: see
    /// [`Self::end_closed`].
    pub fn close(&self) {
        let mut table = self.0.lock();
        table.closed = true;
        table.entries.values_mut().for_each(|entry| entry.ending = Some(Ended::Gone));
    }

    /// Sequences may begin again.
    pub fn open_again(&self) {
        self.0.lock().closed = false;
    }

    /// Whether none begins.
    pub fn is_closed(&self) -> bool {
        self.0.lock().closed
    }

    /// Drops what those keep that do not go on, unless a request of them is here, which then does it. Takes the time
    /// that freeing their memory takes.
    pub fn end_closed(&self) {
        let mut table = self.0.lock();
        let idle = table.take(|entry| entry.ending.filter(|_| entry.users == 0));
        self.0.tell(&table);
        drop(table);
        drop(idle);
    }

    /// Ends all that there are: idle ones now, the others when the request that runs is over. None begins.
    pub fn end_all(&self) {
        self.close();
        self.end_closed();
    }

    /// Ends this one, if it is here, because it begins anew elsewhere.
    pub fn end(&self, id: &Id) {
        match self.0.lock().entries.get_mut(id) {
            Some(entry) => entry.ending = Some(Ended::Anew),
            None => return,
        }
        self.end_closed();
    }
}

impl Inner {
    pub(super) fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn tell(&self, table: &Table) {
        let count = table.entries.len();
        self.live.send_if_modified(|live| std::mem::replace(live, count) != count);
    }

    /// Finds the sequence, or makes it.
    fn admit(self: &Arc<Self>, part: &Part) -> Result<(Place, Seat), SequenceError> {
        let now = clock::now();
        // Dropped when the lock is not held any more.
        let _idle;
        let mut table = self.lock();
        _idle = self.sweep(&mut table, now);
        let (full, closed) = (table.entries.len() >= self.most, table.closed);
        let place = match table.entries.get_mut(&part.id) {
            Some(entry) if entry.users >= MOST_WAITING => {
                return Err(SequenceError::Crowded(part.id_in_words()));
            }
            Some(entry) => {
                entry.users += 1;
                Arc::clone(&entry.place)
            }
            None if !part.first => return Err(self.unknown(&table, part)),
            None if closed => return Err(SequenceError::Closed),
            None if full => return Err(SequenceError::TooMany(self.most)),
            None => {
                let place = Arc::default();
                let entry = Entry { place: Arc::clone(&place), users: 1, since: now, ending: None };
                table.entries.insert(part.id.clone(), entry);
                self.tell(&table);
                place
            }
        };
        drop(table);
        Ok((place, Seat::new(self, part.id.clone())))
    }

    fn unknown(&self, table: &Table, part: &Part) -> SequenceError {
        let why = table.ended.iter().rev().find(|(id, _)| *id == part.id).map(|(_, why)| *why);
        SequenceError::Unknown { id: part.id_in_words(), why }
    }

    /// Takes out what was idle for too long; it is to be dropped without the lock.
    pub(super) fn sweep(&self, table: &mut Table, now: Instant) -> Vec<Entry> {
        let over = |entry: &Entry| entry.users == 0 && now.duration_since(entry.since) >= self.idle;
        let idle = table.take(|entry| over(entry).then_some(Ended::Idle(self.idle)));
        if !idle.is_empty() {
            self.tell(table);
        }
        idle
    }

    /// When the next one will have been idle for too long, unless a request comes.
    pub(super) fn next_end(&self, table: &Table, now: Instant) -> Option<Instant> {
        let since = |entry: &Entry| if entry.users == 0 { entry.since } else { now };
        table.entries.values().map(since).min().map(|since| since + self.idle)
    }
}

impl Table {
    /// Takes out those for which there is a reason.
    fn take(&mut self, why: impl Fn(&Entry) -> Option<Ended>) -> Vec<Entry> {
        let over = self.entries.iter().filter_map(|(id, entry)| Some((id.clone(), why(entry)?)));
        let over: Vec<(Id, Ended)> = over.collect();
        over.into_iter()
            .filter_map(|(id, why)| {
                let entry = self.entries.remove(&id);
                self.remember(id, why);
                entry
            })
            .collect()
    }

    pub(super) fn remember(&mut self, id: Id, why: Ended) {
        self.ended.retain(|(other, _)| *other != id);
        if self.ended.len() == REMEMBERED {
            self.ended.pop_front();
        }
        self.ended.push_back((id, why));
    }
}

#[cfg(test)]
#[path = "kept_tests.rs"]
mod tests;
