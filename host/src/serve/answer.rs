//! A request's way to its answer, whatever it was written in and however the answer will be: it is let in,
//! checked against the manifest, waits for its turn, and what became of it is counted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{Instrument as _, Span};

use super::Serving;
use super::counts::Times;
use super::failure::Failure;
use super::gate::Pass;
use super::in_turn::InTurn;
use super::predictor;
use super::served::{Held, Served};
use crate::clock;
use crate::oip::answer::{AnsweredOutput, InferAnswer};
use crate::oip::check;
use crate::oip::refusal::Refusal;
use crate::oip::request::{Form, InferRequest, Parameter, RequestedOutput};
use crate::sandbox::output::one_line;
use crate::sequence::{Part, Turn};
use crate::tensor::NamedTensor;

/// Has `asking` counted by what becomes of it, and what is logged meanwhile say which trace it belongs to.
pub async fn counted<T>(
    model: &Held,
    span: Option<Span>,
    asking: impl Future<Output = Result<(T, Times), Failure>>,
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
    match () {
        () if serving.draining() => Err(Failure::Ending),
        () if model.gate.full() => Err(Failure::Full),
        () => Ok(()),
    }
}

/// Asks the model, whatever the request was written in and the answer will be.
pub async fn answer(
    model: &Held,
    request: InferRequest,
    start: Instant,
    times: &mut Times,
) -> Result<InferAnswer, Failure> {
    let part = Part::of(&request.parameters)?;
    // Begun on another release, it goes on there.
    let moved = part.as_ref().and_then(|part| model.holder(part));
    let model = moved.as_ref().unwrap_or(model);
    let manifest = model.manifest();
    check::inputs(&manifest.inputs, &request.inputs)?;
    check::outputs(&manifest.outputs, &request.outputs)?;
    let deadline = deadline(model.deadline(), &request);
    let left = || deadline.saturating_sub(clock::now().duration_since(start));
    let arrived = clock::now();
    let turn = match part {
        Some(part) => Some(turn(model, part, start + deadline).await?),
        None => None,
    };
    let pass = model.gate.enter(left()).await?;
    let began = clock::now();
    times.queue = began.duration_since(arrived);
    let outputs = predict(model, turn, request.inputs, left(), pass).await;
    let form = request.form;
    let outputs = outputs.and_then(|outputs| select(model, &request.outputs, form, outputs));
    times.infer = clock::now().duration_since(began);
    match &outputs {
        Err(failure) if failure.is_the_packages() => {
            // It may have words of the module in it.
            let failure = one_line(&failure.to_string()).into_owned();
            tracing::warn!(package = %manifest.name, version = %model.version, failure, "no answer");
            model.failed();
        }
        Err(_) => {}
        Ok(_) => model.answered(times.infer),
    }
    Ok(InferAnswer {
        model_name: manifest.name.to_string(),
        model_version: model.version.clone(),
        id: request.id,
        parameters: model.provenance.clone(),
        outputs: outputs?,
    })
}

/// Waits for the turn of a request in its sequence. It takes no place of those that run meanwhile.
async fn turn(model: &Served, part: Part, deadline: Instant) -> Result<Turn, Failure> {
    let sequences = model.predictor.sequences().ok_or(Refusal::Parameter {
        name: "sequence_id",
        problem: "the package keeps nothing between requests (its manifest has no `module.sequences`)",
    })?;
    Ok(sequences.enter(part, deadline).await?)
}

async fn predict(
    model: &Held,
    turn: Option<Turn>,
    inputs: Vec<NamedTensor>,
    left: Duration,
    pass: Pass,
) -> Result<Vec<NamedTensor>, Failure> {
    if left.is_zero() {
        return Err(Failure::Busy);
    }
    let held = (pass, model.again());
    let package = match turn {
        Some(turn) => InTurn::new(&model.predictor, turn),
        None => Arc::clone(&model.predictor),
    };
    Ok(predictor::ask(package, inputs, left, held).await?)
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

/// The package's deadline, or the client's `timeout` (microseconds, as Triton has it) if shorter.
fn deadline(packages: Duration, request: &InferRequest) -> Duration {
    match request.parameters.get("timeout") {
        Some(Parameter::Integer(micros)) if *micros > 0 => {
            packages.min(Duration::from_micros(micros.unsigned_abs()))
        }
        _ => packages,
    }
}
