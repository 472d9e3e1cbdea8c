//! Knocking without pause: a new connection at a steady pace, each asking whether the host lives. Counts who
//! is refused at the door, as opposed to waiting, and whose answer was broken off.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Time between two knocks.
const PACE: Duration = Duration::from_millis(5);
/// Longest wait for an answer: it ends a hung test, and nobody is held up for so long.
const LONGEST: Duration = Duration::from_secs(90);
const QUESTION: &[u8] = b"GET /v2/health/live HTTP/1.1\r\nHost: device\r\nConnection: close\r\n\r\n";

/// What became of the knocks.
#[derive(Debug, Default)]
struct Counts {
    knocks: AtomicUsize,
    answered: AtomicUsize,
    refused: AtomicUsize,
    broken: AtomicUsize,
}

/// The same as numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// Connections that were tried.
    pub knocks: usize,
    /// Those that got a whole answer.
    pub answered: usize,
    /// Those that were refused, or could not be made.
    pub refused: usize,
    /// Those that were made and ended without a whole answer.
    pub broken: usize,
}

/// Knocks under way, in a thread of their own.
pub struct Knocking {
    stop: Arc<AtomicBool>,
    counts: Arc<Counts>,
    thread: JoinHandle<()>,
}

impl Knocking {
    /// Knocks at `address` until it is stopped.
    pub fn start(address: &str) -> Self {
        let (stop, counts) = (Arc::new(AtomicBool::new(false)), Arc::new(Counts::default()));
        let (stopped, counted, address) = (Arc::clone(&stop), Arc::clone(&counts), address.to_owned());
        let thread = std::thread::spawn(move || {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime can be made")
                .block_on(knock(&address, &stopped, &counted));
        });
        Self { stop, counts, thread }
    }

    /// So far; some may be waiting for their answer.
    pub fn tally(&self) -> Tally {
        let count = |count: &AtomicUsize| count.load(Ordering::SeqCst);
        let Counts { knocks, answered, refused, broken } = &*self.counts;
        Tally {
            answered: count(answered),
            refused: count(refused),
            broken: count(broken),
            knocks: count(knocks),
        }
    }

    /// Knocks no more, and waits for the last answers.
    pub fn stop(self) -> Tally {
        self.stop.store(true, Ordering::SeqCst);
        let counts = Arc::clone(&self.counts);
        self.thread.join().expect("knocking does not panic");
        Self { stop: Arc::default(), counts, thread: std::thread::spawn(|| ()) }.tally()
    }
}

async fn knock(address: &str, stop: &AtomicBool, counts: &Arc<Counts>) {
    let mut tick = tokio::time::interval(PACE);
    let mut waiting = tokio::task::JoinSet::new();
    while !stop.load(Ordering::SeqCst) {
        tick.tick().await;
        counts.knocks.fetch_add(1, Ordering::SeqCst);
        let (address, counts) = (address.to_owned(), Arc::clone(counts));
        waiting.spawn(async move {
            let count = match tokio::time::timeout(LONGEST, once(&address)).await {
                Ok(Ok(true)) => &counts.answered,
                Ok(Err(error)) if error.kind() != ErrorKind::ConnectionReset => &counts.refused,
                _ => &counts.broken,
            };
            count.fetch_add(1, Ordering::SeqCst);
        });
        while waiting.try_join_next().is_some() {}
    }
    while waiting.join_next().await.is_some() {}
}

/// Whether a whole answer came. An error where there was no connection.
async fn once(address: &str) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(address).await?;
    if stream.write_all(QUESTION).await.is_err() {
        return Ok(false);
    }
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer).await;
    Ok(read.is_ok() && answer.starts_with(b"HTTP/1.1 200"))
}
