//! Connections: a bounded number of them, with time limits, and an end that lets answers finish.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::error::Error;

/// What connections may take.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections side by side: stops someone from using all descriptors.
    pub connections: usize,
    /// Time for a request's head to arrive: stops slow senders from holding connections.
    pub head: Duration,
    /// Time that answers under way get when the registry stops.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 256, head: Duration::from_secs(15), drain: Duration::from_secs(5) }
    }
}

/// Open the listener; plain HTTP is for loopback only.
pub async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Error> {
    if !address.ip().is_loopback() {
        return Err(Error::NotLoopback { address });
    }
    let failed = |source| Error::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

/// Serve until `stop` says so.
pub async fn serve(listener: TcpListener, router: Router, limits: Limits, mut stop: watch::Receiver<bool>) {
    let free = Arc::new(Semaphore::new(limits.connections));
    let mut connections = JoinSet::new();
    loop {
        let permit = tokio::select! {
            permit = Arc::clone(&free).acquire_owned() => permit,
            () = stopped(&mut stop) => break,
        };
        let Ok(permit) = permit else { break };
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of descriptors, most likely: trying again at once would spin.
                    tracing::warn!("cannot accept a connection: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
            () = stopped(&mut stop) => break,
        };
        while connections.try_join_next().is_some() {}
        let (router, head, mut stop) = (router.clone(), limits.head, stop.clone());
        connections.spawn(async move {
            let _permit = permit;
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(head)
                .max_buf_size(64 << 10)
                .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
            let mut connection = std::pin::pin!(connection);
            let ended = tokio::select! {
                ended = &mut connection => ended,
                () = stopped(&mut stop) => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                tracing::debug!("connection ended: {error}");
            }
        });
    }
    drop(listener);
    let drained =
        tokio::time::timeout(limits.drain, async { while connections.join_next().await.is_some() {} });
    if drained.await.is_err() {
        connections.abort_all();
    }
}

/// Ready when `stop` holds true, or when nobody can say so any more.
pub async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone: that is a stop too.
    let _ = stop.wait_for(|stop| *stop).await;
}
