//! Who may stay connected: so many at once, and when one more comes, whoever has kept the server
//! waiting longest goes.
//!
//! A connection keeps the server waiting while it is idle, while a request comes in, and while an
//! answer is taken; only what the server itself works on is safe. So neither idle connections nor
//! slow ones keep others out for longer than [`LEAST_WAIT`], however many there are.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::clock;

/// Nobody is asked to go who has kept the server waiting for less.
pub const LEAST_WAIT: Duration = Duration::from_millis(500);

/// Time between two looks at who could go, where nobody can or one was asked to.
const AGAIN: Duration = Duration::from_millis(50);

/// Stands for a connection that the server works for.
const WORKING: u64 = u64::MAX;

/// Descriptors that are kept for everything but connections.
const OTHER_DESCRIPTORS: u64 = 256;

/// Raises this process's soft limit of descriptors as far as `connections` need it; gives how many
/// connections there may be. At least 16, so that a tiny limit is met as an error that says so.
pub fn allowed(connections: usize) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let needed = connections as u64 + OTHER_DESCRIPTORS;
    let limit = getrlimit(Resource::Nofile);
    let mut most = limit.current.unwrap_or(u64::MAX);
    if most < needed {
        let raised = needed.min(limit.maximum.unwrap_or(u64::MAX));
        if setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum: limit.maximum }).is_ok() {
            most = raised;
        }
    }
    let left = usize::try_from(most.saturating_sub(OTHER_DESCRIPTORS)).unwrap_or(usize::MAX);
    if left < connections {
        tracing::warn!(
            descriptors = most,
            connections = left.max(16),
            "fewer connections than usual may be open"
        );
    }
    left.clamp(16, connections.max(16))
}

/// All seats of one listener.
pub struct Seats {
    places: Arc<Semaphore>,
    taken: Arc<Taken>,
    start: Instant,
}

#[derive(Default)]
struct Taken {
    next: AtomicU64,
    seats: Mutex<BTreeMap<u64, Arc<State>>>,
}

struct State {
    /// Milliseconds after the listener's start at which the server began to wait, or [`WORKING`].
    waiting: AtomicU64,
    asked: AtomicBool,
    leave: Notify,
}

impl Taken {
    fn seats(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<State>>> {
        // Nothing panics while it holds the lock.
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seats {
    /// For `most` connections at once.
    pub fn new(most: usize) -> Self {
        Self { places: Arc::new(Semaphore::new(most)), taken: Arc::default(), start: clock::now() }
    }

    /// A seat, as soon as there is one.
    pub async fn take(&self) -> Seat {
        loop {
            if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
                return self.seat(place);
            }
            let patience = self.make_room();
            let place = tokio::time::timeout(patience, Arc::clone(&self.places).acquire_owned()).await;
            // The semaphore is never closed; if it were, nobody would get a seat.
            if let Ok(Ok(place)) = place {
                return self.seat(place);
            }
        }
    }

    fn seat(&self, place: OwnedSemaphorePermit) -> Seat {
        let number = self.taken.next.fetch_add(1, Ordering::Relaxed);
        let state = Arc::new(State {
            waiting: AtomicU64::new(self.now()),
            asked: AtomicBool::new(false),
            leave: Notify::new(),
        });
        self.taken.seats().insert(number, Arc::clone(&state));
        Seat { number, state, taken: Arc::clone(&self.taken), start: self.start, _place: place }
    }

    /// Asks whoever has kept the server waiting longest to go; says when to look again.
    pub fn make_room(&self) -> Duration {
        let now = self.now();
        let seats = self.taken.seats();
        let longest = seats
            .values()
            .filter(|seat| !seat.asked.load(Ordering::Relaxed))
            .min_by_key(|seat| seat.waiting.load(Ordering::Relaxed));
        let Some(longest) = longest else { return AGAIN };
        let since = longest.waiting.load(Ordering::Relaxed);
        if since == WORKING {
            return AGAIN;
        }
        let waited = Duration::from_millis(now.saturating_sub(since));
        if waited < LEAST_WAIT {
            return (LEAST_WAIT - waited).max(Duration::from_millis(1));
        }
        longest.asked.store(true, Ordering::Relaxed);
        longest.leave.notify_one();
        AGAIN
    }

    fn now(&self) -> u64 {
        since(self.start)
    }
}

fn since(start: Instant) -> u64 {
    u64::try_from(clock::now().duration_since(start).as_millis()).unwrap_or(WORKING - 1)
}

/// The seat of one connection, free again when this is dropped.
pub struct Seat {
    number: u64,
    state: Arc<State>,
    taken: Arc<Taken>,
    start: Instant,
    _place: OwnedSemaphorePermit,
}

impl Seat {
    /// Says, from wherever the request is, what the connection is doing.
    pub fn notes(&self) -> Notes {
        Notes { state: Arc::clone(&self.state), start: self.start }
    }

    /// Waits until the connection has to go for another one.
    pub async fn asked_to_leave(&self) {
        loop {
            self.state.leave.notified().await;
            if self.state.waiting.load(Ordering::Relaxed) != WORKING {
                return;
            }
            // It began to work meanwhile: somebody else goes.
            self.state.asked.store(false, Ordering::Relaxed);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.taken.seats().remove(&self.number);
    }
}

/// See [`Seat::notes`].
#[derive(Clone)]
pub struct Notes {
    state: Arc<State>,
    start: Instant,
}

impl Notes {
    /// The request is here: the server works on it.
    pub fn working(&self) {
        self.state.waiting.store(WORKING, Ordering::Relaxed);
    }

    /// The answer is ready: the server waits for the client again.
    pub fn waiting(&self) {
        self.state.waiting.store(since(self.start), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_longest_wait_goes_first_and_work_is_left_alone() {
        let seats = Arc::new(Seats::new(3));
        let (first, second, third) = (seats.take().await, seats.take().await, seats.take().await);
        first.notes().working();
        third.notes().waiting();
        let wanted = tokio::spawn({
            let seats = Arc::clone(&seats);
            async move { seats.take().await }
        });
        tokio::select! {
            () = second.asked_to_leave() => drop(second),
            () = first.asked_to_leave() => panic!("it works"),
            () = third.asked_to_leave() => panic!("it came after the second"),
        }
        let fourth = wanted.await.unwrap();
        fourth.notes().working();
        third.notes().working();
        // All work: one more waits until one has answered.
        assert_eq!(seats.make_room(), AGAIN);
        first.notes().waiting();
        let wanted = tokio::spawn({
            let seats = Arc::clone(&seats);
            async move { seats.take().await }
        });
        first.asked_to_leave().await;
        drop(first);
        wanted.await.unwrap();
    }

    #[tokio::test]
    async fn one_that_is_asked_as_it_begins_to_work_stays() {
        let seats = Seats::new(1);
        let seat = seats.take().await;
        while seats.make_room() != AGAIN {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        seat.notes().working();
        tokio::select! {
            biased;
            () = seat.asked_to_leave() => panic!("it works"),
            () = tokio::task::yield_now() => {}
        }
        assert!(!seat.state.asked.load(Ordering::Relaxed), "and can be asked again");
    }
}
