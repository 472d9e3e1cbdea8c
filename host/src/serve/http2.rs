//! HTTP/2 on a connection: the same requests, several at once, and the calls of gRPC. Bounded are the
//! requests at once, their heads (from the memory of all requests), what of their bodies waits to be read, and the times that `streams` keeps.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::IntoResponse;
use futures_util::FutureExt;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};

use super::body::Budget;
use super::connection::{Arriving, Limits, MOST_HEAD};
use super::failure::Failure;
use super::front::Front;
use super::heads;
use super::seats::Seat;
use super::stream::Stream;
use super::streams::{Standing, Streams};

/// Requests at once on one connection; more wait at the client.
const MOST_STREAMS: u32 = 128;

/// Bytes of bodies that a client may send before they are read, of one request and of all on a connection.
const WINDOW: u32 = 256 << 10;

/// Largest frame that is taken.
const MOST_FRAME: u32 = 64 << 10;

/// Bytes of one answer that wait to be written.
const MOST_WAITING: usize = 128 << 10;

/// Looks at the times of a connection, within each.
const LOOKS: u32 = 8;

/// Time after the last answer, while the server ends: clients that do not answer are not waited for.
const LINGERING: Duration = Duration::from_secs(1);

/// Serves the requests of a connection until it ends, `stop` becomes true or its seat is wanted.
pub async fn serve<S>(
    stream: S,
    seat: &Seat,
    front: Front,
    limits: Limits,
    budget: &Budget,
    mut stop: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let streams = Streams::new(seat.notes());
    let front = Arc::new(front);
    let service = service_fn(|mut request: hyper::Request<Incoming>| {
        let turn = streams.open();
        let refused = match heads::reserve(budget, &request) {
            Ok(reserved) => {
                turn.hold(reserved);
                None
            }
            Err(refused) => Some(refused),
        };
        request.extensions_mut().insert(turn.clone());
        let request = request.map(|body| {
            let turn = turn.clone();
            Arriving::new(body, move || turn.working())
        });
        let front = Arc::clone(&front);
        async move {
            let response = match refused {
                Some(refused) => refused,
                // A panic has been printed; the connection and the others live on.
                None => (AssertUnwindSafe(front.answer(request)).catch_unwind().await)
                    .unwrap_or_else(|_| Failure::Panic.into_response()),
            };
            turn.waiting();
            Ok::<_, Infallible>(response.map(|body: Body| turn.outgoing(body)))
        }
    });
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(MOST_STREAMS)
        .max_header_list_size(MOST_HEAD as u32)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_frame_size(MOST_FRAME)
        .max_send_buf_size(MOST_WAITING);
    let stream = TokioIo::new(Stream::wordless(stream, limits.answer));
    let mut serving = pin!(builder.serve_connection(stream, service));
    let mut look = tokio::time::interval(limits.head.min(limits.answer) / LOOKS);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stopping = false;
    loop {
        // The guard of the watched value must not live over an await.
        let stopped = async { drop(stop.wait_for(|stop| *stop).await) };
        tokio::select! {
            result = &mut serving => {
                if let Err(error) = result {
                    tracing::debug!(%error, "a connection ended early");
                }
                return;
            }
            () = stopped, if !stopping => {
                serving.as_mut().graceful_shutdown();
                stopping = true;
                look = tokio::time::interval_at(Instant::now() + LINGERING, LINGERING / LOOKS);
                look.set_missed_tick_behavior(MissedTickBehavior::Delay);
            }
            () = seat.asked_to_leave() => {
                tracing::debug!("a connection was closed for another one");
                return;
            }
            _ = look.tick() => {
                let idle = streams.standing(LINGERING, limits.answer) == Standing::Idle;
                if stopping && idle {
                    return;
                }
                match streams.standing(limits.head, limits.answer) {
                Standing::Well => {}
                // Its client may have something on the way: it is told first, and has that long again.
                Standing::Idle if streams.standing(limits.head * 2, limits.answer) == Standing::Well => {
                    serving.as_mut().graceful_shutdown();
                }
                Standing::Idle => return,
                Standing::Stuck => {
                    tracing::debug!("a connection was closed that does not take its answers");
                    return;
                }
            }}
        }
    }
}
