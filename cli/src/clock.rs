//! The only place of this program that reads a clock. Everything else gets time as an argument.
#![allow(clippy::disallowed_methods)]

use std::time::{Duration, Instant};

/// Now, for what is signed and shown.
pub fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}

/// A moment after which waiting ends.
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    start: Instant,
    allowed: Duration,
}

impl Deadline {
    /// `allowed` from now on.
    pub fn after(allowed: Duration) -> Self {
        Self { start: Instant::now(), allowed }
    }

    /// The pause `pause`, cut where it would last beyond this moment.
    pub fn cut(&self, pause: Duration) -> Duration {
        pause.min(self.allowed.saturating_sub(self.start.elapsed()))
    }

    /// Whether it has passed.
    pub fn passed(&self) -> bool {
        self.start.elapsed() >= self.allowed
    }

    /// Time since it was set.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// The time that was allowed.
    pub fn allowed(&self) -> Duration {
        self.allowed
    }
}
