//! Keeps the deadline of a session's runs.
//!
//! A run begins and ends without a lock; only who stops one, and a run that was stopped, take it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::clock;
use crate::deadline::Deadline;

/// Time that a model gets to stop after it was told to.
pub const GRACE: Duration = Duration::from_secs(1);

/// There is no run.
const NONE: u64 = 0;
/// There is one, and it was told to stop.
const TOLD: u64 = u64::MAX;

/// Watches the runs of one session, of which there is one at a time.
pub struct Watch {
    base: Instant,
    /// When the run has to be answered, in nanoseconds from `base`; or [`NONE`], or [`TOLD`].
    answer: AtomicU64,
    /// When its package has had all its time, likewise. Written before `answer`.
    end: AtomicU64,
    stopped: Mutex<Option<Stopped>>,
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

/// A run that was told to stop, in nanoseconds from the base.
#[derive(Debug)]
struct Stopped {
    /// It has to be over.
    by: u64,
    failed: bool,
}

impl Watch {
    /// A watch that calls `stop`, which must not block.
    pub fn new(stop: impl Fn(Stop) + Send + Sync + 'static) -> Self {
        Self {
            base: clock::now(),
            answer: AtomicU64::new(NONE),
            end: AtomicU64::new(0),
            stopped: Mutex::default(),
            stop: Box::new(stop),
        }
    }

    /// Arms the watch for a run that begins `now` and is over when what this gives is dropped.
    pub fn arm(&self, deadline: Deadline, now: Instant) -> Armed<'_> {
        let deadline = deadline.begun(now);
        self.end.store(self.nanos(deadline.end), Ordering::Relaxed);
        self.answer.store(self.nanos(deadline.answer), Ordering::Release);
        Armed(self)
    }

    /// The run is over; says whether it had been told to stop.
    fn disarm(&self) -> bool {
        let armed = self.answer.load(Ordering::Relaxed);
        if armed != TOLD
            && self.answer.compare_exchange(armed, NONE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            return false;
        }
        // Who tells it has the lock until it is told.
        let mut stopped = lock(&self.stopped);
        *stopped = None;
        (self.stop)(Stop::Over);
        self.answer.store(NONE, Ordering::Release);
        true
    }

    /// Looks at the clock; says whether there is a run.
    pub fn check(&self, now: Instant) -> bool {
        let answer = self.answer.load(Ordering::Acquire);
        if answer == NONE {
            return false;
        }
        let now = self.nanos(now);
        if answer > now && answer != TOLD {
            return true;
        }
        let mut stopped = lock(&self.stopped);
        if let Some(stopped) = &mut *stopped {
            if now >= stopped.by && !stopped.failed {
                stopped.failed = true;
                (self.stop)(Stop::Failed);
            }
        } else if answer != TOLD
            // The next run may have begun, and then this fails; or had to be answered at the same time.
            && self.answer.compare_exchange(answer, TOLD, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            let by = now.max(self.end.load(Ordering::Relaxed)).saturating_add(nanos(GRACE));
            *stopped = Some(Stopped { by, failed: false });
            (self.stop)(Stop::Now);
        }
        true
    }

    /// Neither [`NONE`] nor [`TOLD`].
    fn nanos(&self, at: Instant) -> u64 {
        nanos(at.saturating_duration_since(self.base)).clamp(NONE + 1, TOLD - 1)
    }
}

/// A run; see [`Watch::arm`].
#[derive(Debug)]
#[must_use]
pub struct Armed<'a>(&'a Watch);

impl Armed<'_> {
    /// It is over; says whether it had been told to stop.
    pub fn over(self) -> bool {
        let watch = self.0;
        std::mem::forget(self);
        watch.disarm()
    }
}

/// Its thread panicked.
impl Drop for Armed<'_> {
    fn drop(&mut self) {
        self.0.disarm();
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("answer", &self.answer).field("end", &self.end).finish_non_exhaustive()
    }
}

