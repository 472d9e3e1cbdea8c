//! Who computes on the threads that serve, and the thread that is kept in reserve for the moment when all of
//! them compute.
//!
//! A quick package is asked on a thread that serves. One that turns out to be slow blocks it, and should that
//! happen to all of them at once nobody would serve any more. So there is one thread more than
//! processors, and a task that does nothing but hold it. It looks every [`LOOK`]: where as many compute as may, and
//! none of them has ended since the last look, it lets its thread go, which then serves until one has ended.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(10);

/// Looks at which nobody computes before the reserve sleeps until somebody does.
const IDLE_LOOKS: u32 = 100;

/// Those that compute are counted below this, and those that have ended in whole multiples of it.
const ENDED: u64 = 1 << 16;

/// Both counts.
static COMPUTING: AtomicU64 = AtomicU64::new(0);

/// How many may compute: none before there is a reserve.
static MOST: AtomicUsize = AtomicUsize::new(0);

/// Whether the reserve waits to be woken, and its thread then.
static ASLEEP: AtomicBool = AtomicBool::new(false);
static THREAD: Mutex<Option<Thread>> = Mutex::new(None);

/// Threads that serve: one for each processor, and at least two.
pub fn serving_threads() -> usize {
    thread::available_parallelism().map_or(2, usize::from).max(2)
}

/// The threads that serve, with one in reserve as long as the second part lives: drop it first. There is one of
/// them in a process.
pub fn threads() -> std::io::Result<(Runtime, Reserve)> {
    let serving = serving_threads();
    let executor = Builder::new_multi_thread().worker_threads(serving + 1).enable_all().build()?;
    let ended = Arc::new(AtomicBool::new(false));
    executor.spawn(hold(Arc::clone(&ended)));
    MOST.store(serving, Ordering::SeqCst);
    Ok((executor, Reserve { ended }))
}

/// See [`threads`].
#[derive(Debug)]
pub struct Reserve {
    ended: Arc<AtomicBool>,
}

impl Drop for Reserve {
    fn drop(&mut self) {
        MOST.store(0, Ordering::SeqCst);
        self.ended.store(true, Ordering::SeqCst);
        wake();
    }
}

/// A place among those that compute on a thread that serves.
#[derive(Debug)]
pub struct Place(());

/// A place, if there is one: where none is left those that compute are slow, and the reserve serves.
pub fn place() -> Option<Place> {
    // This and the load below are sequentially consistent with the ones in `sleep`: either this side sees the reserve
    // asleep, or that one sees this place taken.
    let before = COMPUTING.fetch_add(1, Ordering::SeqCst);
    if computing(before) >= MOST.load(Ordering::Relaxed) {
        COMPUTING.fetch_sub(1, Ordering::SeqCst);
        return None;
    }
    if ASLEEP.load(Ordering::SeqCst) {
        wake();
    }
    Some(Place(()))
}

impl Drop for Place {
    fn drop(&mut self) {
        COMPUTING.fetch_add(ENDED - 1, Ordering::SeqCst);
    }
}

fn computing(counts: u64) -> usize {
    usize::try_from(counts % ENDED).unwrap_or(usize::MAX)
}

fn wake() {
    let thread = THREAD.lock().unwrap_or_else(PoisonError::into_inner).clone();
    thread.as_ref().inspect(|thread| thread.unpark());
}

/// Holds its thread but while it is needed.
async fn hold(ended: Arc<AtomicBool>) {
    let mut seen = None;
    while let Some(counts) = needed(seen, &ended) {
        seen = Some(counts);
        tokio::time::sleep(LOOK).await;
    }
}

/// Blocks until all compute and none has ended for a while; gives the counts, or nothing where the reserve has
/// ended. `seen` is what they were when this thread was last needed: while they are the same it is still.
fn needed(seen: Option<u64>, ended: &AtomicBool) -> Option<u64> {
    let stuck = |counts| computing(counts) >= MOST.load(Ordering::SeqCst).max(1);
    let mut before = COMPUTING.load(Ordering::SeqCst);
    if seen == Some(before) && stuck(before) {
        return seen;
    }
    let mut idle = 0;
    while !ended.load(Ordering::SeqCst) {
        thread::sleep(LOOK);
        let now = COMPUTING.load(Ordering::SeqCst);
        if now == before && stuck(now) {
            return Some(now);
        }
        idle = if now == before { idle + 1 } else { 0 };
        before = now;
        if idle >= IDLE_LOOKS {
            sleep(before, ended);
            idle = 0;
        }
    }
    None
}

/// Sleeps until there is somebody else who computes than `counts` say.
fn sleep(counts: u64, ended: &AtomicBool) {
    *THREAD.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread::current());
    ASLEEP.store(true, Ordering::SeqCst);
    while COMPUTING.load(Ordering::SeqCst) == counts && !ended.load(Ordering::SeqCst) {
        thread::park();
    }
    ASLEEP.store(false, Ordering::SeqCst);
}
