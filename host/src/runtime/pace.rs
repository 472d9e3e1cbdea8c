//! How a package's last requests went: whether the next is expected to take less time than another thread would
//! need to be woken for it, and whether it is likely to fail.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::clock;
use crate::failure::PredictError;
use crate::threads::worked;

/// What is quick.
const QUICK: Duration = Duration::from_micros(500);

/// What is not, though the thread did little: it waited for something, and not only for its processor.
const WAITED: Duration = Duration::from_millis(10);

/// Quick answers in a row that make a package quick. One that is not undoes it.
const IN_A_ROW: u32 = 32;

/// What a failed request weighs against one that did not fail.
const FAILED: u32 = 4;

/// Weight from which on a package fails: four in a row, or more than a fifth of many.
const FAILS: u32 = 16;

/// The most weight: so many good answers after that undo it.
const MOST: u32 = 48;

/// How a package's last requests went.
#[derive(Debug, Default)]
pub struct Pace {
    quick: AtomicU32,
    /// A quick one took longer than it should, nobody knows why: the next one's own time is taken.
    doubted: AtomicBool,
    failed: AtomicU32,
}

/// A request that runs, on one thread unless it moved.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    began: Instant,
    /// What its thread had done before, where that matters: asking costs a system call.
    worked: Option<Duration>,
}

impl Run {
    /// Whether it was quick; `None`: it took its time, and may have waited for its processor. It counts what the
    /// thread itself did, so that a busy machine makes no package slow, unless it waited for something else, too. One
    /// that moved to another thread is not quick.
    fn was_quick(self, ended: Option<Instant>) -> Option<bool> {
        match ended.unwrap_or_else(clock::now).duration_since(self.began) {
            wall if wall <= QUICK => Some(true),
            wall if wall >= WAITED => Some(false),
            _ => self.worked.map(|before| worked().checked_sub(before).is_some_and(|worked| worked <= QUICK)),
        }
    }
}

impl Pace {
    /// A request begins, on this thread, now.
    pub fn run(&self, now: Instant) -> Run {
        let worked_too = !self.is_quick() || self.doubted.load(Ordering::Relaxed);
        Run { began: now, worked: worked_too.then(worked) }
    }

    /// It is over, with all that was made and freed for it: just now, or when the clock was read last.
    pub fn ran(&self, run: Run, ended: Option<Instant>, error: Option<&PredictError>) {
        self.took(run.was_quick(ended));
        self.ended(error.is_some_and(is_its_own));
    }

    fn took(&self, quick: Option<bool>) {
        if self.doubted.load(Ordering::Relaxed) != quick.is_none() {
            self.doubted.store(quick.is_none(), Ordering::Relaxed);
        }
        match quick {
            Some(true) => change(&self.quick, |quick| (quick + 1).min(IN_A_ROW)),
            Some(false) => change(&self.quick, |_| 0),
            None => {}
        }
    }

    fn ended(&self, failed: bool) {
        change(
            &self.failed,
            |weight| if failed { (weight + FAILED).min(MOST) } else { weight.saturating_sub(1) },
        );
    }

    /// Whether the next one is expected to be quick.
    pub fn is_quick(&self) -> bool {
        self.quick.load(Ordering::Relaxed) >= IN_A_ROW
    }

    /// Whether the next one is likely to fail.
    pub fn fails(&self) -> bool {
        self.failed.load(Ordering::Relaxed) >= FAILS
    }
}

/// Two at once may count as one: it is quick a little later then. Where nothing changes nothing is written, since
/// all processors read it.
fn change(number: &AtomicU32, next: impl Fn(u32) -> u32) {
    let now = number.load(Ordering::Relaxed);
    let next = next(now);
    if next != now {
        number.store(next, Ordering::Relaxed);
    }
}

