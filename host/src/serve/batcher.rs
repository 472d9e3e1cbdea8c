//! Requests that wait together run together, where the manifest says so.
//!
//! The first of a kind opens a group. It stays open for the delay that the manifest gives, and then until its
//! turn comes, so that under load it fills by itself. Who joins keeps a deadline of its own and may go away;
//! what is left when the turn comes is one run. Where that fails, each runs alone: no request pays for another.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use selvedge_package::manifest::Batching;
use tokio::sync::{Notify, oneshot};

use super::batch;
use super::counts::Ran;
use super::gate::{Place, Turn, Turned};
use super::predictor::{self, Predictor};
use super::served::Held;
use crate::clock;
use crate::deadline::Deadline;
use crate::failure::PredictError;
use crate::tensor::NamedTensor;

/// Runs that failed although each of their requests alone did not: after so many nothing is put together.
const MISTAKES: u32 = 3;

/// Tensors above this are put together on a thread that may block.
const JOINED_HERE: usize = 1 << 20;

/// Puts the requests of one package together.
#[derive(Debug)]
pub struct Batcher {
    most: u64,
    bytes: usize,
    delay: Duration,
    groups: Mutex<Groups>,
    mistakes: AtomicU32,
}

#[derive(Debug, Default)]
struct Groups {
    number: u64,
    open: Vec<Group>,
}

#[derive(Debug)]
struct Group {
    number: u64,
    rows: u64,
    bytes: usize,
    requests: Vec<Request>,
    /// The latest deadline of its requests.
    until: Instant,
    full: Arc<Notify>,
}

/// A request in a group.
#[derive(Debug)]
struct Request {
    inputs: Vec<NamedTensor>,
    rows: u64,
    place: Place,
    until: Instant,
    answer: oneshot::Sender<Ended>,
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
            mistakes: AtomicU32::new(0),
        }
    }

    /// The rows of a request that may run with others.
    pub fn rows(&self, inputs: &[NamedTensor]) -> Option<u64> {
        let rows = batch::rows(inputs).filter(|rows| *rows < self.most)?;
        (self.mistakes.load(Ordering::Relaxed) < MISTAKES).then_some(rows)
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
        let (answer, answered) = oneshot::channel();
        if let Some((number, full)) = self.join(Request { inputs, rows, place, until, answer }) {
            // Not the first one's own: it may go away, and the others stay.
            let model = model.again();
            tokio::spawn(async move {
                if let Some(batcher) = &model.batcher {
                    batcher.see_to(&model, number, &full).await;
                }
            });
        }
        let answered = tokio::time::timeout_at((until + predictor::STOPPED).into(), answered);
        match answered.await {
            Ok(Ok(ended)) => ended,
            Ok(Err(_)) => {
                never(PredictError::Internal("the requests that ran together panicked".to_owned()).into())
            }
            Err(_) => never(Turned::Late.into()),
        }
    }

    fn groups(&self) -> MutexGuard<'_, Groups> {
        // Nothing panics while it holds the lock.
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a request into an open group; gives the number of one that was opened for it.
    fn join(&self, request: Request) -> Option<(u64, Arc<Notify>)> {
        let bytes = batch::footprint(&request.inputs);
        let mut groups = self.groups();
        let fits = |group: &&mut Group| {
            group.rows + request.rows <= self.most
                && group.bytes.saturating_add(bytes) <= self.bytes
                && group.requests.first().is_some_and(|first| batch::alike(&first.inputs, &request.inputs))
        };
        if let Some(group) = groups.open.iter_mut().find(fits) {
            group.rows += request.rows;
            group.bytes += bytes;
            group.until = group.until.max(request.until);
            group.requests.push(request);
            if group.rows == self.most {
                group.full.notify_one();
            }
            return None;
        }
        groups.number += 1;
        let (number, full) = (groups.number, Arc::new(Notify::new()));
        groups.open.push(Group {
            number,
            rows: request.rows,
            bytes,
            until: request.until,
            requests: vec![request],
            full: Arc::clone(&full),
        });
        Some((number, full))
    }

    /// Waits for a group's turn and runs what is in it by then.
    async fn see_to(&self, model: &Held, number: u64, full: &Notify) {
        if !self.delay.is_zero() {
            // Full, or it waited long enough: both are fine.
            drop(tokio::time::timeout(self.delay, full.notified()).await);
        }
        let turn = loop {
            let until = self.until(number);
            match model.gate.turn(until).await {
                // Somebody came meanwhile who has more time.
                Err(_) if self.until(number) > until => {}
                turn => break turn,
            }
        };
        let requests = self.close(number);
        match turn {
            Ok(turn) => run(model, turn, requests).await,
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
        requests.retain(|request| !request.answer.is_closed() && request.until > now);
        requests
    }

    fn mistaken(&self, model: &Held, why: &str) {
        let mistakes = self.mistakes.fetch_add(1, Ordering::Relaxed) + 1;
        let package = model.manifest().name.as_str();
        tracing::warn!(package, why, mistakes, "requests failed together of which none failed alone");
        if mistakes == MISTAKES {
            tracing::warn!(package, "its requests are not put together any more, until it is loaded again");
        }
    }
}

