//! A request's way to its answer, whatever it was written in and however the answer will be: it is let in,
//! checked against the manifest, waits for its turn, and what became of it is counted.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{Instrument as _, Span};

use super::Serving;
use super::batch;
use super::batcher::{Ended, Why};
use super::body::Reserved;
use super::counts::Times;
use super::failure::Failure;
use super::gate::Turned;
use super::in_turn::InTurn;
use super::joint;
use super::predictor::Predictor;
use super::served::{Held, Served};
use crate::clock;
use crate::failure::PredictError;
use crate::oip::answer::{AnsweredOutput, InferAnswer};
use crate::oip::check;
use crate::oip::refusal::Refusal;
use crate::oip::request::{Form, InferRequest, Parameter, Parameters, RequestedOutput};
use crate::sandbox::output::one_line;
use crate::sequence::{Part, Turn};
use crate::tensor::NamedTensor;

/// Has `asking` counted by what becomes of it, and what is logged meanwhile say which trace it belongs to.
pub async fn counted<T>(
    model: &Held,
    span: Option<Span>,
    // Where it is, since it is large; what is rare on its way has a box of its own.
    asking: Pin<&mut impl Future<Output = Result<(T, Times), Failure>>>,
) -> Result<T, Failure> {
    let attempt = model.counts.begin();
    let result = match span {
        Some(span) => asking.instrument(span).await,
        None => asking.await,
    };
    attempt.end(&result);
    result.map(|(answer, _)| answer)
}

/// What refuses a request before its body is read.
pub fn admit(serving: &Serving, model: &Served) -> Result<(), Failure> {
    match model.gate.full() {
        _ if serving.draining() => Err(Failure::Ending),
        Some(again) => Err(Failure::Full(again)),
        None => Ok(()),
    }
}

/// Asks the model, whatever the request was written in and the answer will be; when it was here, and what
/// memory its inputs are in.
pub async fn answer(
    model: &Held,
    request: InferRequest,
    (start, memory): (Instant, &Reserved),
    times: &mut Times,
) -> Result<InferAnswer, Failure> {
    let part = Part::of(&request.parameters)?;
    // Begun on another release, it goes on there.
    let moved = part.as_ref().and_then(|part| model.holder(part));
    let model = moved.as_ref().unwrap_or(model);
    let manifest = model.manifest();
    check::inputs(&manifest.inputs, &request.inputs)?;
    check::outputs(&manifest.outputs, &request.outputs)?;
    let whole = model.deadline();
    let timeout = timeout(&request).filter(|timeout| *timeout < whole);
    let until = start + timeout.unwrap_or(whole);
    let arrived = start + times.input;
    let package = match part {
        Some(part) => {
            let turn = Box::pin(turn(model, part, until)).await?;
            Some(InTurn::asked_once(&model.predictor, turn))
        }
        None => None,
    };
    let Ended { began, outputs } = run(model, package, (request.inputs, memory), until).await;
    times.queue = began.saturating_duration_since(arrived);
    let waited = began.saturating_duration_since(start);
    let outputs = outputs.map_err(|why| failure(why, whole, timeout, waited));
    let form = request.form;
    let outputs = outputs.and_then(|outputs| select(model, &request.outputs, form, outputs));
    times.infer = clock::now().saturating_duration_since(began);
    match &outputs {
        Err(failure) if failure.is_the_packages() => {
            // It may have words of the module in it.
            let failure = one_line(&failure.to_string()).into_owned();
            tracing::warn!(package = %manifest.name, version = %model.version(), failure, "no answer");
            model.failed();
        }
        Err(_) => {}
        Ok(_) => model.answered(times.infer),
    }
    Ok(InferAnswer {
        by: Arc::clone(&model.answerer),
        id: request.id,
        parameters: Parameters::new(),
        outputs: outputs?,
    })
}

/// Waits for the turn of a request in its sequence. It takes no place of those that run meanwhile.
async fn turn(model: &Served, part: Part, deadline: Instant) -> Result<Turn, Failure> {
    let sequences = model.predictor.sequences().ok_or(Refusal::Parameter {
        name: "sequence_id",
        problem: "the package keeps nothing between requests (its manifest has no `module.sequences`)",
    })?;
    let turn = sequences.enter(part, deadline).await?;
    if turn.part().first {
        model.begins(&turn.part().id);
    }
    Ok(turn)
}

