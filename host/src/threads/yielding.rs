//! How a thread gives way to others: by its weight among those that want the processor (`nice`).
//!
//! Linux knows this for each thread, and lets anybody give way for good: without a privilege no thread comes back.
//! The system's other programs gain by it, too, which is what the owner of a small device expects of inference.
//! Not SCHED_IDLE, and no more than is needed: a thread that holds a lock may have to be waited for by one that serves.

use std::sync::Once;

use rustix::process::{getpid, getpriority_process, setpriority_process};

/// To whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// To what serves: the thread gets a third of the share of one that does not give way.
    Some = 0,
    /// To all others, for packages that fail: a tenth.
    All = 1,
}

impl Way {
    /// Added to what the process was started with.
    pub fn nice(self) -> i32 {
        match self {
            Self::Some => 5,
            Self::All => 10,
        }
    }
}

/// Has this thread give way from now on. Where the system does not let it, all threads are alike, and the log says
/// so once.
pub fn give(way: Way) {
    static SAID: Once = Once::new();
    // Counted from the process's first thread: a thread begins where the one stands that starts it. `None` is the
    // thread that asks, though the call speaks of processes.
    let given =
        getpriority_process(Some(getpid())).and_then(|first| setpriority_process(None, given_by(first, way)));
    if let Err(error) = given {
        SAID.call_once(|| tracing::warn!(%error, "threads that compute do not give way to those that serve"));
    }
}

/// What a thread is to have in a process that was started with `first`: never less than 0, which the filter of system
/// calls does not let through; that gives way even more.
fn given_by(first: i32, way: Way) -> i32 {
    (first + way.nice()).clamp(0, LAST)
}

/// The least weight that there is.
const LAST: i32 = 19;

/// What this thread has.
#[cfg(test)]
pub fn nice() -> i32 {
    getpriority_process(None).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gives_way_alone_and_as_far_as_is_said() {
        let own = nice();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                give(Way::Some);
                let some = nice();
                give(Way::All);
                (some, nice(), scope.spawn(nice).join().unwrap())
            });
            let all = given_by(own, Way::All);
            assert_eq!(other.join().unwrap(), (given_by(own, Way::Some), all, all));
        });
        assert_eq!(nice(), own);
    }
}