/// What is no fault of the caller, of the model that he asks, or of the host.
fn is_its_own(error: &PredictError) -> bool {
    match error {
        PredictError::Module(_)
        | PredictError::Trap(_)
        | PredictError::Limit(_)
        | PredictError::Deadline(_) => true,
        PredictError::InvalidInput(_)
        | PredictError::Model(_)
        | PredictError::Busy(_)
        | PredictError::Internal(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_quick_answers_make_it_quick_and_one_slow_one_undoes_that() {
        let pace = Pace::default();
        for _ in 0..IN_A_ROW {
            assert!(!pace.is_quick());
            pace.took(Some(true));
        }
        assert!(pace.is_quick());
        pace.took(Some(false));
        assert!(!pace.is_quick());
        pace.took(Some(true));
        assert!(!pace.is_quick());
    }

    #[test]
    fn one_that_took_its_time_is_looked_at_closer_the_next_time() {
        let pace = Pace::default();
        assert!(pace.run(clock::now()).worked.is_some());
        (0..IN_A_ROW).for_each(|_| pace.took(Some(true)));
        assert!(pace.run(clock::now()).worked.is_none());
        pace.took(None);
        assert!(pace.is_quick() && pace.run(clock::now()).worked.is_some());
        pace.took(Some(true));
        assert!(pace.is_quick() && pace.run(clock::now()).worked.is_none());
    }

    #[test]
    fn a_thread_that_works_or_waits_long_is_not_quick() {
        let begin = |worked_too: bool| Run { began: clock::now(), worked: worked_too.then(worked) };
        let run = begin(true);
        while worked() - run.worked.unwrap() <= QUICK {
            std::hint::spin_loop();
        }
        assert_eq!(run.was_quick(None), Some(false));
        for worked_too in [false, true] {
            let run = begin(worked_too);
            std::thread::sleep(WAITED);
            assert_eq!(run.was_quick(None), Some(false));
        }
        // Asleep it does nothing, which looks like waiting for the processor.
        let run = Run { began: clock::now() - 2 * QUICK, ..begin(true) };
        let quick = run.was_quick(None);
        assert!(quick == Some(true) || run.began.elapsed() >= WAITED);
    }

    #[test]
    fn it_ended_when_the_clock_was_read_last() {
        let pace = Pace::default();
        (0..IN_A_ROW).for_each(|_| pace.took(Some(true)));
        let began = clock::now() - WAITED;
        pace.ran(pace.run(began), Some(began + QUICK), None);
        assert!(pace.is_quick());
        pace.ran(pace.run(began), None, None);
        assert!(!pace.is_quick());
    }

    #[test]
    fn a_package_fails_until_it_has_answered_for_a_while() {
        let pace = Pace::default();
        let ended = |failed: bool, times: u32| (0..times).for_each(|_| pace.ended(failed));
        ended(true, 3);
        assert!(!pace.fails());
        ended(true, 1);
        assert!(pace.fails());
        ended(true, 1000);
        ended(false, MOST - FAILS);
        assert!(pace.fails());
        ended(false, 1);
        assert!(!pace.fails());
        // One in ten is a module that meets what it cannot answer.
        for _ in 0..1000 {
            ended(true, 1);
            ended(false, 9);
        }
        assert!(!pace.fails());
        // One in three is not.
        for _ in 0..1000 {
            ended(true, 1);
            ended(false, 2);
        }
        assert!(pace.fails());
    }

    #[test]
    fn what_callers_send_is_no_fault_of_a_package() {
        let pace = Pace::default();
        for _ in 0..100 {
            pace.ran(pace.run(clock::now()), None, Some(&PredictError::InvalidInput(String::new())));
            pace.ran(pace.run(clock::now()), None, Some(&PredictError::Busy(Duration::ZERO)));
        }
        assert!(!pace.fails());
        for _ in 0..10 {
            pace.ran(pace.run(clock::now()), None, Some(&PredictError::Trap(String::new())));
        }
        assert!(pace.fails());
    }
}
