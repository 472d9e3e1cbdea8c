//! Whose turn it is: seats on which the requests of all packages run, shared out fairly.
//!
//! There are a few more than the machine has cores. While some are free a package takes as many as its
//! concurrency allows; when all are taken, the next free one goes to the package that has the fewest, and to
//! the one among those that has waited longest since its last turn. A package with none at all does not wait
//! for a free one: however many requests the others send, its first runs at once. Within a package they go in
//! the order of their coming.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::oneshot;

/// Seats for each core: some runs wait for a session, or for one another.
const SEATS_PER_CORE: usize = 2;

/// Fewest seats: a package's usual concurrency, twice.
const FEWEST_SEATS: usize = 4;

/// The seats of a process.
#[derive(Debug)]
pub struct Shares {
    state: Mutex<State>,
    seats: usize,
}

#[derive(Debug, Default)]
struct State {
    packages: BTreeMap<u64, Package>,
    taken: usize,
    /// Of packages, of requests and of turns: what comes later has a larger one.
    number: u64,
}

#[derive(Debug)]
struct Package {
    concurrency: usize,
    taken: usize,
    last: u64,
    waiting: BTreeMap<u64, oneshot::Sender<()>>,
}

impl Default for Shares {
    fn default() -> Self {
        Self::new(usual_seats())
    }
}

/// The seats of a process on this machine.
pub fn usual_seats() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores * SEATS_PER_CORE).max(FEWEST_SEATS)
}

/// The seats of this process.
pub fn own() -> &'static Arc<Shares> {
    static OWN: OnceLock<Arc<Shares>> = OnceLock::new();
    OWN.get_or_init(Arc::default)
}

impl Shares {
    /// So many seats.
    pub fn new(seats: usize) -> Self {
        Self { state: Mutex::default(), seats }
    }

    /// A package of which `concurrency` requests may run side by side.
    pub fn join(self: &Arc<Self>, concurrency: usize) -> Member {
        let mut state = self.state();
        let id = state.next();
        state.packages.insert(id, Package { concurrency, taken: 0, last: 0, waiting: BTreeMap::new() });
        drop(state);
        Member { shares: Arc::clone(self), id }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn free(&self, id: u64) {
        let mut state = self.state();
        state.taken -= 1;
        // A package may be gone before its last request is.
        if let Some(package) = state.packages.get_mut(&id) {
            package.taken -= 1;
        }
        state.share_out(self.seats);
    }
}

impl State {
    fn next(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    fn may(package: &Package, taken: usize, seats: usize) -> bool {
        package.taken < package.concurrency && (taken < seats || package.taken == 0)
    }

    /// Gives seats to those who wait, as long as there are any for them.
    fn share_out(&mut self, seats: usize) {
        loop {
            let taken = self.taken;
            let next = self
                .packages
                .values_mut()
                .filter(|package| !package.waiting.is_empty() && Self::may(package, taken, seats))
                .min_by_key(|package| (package.taken, package.last));
            let Some(package) = next else { return };
            let Some((_, first)) = package.waiting.pop_first() else { return };
            self.number += 1;
            (package.taken, package.last) = (package.taken + 1, self.number);
            self.taken += 1;
            // Whoever waited no longer gives the seat back: see `Waiting`.
            let _ = first.send(());
        }
    }
}

/// A package's part in the seats; its requests may outlive it.
#[derive(Debug)]
pub struct Member {
    shares: Arc<Shares>,
    id: u64,
}

impl Member {
    /// A seat, where nobody has to be waited for.
    pub fn free(&self) -> Option<Seat> {
        let mut state = self.shares.state();
        self.claim_of(&mut state)
    }

    /// A seat, at its turn. Dropping what this gives before that costs nobody his.
    pub async fn turn(&self) -> Seat {
        match self.claim() {
            Ok(seat) => seat,
            Err(waiting) => waiting.turn().await,
        }
    }

    fn claim(&self) -> Result<Seat, Waiting> {
        let mut state = self.shares.state();
        if let Some(seat) = self.claim_of(&mut state) {
            return Ok(seat);
        }
        let number = state.next();
        let (called, waiting) = oneshot::channel();
        // Members are in the list as long as they live.
        if let Some(package) = state.packages.get_mut(&self.id) {
            package.waiting.insert(number, called);
        }
        Err(Waiting { shares: Arc::clone(&self.shares), id: self.id, number: Some(number), called: waiting })
    }

    fn claim_of(&self, state: &mut State) -> Option<Seat> {
        let (number, taken) = (state.next(), state.taken);
        let package = state.packages.get_mut(&self.id)?;
        if !package.waiting.is_empty() || !State::may(package, taken, self.shares.seats) {
            return None;
        }
        (package.taken, package.last) = (package.taken + 1, number);
        state.taken += 1;
        Some(Seat { shares: Arc::clone(&self.shares), id: self.id })
    }

