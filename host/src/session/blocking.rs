//! Whether the current thread may block for as long as a model runs.
//!
//! Serving hands every request to a thread that may. A model's run then stays on it; a second hand-over
//! would hold two threads for one request, and where all are taken nobody would get the second.

use std::cell::Cell;

thread_local! {
    static ALLOWED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` on this thread, which may block meanwhile.
pub fn allow<T>(work: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            ALLOWED.set(self.0);
        }
    }
    let _restore = Restore(ALLOWED.replace(true));
    work()
}

/// Whether this thread may block now.
pub fn allowed() -> bool {
    ALLOWED.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_for_this_thread_and_this_work_only() {
        assert!(!allowed());
        allow(|| {
            assert!(allowed());
            allow(|| assert!(allowed()));
            assert!(allowed());
            std::thread::scope(|scope| scope.spawn(|| assert!(!allowed())).join()).unwrap();
        });
        assert!(!allowed());
        let _ = std::panic::catch_unwind(|| allow(|| panic!("a model")));
        assert!(!allowed());
    }
}
