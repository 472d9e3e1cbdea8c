//! How many requests of one package run, how many may wait for that, and which need not even try.
//!
//! A request that finds no place to wait is turned away at once, and so is one that by all that is known
//! cannot have its turn in time; one whose deadline passes while it waits has cost nothing but the wait. The
//! turns of all packages are shared out by [`Shares`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use selvedge_package::manifest::Module;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::body::Reserved;
use super::reserve;
use super::shares::{Member, Seat, Shares};
use crate::clock;

/// Runs before it is believed how long one takes.
const KNOWN: u64 = 8;

/// What is told to who should try again, at least and at most.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Bounds the requests of one package.
#[derive(Debug)]
pub struct Gate {
    /// Running and waiting together.
    places: Arc<Semaphore>,
    waiting: Arc<AtomicU64>,
    member: Member,
    /// Bodies that are being made ready to be read.
    readying: Arc<Semaphore>,
    concurrency: u32,
    pace: Arc<Pace>,
}

/// Why a request did not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turned {
    /// No place to wait; there may be one after this.
    Full(Duration),
    /// Its turn comes after its deadline; trying again makes sense after this.
    Hopeless(Duration),
    /// Waited until its deadline.
    Late,
}

/// A request that was let in: it waits until it has a turn.
#[derive(Debug)]
pub struct Place {
    _permit: OwnedSemaphorePermit,
    waiting: Option<Arc<AtomicU64>>,
    memory: Option<Reserved>,
}

impl Place {
    /// Holds the memory of its inputs, too, which may be needed for longer than their client waits.
    pub fn hold(&mut self, memory: &Reserved) {
        self.memory = Some(memory.clone());
    }

    /// It runs, by itself or together with others: nobody waits any more.
    pub fn runs(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.runs();
    }
}

/// See [`Gate::ready`].
#[derive(Debug)]
pub struct Leave {
    _permit: OwnedSemaphorePermit,
    _place: Place,
}

/// One run. Dropping it lets the next one begin.
#[derive(Debug)]
pub struct Turn {
    pace: Arc<Pace>,
    began: Instant,
    _seat: Seat,
}

impl Turn {
    /// When it began.
    pub fn began(&self) -> Instant {
        self.began
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.pace.learn(clock::now().duration_since(self.began));
    }
}

impl Gate {
    /// As a package's manifest says.
    pub fn new(module: &Module, shares: &Arc<Shares>) -> Self {
        let concurrency = module.concurrency.clamp(1, 1024);
        // All that run together hold their places.
        let running = concurrency as usize * module.batching.map_or(1, |batching| batching.max_size as usize);
        Self {
            places: Arc::new(Semaphore::new(running + module.queue() as usize)),
            waiting: Arc::default(),
            member: shares.join(concurrency as usize),
            readying: Arc::new(Semaphore::new(reserve::serving_threads().max(concurrency as usize))),
            concurrency,
            pace: Arc::default(),
        }
    }

    /// A place to wait, if there is one.
    pub fn place(&self) -> Result<Place, Turned> {
        let permit = Arc::clone(&self.places).try_acquire_owned();
        let permit = permit.map_err(|_| Turned::Full(self.again()))?;
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Ok(Place { _permit: permit, waiting: Some(Arc::clone(&self.waiting)), memory: None })
    }

    /// Whether a request would be turned away now; there may be a place after this.
    pub fn full(&self) -> Option<Duration> {
        (self.places.available_permits() == 0).then(|| self.again())
    }

    /// Requests that run now.
    #[cfg(test)]
    pub fn running(&self) -> usize {
        self.member.taken()
    }

    /// Requests that wait for their turn now.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Waits for a turn, at most until `deadline`. Whoever cannot have it by then is told at once.
    pub async fn turn(&self, deadline: Instant) -> Result<Turn, Turned> {
        let now = clock::now();
        let (began, seat) = match self.member.free().filter(|_| now < deadline) {
            Some(seat) => (now, seat),
            None => {
                self.hopeful(deadline)?;
                let waiting = tokio::time::timeout_at(deadline.into(), self.member.turn());
                let seat = waiting.await.map_err(|_| Turned::Late)?;
                (clock::now(), seat)
            }
        };
        Ok(Turn { pace: Arc::clone(&self.pace), began, _seat: seat })
    }

    /// Whether one that comes now can have a turn by `deadline`, as far as is known.
    pub fn hopeful(&self, deadline: Instant) -> Result<(), Turned> {
        let left = deadline.saturating_duration_since(clock::now());
        match self.least_wait().filter(|least| *least > left) {
            _ if left.is_zero() => Err(Turned::Late),
            Some(least) => Err(Turned::Hopeless(bounded(least))),
            None => Ok(()),
        }
    }

    /// Leave to work on a body before it can be asked: as many side by side as threads serve or as may run, whichever
    /// is more, and the others wait as requests do, at most until `deadline`.
    pub async fn ready(&self, deadline: Instant) -> Result<Leave, Turned> {
        let place = self.place()?;
        let permit = Arc::clone(&self.readying).acquire_owned();
        match tokio::time::timeout_at(deadline.into(), permit).await {
            Ok(Ok(permit)) => Ok(Leave { _permit: permit, _place: place }),
            // The semaphore is never closed; if it were, nobody would get leave.
            Ok(Err(_)) | Err(_) => Err(Turned::Late),
        }
    }