    /// Seats that it has now.
    #[cfg(test)]
    pub fn taken(&self) -> usize {
        self.shares.state().packages.get(&self.id).map_or(0, |package| package.taken)
    }

    /// How many wait for a seat, and whether one that came now would.
    pub fn crowd(&self) -> Crowd {
        let state = self.shares.state();
        let Some(package) = state.packages.get(&self.id) else { return Crowd::default() };
        let free = package.waiting.is_empty() && State::may(package, state.taken, self.shares.seats);
        Crowd { waiting: package.waiting.len(), free }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.shares.state().packages.remove(&self.id);
    }
}

/// What one that comes now finds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Crowd {
    /// Those who wait.
    pub waiting: usize,
    /// There is a seat.
    pub free: bool,
}

/// A place in the row. Gives back what it was called to and did not take.
struct Waiting {
    shares: Arc<Shares>,
    id: u64,
    number: Option<u64>,
    called: oneshot::Receiver<()>,
}

impl Waiting {
    async fn turn(mut self) -> Seat {
        if (&mut self.called).await.is_err() {
            // Nobody is going to call: whoever holds the package keeps it, so that this does not happen.
            return std::future::pending().await;
        }
        // Taken: nothing is to be given back.
        self.number = None;
        Seat { shares: Arc::clone(&self.shares), id: self.id }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let left = {
            let mut state = self.shares.state();
            state.packages.get_mut(&self.id).and_then(|package| package.waiting.remove(&number))
        };
        if left.is_none() && self.called.try_recv().is_ok() {
            self.shares.free(self.id);
        }
    }
}

/// A seat, free again when this is dropped.
#[derive(Debug)]
pub struct Seat {
    shares: Arc<Shares>,
    id: u64,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.shares.free(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    type Turn<'a> = Pin<Box<dyn Future<Output = Seat> + 'a>>;

    fn ask(member: &Member) -> Turn<'_> {
        let mut turn: Turn<'_> = Box::pin(member.turn());
        assert!(poll(&mut turn).is_none(), "it has to wait");
        turn
    }

    fn poll(turn: &mut Turn<'_>) -> Option<Seat> {
        match turn.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(seat) => Some(seat),
            Poll::Pending => None,
        }
    }

    fn now(member: &Member) -> Seat {
        let mut turn: Turn<'_> = Box::pin(member.turn());
        poll(&mut turn).expect("there is a seat")
    }

    #[test]
    fn a_free_seat_goes_to_whoever_has_fewest() {
        let shares = Arc::new(Shares::new(4));
        let (greedy, modest, third) = (shares.join(8), shares.join(8), shares.join(8));
        let mut seats: Vec<Seat> = (0..4).map(|_| now(&greedy)).collect();
        let more: Vec<Turn<'_>> = (0..4).map(|_| ask(&greedy)).collect();
        assert_eq!(greedy.crowd(), Crowd { waiting: 4, free: false });
        // Nobody's first waits, however full it is.
        let first = now(&modest);
        let mut second = ask(&modest);
        let _other = now(&third);
        let mut late = ask(&third);
        // Six sit on four seats: two that go make no room.
        seats.truncate(2);
        assert!(poll(&mut second).is_none() && poll(&mut late).is_none());
        // Whoever has none at all comes before those who wait longer.
        drop(first);
        let second = poll(&mut second).expect("its first");
        // All have one but the greedy one, which has two.
        drop(seats.pop());
        assert!(poll(&mut late).is_none());
        let mut more = more.into_iter();
        let mut next = more.next().expect("four");
        let third = poll(&mut next).expect("all have one, and this one's last turn was first");
        assert!(poll(&mut late).is_none());
        drop((second, third));
        assert!(poll(&mut late).is_some());
    }

    #[test]
    fn one_package_goes_in_order_and_within_its_concurrency() {
        let shares = Arc::new(Shares::new(100));
        let member = shares.join(2);
        let (one, two) = (now(&member), now(&member));
        let (mut third, mut fourth) = (ask(&member), ask(&member));
        drop(one);
        assert!(poll(&mut fourth).is_none());
        let third = poll(&mut third).expect("its turn");
        drop((two, third));
        assert!(poll(&mut fourth).is_some());
        assert_eq!(member.crowd(), Crowd { waiting: 0, free: true });
    }

    #[test]
    fn who_goes_away_costs_nobody_a_seat() {
        let shares = Arc::new(Shares::new(1));
        let member = shares.join(1);
        let seat = now(&member);
        let (gone, called, mut last) = (ask(&member), ask(&member), ask(&member));
        drop(gone);
        drop(seat);
        // It was called, and does not look any more.
        drop(called);
        let seat = poll(&mut last).expect("the seat came on");
        drop(last);
        // The package may be dropped before its request is.
        drop(member);
        drop(seat);
        let state = shares.state();
        assert_eq!((state.taken, state.packages.len()), (0, 0));
    }
}
