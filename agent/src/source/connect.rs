//! Connections to web servers: at most two, TLS where the address says so, and kept for a little while
//! after a request for the next one.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

use super::address::{Address, Server, is_near};
use super::authorities::{Authorities, Stamp};
use super::waits::Waiting;
use super::{Patience, Trouble};

/// Bytes of an answer's head, and of what is read ahead of a body.
const BUFFER: usize = 64 * 1024;
/// Headers of an answer.
const HEADERS: usize = 64;
/// Connections at a time. A third request waits until a part of another has come.
const AT_ONCE: usize = 2;
/// Addresses of a name that are tried.
const ADDRESSES: usize = 4;

/// What all connections share.
#[derive(Debug)]
pub(super) struct Shared {
    authorities: Authorities,
    tls: tokio::sync::Mutex<Option<Kept>>,
    idle: Mutex<Vec<(u64, Connection)>>,
    numbers: AtomicU64,
    room: Arc<Semaphore>,
    /// One has become idle.
    freed: Notify,
    /// Bytes that one request may ask for, whatever else bounds it.
    pub most: AtomicU64,
    /// Bytes received, as the network counts them.
    pub received: Arc<AtomicU64>,
    pub patience: Patience,
}

/// What TLS needs, as the list of authorities was when it was read. The system's is large: it is kept as long
/// as something is fetched, or a connection uses it.
#[derive(Debug)]
struct Kept {
    stamp: Stamp,
    config: Weak<ClientConfig>,
    held: Option<Arc<ClientConfig>>,
}

/// A connection on which nothing is under way.
#[derive(Debug)]
pub(super) struct Connection {
    server: Server,
    /// Whether the server is this machine or its link's own.
    pub near: bool,
    sender: SendRequest<Empty<Bytes>>,
    driver: AbortHandle,
}

/// Whatever is under way on it ends at once: a server that says nothing more would hold it open.
impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    /// Asks; the answer's body is still to come.
    pub async fn ask(
        &mut self,
        request: Request<Empty<Bytes>>,
        patience: Duration,
    ) -> Result<Response<Incoming>, Trouble> {
        let cut = |error: hyper::Error| Trouble::Cut(error.to_string());
        match timeout(patience, self.sender.send_request(request)).await {
            Ok(answer) => answer.map_err(cut),
            Err(_) => Err(Trouble::Slow),
        }
    }

    /// Whether it can be asked again, the last answer having been read to its end.
    pub async fn is_ready(&mut self) -> bool {
        timeout(Duration::from_secs(1), self.sender.ready()).await.is_ok_and(|ready| ready.is_ok())
    }

    /// Whether this address can be asked for over it.
    pub fn serves(&self, address: &Address) -> bool {
        self.server == address.server && (address.near || !self.near)
    }
}

impl Shared {
    pub fn new(authorities: Authorities, patience: Patience) -> Self {
        Self {
            authorities,
            tls: tokio::sync::Mutex::default(),
            idle: Mutex::default(),
            numbers: AtomicU64::new(0),
            room: Arc::new(Semaphore::new(AT_ONCE)),
            freed: Notify::new(),
            most: AtomicU64::new(u64::MAX),
            received: Arc::default(),
            patience,
        }
    }