/// Runs requests together, and each alone where that fails.
async fn run(model: &Held, turn: Turn, mut requests: Vec<Request>) {
    let Some(until) = requests.iter().map(|request| request.until).max() else { return };
    requests.iter_mut().for_each(|request| request.place.runs());
    if let [_] = requests.as_slice() {
        for request in requests {
            alone(model, Some(turn), request).await;
            return;
        }
        return;
    }
    let began = clock::now();
    let deadline = Deadline::new(until, model.deadline());
    let rows: Vec<u64> = requests.iter().map(|request| request.rows).collect();
    let inputs: Vec<_> = requests.iter_mut().map(|request| request.inputs.clone()).collect();
    let outputs = together(model, turn, inputs, &rows, deadline).await;
    match outputs {
        Ok(parts) => {
            for (request, outputs) in requests.into_iter().zip(parts) {
                let _ = request.answer.send(Ended { began, outputs: Ok(outputs) });
            }
        }
        // There is no time left for another try.
        Err(error @ PredictError::Deadline(_)) => {
            for request in requests {
                let _ = request.answer.send(Ended { began, outputs: Err(error.clone().into()) });
            }
        }
        Err(error) => {
            let tries = requests.into_iter().map(|request| alone(model, None, request));
            let all = futures_util::future::join_all(tries).await;
            if let (Some(batcher), true) = (&model.batcher, all.into_iter().all(|well| well)) {
                batcher.mistaken(model, &error.to_string());
            }
        }
    }
}

/// One run for all; gives each its part.
async fn together(
    model: &Held,
    turn: Turn,
    inputs: Vec<Vec<NamedTensor>>,
    rows: &[u64],
    deadline: Deadline,
) -> Result<Vec<Vec<NamedTensor>>, PredictError> {
    let wrong = PredictError::Internal;
    let start = clock::now();
    let bytes = inputs.iter().map(|inputs| batch::footprint(inputs)).sum();
    let joined = aside(bytes, move || batch::join(&inputs)).await?.map_err(wrong)?;
    let began = clock::now();
    let held = (turn, model.again());
    let outputs = predictor::ask(Arc::clone(&model.predictor), joined, deadline, held).await?;
    let answered = clock::now();
    let bytes = batch::footprint(&outputs);
    let parts = {
        let rows = rows.to_vec();
        aside(bytes, move || batch::split(&outputs, &rows)).await?
    };
    model.counts.ran(Ran {
        rows: rows.iter().sum(),
        input: began - start,
        infer: answered - began,
        output: clock::now() - answered,
    });
    parts.map_err(PredictError::Module)
}

/// One request by itself, at its own turn where it has none yet; whether it was answered.
async fn alone(model: &Held, turn: Option<Turn>, request: Request) -> bool {
    let Request { inputs, rows, place, until, answer } = request;
    let turn = match turn {
        Some(turn) => Ok(turn),
        None => model.gate.turn(until).await,
    };
    let began = clock::now();
    let outputs = match turn {
        Ok(turn) => {
            let package = Arc::clone(&model.predictor);
            by_itself(model, package, (turn, place), inputs, rows, until).await.map_err(Why::from)
        }
        Err(turned) => Err(turned.into()),
    };
    let well = outputs.is_ok();
    let _ = answer.send(Ended { began, outputs });
    well
}

/// A run of one request; counted where it gave an answer.
pub async fn by_itself(
    model: &Held,
    package: Arc<dyn Predictor>,
    (turn, mut place): (Turn, Place),
    inputs: Vec<NamedTensor>,
    rows: u64,
    until: Instant,
) -> Result<Vec<NamedTensor>, PredictError> {
    place.runs();
    let (began, deadline) = (clock::now(), Deadline::new(until, model.deadline()));
    let held = (turn, place, model.again());
    let outputs = predictor::ask(package, inputs, deadline, held).await?;
    model.counts.ran(Ran { rows, infer: clock::now() - began, ..Ran::default() });
    Ok(outputs)
}

/// Does the work here where there is little of it.
async fn aside<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, PredictError> {
    if bytes <= JOINED_HERE {
        return Ok(work());
    }
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| PredictError::Internal("the host's log says more".to_owned()))
}
