//! `ModelInfer`, and what a stream does with each of its messages.

use std::pin::pin;
use std::time::{Duration, Instant};

use axum::extract::Request;
use axum::http::HeaderMap;
use axum::response::Response;
use bytes::Bytes;

use super::answer::{self as written, Asked, Draft};
use super::frame::{self, Messages};
use super::request::{BESIDE, Head, Parts};
use super::timeout;
use crate::clock;
use crate::oip::answer::InferAnswer;
use crate::oip::request::InferRequest;
use crate::serve::Serving;
use crate::serve::answer;
use crate::serve::body::{Budget, Reserved};
use crate::serve::counts::Times;
use crate::serve::failure::Failure;
use crate::serve::gate::Turned;
use crate::serve::served::Held;
use crate::serve::trace;
use crate::threads;

/// Messages of more than this to read, and answers of more than this to write, are for a thread that may block.
const WORKED_ON_HERE: usize = 1 << 20;

/// Raw contents above this are, too: some of them may have to be copied.
const COPIED_HERE: usize = 8 << 20;

/// The longest message that some package takes.
pub fn longest(serving: &Serving) -> usize {
    let limits = serving.table.all().into_iter().map(|served| served.limits.tensor_bytes);
    limits.max().unwrap_or_default().saturating_add(BESIDE)
}

/// Answers the call.
pub async fn answer(serving: &Serving, request: Request) -> Result<Response, Failure> {
    let (parts, body) = request.into_parts();
    let given = timeout::of(&parts.headers)?;
    if serving.draining() {
        return Err(Failure::Ending);
    }
    let mut messages = Messages::of(&parts.headers, body)?;
    let (message, reserved) = messages.only(longest(serving), &serving.budget).await?;
    let asking =
        Asking { headers: &parts.headers, until: given.map(|given| clock::now() + given), last: None };
    let pieces = one(serving, asking, message, reserved).await?;
    Ok(frame::answer(pieces))
}

/// What is asked around a message.
#[derive(Clone, Copy)]
pub struct Asking<'a> {
    /// Of the call.
    pub headers: &'a HeaderMap,
    /// The end of the time that its client gives it.
    pub until: Option<Instant>,
    /// The field of the answer's message in which it stands, on a stream.
    pub last: Option<u32>,
}

/// Answers one message, with the head of its answer in front.
pub async fn one(
    serving: &Serving,
    asking: Asking<'_>,
    message: Bytes,
    reserved: Reserved,
) -> Result<Vec<Bytes>, Failure> {
    let head = Head::of(&message)?;
    let model = serving.find(head.model, head.version)?;
    let span = trace::span(asking.headers, &model);
    answer::counted(&model, span, pin!(ask(serving, &model, asking, &message, reserved))).await
}

async fn ask(
    serving: &Serving,
    model: &Held,
    asking: Asking<'_>,
    message: &Bytes,
    mut reserved: Reserved,
) -> Result<(Vec<Bytes>, Times), Failure> {
    answer::admit(serving, model)?;
    let limits = model.limits;
    let limit = limits.tensor_bytes.saturating_add(BESIDE);
    if message.len() > limit {
        return Err(Failure::TooLarge { limit });
    }
    // The client's time begins when its message is here, not while it is sent.
    let start = clock::now();
    let parts = Parts::of(message, &limits)?;
    reserved.grow(&serving.budget, message.len().saturating_add(parts.beside(&limits)?))?;
    let asked = if parts.is_raw() { Asked::Raw } else { Asked::Typed };
    let until = start + model.deadline();
    let until = asking.until.map_or(until, |given| given.min(until));
    let mut request = made(parts, model, (start, until)).await?;
    if let Some(until) = asking.until {
        timeout::shorten(&mut request.parameters, until.saturating_duration_since(start));
    }
    let wants_last = stream_end(&request);
    let mut times = Times { input: clock::now().duration_since(start), ..Times::default() };
    let mut answer = answer::answer(model, request, (start, &reserved), &mut times).await?;
    let before = clock::now();
    if let (Some(_), true) = (asking.last, wants_last) {
        answer.parameters.insert(FINAL.to_owned(), crate::oip::request::Parameter::Boolean(true));
    }
    let budget = serving.budget.clone();
    let (pieces, reserved) = if written::work(&answer, asked) <= WORKED_ON_HERE {
        write(&answer, asked, reserved, &budget)?
    } else {
        let writing = threads::aside(move || write(&answer, asked, reserved, &budget));
        writing.await.map_err(|_| Failure::Panic)??
    };
    let pieces = match asking.last {
        Some(field) => frame::framed(inside(field, pieces))?,
        None => frame::framed(pieces)?,
    };
    let pieces = reserved.hold(&serving.budget, pieces)?;
    times.output = clock::now().duration_since(before);
    Ok((pieces, times))
}

/// Triton's word for a client that wants to know which answer is its request's last.
const FINAL: &str = "triton_final_response";

fn stream_end(request: &InferRequest) -> bool {
    let asked = request.parameters.get("triton_enable_empty_final_response");
    asked == Some(&crate::oip::request::Parameter::Boolean(true))
}

/// Makes the tensors of a request; large ones on a thread that may block, at their turn.
async fn made(
    parts: Parts,
    model: &Held,
    (start, until): (Instant, Instant),
) -> Result<InferRequest, Failure> {
    let limits = model.limits;
    if parts.length() <= WORKED_ON_HERE && parts.raw_length() <= COPIED_HERE {
        return Ok(parts.request(&limits)?);
    }
    let leave = Box::pin(model.gate.ready(until)).await.map_err(|turned| match turned {
        Turned::Late => Failure::Late(until.saturating_duration_since(start)),
        turned => turned.into(),
    })?;
    let making = threads::aside(move || {
        let _leave = leave;
        parts.request(&limits)
    });
    Ok(making.await.map_err(|_| Failure::Panic)??)
}

/// Writes an answer. What it takes is held before it is written: a number may take ten bytes for one.
fn write(
    answer: &InferAnswer,
    asked: Asked,
    mut reserved: Reserved,
    budget: &Budget,
) -> Result<(Vec<Bytes>, Reserved), Failure> {
    let draft = Draft::of(answer, asked);
    reserved.grow(budget, draft.length())?;
    Ok((draft.write()?, reserved))
}

/// A message in pieces as the field of another one.
fn inside(field: u32, mut pieces: Vec<Bytes>) -> Vec<Bytes> {
    let length = pieces.iter().map(Bytes::len).sum();
    let mut open = crate::protobuf::Message::default();
    open.open(field, length);
    let mut front = open.into_bytes();
    if let Some(first) = pieces.first_mut() {
        front.extend_from_slice(first);
        *first = front.into();
    } else {
        pieces.push(front.into());
    }
    pieces
}

/// Time that is left until a moment.
pub fn left(until: Option<Instant>) -> Option<Duration> {
    until.map(|until| until.saturating_duration_since(clock::now()))
}
