//! Connections: a bounded number of them, with time limits, and an end that lets answers finish.
//!
//! Whoever keeps a connection without asking anything must not keep others out: when every place is
//! taken, the connection that has been idle for longest gives way.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
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

/// Time that an answer gets to be sent to its end when its connection must give way.
const LINGER: Duration = Duration::from_millis(200);

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
    let idle = Arc::new(Idle::default());
    let mut connections = JoinSet::new();
    loop {
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
        let permit = tokio::select! {
            permit = place(&free, &idle) => permit,
            () = stopped(&mut stop) => break,
        };
        let Some(permit) = permit else { break };
        while connections.try_join_next().is_some() {}
        let (router, head, stop) = (router.clone(), limits.head, stop.clone());
        let ticket = Ticket::new(&idle);
        connections.spawn(async move {
            let _permit = permit;
            connection(stream, router, head, stop, ticket).await;
        });
    }
    drop(listener);
    let drained =
        tokio::time::timeout(limits.drain, async { while connections.join_next().await.is_some() {} });
    if drained.await.is_err() {
        connections.abort_all();
    }
}

/// A place for one connection more, taken from the one that is idle for longest if there is no other.
async fn place(free: &Arc<Semaphore>, idle: &Idle) -> Option<OwnedSemaphorePermit> {
    loop {
        if let Ok(permit) = Arc::clone(free).try_acquire_owned() {
            return Some(permit);
        }
        if idle.end_oldest() {
            return Arc::clone(free).acquire_owned().await.ok();
        }
        // All are at work: until one ends, or is idle.
        tokio::select! {
            permit = Arc::clone(free).acquire_owned() => return permit.ok(),
            () = idle.more.notified() => {}
        }
    }
}

async fn connection(
    stream: TcpStream,
    router: Router,
    head: Duration,
    mut stop: watch::Receiver<bool>,
    ticket: Ticket,
) {
    let work = Arc::clone(&ticket.work);
    let counted = router.layer(axum::middleware::from_fn(
        move |request: axum::extract::Request, next: axum::middleware::Next| {
            let working = Working::begin(&work);
            async move {
                let response = next.run(request).await;
                drop(working);
                response
            }
        },
    ));
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head)
        .max_buf_size(64 << 10)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(counted));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = stopped(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
        () = ticket.work.end.notified() => {
            connection.as_mut().graceful_shutdown();
            // Where nothing was asked, no answer is on its way.
            let linger = if ticket.work.asked.load(Ordering::Acquire) { LINGER } else { Duration::ZERO };
            match tokio::time::timeout(linger, connection).await {
                Ok(ended) => ended,
                Err(_) => Ok(()),
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!("connection ended: {error}");
    }
}

/// Connections that answer nothing at the moment, by how long that is so.
#[derive(Default)]
struct Idle {
    state: Mutex<Order>,
    more: Notify,
}

#[derive(Default)]
struct Order {
    next: u64,
    waiting: BTreeMap<u64, Arc<Work>>,
}

/// What one connection has to do.
struct Work {
    idle: Arc<Idle>,
    /// Requests under way: one, unless a client sends the next before it has the answer.
    requests: AtomicUsize,
    /// Whether there ever was one.
    asked: AtomicBool,
    /// Its place among those that are idle.
    number: Mutex<Option<u64>>,
    end: Notify,
}

/// Takes the connection from the list when it ends.
struct Ticket {
    work: Arc<Work>,
}

/// One request under way.
struct Working {
    work: Arc<Work>,
}

impl Idle {
    /// End the connection that is idle for longest, if one is.
    fn end_oldest(&self) -> bool {
        let oldest = self.state.lock().unwrap_or_else(PoisonError::into_inner).waiting.pop_first();
        oldest.map(|(_, work)| work.end.notify_one()).is_some()
    }
}

impl Work {
    fn rest(self: &Arc<Self>) {
        let mut number = self.number.lock().unwrap_or_else(PoisonError::into_inner);
        let mut order = self.idle.state.lock().unwrap_or_else(PoisonError::into_inner);
        order.next += 1;
        let mine = order.next;
        order.waiting.insert(mine, Arc::clone(self));
        *number = Some(mine);
        self.idle.more.notify_one();
    }

    fn leave(&self) {
        let number = self.number.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(number) = number {
            self.idle.state.lock().unwrap_or_else(PoisonError::into_inner).waiting.remove(&number);
        }
    }
}

impl Ticket {
    fn new(idle: &Arc<Idle>) -> Self {
        let work = Arc::new(Work {
            idle: Arc::clone(idle),
            requests: AtomicUsize::new(0),
            asked: AtomicBool::new(false),
            number: Mutex::new(None),
            end: Notify::new(),
        });
        work.rest();
        Self { work }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.work.leave();
    }
}

impl Working {
    fn begin(work: &Arc<Work>) -> Self {
        work.asked.store(true, Ordering::Release);
        if work.requests.fetch_add(1, Ordering::AcqRel) == 0 {
            work.leave();
        }
        Self { work: Arc::clone(work) }
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        if self.work.requests.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.work.rest();
        }
    }
}

