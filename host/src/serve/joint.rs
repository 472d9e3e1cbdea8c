//! The run of a group of requests: one for all, in half of the time that there is. Where that fails, its halves run
//! at the same turn, and theirs, down to each alone: no request fails by another's fault.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::batch;
use super::batcher::{Ended, Request, Run, Why};
use super::counts::Ran;
use super::gate::{Place, Turn};
use super::predictor::{self, Predictor};
use super::served::Held;
use crate::clock;
use crate::deadline::Deadline;
use crate::failure::PredictError;
use crate::tensor::NamedTensor;
use crate::threads;

/// Tensors above this are put together on a thread that may block.
const JOINED_HERE: usize = 1 << 20;

/// Runs requests together, and by halves where that fails, all at one turn.
pub(super) async fn run(model: &Held, turn: Turn, mut requests: Vec<Request>) {
    requests.iter_mut().for_each(|request| request.place.runs());
    let turn = Arc::new(turn);
    // Whether the package fails when it is asked for several and never when it is asked for one.
    let (mut failed, mut slow, mut alone_well) = (None, None, true);
    let mut left = vec![requests];
    while let Some(mut piece) = left.pop() {
        piece.retain(|request| !request.answer.is_closed());
        let after: usize = left.iter().map(Vec::len).sum();
        if piece.len() < 2 {
            for request in piece {
                alone_well &= alone(model, &turn, request, after).await;
            }
            continue;
        }
        let Some(until) = piece.iter().map(|request| request.until).max() else { continue };
        let began = clock::now();
        piece.iter().for_each(|request| request.begins(began, Run::Together));
        // Half of their time: the other one is for asking again.
        let part = share(model, until, began, piece.len(), after) / 2;
        match together(model, &turn, &piece, Deadline::new(began, began + part, model.deadline())).await {
            Ok(parts) => {
                model.batcher.iter().for_each(|batcher| batcher.went_well(true));
                for (request, outputs) in piece.into_iter().zip(parts) {
                    // Whoever asked may be gone.
                    let _ = request.answer.send(Ended { began, outputs: Ok(outputs) });
                }
                continue;
            }
            // Those say nothing of the package.
            Err(PredictError::Limit(_) | PredictError::Busy(_) | PredictError::Internal(_)) => {}
            // Of no time nothing follows.
            Err(PredictError::Deadline(_)) if part < model.deadline() / 4 => {}
            Err(error @ PredictError::Deadline(_)) => slow = slow.or(Some(error)),
            Err(error) => failed = failed.or(Some(error)),
        }
        let rest = piece.split_off(piece.len() / 2);
        left.extend([rest, piece]);
    }
    if let (Some(batcher), Some(why)) = (&model.batcher, slow.or(failed.filter(|_| alone_well))) {
        batcher.mistaken(model, &why.to_string());
    }
}

/// The time that so many requests may take of what they have, where others of their group come after them.
fn share(model: &Held, until: Instant, now: Instant, requests: usize, after: usize) -> Duration {
    let time = until.saturating_duration_since(now).min(model.deadline());
    time.mul_f64(requests as f64 / (requests + after).max(1) as f64)
}

/// One run for all; gives each its part.
async fn together(
    model: &Held,
    turn: &Arc<Turn>,
    requests: &[Request],
    deadline: Deadline,
) -> Result<Vec<Vec<NamedTensor>>, PredictError> {
    let wrong = PredictError::Internal;
    let start = clock::now();
    let rows: Vec<u64> = requests.iter().map(|request| request.rows).collect();
    let inputs: Vec<_> = requests.iter().map(|request| request.inputs.clone()).collect();
    let bytes = inputs.iter().map(|inputs| batch::footprint(inputs)).sum();
    let joined = aside(bytes, move || batch::join(&inputs)).await?.map_err(wrong)?;
    let began = clock::now();
    let held = (Arc::clone(turn), model.again());
    let outputs = predictor::ask(Arc::clone(&model.predictor), joined, deadline, held).await?;
    let answered = clock::now();
    let bytes = batch::footprint(&outputs);
    let all = rows.iter().sum();
    let parts = aside(bytes, move || batch::split(&outputs, &rows)).await?;
    model.counts.ran(Ran {
        rows: all,
        input: began - start,
        infer: answered - began,
        output: clock::now() - answered,
    });
    parts.map_err(PredictError::Module)
}

/// One request by itself, of whose group so many come after it; whether it was answered.
async fn alone(model: &Held, turn: &Arc<Turn>, request: Request, after: usize) -> bool {
    let began = clock::now();
    if after == 0 {
        request.begins(began, Run::Alone);
    } else {
        request.begins(began, Run::Together);
    }
    let Request { inputs, rows, place, until, answer, .. } = request;
    if until <= began {
        let _ = answer.send(Ended { began, outputs: Err(Why::Untried) });
        return false;
    }
    let until = began + share(model, until, began, 1, after);
    let package = Arc::clone(&model.predictor);
    let outputs = by_itself(model, package, (Arc::clone(turn), place), inputs, rows, (began, until)).await;
    let well = outputs.is_ok();
    let outputs = outputs.map_err(|error| match error {
        // It had a part of its time only.
        PredictError::Deadline(_) if after > 0 => Why::Untried,
        error => error.into(),
    });
    let _ = answer.send(Ended { began, outputs });
    well
}

/// A run of one request, which begins now; counted where it gave an answer.
pub async fn by_itself(
    model: &Held,
    package: Arc<dyn Predictor>,
    (turn, mut place): (impl Send + 'static, Place),
    inputs: Vec<NamedTensor>,
    rows: u64,
    (began, until): (Instant, Instant),
) -> Result<Vec<NamedTensor>, PredictError> {
    place.runs();
    let deadline = Deadline::new(began, until, model.deadline());
    let held = (turn, place, model.again());
    let outputs = predictor::ask(package, inputs, deadline, held).await?;
    model.counts.ran(Ran { rows, infer: clock::now() - began, ..Ran::default() });
    model.batcher.iter().for_each(|batcher| batcher.went_well(false));
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
    let done = threads::aside(work).await;
    done.map_err(|_| PredictError::Internal("the host's log says more".to_owned()))
}
