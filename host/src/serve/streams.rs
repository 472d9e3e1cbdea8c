//! The requests on one HTTP/2 connection, of which there are several at once: whether the server works for
//! any, whether there are none, and whether an answer is not taken.
//!
//! A client that reads nothing does not stop the connection, only the answer: HTTP/2 asks it for room first,
//! and nobody is asked anything until it gives some. So the time is kept here.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

use super::body::Reserved;
use super::seats::Notes;
use crate::clock;

/// Most bytes that an answer gives at once, so that it is seen to go on.
const PIECE: usize = 256 << 10;

/// All requests of a connection.
pub struct Streams {
    shared: Arc<Shared>,
}

struct Shared {
    notes: Notes,
    start: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    open: usize,
    working: usize,
    /// Milliseconds after the start at which the last request ended.
    idle: u64,
    answers: Vec<Weak<Taken>>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        u64::try_from(clock::now().duration_since(self.start).as_millis()).unwrap_or(u64::MAX - 1)
    }
}

/// How a connection stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Requests come and go.
    Well,
    /// There was no request for the time that a connection may be idle.
    Idle,
    /// An answer was not taken for the time that it may take.
    Stuck,
}

impl Streams {
    /// Of a connection whose seat is told by `notes`.
    pub fn new(notes: Notes) -> Self {
        Self { shared: Arc::new(Shared { notes, start: clock::now(), state: Mutex::default() }) }
    }

    /// A request begins.
    pub fn open(&self) -> Turn {
        let answer = Arc::new(Taken::default());
        let mut state = self.shared.state();
        state.open += 1;
        state.answers.retain(|answer| answer.strong_count() > 0);
        state.answers.push(Arc::downgrade(&answer));
        drop(state);
        Turn(Arc::new(Inner {
            shared: Arc::clone(&self.shared),
            working: AtomicBool::new(false),
            answer,
            held: Mutex::default(),
        }))
    }

    /// How the connection stands, where it may be idle for `idle` and an answer be waiting for `answer`.
    pub fn standing(&self, idle: Duration, answer: Duration) -> Standing {
        let now = self.shared.now();
        let past = |since: u64, time: Duration| u128::from(now.saturating_sub(since)) > time.as_millis();
        let state = self.shared.state();
        let since =
            state.answers.iter().filter_map(Weak::upgrade).map(|taken| taken.0.load(Ordering::Relaxed));
        if since.min().is_some_and(|since| past(since, answer)) {
            Standing::Stuck
        } else if state.open == 0 && past(state.idle, idle) {
            Standing::Idle
        } else {
            Standing::Well
        }
    }
}

/// Since when an answer waits to be taken; [`u64::MAX`]: it does not.
struct Taken(AtomicU64);

impl Default for Taken {
    fn default() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }
}

/// A request, from its head to the end of its answer.
#[derive(Clone)]
pub struct Turn(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    working: AtomicBool,
    answer: Arc<Taken>,
    /// Memory of the request itself, beside its body.
    held: Mutex<Option<Reserved>>,
}

impl Turn {
    /// Holds memory until the end of the answer.
    pub fn hold(&self, reserved: Reserved) {
        *self.0.held() = Some(reserved);
    }

    /// Holds no more than so many bytes from here on.
    pub fn shrink(&self, bytes: usize) {
        if let Some(held) = self.0.held().as_mut() {
            held.shrink(bytes);
        }
    }

    /// The request is here: the server works on it.
    pub fn working(&self) {
        if !self.0.working.swap(true, Ordering::Relaxed) {
            let mut state = self.0.shared.state();
            state.working += 1;
            self.0.shared.notes.working();
        }
    }

    /// Its answer is ready: the server waits for the client.
    pub fn waiting(&self) {
        self.0.waiting();
    }

    /// The body of its answer, which is watched while it is taken.
    pub fn outgoing(self, body: Body) -> Outgoing {
        self.0.answer.0.store(self.0.shared.now(), Ordering::Relaxed);
        Outgoing { body, rest: Bytes::new(), turn: self }
    }
}

