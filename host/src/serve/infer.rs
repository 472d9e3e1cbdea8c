//! The two paths that ask a model: `infer` with tensors in JSON or after it, `raw` with a body that is the
//! input. Both are one way, on which the body is told apart in one place; from where the request is read on,
//! `answer` has it.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;

use super::Serving;
use super::answer;
use super::body::{self, Bounds};
use super::coding::{self, Coding, Job, Wanted};
use super::counts::Times;
use super::failure::Failure;
use super::gate::Turned;
use super::query;
use super::reserve;
use super::served::{Held, Served};
use super::trace;
use super::wire::{self, Wire};
use crate::clock;
use crate::oip::answer::{AnsweredOutput, InferAnswer};
use crate::oip::answer_body::Written;
use crate::oip::binary::Following;
use crate::oip::request::{Form, InferRequest};
use crate::oip::{answer_body, check, request_json};
use crate::tensor::NamedTensor;
use crate::threads;

/// Longest time that a body may take to come.
const BODY_TIME: Duration = Duration::from_secs(30);

/// Bodies above this are parsed, and answers written, on a thread that may block.
const WORKED_ON_HERE: usize = 1 << 20;

/// Binary data above this is too: some of it may have to be copied.
const COPIED_HERE: usize = 8 << 20;

/// JSON up to this is parsed on a thread that serves where that may compute: some milliseconds at most.
const PARSED_HERE: usize = 4 << 20;

/// `POST …/infer`.
pub async fn infer(
    State(serving): State<Arc<Serving>>,
    model: Held,
    request: Request,
) -> Result<Response, Failure> {
    let wire = Wire::of(request.headers());
    watched(&serving, &model, request, wire, Form::Binary).await
}

/// `POST …/raw`: the body is the only input. Its outputs come in JSON.
pub async fn raw(
    State(serving): State<Arc<Serving>>,
    model: Held,
    request: Request,
) -> Result<Response, Failure> {
    let wire = Wire::of_raw(request.headers());
    watched(&serving, &model, request, wire, Form::default()).await
}

/// Asks, and counts what became of it.
async fn watched(
    serving: &Serving,
    model: &Held,
    request: Request,
    wire: Result<Wire, Failure>,
    raw: Form,
) -> Result<Response, Failure> {
    let span = trace::span(request.headers(), model);
    answer::counted(model, span, pin!(ask(serving, model, request, wire, raw))).await
}

/// Asks with a body of any kind. `raw` is how the outputs come where the request has no way to say it.
async fn ask(
    serving: &Serving,
    model: &Held,
    request: Request,
    wire: Result<Wire, Failure>,
    raw: Form,
) -> Result<(Response, Times), Failure> {
    let (parts, body) = request.into_parts();
    let admitted = answer::admit(serving, model).and_then(|()| {
        let (wire, coding, wanted) = (wire?, Coding::of(&parts.headers)?, Wanted::of(&parts.headers)?);
        Ok((wire, coding, wanted, bounds(model, wire)?))
    });
    let (wire, coding, wanted, bounds) = match admitted {
        Ok(admitted) => admitted,
        Err(failure) => {
            Box::pin(body::swallow(&mut body.into_data_stream())).await;
            return Err(failure);
        }
    };
    let (bytes, reserved) = body::read(&parts.headers, body, bounds, &serving.budget).await?;
    // The client's time begins when its request is here, not while it is sent.
    let start = clock::now();
    let until = start + model.deadline();
    let (bytes, mut reserved) = match coding {
        None => (bytes, reserved),
        Some(coding) => {
            let leave = Box::pin(model.gate.ready(until)).await.map_err(|turned| late(turned, model))?;
            let job = Job { bounds, until, leave: Some(leave), permit: None };
            Box::pin(coding::unpack(coding, bytes, reserved, job, &serving.budget)).await?
        }
    };
    reserved.grow(&serving.budget, bytes.len() + beside(model, wire, bytes.len()))?;
    let request = match wire {
        Wire::Json => parse(bytes, None, model, until).await?,
        Wire::Binary(json) => {
            let mut bytes = bytes;
            if bytes.len() < json {
                return Err(Failure::Header(format!(
                    "Inference-Header-Content-Length is {json}, and the body has {} bytes",
                    bytes.len()
                )));
            }
            let following = Following::new(bytes.split_off(json));
            parse(bytes, Some(following), model, until).await?
        }
        Wire::Raw => {
            let kind = parts.headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
            let inputs = Box::pin(raw_inputs(model, bytes, kind, until)).await?;
            let size: usize = inputs.iter().map(|input| input.tensor.footprint()).sum();
            if size > model.limits.tensor_bytes {
                return Err(Failure::TooLarge { limit: model.limits.tensor_bytes });
            }
            let parameters = query::parameters(&parts.uri)?;
            InferRequest { inputs, parameters, form: raw, ..InferRequest::default() }
        }
    };
    let mut times = Times { input: clock::now().duration_since(start), ..Times::default() };
    let answer = answer::answer(model, request, (start, &reserved), &mut times).await?;
    let before = start + times.input + times.queue + times.infer;
    let written = write(answer).await?;
    let response = wire::answer(written, wanted, reserved, &serving.budget).await?;
    times.output = clock::now().duration_since(before);
    Ok((response, times))
}

