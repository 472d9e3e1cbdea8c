//! Connections: a bounded number of them, told apart by what they speak, HTTP/1.1 here, and an end that waits for answers on their way.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::HttpBody;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::body::Budget;
use super::failure::Failure;
use super::front::Front;
use super::http2;
use super::preface::{self, Version};
use super::progress::Progress;
use super::seats::{Seat, Seats};
use super::stream::Stream;

/// Largest head of a request in bytes; [`super::stream`] says it to people.
pub const MOST_HEAD: usize = 32 << 10;

/// Bytes of one connection that hyper holds.
const MOST_BUFFERED: usize = 128 << 10;

/// What is read and thrown away after a refusal, and the longest time for that.
const LINGERED: usize = 4 << 20;
const LINGERING: Duration = Duration::from_secs(2);

/// How long a client that has connected and not spoken is still listened to when the server ends: it may be about to.
const FIRST_WORD: Duration = Duration::from_secs(1);

/// How long those are accepted who had connected when the server was told to end.
const BACKLOG: Duration = Duration::from_millis(20);

/// Longest time until the next try to accept.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// Bounds of one listener.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Open connections; stops a client that only connects. One more closes whichever has kept the
    /// server waiting longest.
    pub connections: usize,
    /// Time for the head of a request, idle time before it included; stops one that trickles. After an answer it may
    /// be up to twice as long on HTTP/1.1.
    pub head: Duration,
    /// Time for a client to take an answer; stops one that does not read.
    pub answer: Duration,
}

/// A socket that gives connections.
pub trait Listener: Send + 'static {
    /// One connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next one.
    fn next(&self) -> impl Future<Output = std::io::Result<Self::Stream>> + Send;
}

impl Listener for TcpListener {
    type Stream = tokio::net::TcpStream;