/// Waits for a turn, alone or with others, and runs; alone where `package` stands for its part in a sequence.
async fn run(
    model: &Held,
    package: Option<Arc<dyn Predictor>>,
    (inputs, memory): (Vec<NamedTensor>, &Reserved),
    until: Instant,
) -> Ended {
    let mut place = match model.gate.place() {
        Ok(place) => place,
        Err(turned) => return Ended { began: clock::now(), outputs: Err(turned.into()) },
    };
    place.hold(memory);
    if let (Some(batcher), None) = (&model.batcher, &package)
        && let Some(rows) = batcher.rows(&inputs)
    {
        return Box::pin(batcher.ask(model, inputs, rows, place, until)).await;
    }
    let rows = model.batcher.as_ref().and_then(|_| batch::rows(&inputs)).unwrap_or(1);
    match model.gate.turn(until).await {
        Ok(turn) => {
            let began = turn.began();
            let package = package.unwrap_or_else(|| Arc::clone(&model.predictor));
            let outputs = joint::by_itself(model, package, (turn, place), inputs, rows, (began, until)).await;
            Ended { began, outputs: outputs.map_err(Why::from) }
        }
        Err(turned) => Ended { began: clock::now(), outputs: Err(turned.into()) },
    }
}

/// Why there is no answer. A package is not blamed for a deadline that its client cut, nor for one of which it
/// had less than half, nor for one that passed while it was asked for several.
fn failure(why: Why, whole: Duration, timeout: Option<Duration>, waited: Duration) -> Failure {
    let allowed = timeout.unwrap_or(whole);
    match (why, timeout) {
        (Why::Turned(Turned::Late), _) => Failure::Late(allowed),
        (Why::Untried, Some(timeout)) => Failure::Timeout(timeout),
        (Why::Untried, None) => Failure::Crowded { allowed, waited },
        (Why::Turned(turned), _) => turned.into(),
        (Why::Failed(PredictError::Deadline(_)), Some(timeout)) => Failure::Timeout(timeout),
        (Why::Failed(PredictError::Deadline(_)), None) if waited > whole / 2 => {
            Failure::Crowded { allowed, waited }
        }
        (Why::Failed(PredictError::Deadline(_)), None) => PredictError::Deadline(whole).into(),
        (Why::Failed(error), _) => error.into(),
    }
}

fn select(
    model: &Served,
    requested: &[RequestedOutput],
    form: Form,
    outputs: Vec<NamedTensor>,
) -> Result<Vec<AnsweredOutput>, Failure> {
    let selected = check::select(&model.manifest().outputs, requested, form, outputs);
    let selected = selected.map_err(Failure::NoOutput)?;
    Ok(selected.into_iter().map(|(tensor, form)| AnsweredOutput { tensor, form }).collect())
}

/// What the client gives: `timeout`, in microseconds as Triton has it.
fn timeout(request: &InferRequest) -> Option<Duration> {
    match request.parameters.get("timeout") {
        Some(Parameter::Integer(micros)) if *micros > 0 => Some(Duration::from_micros(micros.unsigned_abs())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_blamed_for_time_that_it_had() {
        let second = Duration::from_secs(1);
        let deadline = || Why::from(PredictError::Deadline(second));
        let check = |why, timeout, waited: Duration, packages: bool| {
            let failure = failure(why, 10 * second, timeout, waited);
            assert_eq!((failure.status().as_u16(), failure.is_the_packages()), (504, packages), "{failure}");
        };
        check(deadline(), None, second, true);
        check(deadline(), None, 6 * second, false);
        check(deadline(), Some(9 * second), Duration::ZERO, false);
        check(Why::Untried, None, second, false);
        check(Why::Untried, Some(9 * second), second, false);
        check(Turned::Late.into(), None, second, false);
        check(Turned::Late.into(), Some(second), second, false);
    }
}
