//! What each package takes of the host's memory.
//!
//! The system only says what the process takes. A package is charged with what that has grown by since it was opened,
//! but for what opening others added and unloading others gave back: those are measured, one at a time. What requests
//! make the host grow by, and its allocators keep, counts for every package that is there.

use std::sync::atomic::{AtomicI64, Ordering};

use super::own;

/// By how much other packages' comings and goings have changed the process, all together.
#[derive(Debug, Default)]
struct Changes(AtomicI64);

static CHANGES: Changes = Changes(AtomicI64::new(0));

/// A package's.
#[derive(Debug)]
pub struct Share {
    /// What the process took before it was opened.
    before: i64,
    /// What had been changed by others until then, and by itself since.
    changed: AtomicI64,
}

impl Share {
    /// Of a package that has just been opened, where the process took `before` bytes before that.
    pub fn since(before: u64) -> Self {
        CHANGES.since(before)
    }

    /// It is open, with all that this takes: no other package is charged with it.
    pub fn opened(&self) {
        CHANGES.opened(self, own());
    }

    /// Bytes that it takes, where the process takes `now`.
    pub fn of(&self, now: u64) -> u64 {
        CHANGES.of(self, now)
    }
}

/// Does what frees packages: none of the others has shrunk by that.
pub fn unloading<T>(free: impl FnOnce() -> T) -> T {
    let before = own();
    let freed = free();
    CHANGES.unloaded(before, own());
    freed
}

fn bytes(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

impl Changes {
    fn so_far(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }

    fn since(&self, before: u64) -> Share {
        Share { before: bytes(before), changed: AtomicI64::new(self.so_far()) }
    }

    fn opened(&self, share: &Share, now: u64) {
        let grown = bytes(self.of(share, now));
        self.0.fetch_add(grown, Ordering::Relaxed);
        share.changed.fetch_add(grown, Ordering::Relaxed);
    }

    fn unloaded(&self, before: u64, now: u64) {
        self.0.fetch_sub(bytes(before.saturating_sub(now)), Ordering::Relaxed);
    }

    fn of(&self, share: &Share, now: u64) -> u64 {
        let others = self.so_far().saturating_sub(share.changed.load(Ordering::Relaxed));
        let taken = bytes(now).saturating_sub(share.before).saturating_sub(others);
        u64::try_from(taken).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_charged_with_itself_whatever_comes_and_goes_beside_it() {
        let changes = Changes::default();
        let first = changes.since(100);
        assert_eq!(changes.of(&first, 150), 50);
        changes.opened(&first, 150);
        let second = changes.since(150);
        assert_eq!(changes.of(&second, 400), 250);
        changes.opened(&second, 400);
        assert_eq!((changes.of(&first, 400), changes.of(&second, 400)), (50, 250));
        // Requests make the host grow: nobody knows for whom.
        assert_eq!((changes.of(&first, 430), changes.of(&second, 430)), (80, 280));
        let third = changes.since(430);
        changes.opened(&third, 1000);
        changes.unloaded(1000, 950);
        assert_eq!([&second, &third].map(|share| changes.of(share, 950)), [280, 570]);
        changes.unloaded(950, 380);
        assert_eq!(changes.of(&second, 380), 280);
        // More went than it had.
        assert_eq!(changes.of(&second, 0), 0);
    }
}