    async fn next(&self) -> std::io::Result<Self::Stream> {
        let (stream, _) = self.accept().await?;
        // An answer is written at once: waiting for more would only add latency.
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

impl Listener for UnixListener {
    type Stream = tokio::net::UnixStream;

    async fn next(&self) -> std::io::Result<Self::Stream> {
        Ok(self.accept().await?.0)
    }
}

/// Serves, with memory from `budget`, until `stop` becomes true; then closes the listener, ends idle connections and waits for
/// the others to finish what they are at. A client that has connected and not spoken yet gets another second.
pub async fn serve<L: Listener>(
    listener: L,
    front: impl Into<Front>,
    limits: Limits,
    budget: Budget,
    stop: watch::Receiver<bool>,
) {
    let front = front.into();
    let seats = Seats::new(limits.connections);
    let mut connections = JoinSet::new();
    let mut stopped = stop.clone();
    let accept = async || match listener.next().await {
        Ok(stream) => Ok((stream, seats.take().await)),
        Err(error) => Err(error),
    };
    loop {
        let stop_asked = async { drop(stopped.wait_for(|stop| *stop).await) };
        let accepted = tokio::select! {
            biased;
            () = stop_asked => break,
            accepted = accept() => accepted,
        };
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok((stream, seat)) => {
                connections.spawn(connection(
                    stream,
                    seat,
                    front.clone(),
                    limits,
                    budget.clone(),
                    stop.clone(),
                ));
            }
            Err(error) => {
                // Out of descriptors, or a client that went away: neither ends the server.
                tracing::warn!(%error, "a connection could not be accepted");
                let again = seats.make_room().min(ACCEPT_AGAIN);
                tokio::time::sleep(again).await;
            }
        }
    }
    // Closed, the listener would cut off who has connected and was not accepted yet.
    let until = tokio::time::Instant::now() + BACKLOG;
    while let Ok(Ok((stream, seat))) = tokio::time::timeout_at(until, accept()).await {
        connections.spawn(connection(stream, seat, front.clone(), limits, budget.clone(), stop.clone()));
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn connection<S>(
    stream: S,
    seat: Seat,
    front: Front,
    limits: Limits,
    budget: Budget,
    mut stop: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let begun = tokio::select! {
        // What has come already counts, also while the server ends.
        biased;
        begun = tokio::time::timeout(limits.head, preface::read(stream)) => begun,
        () = async {
            drop(stop.wait_for(|stop| *stop).await);
            tokio::time::sleep(FIRST_WORD).await;
        } => return,
        () = seat.asked_to_leave() => return,
    };
    match begun {
        Ok(Ok((Version::Http1, stream))) => http1(stream, seat, front, limits, stop).await,
        Ok(Ok((Version::Http2, stream))) => http2::serve(stream, &seat, front, limits, &budget, stop).await,
        // It ended, or said nothing in time.
        Ok(Err(_)) | Err(_) => {}
    }
}

/// Why a connection ends before its client ends it.
enum End {
    /// The server stops, and answers what it has begun.
    Stops,
    /// Another one needs its place.
    Leaves,
    /// The client lets the server wait for a head.
    Stalled,
}

async fn http1<S>(stream: S, seat: Seat, front: Front, limits: Limits, mut stop: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let front = Arc::new(front);
    let (notes, progress) = (seat.notes(), Progress::default());
    let begun = progress.clone();
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let request = request.map(|body| {
            let notes = notes.clone();
            Arriving::new(body, move || notes.working())
        });
        begun.begins();
        let (front, notes, progress) = (Arc::clone(&front), notes.clone(), begun.clone());
        async move {
            let answering = AssertUnwindSafe(front.answer(request)).catch_unwind();
            let response = match answering.await {
                Ok(response) => response,
                // The panic has been printed; the connection and the others live on.
                Err(_) => Failure::Panic.into_response(),
            };
            notes.waiting();
            progress.answered();
            Ok::<Response, std::convert::Infallible>(response)
        }
    });
    let mut serving = http1::Builder::new()
        .header_read_timeout(None)
        .max_header_size(MOST_HEAD)
        .max_buf_size(MOST_BUFFERED)
        .serve_connection(TokioIo::new(Stream::new(stream, limits.answer, progress.clone())), service);
    // Each is looked at when it has something to say, and not with every byte that comes.
    let mut ends = FuturesUnordered::from_iter([
        // The guard of the watched value must not live over an await.
        async { drop(stop.wait_for(|stop| *stop).await) }.map(|()| End::Stops).boxed(),
        seat.asked_to_leave().map(|()| End::Leaves).boxed(),
        progress.stalled(limits.head).map(|()| End::Stalled).boxed(),
    ]);
    loop {
        tokio::select! {
            biased;
            result = &mut serving => {
                if let Err(error) = result {
                    tracing::debug!(%error, "a connection ended early");
                }
                break;
            }
            Some(end) = ends.next() => match end {
                End::Stops => Pin::new(&mut serving).graceful_shutdown(),
                End::Leaves => {
                    tracing::debug!("a connection was closed for another one");
                    return;
                }
                End::Stalled => {
                    tracing::debug!("a connection was closed: no head of a request came in time");
                    return;
                }
            }
        }
    }
    drop(ends);
    let stream = serving.into_parts().io.into_inner();
    if stream.refused() {
        // With bytes unread the system would tell the client of a reset, and not of the refusal.
        tokio::select! {
            () = linger(stream.into_inner()) => {}
            () = seat.asked_to_leave() => {}
        }
    }
}

/// Reads what a client still sends, within bounds.
async fn linger(mut stream: impl AsyncRead + Unpin) {
    let mut buffer = [0; 4096];
    let mut left = LINGERED;
    let all = async {
        while let Ok(count @ 1..) = stream.read(&mut buffer).await {
            match left.checked_sub(count) {
                Some(rest) => left = rest,
                None => break,
            }
        }
    };
    // Whether it ended or not, the connection is closed next.
    drop(tokio::time::timeout(LINGERING, all).await);
}

/// A request's body; tells when all of it is here.
pub struct Arriving<F> {
    body: Incoming,
    here: F,
}

impl<F: Fn()> Arriving<F> {
    /// `here` is called when all of it is here.
    pub fn new(body: Incoming, here: F) -> Self {
        if body.is_end_stream() {
            here();
        }
        Self { body, here }
    }
}

impl<F: Fn() + Unpin> HttpBody for Arriving<F> {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(frame, Poll::Ready(None)) || self.body.is_end_stream() {
            (self.here)();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::routing::get;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpStream;
    use tokio::sync::mpsc;