/// What the body of a request to `model` may be.
fn bounds(model: &Served, wire: Wire) -> Result<Bounds, Failure> {
    let (limit, aligned) = match wire {
        Wire::Json => (model.json_limit, 0),
        Wire::Binary(json) if json > model.json_limit => {
            return Err(Failure::TooLarge { limit: model.json_limit });
        }
        Wire::Binary(json) => (json.saturating_add(model.limits.tensor_bytes), json),
        Wire::Raw => {
            check::takes_raw(&model.manifest().inputs)?;
            (model.limits.tensor_bytes, 0)
        }
    };
    Ok(Bounds { limit, time: BODY_TIME, aligned })
}

/// Most bytes that the tensors of a request take beside its body: an element of eight bytes can be two of JSON,
/// and the end of a string of nothing takes eight. Elements of fixed size behind the JSON stay where they are.
fn beside(model: &Served, wire: Wire, body: usize) -> usize {
    let strings = model.manifest().inputs.iter().any(|input| input.datatype.size().is_none());
    let strings = |bytes: usize| if strings { bytes.saturating_mul(3) } else { 0 };
    let most = match wire {
        Wire::Json => body.saturating_mul(4),
        Wire::Binary(json) => json.saturating_mul(4).saturating_add(strings(body.saturating_sub(json))),
        Wire::Raw => strings(body).min(body),
    };
    most.min(model.limits.tensor_bytes)
}

/// Parses a request; a long one where somebody else serves meanwhile, or on a thread that may block, at its turn.
async fn parse(
    json: Bytes,
    following: Option<Following>,
    model: &Held,
    until: Instant,
) -> Result<InferRequest, Failure> {
    let limits = model.limits;
    let fits =
        |most: usize| json.len() <= most && following.as_ref().is_none_or(|it| it.len() <= COPIED_HERE);
    let short = fits(WORKED_ON_HERE);
    // Had until it is parsed.
    let place = if !short && fits(PARSED_HERE) { reserve::place() } else { None };
    if short || place.is_some() {
        return Ok(request_json::parse_with(&json, following, &limits)?);
    }
    let leave = Box::pin(model.gate.ready(until)).await.map_err(|turned| late(turned, model))?;
    Ok(aside(move || {
        let _leave = leave;
        request_json::parse_with(&json, following, &limits)
    })
    .await??)
}

/// The inputs of a body that is one of them. One of BYTES is copied, a long one as `parse` does it.
async fn raw_inputs(
    model: &Held,
    body: Bytes,
    kind: &[u8],
    until: Instant,
) -> Result<Vec<NamedTensor>, Failure> {
    if body.len() <= WORKED_ON_HERE {
        return Ok(check::raw(&model.manifest().inputs, body, kind)?);
    }
    let leave = model.gate.ready(until).await.map_err(|turned| late(turned, model))?;
    let (model, kind) = (model.again(), kind.to_vec());
    Ok(aside(move || {
        let _leave = leave;
        check::raw(&model.manifest().inputs, body, &kind)
    })
    .await??)
}

/// Writes an answer; a long one on a thread that may block.
async fn write(answer: InferAnswer) -> Result<Written, Failure> {
    // What is sent from where it is costs nothing.
    let work = |output: &AnsweredOutput| match (output.form, output.tensor.tensor.as_fixed()) {
        (Form::Binary, Some(_)) => 0,
        _ => output.tensor.tensor.byte_length(),
    };
    if answer.outputs.iter().map(work).sum::<usize>() <= WORKED_ON_HERE {
        return Ok(answer_body::write(&answer)?);
    }
    Ok(aside(move || answer_body::write(&answer)).await??)
}

async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    threads::aside(work).await.map_err(|_| Failure::Panic)
}

fn late(turned: Turned, model: &Served) -> Failure {
    match turned {
        Turned::Late => Failure::Late(model.deadline()),
        turned => turned.into(),
    }
}
