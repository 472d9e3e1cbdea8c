//! The broker's front: speaks TLS, verifies who is there, and joins each connection to one of its own to
//! the broker inside, which learns the name from it.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::credentials::{self, Current};
use super::rules::Names;

/// What strangers may take, before they have shown a certificate.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections at once, those in their handshake included: stops memory from being filled.
    pub connections: usize,
    /// Handshakes at once: stops strangers from taking the places of all.
    pub handshakes: usize,
    /// Handshakes at once from one address: stops one stranger from taking the places of all strangers.
    pub handshakes_of_one: usize,
    /// Longest handshake: stops a peer that says nothing from keeping its place.
    pub handshake: Duration,
    /// Longest time that a peer may leave what is sent to it unread.
    pub unread: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: super::CLIENTS + 256,
            handshakes: 256,
            handshakes_of_one: 64,
            handshake: Duration::from_secs(10),
            unread: Duration::from_secs(60),
        }
    }
}

/// How long one direction of a connection goes on after the other has ended.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// How long a refused peer is given to read why.
const REFUSAL: Duration = Duration::from_secs(1);

/// Everything that a connection needs.
pub(super) struct Front {
    pub inside: SocketAddr,
    pub names: Arc<Names>,
    pub current: watch::Receiver<Arc<Current>>,
    pub limits: Limits,
    pub places: Arc<Semaphore>,
    pub handshakes: Arc<Semaphore>,
    pub strangers: Mutex<HashMap<IpAddr, usize>>,
}

impl Front {
    pub fn new(inside: SocketAddr, names: Arc<Names>, current: watch::Receiver<Arc<Current>>) -> Self {
        let limits = Limits::default();
        Self {
            inside,
            names,
            current,
            places: Arc::new(Semaphore::new(limits.connections)),
            handshakes: Arc::new(Semaphore::new(limits.handshakes)),
            strangers: Mutex::default(),
            limits,
        }
    }

    /// Accepts for ever. Who finds no place is let go of at once, and comes again.
    pub async fn serve(self: Arc<Self>, listener: TcpListener) {
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of descriptors: others must go first.
                    tracing::warn!("cannot accept a connection: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else { continue };
            let Ok(handshake) = Arc::clone(&self.handshakes).try_acquire_owned() else { continue };
            let Some(stranger) = Stranger::enter(&self, peer.ip()) else { continue };
            let front = Arc::clone(&self);
            tokio::spawn(async move {
                if let Err(error) = front.connection(stream, place, (handshake, stranger)).await {
                    tracing::debug!(%peer, "a connection ended: {error}");
                }
            });
        }
    }

    async fn connection(
        &self,
        stream: TcpStream,
        _place: OwnedSemaphorePermit,
        handshake: (OwnedSemaphorePermit, Stranger),
    ) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let config = Arc::clone(&self.current.borrow().config);
        let accept = TlsAcceptor::from(config).accept(stream).into_fallible();
        let stream = match timeout(self.limits.handshake, accept).await {
            Ok(Ok(stream)) => stream,
            Ok(Err((error, stream))) => return refuse(stream, error).await,
            Err(_) => return Err(io::ErrorKind::TimedOut.into()),
        };
        drop(handshake);
        let chain: Vec<CertificateDer<'static>> =
            stream.get_ref().1.peer_certificates().map_or_else(Vec::new, |chain| {
                chain.iter().map(|certificate| certificate.clone().into_owned()).collect()
            });
        let Some(name) = chain.first().and_then(credentials::name) else {
            return Err(io::Error::other("the certificate names nobody that could be a client"));
        };
        // A socket of its own for each connection: its address is what the broker inside knows it by.
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let _named = self.names.enter(socket.local_addr()?, name);
        let inside = socket.connect(self.inside).await?;
        inside.set_nodelay(true)?;
        tokio::select! {
            () = join(stream, inside, self.limits.unread) => Ok(()),
            () = self.revoked(&chain) => Err(io::Error::other("its certificate was revoked")),
        }
    }

    /// Ends when the list of revoked certificates names this one.
    async fn revoked(&self, chain: &[CertificateDer<'_>]) {
        let mut current = self.current.clone();
        loop {
            if current.borrow_and_update().revokes(chain) {
                return;
            }
            if current.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

/// One handshake of an address.
struct Stranger {
    front: Arc<Front>,
    address: IpAddr,
}

impl Stranger {
    fn enter(front: &Arc<Front>, address: IpAddr) -> Option<Self> {
        let mut strangers = front.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        let count = strangers.entry(address).or_default();
        if *count >= front.limits.handshakes_of_one {
            return None;
        }
        *count += 1;
        Some(Self { front: Arc::clone(front), address })
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let mut strangers = self.front.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = strangers.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                strangers.remove(&self.address);
            }
        }
    }
}

/// Lets the peer read why: closing with something unread would destroy the alert on its way.
async fn refuse(mut stream: TcpStream, error: io::Error) -> io::Result<()> {
    let _ = stream.shutdown().await;
    let _ = timeout(REFUSAL, async {
        let mut unread = [0; 1024];
        for _ in 0..64 {
            if !matches!(stream.read(&mut unread).await, Ok(1..)) {
                break;
            }
        }
    })
    .await;
    Err(error)
}

/// Carries bytes both ways until one side ends, and a little longer.
async fn join(outside: TlsStream<TcpStream>, inside: TcpStream, unread: Duration) {
    let (outside_from, outside_to) = tokio::io::split(outside);
    let (inside_from, inside_to) = inside.into_split();
    let mut up = std::pin::pin!(carry(outside_from, inside_to, unread));
    let mut down = std::pin::pin!(carry(inside_from, outside_to, unread));
    tokio::select! {
        _ = &mut up => drop(timeout(LAST_WORDS, down).await),
        _ = &mut down => drop(timeout(LAST_WORDS, up).await),
    }
}

async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    unread: Duration,
) -> io::Result<()> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        let write = async {
            to.write_all(&buffer[..count]).await?;
            to.flush().await
        };
        timeout(unread, write).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    }
}
