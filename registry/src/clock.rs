//! The only place where the registry reads a clock. Everything else takes time as an argument.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use jiff::Timestamp;

/// Wall time now.
#[allow(clippy::disallowed_methods)]
pub fn now() -> Timestamp {
    Timestamp::now()
}

/// A point on the monotonic clock, for silence.
#[allow(clippy::disallowed_methods)]
pub fn instant() -> Instant {
    Instant::now()
}

/// Time since the first call: for rates.
pub fn running() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    let now = instant();
    now.saturating_duration_since(*START.get_or_init(|| now))
}

/// `now` cut to whole seconds, as TUF's `expires` must be.
pub fn whole_seconds(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// Milliseconds since 1970 as RFC 3339 text; an instant outside of the calendar gives `None`.
pub fn text(ms: i64) -> Option<String> {
    Timestamp::from_millisecond(ms).ok().map(|at| at.to_string())
}
