//! `ModelStreamInfer`: one message after another on one call, each answered before the next one is read.
//!
//! What is wrong with a request is said in its answer, and the stream goes on. What is wrong with the
//! stream itself (a message too large, or cut off), its time, and the end of the server end it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::response::Response;
use bytes::Bytes;
use futures_util::Stream;
use futures_util::stream;
use hyper::body::Frame;

use super::frame::{self, Messages};
use super::infer::{self, Asking};
use super::request::Head;
use super::status::{self, Code};
use super::timeout;
use crate::clock;
use crate::protobuf::{Fields, Message};
use crate::serve::Serving;
use crate::serve::body::Reserved;
use crate::serve::failure::Failure;
use crate::serve::heads;
use crate::serve::streams::Turn;
use crate::serve::trace;

/// The field of `ModelStreamInferResponse` that an answer stands in.
const ANSWER: u32 = 2;

/// And the one for what was wrong with a request.
const ERROR: u32 = 1;

/// Longest time between two messages, and before the first.
const IDLE: Duration = Duration::from_secs(600);

struct State {
    serving: Arc<Serving>,
    /// What is kept of the call's head.
    headers: HeaderMap,
    messages: Messages,
    until: Option<Instant>,
    idle: Duration,
    /// Tells the connection when the server works for it.
    turn: Option<Turn>,
    ready: VecDeque<Bytes>,
    ended: bool,
}

/// Answers the call; the messages are read as its answers are taken.
pub fn answer(serving: Arc<Serving>, request: Request) -> Result<Response, Failure> {
    within(serving, request, IDLE)
}

fn within(serving: Arc<Serving>, request: Request, idle: Duration) -> Result<Response, Failure> {
    let (parts, body) = request.into_parts();
    let until = timeout::of(&parts.headers)?.map(|given| clock::now() + given);
    let messages = Messages::of(&parts.headers, body)?;
    let turn = parts.extensions.get::<Turn>().cloned();
    let headers = trace::kept(&parts.headers);
    // A stream may stay open for long, and its head goes here.
    drop(parts);
    turn.iter().for_each(|turn| turn.shrink(heads::BESIDE));
    let state = State { serving, headers, messages, until, idle, turn, ready: VecDeque::new(), ended: false };
    let frames = stream::unfold(state, |mut state| async move {
        let frame = state.step().await?;
        Some((frame, state))
    });
    Ok(frame::response(Body::new(Frames(Box::pin(frames)))))
}

impl State {
    /// The next piece of an answer, or the end.
    async fn step(&mut self) -> Option<Frame<Bytes>> {
        while !self.ended {
            if let Some(piece) = self.ready.pop_front() {
                return Some(Frame::data(piece));
            }
            match self.message().await {
                Ok(Some((message, reserved))) => {
                    self.turn.iter().for_each(Turn::working);
                    let asking = Asking { headers: &self.headers, until: self.until, last: Some(ANSWER) };
                    let answered = one(&self.serving, asking, message, reserved).await;
                    self.turn.iter().for_each(Turn::waiting);
                    match answered {
                        Ok(pieces) => self.ready = pieces.into(),
                        Err(failure) => return Some(self.end(status::failed(&failure))),
                    }
                }
                Ok(None) => return Some(self.end(status::trailers(Code::Ok, ""))),
                Err(failure) => return Some(self.end(status::failed(&failure))),
            }
        }
        None
    }

    fn end(&mut self, trailers: HeaderMap) -> Frame<Bytes> {
        self.ended = true;
        Frame::trailers(trailers)
    }

    /// The next message, unless the stream's time, or the server, ends before it begins.
    async fn message(&mut self) -> Result<Option<(Bytes, Reserved)>, Failure> {
        let until = self.until;
        let late = async {
            match until {
                Some(until) => tokio::time::sleep_until(until.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            // First: a client that sends without a pause would keep the server from its end.
            () = self.serving.ending() => return Err(Failure::Ending),
            begins = self.messages.begins() => if !begins? { return Ok(None) },
            () = late => return Err(Failure::StreamTime),
            () = tokio::time::sleep(self.idle) => return Err(Failure::StreamIdle(self.idle)),
        }
        let longest = infer::longest(&self.serving);
        self.messages.next(longest, &self.serving.budget).await
    }
}

/// Answers a message, be it with what is wrong with it.
async fn one(
    serving: &Serving,
    asking: Asking<'_>,
    message: Bytes,
    reserved: Reserved,
) -> Result<Vec<Bytes>, Failure> {
    if infer::left(asking.until).is_some_and(|left| left.is_zero()) {
        return Err(Failure::StreamTime);
    }
    match infer::one(serving, asking, message.clone(), reserved).await {
        Ok(pieces) => Ok(pieces),
        Err(failure) => frame::framed(vec![wrong(&message, &failure)]),
    }
}

/// What was wrong with a request, and whose it was.
fn wrong(message: &Bytes, failure: &Failure) -> Bytes {
    let mut answer = Message::default();
    answer.bytes(ERROR, failure.to_string());
    let head = Head::of(message).unwrap_or_default();
    let id = Fields::new(message).flatten().take(64).find(|(number, _)| *number == 3);
    let id = id.and_then(|(_, value)| value.text(1024).ok()).unwrap_or_default();
    answer.message(ANSWER, |inner| {
        inner.bytes(1, head.model).bytes(2, head.version.unwrap_or_default()).bytes(3, id);
    });
    answer.into_bytes().into()
}

struct Frames(Pin<Box<dyn Stream<Item = Frame<Bytes>> + Send>>);

impl HttpBody for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.as_mut().poll_next(cx).map(|frame| frame.map(Ok))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Bytes;
    use http_body_util::BodyExt;

    async fn end(serving: Arc<Serving>, body: Body, idle: Duration) -> HeaderMap {
        let answer = within(serving, Request::new(body), idle).unwrap();
        answer.into_body().collect().await.unwrap().trailers().unwrap().clone()
    }

    #[tokio::test]
    async fn a_stream_without_messages_ends_after_its_time() {
        let silent = Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
        let end = end(Serving::new(1), silent, Duration::from_millis(20)).await;
        assert_eq!(end["grpc-status"], "4");
        assert!(end["grpc-message"].to_str().unwrap().contains("no message came within 20 ms"), "{end:?}");
    }

    #[tokio::test]
    async fn a_stream_that_never_pauses_ends_with_the_server() {
        let serving = Serving::new(1);
        let of_server = Arc::clone(&serving);
        let mut sent = 0;
        let busy = stream::repeat_with(move || {
            sent += 1;
            if sent == 3 {
                of_server.drain();
            }
            assert!(sent < 100, "the end is not seen");
            Ok::<_, Infallible>(Bytes::from_static(b"\0\0\0\0\0"))
        });
        let end = end(serving, Body::from_stream(busy), IDLE).await;
        assert_eq!(end["grpc-status"], "14");
    }
}
