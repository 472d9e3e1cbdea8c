//! Requests that wait together run together, where the manifest says so.
//!
//! The first of a kind opens a group. It stays open for the delay that the manifest gives, and then until its
//! turn comes, so that under load it fills by itself. Who joins keeps a deadline of its own and may go away;
//! what is left when the turn comes runs together (`joint`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use selvedge_package::manifest::Batching;
use tokio::sync::{Notify, oneshot};

use super::batch;
use super::gate::{Place, Turned};
use super::joint;
use super::predictor;
use super::served::Held;
use crate::clock;
use crate::failure::PredictError;
use crate::tensor::NamedTensor;

/// Good runs after which groups that were made smaller may be twice as large again.
const GOOD: u64 = 64;

/// Takes a request out of the group that it waits in when nobody waits for its answer.
struct Out<'a> {
    batcher: &'a Batcher,
    number: u64,
    runs: Runs,
}

impl Drop for Out<'_> {
    fn drop(&mut self) {
        let waits = self.runs.lock().unwrap_or_else(PoisonError::into_inner).is_none();
        if waits {
            self.batcher.leave(self.number);
        }
    }
}

/// Puts the requests of one package together.
#[derive(Debug)]
pub struct Batcher {
    most: u64,
    bytes: usize,
    delay: Duration,
    groups: Mutex<Groups>,
    /// Rows of a run now: halved when the package fails together what it does not fail alone.
    now: AtomicU64,
    /// Good runs since that changed last.
    good: AtomicU64,
}

#[derive(Debug, Default)]
struct Groups {
    number: u64,
    open: Vec<Group>,
}

impl Groups {
    /// For a group or a request.
    fn next(&mut self) -> u64 {
        self.number += 1;
        self.number
    }
}

#[derive(Debug)]
struct Group {
    number: u64,
    rows: u64,
    bytes: usize,
    requests: Vec<Request>,
    /// The latest deadline of its requests.
    until: Instant,
    signals: Arc<Signals>,
}

/// What a group's task is told.
#[derive(Debug, Default)]
struct Signals {
    full: Notify,
    /// Everybody went away.
    empty: Notify,
}

/// A request in a group.
#[derive(Debug)]
pub(super) struct Request {
    number: u64,
    pub(super) inputs: Vec<NamedTensor>,
    pub(super) rows: u64,
    pub(super) place: Place,
    pub(super) until: Instant,
    pub(super) answer: oneshot::Sender<Ended>,
    runs: Runs,
}

/// How a request runs by now, and since when; for who waits for its answer.
type Runs = Arc<Mutex<Option<(Instant, Run)>>>;

/// See [`Runs`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Run {
    /// By itself, with all the time that it has.
    Alone,
    /// With others, or in a part of its time, so that others have theirs.
    Together,
}

impl Request {
    /// Says to who waits that it runs.
    pub(super) fn begins(&self, began: Instant, run: Run) {
        *self.runs.lock().unwrap_or_else(PoisonError::into_inner) = Some((began, run));
    }
}

/// How a request ended.
#[derive(Debug)]
pub struct Ended {
    /// When its run began.
    pub began: Instant,
    /// Its outputs, or why there are none.
    pub outputs: Result<Vec<NamedTensor>, Why>,
}

/// Why there are no outputs.
#[derive(Debug, Clone)]
pub enum Why {
    /// It had no turn.
    Turned(Turned),
    /// Its run failed.
    Failed(PredictError),
    /// Its time was over before it had been asked for by itself, with time of its own.
    Untried,
}

impl From<Turned> for Why {
    fn from(turned: Turned) -> Self {
        Self::Turned(turned)
    }
}

impl From<PredictError> for Why {
    fn from(error: PredictError) -> Self {
        Self::Failed(error)
    }
}

impl Batcher {
    /// As a manifest says, for tensors of at most `bytes` together.
    pub fn new(batching: Batching, bytes: usize) -> Self {
        Self {
            most: batching.max_size.into(),
            bytes,
            delay: Duration::from_millis(batching.max_delay_ms.into()),
            groups: Mutex::default(),
            now: AtomicU64::new(batching.max_size.into()),
            good: AtomicU64::new(0),
        }
    }

    /// The rows of a request that may run with others.
    pub fn rows(&self, inputs: &[NamedTensor]) -> Option<u64> {
        batch::rows(inputs).filter(|rows| *rows < self.now.load(Ordering::Relaxed))
    }

    /// Asks `model`, whose batcher this is, together with whoever else asks the like.
    pub async fn ask(
        &self,
        model: &Held,
        inputs: Vec<NamedTensor>,
        rows: u64,
        place: Place,
        until: Instant,
    ) -> Ended {
        let never = |why| Ended { began: clock::now(), outputs: Err(why) };
        if let Err(turned) = model.gate.hopeful(until) {
            return never(turned.into());
        }
        let inputs = batch::ordered(&model.manifest().inputs, inputs);
        let (answer, mut answered) = oneshot::channel();
        let runs = Runs::default();
        let number = self.groups().next();
        let request = Request { number, inputs, rows, place, until, answer, runs: Arc::clone(&runs) };
        // From here on it is in a group, and out of it when nobody waits any more.
        let _out = Out { batcher: self, number, runs: Arc::clone(&runs) };
        if let Some((number, signals)) = self.join(request) {
            // Not the first one's own: it may go away, and the others stay.
            let model = model.again();
            tokio::spawn(async move {
                if let Some(batcher) = &model.batcher {
                    batcher.see_to(&model, number, &signals).await;
                }
            });
        }
        let runs = || *runs.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ended = tokio::time::timeout_at(until.into(), &mut answered).await;
        if ended.is_err() && runs().is_some() {
            // Its run is told to stop and keeps time itself; this is for one that others go on with.
            ended = tokio::time::timeout_at((until + 2 * predictor::STOPPED).into(), answered).await;
        }
        match (ended, runs()) {
            (Ok(Ok(ended)), _) => ended,
            (Ok(Err(_)), _) => {
                never(PredictError::Internal("the requests that ran together panicked".to_owned()).into())
            }
            (Err(_), None) => never(Turned::Late.into()),
            (Err(_), Some((began, Run::Together))) => Ended { began, outputs: Err(Why::Untried) },
            (Err(_), Some((began, Run::Alone))) => {
                Ended { began, outputs: Err(PredictError::Deadline(until - began).into()) }
            }
        }
    }