    /// Longer than any answer takes; a test that reaches it has failed.
    const LONG: Duration = Duration::from_secs(60);

    /// An answer larger than what the system takes for a client that does not read; tells its end.
    struct Large(Vec<u8>, mpsc::Sender<()>);

    impl AsRef<[u8]> for Large {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl Drop for Large {
        fn drop(&mut self) {
            let _ = self.1.try_send(());
        }
    }

    struct Fixture {
        address: std::net::SocketAddr,
        gone: mpsc::Receiver<()>,
        stop: watch::Sender<bool>,
        serving: tokio::task::JoinHandle<()>,
    }

    async fn fixture(limits: Limits) -> Fixture {
        let (tell, gone) = mpsc::channel(8);
        let large = move || {
            let tell = tell.clone();
            async move { Bytes::from_owner(Large(vec![7; 64 << 20], tell)) }
        };
        let router = Router::new().route("/", get(async || "small")).route("/large", get(large));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        let serving = tokio::spawn(serve(listener, router, limits, Budget::new(1), stopped));
        Fixture { address, gone, stop, serving }
    }

    async fn ask(address: std::net::SocketAddr, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    #[tokio::test]
    async fn an_answer_that_is_not_taken_is_given_up() {
        let limits = Limits { connections: 4, head: LONG, answer: Duration::from_millis(100) };
        let mut fixture = fixture(limits).await;
        let _idle = ask(fixture.address, "/large").await;
        tokio::time::timeout(LONG, fixture.gone.recv()).await.expect("given up").unwrap();
        // The server ends without it.
        fixture.stop.send_replace(true);
        tokio::time::timeout(LONG, fixture.serving).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn who_has_just_connected_is_answered_when_the_server_ends_and_who_says_nothing_is_not_waited_for()
    {
        let fixture = fixture(Limits { connections: 4096, head: LONG, answer: LONG }).await;
        let mut early = TcpStream::connect(fixture.address).await.unwrap();
        let _silent = TcpStream::connect(fixture.address).await.unwrap();
        // They are accepted in the order of their coming.
        let mut answer = String::new();
        ask(fixture.address, "/").await.read_to_string(&mut answer).await.unwrap();
        fixture.stop.send_replace(true);
        while TcpStream::connect(fixture.address).await.is_ok() {
            tokio::task::yield_now().await;
        }
        early.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(LONG, early.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert!(answer.ends_with("small"), "{answer}");
        tokio::time::timeout(LONG, fixture.serving).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn one_that_sends_no_head_is_closed_before_and_after_an_answer() {
        let fixture =
            fixture(Limits { connections: 4, head: Duration::from_millis(100), answer: LONG }).await;
        for sent in
            ["", "GET / HT", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /"]
        {
            let mut stream = TcpStream::connect(fixture.address).await.unwrap();
            stream.write_all(sent.as_bytes()).await.unwrap();
            let mut answer = String::new();
            let ended = tokio::time::timeout(LONG, stream.read_to_string(&mut answer)).await;
            ended.expect("closed").unwrap();
            assert_eq!(answer.ends_with("small"), sent.contains("Host"), "{sent:?}: {answer}");
        }
    }

    #[tokio::test]
    async fn one_more_gets_the_place_of_one_that_does_not_read() {
        let fixture = fixture(Limits { connections: 1, head: LONG, answer: LONG * 10 }).await;
        let _slow = ask(fixture.address, "/large").await;
        for _ in 0..3 {
            let mut answer = String::new();
            let mut stream = ask(fixture.address, "/").await;
            tokio::time::timeout(LONG, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
            assert!(answer.ends_with("small"), "{answer}");
        }
    }
}
