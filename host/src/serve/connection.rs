//! Connections: a bounded number of them, HTTP/1.1, and an end that waits for answers on their way.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::failure::Failure;

/// Bounds of one listener.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Open connections; stops a client that only connects.
    pub connections: usize,
    /// Time for the head of a request, idle time before it included; stops one that trickles.
    pub head: Duration,
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

/// Serves until `stop` becomes true; then closes the listener, ends idle connections and waits for
/// the others to finish what they are at.
pub async fn serve<L: Listener>(listener: L, router: Router, limits: Limits, stop: watch::Receiver<bool>) {
    let places = Arc::new(Semaphore::new(limits.connections));
    let mut connections = JoinSet::new();
    let mut stopped = stop.clone();
    let accept = async || {
        let place = Arc::clone(&places).acquire_owned().await;
        (place, listener.next().await)
    };
    loop {
        let stop_asked = async { drop(stopped.wait_for(|stop| *stop).await) };
        let (place, stream) = tokio::select! {
            biased;
            () = stop_asked => break,
            accepted = accept() => accepted,
        };
        while connections.try_join_next().is_some() {}
        match stream {
            Ok(stream) => {
                let one = connection(stream, router.clone(), limits, stop.clone());
                connections.spawn(async move {
                    one.await;
                    drop(place);
                });
            }
            Err(error) => {
                // Out of descriptors, or a client that went away: neither ends the server.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn connection<S>(stream: S, router: Router, limits: Limits, mut stop: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let inner = TowerToHyperService::new(router);
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let answering = AssertUnwindSafe(inner.call(request)).catch_unwind();
        async move {
            match answering.await {
                Ok(response) => response,
                // The panic has been printed; the connection and the others live on.
                Err(_) => Ok::<Response, std::convert::Infallible>(Failure::Panic.into_response()),
            }
        }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(serving);
    // The guard of the watched value must not live over an await.
    let stopped = async { drop(stop.wait_for(|stop| *stop).await) };
    let ended = tokio::select! {
        result = serving.as_mut() => Some(result),
        () = stopped => None,
    };
    let result = match ended {
        Some(result) => result,
        None => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended early");
    }
}