    /// A connection that is open already.
    pub fn idle(&self, address: &Address) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(_, connection)| !connection.sender.is_closed());
        let found = idle.iter().position(|(_, connection)| connection.serves(address))?;
        Some(idle.swap_remove(found).1)
    }

    /// Keeps a connection for the next request, for a while.
    pub fn put_by(self: &Arc<Self>, connection: Connection) {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push((number, connection));
        self.freed.notify_waiters();
        let (shared, wait) = (Arc::downgrade(self), self.patience.idle);
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            if let Some(shared) = shared.upgrade() {
                let mut idle = shared.idle.lock().unwrap_or_else(PoisonError::into_inner);
                idle.retain(|(other, _)| *other != number);
            }
        });
    }

    /// A new connection. Where there is no room for it, one that is idle is closed, or waited for one
    /// that is busy; it may be that one then. That is not waiting for the server.
    pub async fn open(&self, address: &Address, waiting: &mut Waiting) -> Result<Connection, Trouble> {
        waiting.pause(Instant::now());
        let room = loop {
            let freed = self.freed.notified();
            if self.room.available_permits() == 0 {
                if let Some(connection) = self.idle(address) {
                    waiting.start(Instant::now());
                    return Ok(connection);
                }
                self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            }
            tokio::select! {
                room = Arc::clone(&self.room).acquire_owned() => break room,
                () = freed => {}
            }
        };
        waiting.start(Instant::now());
        let room = room.map_err(|_| Trouble::Connect("there is no room for it".to_owned()))?;
        match timeout(self.patience.connect, self.open_unhurried(address, room)).await {
            Ok(result) => result,
            Err(_) => Err(Trouble::Connect("not within the time for it".to_owned())),
        }
    }

    async fn open_unhurried(
        &self,
        address: &Address,
        room: OwnedSemaphorePermit,
    ) -> Result<Connection, Trouble> {
        let server = &address.server;
        let broken = |error: io::Error| Trouble::Connect(error.to_string());
        // Before anything is sent: without authorities nobody is believed.
        let tls = if server.tls { Some(self.tls().await?) } else { None };
        let found = tokio::net::lookup_host((server.host.as_str(), server.port)).await.map_err(broken)?;
        let found = found.take(ADDRESSES).filter(|found| address.near || !is_near(found.ip()));
        let stream = self.reach(found).await.map_err(broken)?;
        let near = stream.peer_addr().is_ok_and(|peer| is_near(peer.ip()));
        let stream = Counted { stream, received: Arc::clone(&self.received) };
        let (sender, driver) = match tls {
            None => spoken(stream, room).await?,
            Some(config) => {
                let name = ServerName::try_from(server.host.clone()).map_err(|_| {
                    Trouble::Answer("its server's name cannot be in a certificate".to_owned())
                })?;
                spoken(TlsConnector::from(config).connect(name, stream).await.map_err(broken)?, room).await?
            }
        };
        Ok(Connection { server: server.clone(), near, sender, driver })
    }

    /// The first address that takes the connection.
    async fn reach(&self, addresses: impl Iterator<Item = SocketAddr>) -> io::Result<TcpStream> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address that may be asked");
        for address in addresses {
            match timeout(self.patience.connect / 2, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    stream.set_nodelay(true)?;
                    return Ok(stream);
                }
                Ok(Err(error)) => last = error,
                Err(_) => last = io::ErrorKind::TimedOut.into(),
            }
        }
        Err(last)
    }

    /// Read once, beside the event loop, and again when the list has changed.
    pub async fn tls(&self) -> Result<Arc<ClientConfig>, Trouble> {
        let mut kept = self.tls.lock().await;
        let stamp = self.authorities.stamp().map_err(Trouble::Connect)?;
        if let Some(kept) = kept.as_mut().filter(|kept| kept.stamp == stamp)
            && let Some(config) = kept.config.upgrade()
        {
            kept.held = Some(Arc::clone(&config));
            return Ok(config);
        }
        let (authorities, list) = (self.authorities.clone(), stamp.clone());
        let read = tokio::task::spawn_blocking(move || authorities.config(&list)).await;
        let config = read.unwrap_or_else(|error| Err(error.to_string())).map_err(Trouble::Connect)?;
        let config = Arc::new(config);
        *kept = Some(Kept { stamp, config: Arc::downgrade(&config), held: Some(Arc::clone(&config)) });
        Ok(config)
    }

    /// Nothing is fetched any more.
    pub fn let_go(&self) {
        // Where it is being read, something is about to be fetched.
        if let Ok(mut kept) = self.tls.try_lock()
            && let Some(kept) = kept.as_mut()
        {
            kept.held = None;
        }
    }
}

/// The room is taken until the connection is closed.
async fn spoken<S>(
    stream: S,
    room: OwnedSemaphorePermit,
) -> Result<(SendRequest<Empty<Bytes>>, AbortHandle), Trouble>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = Builder::new()
        .max_buf_size(BUFFER)
        .max_headers(HEADERS)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| Trouble::Connect(error.to_string()))?;
    let driver = tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to a source ended");
        }
        drop(room);
    });
    Ok((sender, driver.abort_handle()))
}

/// A stream whose received bytes are counted: a data budget pays for all of them.
struct Counted {
    stream: TcpStream,
    received: Arc<AtomicU64>,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, into);
        self.received.fetch_add((into.filled().len() - before) as u64, Ordering::Relaxed);
        read
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
