//! The clock of the tests: the only place here that reads it.
#![allow(clippy::disallowed_methods)]

use std::time::Instant;

/// Now, monotonic.
pub fn now() -> Instant {
    Instant::now()
}
