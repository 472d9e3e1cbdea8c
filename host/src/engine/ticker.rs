//! The thread that keeps deadlines: it advances wasmtime's epoch, and stops ONNX Runtime's runs.
//!
//! It ticks while requests run and for a moment afterwards, then sleeps until the next request, so
//! that an idle host does not wake up. A model that was told to stop and runs on a second after all the time
//! that its package has, counted from where the run began, is reported as fatal: nothing but the end of the process stops it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::clock;
use crate::deadline::Deadline;

/// Length of a tick, and thereby how late a deadline may be met.
pub const TICK: Duration = Duration::from_millis(10);
/// Time that a model gets to stop after it was told to.
pub const GRACE: Duration = Duration::from_secs(1);
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

/// Watches the runs of one session, of which there is one at a time.
pub struct Watch {
    state: Mutex<Run>,
    stop: Box<dyn Fn(Stop) + Send + Sync>,
}

/// What a [`Watch`] asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Tell the run to end.
    Now,
    /// The run has ended: the next may begin.
    Over,
    /// The run did not end within its grace.
    Failed,
}

#[derive(Debug, Default)]
struct Run {
    deadline: Option<Deadline>,
    stopped: Option<Instant>,
    failed: bool,
}

impl Watch {
    /// A watch that calls `stop`, which must not block.
    pub fn new(stop: impl Fn(Stop) + Send + Sync + 'static) -> Self {
        Self { state: Mutex::default(), stop: Box::new(stop) }
    }

    /// Arms the watch for a run that begins `now`.
    pub fn arm(&self, deadline: Deadline, now: Instant) {
        lock(&self.state).deadline = Some(deadline.begun(now));
    }

    /// The run is over; says whether it had been told to stop.
    pub fn disarm(&self) -> bool {
        let mut run = lock(&self.state);
        run.deadline = None;
        let stopped = run.stopped.take().is_some();
        if stopped {
            (self.stop)(Stop::Over);
        }
        stopped
    }

    /// Looks at the clock; says whether there is a run.
    fn check(&self, now: Instant) -> bool {
        let mut run = lock(&self.state);
        let Some(deadline) = run.deadline else {
            return false;
        };
        match run.stopped {
            None if now >= deadline.answer => {
                run.stopped = Some(now);
                (self.stop)(Stop::Now);
            }
            Some(stopped) if now >= stopped.max(deadline.end) + GRACE && !run.failed => {
                run.failed = true;
                (self.stop)(Stop::Failed);
            }
            _ => {}
        }
        true
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("state", &self.state).finish_non_exhaustive()
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
    fn a_run_is_told_once_to_stop_and_reported_once_after_its_grace() {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let watch = Watch::new({
            let calls = calls.clone();
            move |stop| lock(&calls).push(stop)
        });
        let start = clock::now();
        let deadline = start + Duration::from_millis(50);
        assert!(!watch.check(start));
        watch.arm(Deadline { from: start, answer: deadline, end: deadline, whole: deadline - start }, start);
        assert!(watch.check(start) && lock(&calls).is_empty());
        watch.check(deadline);
        watch.check(deadline + GRACE / 2);
        assert_eq!(*lock(&calls), [Stop::Now]);
        watch.check(deadline + GRACE);
        watch.check(deadline + 2 * GRACE);
        assert_eq!(*lock(&calls), [Stop::Now, Stop::Failed]);
        assert!(watch.disarm());
        assert_eq!(*lock(&calls), [Stop::Now, Stop::Failed, Stop::Over]);
    }

    #[test]
    fn a_client_that_gives_little_time_has_a_run_stopped_and_nothing_reported() {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let watch = Watch::new({
            let calls = calls.clone();
            move |stop| lock(&calls).push(stop)
        });
        let start = clock::now();
        let whole = Duration::from_secs(60);
        let end = start + whole;
        watch.arm(Deadline { from: start, answer: start, end, whole }, start);
        watch.check(start);
        watch.check(end);
        watch.check(end + GRACE - TICK);
        assert_eq!(*lock(&calls), [Stop::Now]);
        watch.check(end + GRACE);
        assert_eq!(*lock(&calls), [Stop::Now, Stop::Failed]);
    }

    #[test]
    fn a_run_that_waited_for_its_session_has_all_of_its_time() {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let watch = Watch::new({
            let calls = calls.clone();
            move |stop| lock(&calls).push(stop)
        });
        let (start, second) = (clock::now(), Duration::from_secs(1));
        let end = start + 10 * second;
        // It got the session seven seconds later.
        watch.arm(Deadline { from: start, answer: end, end, whole: 10 * second }, start + 7 * second);
        watch.check(end);
        watch.check(end + GRACE);
        watch.check(end + 7 * second + GRACE - TICK);
        assert_eq!(*lock(&calls), [Stop::Now]);
        watch.check(end + 7 * second + GRACE);
        assert_eq!(*lock(&calls), [Stop::Now, Stop::Failed]);
    }

    #[test]
    fn a_run_that_ends_in_time_is_left_alone() {
        let watch = Watch::new(|stop| panic!("{stop:?}"));
        let start = clock::now();
        watch.arm(Deadline { from: start, answer: start + TICK, end: start + TICK, whole: TICK }, start);
        watch.check(start);
        assert!(!watch.disarm());
        assert!(!watch.check(start + 2 * TICK));
    }

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