/// Nothing panics while it holds this lock; if it did, the data would still be whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::ticker::TICK;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    /// A watch, and what it asks for.
    fn watched() -> (Watch, Arc<Mutex<Vec<Stop>>>) {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let watch = Watch::new({
            let calls = calls.clone();
            move |stop| calls.lock().unwrap().push(stop)
        });
        (watch, calls)
    }

    #[test]
    fn a_run_is_told_once_to_stop_and_reported_once_after_its_grace() {
        let (watch, calls) = watched();
        let start = clock::now();
        let deadline = start + Duration::from_millis(50);
        assert!(!watch.check(start));
        let armed = watch
            .arm(Deadline { from: start, answer: deadline, end: deadline, whole: deadline - start }, start);
        assert!(watch.check(start) && calls.lock().unwrap().is_empty());
        watch.check(deadline);
        watch.check(deadline + GRACE / 2);
        assert_eq!(*calls.lock().unwrap(), [Stop::Now]);
        watch.check(deadline + GRACE);
        watch.check(deadline + 2 * GRACE);
        assert_eq!(*calls.lock().unwrap(), [Stop::Now, Stop::Failed]);
        assert!(armed.over());
        assert_eq!(*calls.lock().unwrap(), [Stop::Now, Stop::Failed, Stop::Over]);
    }

    #[test]
    fn a_client_that_gives_little_time_has_a_run_stopped_and_nothing_reported() {
        let (watch, calls) = watched();
        let start = clock::now();
        let whole = Duration::from_secs(60);
        let end = start + whole;
        let _armed = watch.arm(Deadline { from: start, answer: start, end, whole }, start);
        watch.check(start);
        watch.check(end);
        watch.check(end + GRACE - TICK);
        assert_eq!(*calls.lock().unwrap(), [Stop::Now]);
        watch.check(end + GRACE);
        assert_eq!(*calls.lock().unwrap(), [Stop::Now, Stop::Failed]);
    }

    #[test]
    fn a_run_that_waited_for_its_session_has_all_of_its_time() {
        let (watch, calls) = watched();
        let (start, second) = (clock::now(), Duration::from_secs(1));
        let end = start + 10 * second;
        // It got the session seven seconds later.
        let _armed =
            watch.arm(Deadline { from: start, answer: end, end, whole: 10 * second }, start + 7 * second);
        watch.check(end);
        watch.check(end + GRACE);
        watch.check(end + 7 * second + GRACE - TICK);
        assert_eq!(*calls.lock().unwrap(), [Stop::Now]);
        watch.check(end + 7 * second + GRACE);
        assert_eq!(*calls.lock().unwrap(), [Stop::Now, Stop::Failed]);
    }

    #[test]
    fn the_next_run_has_all_of_its_time_whatever_became_of_the_one_before() {
        let (watch, calls) = watched();
        let (start, second) = (clock::now(), Duration::from_secs(1));
        let deadline = |end| Deadline { from: start, answer: end, end, whole: second };
        let mut expected = Vec::new();
        for run in 1..5 {
            let end = start + 10 * run * second;
            let armed = watch.arm(deadline(end), end - second);
            watch.check(end - TICK);
            assert_eq!(*calls.lock().unwrap(), expected);
            watch.check(end);
            watch.check(end + GRACE - TICK);
            expected.push(Stop::Now);
            assert_eq!(*calls.lock().unwrap(), expected);
            if run % 2 == 0 {
                watch.check(end + GRACE);
                expected.push(Stop::Failed);
            }
            // One way or the other.
            if run > 2 {
                drop(armed)
            } else {
                assert!(armed.over())
            }
            expected.push(Stop::Over);
            assert!(!watch.check(end + 2 * GRACE));
            assert_eq!(*calls.lock().unwrap(), expected);
        }
    }

    /// Runs that end in the moment in which they are told to stop: each is told once at most, and before the next
    /// begins.
    #[test]
    fn no_run_is_stopped_in_the_place_of_another() {
        let told = Arc::new(AtomicBool::new(false));
        let watch = Watch::new({
            let told = Arc::clone(&told);
            move |stop| {
                let before = told.swap(stop == Stop::Now, Ordering::SeqCst);
                assert_eq!((stop, before), if before { (Stop::Over, true) } else { (Stop::Now, false) });
            }
        });
        let (start, second) = (clock::now(), Duration::from_secs(1));
        let (late, over) = (start + second, AtomicBool::new(false));
        let deadline =
            |answer| Deadline { from: start, answer, end: start + 60 * second, whole: 60 * second };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    watch.check(late);
                }
            });
            let mut stopped = [0, 0];
            while stopped.iter().any(|&count| count < 1000) {
                let armed = watch.arm(deadline(start), start);
                for _ in 0..stopped[0] % 64 {
                    std::hint::spin_loop();
                }
                let was_told = armed.over();
                assert!(!told.load(Ordering::SeqCst));
                stopped[usize::from(was_told)] += 1;
                // One that has its time is never told.
                let armed = watch.arm(deadline(late + second), start);
                assert!(!armed.over() && !told.load(Ordering::SeqCst));
            }
            over.store(true, Ordering::SeqCst);
        });
    }
}