/// Ready when `stop` holds true, or when nobody can say so any more.
pub async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone: that is a stop too.
    let _ = stop.wait_for(|stop| *stop).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const PATIENCE: Duration = Duration::from_secs(60);

    async fn ask(stream: &mut TcpStream) -> Option<String> {
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.ok()?;
        let mut answer = vec![0; 1000];
        let read = tokio::time::timeout(PATIENCE, stream.read(&mut answer)).await.unwrap().ok()?;
        (read > 0).then(|| String::from_utf8_lossy(&answer[..read]).into_owned())
    }

    /// Four places; no time limit ends a connection within the test.
    async fn served(router: Router) -> (SocketAddr, watch::Sender<bool>) {
        let (listener, address) = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let (stop, stopped) = watch::channel(false);
        let hour = Duration::from_secs(3600);
        let limits = Limits { connections: 4, head: hour, drain: Duration::from_secs(1) };
        tokio::spawn(serve(listener, router, limits, stopped));
        (address, stop)
    }

    #[tokio::test]
    async fn idle_connections_do_not_keep_others_out() {
        let router = Router::new().route("/", axum::routing::get(async || "here"));
        let (address, _stop) = served(router).await;
        let mut held = Vec::new();
        // Some have asked something, some never did, some sent half a question.
        for number in 0..20 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            match number % 3 {
                0 => drop(ask(&mut stream).await),
                1 => stream.write_all(b"GET / HT").await.unwrap(),
                _ => {}
            }
            held.push(stream);
        }
        let mut last = TcpStream::connect(address).await.unwrap();
        assert!(ask(&mut last).await.unwrap().ends_with("here"));
        // The newest have stayed.
        assert!(ask(&mut last).await.unwrap().ends_with("here"));
    }

    #[tokio::test]
    async fn those_at_work_stay_until_they_have_answered() {
        let go = Arc::new(Notify::new());
        let begun = Arc::new(Semaphore::new(0));
        let (wait, started) = (Arc::clone(&go), Arc::clone(&begun));
        let slow = async move || {
            started.add_permits(1);
            wait.notified().await;
            "slow"
        };
        let (address, _stop) = served(Router::new().route("/", axum::routing::get(slow))).await;
        let mut asking = JoinSet::new();
        for _ in 0..4 {
            asking.spawn(async move { ask(&mut TcpStream::connect(address).await.unwrap()).await });
        }
        tokio::time::timeout(PATIENCE, begun.acquire_many(4)).await.unwrap().unwrap().forget();
        // A fifth gets its place when the first of them is done, and none of them is cut off.
        asking.spawn(async move { ask(&mut TcpStream::connect(address).await.unwrap()).await });
        for _ in 0..5 {
            go.notify_one();
            let answer = tokio::time::timeout(PATIENCE, asking.join_next()).await.unwrap().unwrap().unwrap();
            assert!(answer.unwrap().ends_with("slow"));
        }
    }
}
