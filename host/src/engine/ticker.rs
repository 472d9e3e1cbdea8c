//! The thread that keeps deadlines: it advances wasmtime's epoch, and stops ONNX Runtime's runs.
//!
//! It ticks while requests run and for a moment afterwards, then sleeps until the next request, so that an idle host
//! does not wake up. A model that was told to stop and runs on a second after all the time that its package has,
//! counted from where the run began, is reported as fatal: nothing but the end of the process stops it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::watch::Watch;
use crate::clock;

/// Length of a tick, and thereby how late a deadline may be met.
pub const TICK: Duration = Duration::from_millis(10);
/// Ticks without a request after which the thread sleeps.
const IDLE_TICKS: u32 = 100;

/// The thread's handle; dropping it ends the thread.
#[derive(Debug)]
pub struct Ticker {
    shared: Arc<Shared>,
    thread: std::thread::Thread,
}

#[derive(Debug, Default)]
struct Shared {
    busy: AtomicUsize,
    asleep: AtomicBool,
    ended: AtomicBool,
    watches: Mutex<Vec<Weak<Watch>>>,
}

impl Ticker {
    /// Starts the thread for `engine`.
    pub fn start(engine: wasmtime::Engine) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let thread = std::thread::Builder::new()
            .name("ticker".to_owned())
            .spawn({
                let shared = shared.clone();
                move || tick(&shared, &engine)
            })?
            .thread()
            .clone();
        Ok(Self { shared, thread })
    }

    /// Says that a request runs, as long as the answer lives.
    pub fn enter(&self) -> Busy<'_> {
        // The store below and the load in `tick` are both sequentially consistent with the ones of
        // `asleep`: either this side sees the thread asleep, or the thread sees this request.
        self.shared.busy.fetch_add(1, Ordering::SeqCst);
        if self.shared.asleep.load(Ordering::SeqCst) {
            self.thread.unpark();
        }
        Busy(self)
    }

    /// Watches a model's runs from now on, as long as `watch` lives.
    pub fn add(&self, watch: &Arc<Watch>) {
        let mut watches = lock(&self.shared.watches);
        watches.retain(|watch| watch.strong_count() > 0);
        watches.push(Arc::downgrade(watch));
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// A running request; see [`Ticker::enter`].
#[derive(Debug)]
pub struct Busy<'a>(&'a Ticker);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.shared.busy.fetch_sub(1, Ordering::SeqCst);
    }
}

fn tick(shared: &Shared, engine: &wasmtime::Engine) {
    let mut idle = 0;
    while !shared.ended.load(Ordering::SeqCst) {
        std::thread::sleep(TICK);
        engine.increment_epoch();
        let now = clock::now();
        let mut running = false;
        for watch in &*lock(&shared.watches) {
            if let Some(watch) = watch.upgrade() {
                running |= watch.check(now);
            }
        }
        idle = if running || shared.busy.load(Ordering::SeqCst) > 0 { 0 } else { idle + 1 };
        if idle < IDLE_TICKS {
            continue;
        }
        shared.asleep.store(true, Ordering::SeqCst);
        while shared.busy.load(Ordering::SeqCst) == 0 && !shared.ended.load(Ordering::SeqCst) {
            std::thread::park();
        }
        shared.asleep.store(false, Ordering::SeqCst);
        idle = 0;
    }
}

/// Nothing panics while it holds one of these locks; if it did, the data would still be whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_sleeps_when_idle_and_wakes_for_a_request() {
        let engine = crate::engine::new_engine().unwrap();
        let ticker = Arc::new(Ticker::start(engine).unwrap());
        let wait = |condition: &dyn Fn() -> bool| {
            let give_up = clock::now() + Duration::from_secs(30);
            while !condition() {
                assert!(clock::now() < give_up);
                std::thread::sleep(TICK);
            }
        };
        wait(&|| ticker.shared.asleep.load(Ordering::SeqCst));
        let busy = ticker.enter();
        wait(&|| !ticker.shared.asleep.load(Ordering::SeqCst));
        drop(busy);
        wait(&|| ticker.shared.asleep.load(Ordering::SeqCst));
    }
}