    fn groups(&self) -> MutexGuard<'_, Groups> {
        // Nothing panics while it holds the lock.
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a request into an open group; gives the number of one that was opened for it.
    fn join(&self, request: Request) -> Option<(u64, Arc<Signals>)> {
        let bytes = batch::footprint(&request.inputs);
        let most = self.now.load(Ordering::Relaxed);
        let mut groups = self.groups();
        let fits = |group: &&mut Group| {
            group.rows + request.rows <= most
                && group.bytes.saturating_add(bytes) <= self.bytes
                && group.requests.first().is_some_and(|first| batch::alike(&first.inputs, &request.inputs))
        };
        if let Some(group) = groups.open.iter_mut().find(fits) {
            group.rows += request.rows;
            group.bytes += bytes;
            group.until = group.until.max(request.until);
            group.requests.push(request);
            if group.rows >= most {
                group.signals.full.notify_one();
            }
            return None;
        }
        let (number, signals) = (groups.next(), Arc::new(Signals::default()));
        groups.open.push(Group {
            number,
            rows: request.rows,
            bytes,
            until: request.until,
            requests: vec![request],
            signals: Arc::clone(&signals),
        });
        Some((number, signals))
    }

    /// Takes a request out of its group, where it waits in one still.
    fn leave(&self, number: u64) {
        let mut groups = self.groups();
        let place = groups.open.iter().enumerate().find_map(|(at, group)| {
            let within = group.requests.iter().position(|request| request.number == number)?;
            Some((at, within))
        });
        let Some((at, within)) = place else { return };
        let Some(group) = groups.open.get_mut(at) else { return };
        let gone = group.requests.remove(within);
        group.rows -= gone.rows;
        group.bytes -= batch::footprint(&gone.inputs);
        match group.requests.iter().map(|request| request.until).max() {
            Some(until) => group.until = until,
            None => {
                group.signals.empty.notify_one();
                groups.open.swap_remove(at);
            }
        }
    }

    /// Waits for a group's turn and runs what is in it by then.
    async fn see_to(&self, model: &Held, number: u64, signals: &Signals) {
        if !self.delay.is_zero() {
            // Full, or it waited long enough: both are fine.
            tokio::select! {
                _ = tokio::time::timeout(self.delay, signals.full.notified()) => {}
                () = signals.empty.notified() => return,
            }
        }
        let turn = loop {
            let until = self.until(number);
            let turn = tokio::select! {
                biased;
                () = signals.empty.notified() => return,
                turn = model.gate.turn(until) => turn,
            };
            match turn {
                // Somebody came meanwhile who has more time.
                Err(_) if self.until(number) > until => {}
                turn => break turn,
            }
        };
        let requests = self.close(number);
        match turn {
            Ok(turn) => joint::run(model, turn, requests).await,
            Err(turned) => {
                for request in requests {
                    let ended = Ended { began: clock::now(), outputs: Err(turned.into()) };
                    // Whoever asked may be gone.
                    let _ = request.answer.send(ended);
                }
            }
        }
    }

    fn until(&self, number: u64) -> Instant {
        let groups = self.groups();
        let group = groups.open.iter().find(|group| group.number == number);
        group.map_or_else(clock::now, |group| group.until)
    }

    /// Takes a group out: those in it who still wait.
    fn close(&self, number: u64) -> Vec<Request> {
        let mut groups = self.groups();
        let Some(at) = groups.open.iter().position(|group| group.number == number) else { return Vec::new() };
        let mut requests = groups.open.swap_remove(at).requests;
        drop(groups);
        let now = clock::now();
        requests.retain(|request| !request.answer.is_closed());
        let (late, requests): (Vec<_>, Vec<_>) = requests.into_iter().partition(|it| it.until <= now);
        for request in late {
            let _ = request.answer.send(Ended { began: now, outputs: Err(Turned::Late.into()) });
        }
        requests
    }

    /// A run failed that had several requests, as none of them does.
    pub(super) fn mistaken(&self, model: &Held, why: &str) {
        let halved = |now: u64| Some((now / 2).max(1));
        let before = self.now.fetch_update(Ordering::Relaxed, Ordering::Relaxed, halved);
        self.good.store(0, Ordering::Relaxed);
        let (package, rows) = (model.manifest().name.as_str(), (before.unwrap_or(1) / 2).max(1));
        tracing::warn!(
            package,
            why,
            rows,
            "requests failed together and not alone: fewer rows run together now"
        );
    }

    /// A run was answered, of several requests or, while nothing is put together, of one.
    pub(super) fn went_well(&self, together: bool) {
        let now = self.now.load(Ordering::Relaxed);
        if now >= self.most || !(together || now == 1) {
            return;
        }
        if self.good.fetch_add(1, Ordering::Relaxed) + 1 >= GOOD {
            self.good.store(0, Ordering::Relaxed);
            self.now.store((now * 2).min(self.most), Ordering::Relaxed);
        }
    }
}
