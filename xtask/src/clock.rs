//! The only place of xtask that reads a clock: how long a step took, and how long to wait for one.
#![allow(clippy::disallowed_methods)]

use std::time::{Duration, Instant};

/// A point in time to measure from.
#[derive(Clone, Copy)]
pub struct Started(Instant);

impl Started {
    /// Starts to measure.
    pub fn now() -> Self {
        Self(Instant::now())
    }

    /// Time since then.
    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}

/// Asks `done` every 50 ms until it answers with something or `limit` has passed.
pub fn wait_for<T>(limit: Duration, mut done: impl FnMut() -> Option<T>) -> Option<T> {
    let started = Started::now();
    loop {
        if let Some(found) = done() {
            return Some(found);
        }
        if started.elapsed() > limit {
            return None;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
