//! The only place of this program that reads a clock.
#![allow(clippy::disallowed_methods)]

use std::time::{Instant, SystemTime};

/// Monotonic time.
pub fn now() -> Instant {
    Instant::now()
}

/// Wall-clock time.
pub fn wall() -> SystemTime {
    SystemTime::now()
}