impl Inner {
    fn held(&self) -> MutexGuard<'_, Option<Reserved>> {
        // Nothing panics while it holds the lock.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting(&self) {
        if self.working.swap(false, Ordering::Relaxed) {
            let mut state = self.shared.state();
            state.working -= 1;
            if state.working == 0 {
                self.shared.notes.waiting();
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.waiting();
        let now = self.shared.now();
        let mut state = self.shared.state();
        state.open -= 1;
        state.idle = now;
    }
}

/// An answer's body on HTTP/2.
pub struct Outgoing {
    body: Body,
    rest: Bytes,
    turn: Turn,
}

/// Bytes on their way: the answer is not taken before they are.
struct Sent(Bytes, #[allow(dead_code)] Arc<Taken>);

impl AsRef<[u8]> for Sent {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Outgoing {
    fn since(&self, since: u64) {
        self.turn.0.answer.0.store(since, Ordering::Relaxed);
    }
}

impl HttpBody for Outgoing {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            let frame = match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => frame,
                Poll::Ready(other) => return Poll::Ready(other),
                Poll::Pending => {
                    // The server has nothing to be taken yet.
                    self.since(u64::MAX);
                    return Poll::Pending;
                }
            };
            match frame.into_data() {
                Ok(data) => self.rest = data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        self.since(self.turn.0.shared.now());
        let length = self.rest.len().min(PIECE);
        let piece = self.rest.split_to(length);
        let sent = Bytes::from_owner(Sent(piece, Arc::clone(&self.turn.0.answer)));
        Poll::Ready(Some(Ok(Frame::data(sent))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let body = self.body.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(body.lower().saturating_add(rest));
        if let Some(upper) = body.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::seats::Seats;
    use http_body_util::BodyExt;

    const SOON: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(600);

    #[tokio::test]
    async fn a_seat_works_while_any_request_does() {
        let seats = Seats::new(1);
        let seat = seats.take().await;
        let streams = Streams::new(seat.notes());
        let (first, second) = (streams.open(), streams.open());
        first.working();
        first.working();
        second.working();
        first.waiting();
        tokio::time::sleep(crate::serve::seats::LEAST_WAIT + SOON).await;
        let asked = async || tokio::time::timeout(SOON, seat.asked_to_leave()).await.is_ok();
        seats.make_room();
        assert!(!asked().await, "the second one works");
        drop(second);
        tokio::time::sleep(crate::serve::seats::LEAST_WAIT + SOON).await;
        seats.make_room();
        assert!(asked().await);
    }

    #[tokio::test]
    async fn none_for_a_while_is_idle() {
        let seats = Seats::new(1);
        let seat = seats.take().await;
        let streams = Streams::new(seat.notes());
        let turn = streams.open();
        tokio::time::sleep(SOON * 2).await;
        assert_eq!(streams.standing(SOON, LONG), Standing::Well);
        drop(turn);
        assert_eq!(streams.standing(SOON, LONG), Standing::Well);
        tokio::time::sleep(SOON * 2).await;
        assert_eq!(streams.standing(SOON, LONG), Standing::Idle);
    }

    #[tokio::test]
    async fn an_answer_is_watched_until_its_last_byte_is_taken() {
        let seats = Seats::new(1);
        let seat = seats.take().await;
        let streams = Streams::new(seat.notes());
        let whole: Vec<u8> = (0..PIECE * 2 + 7).map(|at| at as u8).collect();
        let mut body = streams.open().outgoing(Body::from(whole.clone()));
        tokio::time::sleep(SOON * 2).await;
        assert_eq!(streams.standing(LONG, SOON), Standing::Stuck, "not even begun");
        let mut taken = Vec::new();
        let mut last = None;
        while let Some(frame) = body.frame().await {
            let data = frame.unwrap().into_data().unwrap();
            assert!(data.len() <= PIECE);
            assert_eq!(streams.standing(LONG, LONG), Standing::Well);
            taken.extend_from_slice(&data);
            last = Some(data);
        }
        assert_eq!(taken, whole);
        drop(body);
        tokio::time::sleep(SOON * 2).await;
        assert_eq!(streams.standing(LONG, SOON), Standing::Stuck, "its last piece is still to be sent");
        drop(last);
        assert_eq!(streams.standing(LONG, SOON), Standing::Well);
    }
}
