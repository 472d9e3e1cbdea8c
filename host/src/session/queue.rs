//! Runs of a session that wait for others: one thread goes from one to the next and computes for all of them.
//!
//! Were the session handed from thread to thread it would wait each time until the next one is woken, and its
//! processor's caches with it (ADR 36).

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;

use super::RunError;
use crate::clock;
use crate::deadline::Deadline;
use crate::threads::{self, compute};

/// What waits for a session.
pub struct Queue<S> {
    session: Arc<tokio::sync::Mutex<S>>,
    state: Mutex<State<S>>,
}

struct State<S> {
    runs: VecDeque<Slot<S>>,
    /// Whether a thread computes for those that wait.
    goes_on: bool,
}

type Run<S> = Box<dyn FnOnce(&mut S) + Send>;

/// A run that waits: whoever takes it out, to do it or since its time has passed, has it alone.
type Slot<S> = Arc<Mutex<Option<Run<S>>>>;

fn take<S>(slot: &Slot<S>) -> Option<Run<S>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner).take()
}

impl<S: Send + 'static> Queue<S> {
    /// For this session.
    pub fn new(session: Arc<tokio::sync::Mutex<S>>) -> Arc<Self> {
        Arc::new(Self { session, state: Mutex::new(State { runs: VecDeque::new(), goes_on: false }) })
    }

    /// Has `run` done at its turn, and blocks until it is over: however long that takes, once it has begun. Within
    /// tokio, on a thread that may block.
    pub fn ask<T: Send + 'static>(
        self: &Arc<Self>,
        deadline: Deadline,
        run: impl FnOnce(&mut S) -> Result<T, RunError> + Send + 'static,
    ) -> Result<T, RunError> {
        let (tell, told) = mpsc::sync_channel(1);
        let run: Run<S> = Box::new(move |session| {
            let before = threads::worked();
            let answer = run(session);
            let _ = tell.send((answer, threads::worked().saturating_sub(before)));
        });
        let slot = Arc::new(Mutex::new(Some(run)));
        self.push(Arc::clone(&slot));
        let left = deadline.answer.saturating_duration_since(clock::now());
        let told = match told.recv_timeout(left) {
            // What it holds goes with it.
            Err(RecvTimeoutError::Timeout) if take(&slot).is_some() => return Err(RunError::Deadline),
            Err(RecvTimeoutError::Timeout) => told.recv().ok(),
            told => told.ok(),
        };
        let (answer, worked) = told.ok_or_else(|| RunError::Model("its run panicked".to_owned()))?;
        threads::worked_elsewhere(worked);
        answer
    }

    fn push(self: &Arc<Self>, slot: Slot<S>) {
        let mut state = self.state();
        if !state.goes_on {
            let queue = Arc::clone(self);
            // Panics where there is no thread to be had; then nothing has changed.
            drop(compute(threads::own_way(), move || queue.go_on()));
            state.goes_on = true;
        }
        state.runs.push_back(slot);
    }

    /// Does what waits, one after another, each at its turn among those who use the session themselves.
    fn go_on(&self) {
        let tokio = Handle::current();
        while let Some(slot) = self.next() {
            let mut session = tokio.block_on(self.session.lock());
            if let Some(run) = take(&slot) {
                // Whoever waits for it is told by what it drops.
                drop(catch_unwind(AssertUnwindSafe(|| run(&mut session))));
            }
        }
    }

    fn next(&self) -> Option<Slot<S>> {
        let mut state = self.state();
        let next = state.runs.pop_front();
        state.goes_on = next.is_some();
        next
    }

    fn state(&self) -> MutexGuard<'_, State<S>> {
        // Nothing panics while it holds the lock and has changed something.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::task::Poll;
    use std::thread::{JoinHandle, sleep, spawn};
    use std::time::Duration;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(20);

    /// A queue whose session somebody else has until what this gives is dropped.
    fn taken(tokio: &Handle) -> (Arc<Queue<Vec<u32>>>, tokio::sync::OwnedMutexGuard<Vec<u32>>) {
        let session = Arc::new(tokio::sync::Mutex::new(Vec::new()));
        let guard = tokio.block_on(Arc::clone(&session).lock_owned());
        (Queue::new(session), guard)
    }

    /// Asks from a thread of its own, and is back when its run waits.
    fn ask(
        (queue, tokio): (&Arc<Queue<Vec<u32>>>, &Handle),
        number: u32,
        time: Duration,
    ) -> JoinHandle<Result<usize, RunError>> {
        // The first of them is taken at once, by the thread that then waits for the session.
        let waiting = || Some(queue.state()).filter(|state| state.goes_on).map(|state| state.runs.len());
        let expected = waiting().map_or(0, |before| before + 1);
        let (asked, tokio) = (Arc::clone(queue), tokio.clone());
        let asking = spawn(move || {
            let _entered = tokio.enter();
            asked.ask(Deadline::from(time), move |session| {
                assert!(number < 100, "as a test wants it");
                session.push(number);
                Ok(session.len())
            })
        });
        while waiting() != Some(expected) {
            sleep(Duration::from_millis(1));
        }
        asking
    }

    fn tokio() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
    }

    #[test]
    fn they_run_in_the_order_of_their_coming_and_one_that_panics_alone_fails() {
        let tokio = tokio();
        let (queue, guard) = taken(tokio.handle());
        let asking: Vec<_> =
            [1, 2, 100, 3].map(|number| ask((&queue, tokio.handle()), number, LONG)).into_iter().collect();
        drop(guard);
        let answers: Vec<_> = asking.into_iter().map(|asking| asking.join().unwrap()).collect();
        assert_eq!((&answers[0], &answers[1], &answers[3]), (&Ok(1), &Ok(2), &Ok(3)));
        assert_eq!(answers[2], Err(RunError::Model("its run panicked".to_owned())));
        // And after those that were asked at once, one that comes later.
        assert_eq!(ask_now(&queue, &tokio), Ok(4));
        assert_eq!(*tokio.block_on(queue.session.lock()), [1, 2, 3, 7]);
    }

    fn ask_now(queue: &Arc<Queue<Vec<u32>>>, tokio: &tokio::runtime::Runtime) -> Result<usize, RunError> {
        let _entered = tokio.enter();
        queue.ask(Deadline::from(LONG), |session| {
            session.push(7);
            Ok(session.len())
        })
    }

    #[test]
    fn one_that_waits_too_long_never_runs() {
        let tokio = tokio();
        let (queue, guard) = taken(tokio.handle());
        let late = [1, 2].map(|number| ask((&queue, tokio.handle()), number, SHORT));
        for late in late {
            assert_eq!(late.join().unwrap(), Err(RunError::Deadline));
        }
        let inputs = Arc::new(());
        let held = Arc::clone(&inputs);
        let entered = tokio.enter();
        let late = queue.ask(Deadline::from(SHORT), move |_| {
            drop(held);
            Ok(())
        });
        drop(entered);
        assert_eq!(
            (late, Arc::strong_count(&inputs)),
            (Err(RunError::Deadline), 1),
            "nor is anything kept for it"
        );
        drop(guard);
        assert_eq!(ask_now(&queue, &tokio), Ok(1));
    }

    #[test]
    fn one_that_has_begun_is_waited_for() {
        let tokio = tokio();
        let _entered = tokio.enter();
        let queue = Queue::new(Arc::new(tokio::sync::Mutex::new(())));
        // On a busy machine the time can be over before it has begun.
        for _ in 0..1000 {
            let (begun, begins) = channel();
            let answer = queue.ask(Deadline::from(SHORT), move |()| {
                begun.send(()).unwrap();
                sleep(5 * SHORT);
                Ok(7)
            });
            if begins.recv().is_ok() {
                assert_eq!(answer, Ok(7));
                return;
            }
            assert_eq!(answer, Err(RunError::Deadline));
        }
        panic!("it never began");
    }

    #[test]
    fn who_uses_the_session_itself_has_its_turn_between_them() {
        let tokio = tokio();
        let (queue, guard) = taken(tokio.handle());
        drop(guard);
        let ((begun, begins), (end, ends)) = (channel(), channel());
        let (asked, handle) = (Arc::clone(&queue), tokio.handle().clone());
        let first = spawn(move || {
            let _entered = handle.enter();
            asked.ask(Deadline::from(LONG), move |session| {
                begun.send(()).unwrap();
                ends.recv().unwrap();
                session.push(1);
                Ok(())
            })
        });
        begins.recv().unwrap();
        // Polled once, it stands behind the first.
        let mut itself = Box::pin(Arc::clone(&queue.session).lock_owned());
        let polled = std::future::poll_fn(|context| Poll::Ready(itself.as_mut().poll(context).is_pending()));
        assert!(tokio.block_on(polled));
        let second = ask((&queue, tokio.handle()), 2, LONG);
        end.send(()).unwrap();
        tokio.block_on(itself).push(50);
        drop((first.join(), second.join()));
        assert_eq!(*tokio.block_on(queue.session.lock()), [1, 50, 2]);
    }

    #[test]
    fn what_another_thread_computed_counts_for_who_asked() {
        let tokio = tokio();
        let _entered = tokio.enter();
        let queue = Queue::new(Arc::new(tokio::sync::Mutex::new(())));
        let before = threads::worked();
        let took = queue.ask(Deadline::from(LONG), |()| {
            let own = threads::worked();
            while threads::worked() < own + SHORT {}
            Ok(SHORT)
        });
        assert!(threads::worked() >= before + took.unwrap());
    }
}
