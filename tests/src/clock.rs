//! The clock of the tests: the only place here that reads it.
#![allow(clippy::disallowed_methods)]

use std::time::Instant;

use jiff::Timestamp;

/// Now, monotonic.
pub fn now() -> Instant {
    Instant::now()
}

/// The machine's date.
pub fn date() -> Timestamp {
    Timestamp::now()
}