    /// The time that one who comes now has to wait, at least: the runs before it, at twice their usual pace.
    fn least_wait(&self) -> Option<Duration> {
        let crowd = self.member.crowd();
        let pace = self.pace.known().filter(|_| !crowd.free)?;
        Some(pace * u32::try_from(crowd.waiting).unwrap_or(u32::MAX) / self.concurrency / 2)
    }

    /// When there is likely to be room.
    fn again(&self) -> Duration {
        let waiting = u32::try_from(self.member.crowd().waiting).unwrap_or(u32::MAX);
        let pace = self.pace.known().unwrap_or_default();
        bounded(pace.saturating_mul(waiting) / self.concurrency)
    }
}

fn bounded(again: Duration) -> Duration {
    again.clamp(AGAIN.0, AGAIN.1)
}

/// How long a run takes: a moving average.
#[derive(Debug, Default)]
struct Pace {
    runs: AtomicU64,
    micros: AtomicU64,
}

impl Pace {
    /// Of two that learn at once one may be lost, which changes little.
    fn learn(&self, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX / 2);
        let runs = self.runs.fetch_add(1, Ordering::Relaxed);
        let before = self.micros.load(Ordering::Relaxed);
        let weight = (runs + 1).min(KNOWN);
        self.micros.store(before - before / weight + took / weight, Ordering::Relaxed);
    }

    fn known(&self) -> Option<Duration> {
        let known = self.runs.load(Ordering::Relaxed) >= KNOWN;
        known.then(|| Duration::from_micros(self.micros.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(concurrency: u32, queue: u32) -> Arc<Gate> {
        let module = Module { concurrency, queue: Some(queue), ..Module::default() };
        Arc::new(Gate::new(&module, &Arc::new(Shares::new(100))))
    }

    fn soon() -> Instant {
        clock::now() + Duration::from_millis(10)
    }

    /// Late enough on any machine.
    fn in_time() -> Instant {
        clock::now() + Duration::from_secs(60)
    }

    #[tokio::test]
    async fn runs_so_many_and_lets_so_many_wait() {
        let gate = gate(1, 3);
        let mut place = gate.place().unwrap();
        let first = gate.turn(in_time()).await.unwrap();
        place.runs();
        assert_eq!(gate.waiting(), 0);
        assert_eq!(gate.turn(soon()).await.unwrap_err(), Turned::Late);
        let late = in_time();
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let (gate, place) = (Arc::clone(&gate), gate.place().unwrap());
                tokio::spawn(async move { (gate.turn(late).await, place) })
            })
            .collect();
        assert_eq!(gate.place().unwrap_err(), Turned::Full(AGAIN.0));
        assert_eq!((gate.full(), gate.waiting()), (Some(AGAIN.0), 3));
        drop((first, place));
        for task in waiting {
            let (turn, place) = task.await.unwrap();
            drop((turn.unwrap(), place));
        }
        assert_eq!((gate.full(), gate.waiting()), (None, 0));
        assert!(gate.turn(in_time()).await.is_ok());
    }

    #[tokio::test]
    async fn bodies_are_made_ready_on_all_processors_whatever_runs() {
        let threads = reserve::serving_threads();
        for (concurrency, together) in [(1, threads), (threads as u32 + 3, threads + 3)] {
            let gate = gate(concurrency, 1000);
            let mut leaves = Vec::new();
            for _ in 0..together {
                leaves.push(gate.ready(in_time()).await.unwrap());
            }
            assert_eq!(gate.ready(soon()).await.unwrap_err(), Turned::Late);
            let turn = gate.turn(in_time()).await.unwrap();
            leaves.pop();
            assert!(gate.ready(in_time()).await.is_ok());
            drop(turn);
        }
        let gate = gate(1, 0);
        let _one = gate.ready(in_time()).await.unwrap();
        assert!(matches!(gate.ready(soon()).await, Err(Turned::Full(_))), "no more than places");
    }

    #[tokio::test]
    async fn who_cannot_have_a_turn_in_time_is_told_at_once_and_when_to_come_again() {
        let gate = gate(2, 100);
        for _ in 0..KNOWN {
            gate.pace.learn(Duration::from_secs(10));
        }
        let _running = (gate.turn(in_time()).await.unwrap(), gate.turn(in_time()).await.unwrap());
        let late = clock::now() + Duration::from_secs(3600);
        let _waiting: Vec<_> = (0..4)
            .map(|_| {
                let gate = Arc::clone(&gate);
                tokio::spawn(async move { gate.turn(late).await.map(drop) })
            })
            .collect();
        while gate.member.crowd().waiting < 4 {
            tokio::task::yield_now().await;
        }
        // Four wait before it, two run side by side: 20 s, and 10 s if all are twice as fast.
        let refused = gate.turn(clock::now() + Duration::from_secs(9)).await.unwrap_err();
        assert_eq!(refused, Turned::Hopeless(Duration::from_secs(10)));
        assert_eq!(gate.again(), Duration::from_secs(20));
        // One that may make it waits.
        let waits = tokio::time::timeout(
            Duration::from_millis(20),
            gate.turn(clock::now() + Duration::from_secs(11)),
        );
        assert!(waits.await.is_err());
    }

    #[test]
    fn an_average_follows_what_is_and_one_run_proves_nothing() {
        let pace = Pace::default();
        pace.learn(Duration::from_secs(60));
        assert_eq!(pace.known(), None);
        for _ in 0..100 {
            pace.learn(Duration::from_millis(1));
        }
        assert!(pace.known().unwrap() < Duration::from_millis(3), "{:?}", pace.known());
        pace.learn(Duration::MAX);
        pace.learn(Duration::MAX);
    }
}
