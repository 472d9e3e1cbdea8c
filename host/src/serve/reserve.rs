//! Who computes on the threads that serve, and that somebody serves meanwhile.
//!
//! A quick package is asked on a thread that serves. One that turns out to be slow blocks it. So there is one thread
//! more than may compute. And since a thread of tokio that blocks wakes nobody else, though it may be the one that
//! waited for sockets and timers for all of them, a thread beside them looks every [`LOOK`]: where some compute and
//! none has ended since the last look, it wakes one that serves.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(10);

/// Looks at which nobody computes before the one who looks sleeps until somebody does.
const IDLE_LOOKS: u32 = 100;

/// Those that compute are counted below this, and those that have ended in whole multiples of it.
const ENDED: u64 = 1 << 16;

/// Both counts.
static COMPUTING: AtomicU64 = AtomicU64::new(0);

/// How many may compute, and how many look: none may where nobody does.
static MOST: AtomicUsize = AtomicUsize::new(0);
static LOOKING: AtomicUsize = AtomicUsize::new(0);

/// Those who look and sleep, and how many they are.
static SLEEPERS: Mutex<Vec<Thread>> = Mutex::new(Vec::new());
static ASLEEP: AtomicUsize = AtomicUsize::new(0);

/// Threads that may compute: one for each processor, and at least two.
pub fn serving_threads() -> usize {
    thread::available_parallelism().map_or(2, usize::from).max(2)
}

/// The threads that serve, which may compute as long as the second part lives.
pub fn threads() -> std::io::Result<(Runtime, Reserve)> {
    let most = serving_threads();
    let executor = Builder::new_multi_thread().worker_threads(most + 1).enable_all().build()?;
    let ended = Arc::new(AtomicBool::new(false));
    let looking = thread::Builder::new().name("reserve".to_owned()).spawn({
        let (executor, ended) = (executor.handle().clone(), Arc::clone(&ended));
        move || look(&executor, &ended)
    })?;
    LOOKING.fetch_add(1, Ordering::SeqCst);
    MOST.store(most, Ordering::SeqCst);
    Ok((executor, Reserve { ended, looking: looking.thread().clone() }))
}

/// See [`threads`].
#[derive(Debug)]
pub struct Reserve {
    ended: Arc<AtomicBool>,
    looking: Thread,
}

impl Drop for Reserve {
    fn drop(&mut self) {
        if LOOKING.fetch_sub(1, Ordering::SeqCst) == 1 {
            MOST.store(0, Ordering::SeqCst);
        }
        self.ended.store(true, Ordering::SeqCst);
        self.looking.unpark();
    }
}

/// A place among those that compute on a thread that serves.
#[derive(Debug)]
pub struct Place(());

/// A place, if there is one.
pub fn place() -> Option<Place> {
    // This and the load below are sequentially consistent with the ones in `sleep`: either this side sees the other
    // asleep, or that one sees this place taken.
    let before = COMPUTING.fetch_add(1, Ordering::SeqCst);
    if computing(before) >= MOST.load(Ordering::Relaxed) {
        COMPUTING.fetch_sub(1, Ordering::SeqCst);
        return None;
    }
    if ASLEEP.load(Ordering::SeqCst) > 0 {
        sleepers().iter().for_each(Thread::unpark);
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

fn sleepers() -> std::sync::MutexGuard<'static, Vec<Thread>> {
    // Nothing panics while it holds the lock.
    SLEEPERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks until it has ended.
fn look(executor: &Handle, ended: &AtomicBool) {
    let (mut before, mut idle) = (COMPUTING.load(Ordering::SeqCst), 0);
    while !ended.load(Ordering::SeqCst) {
        thread::park_timeout(LOOK);
        let now = COMPUTING.load(Ordering::SeqCst);
        if now != before {
            (before, idle) = (now, 0);
        } else if computing(now) > 0 {
            // A task that comes from outside wakes a thread that has nothing to do; that one waits for sockets and
            // timers from then on.
            drop(executor.spawn(async {}));
        } else {
            idle += 1;
            if idle >= IDLE_LOOKS {
                sleep(now, ended);
                idle = 0;
            }
        }
    }
}

/// Sleeps until there is somebody else who computes than `counts` say.
fn sleep(counts: u64, ended: &AtomicBool) {
    sleepers().push(thread::current());
    ASLEEP.fetch_add(1, Ordering::SeqCst);
    while COMPUTING.load(Ordering::SeqCst) == counts && !ended.load(Ordering::SeqCst) {
        thread::park();
    }
    ASLEEP.fetch_sub(1, Ordering::SeqCst);
    sleepers().retain(|thread| thread.id() != thread::current().id());
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Longer than a test takes, by far.
    const SLOW: Duration = Duration::from_secs(20);

    /// Answers each byte with itself; `b` after it has blocked its thread, until the test is over.
    async fn echo(mut stream: tokio::net::TcpStream, over: Arc<AtomicBool>) {
        while let Ok(byte) = stream.read_u8().await {
            if byte == b'b' {
                let _place = place();
                for _ in 0..SLOW.as_millis() / LOOK.as_millis() {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    thread::sleep(LOOK);
                }
            }
            if stream.write_u8(byte).await.is_err() {
                return;
            }
        }
    }

    fn ask(address: SocketAddr, byte: u8) -> TcpStream {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&[byte]).unwrap();
        stream
    }

    /// So many connections block a thread each, on a server that was idle for so long: another one is answered.
    fn others_are_answered(blocked: usize, idle: Duration) {
        let (executor, reserve) = threads().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let over = Arc::new(AtomicBool::new(false));
        let told_over = Arc::clone(&over);
        executor.spawn(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(echo(stream, Arc::clone(&told_over)));
            }
        });
        let address = told.recv().unwrap();
        thread::sleep(idle);
        let _blocked: Vec<_> = (0..blocked)
            .map(|_| {
                thread::sleep(3 * LOOK);
                ask(address, b'b')
            })
            .collect();
        for _ in 0..3 {
            thread::sleep(3 * LOOK);
            let mut other = ask(address, b'x');
            other.set_read_timeout(Some(SLOW / 2)).unwrap();
            let mut answer = [0];
            other.read_exact(&mut answer).expect("answered while others block");
        }
        over.store(true, Ordering::Relaxed);
        drop(reserve);
        executor.shutdown_timeout(SLOW);
    }

    #[test]
    fn one_that_blocks_an_idle_server_keeps_nobody_waiting() {
        others_are_answered(1, Duration::ZERO);
        others_are_answered(1, (IDLE_LOOKS + 20) * LOOK);
    }

    #[test]
    fn as_many_as_may_compute_keep_nobody_waiting() {
        others_are_answered(serving_threads(), Duration::ZERO);
    }
}
