//! How long each role lives, counted from its signing, in whole seconds.
//!
//! Chosen for devices that sleep for weeks. Online roles are signed again long before they expire.

use jiff::{SignedDuration, Timestamp};

const DAY: i64 = 24 * 3600;

/// Roots: 2 years.
pub const ROOT: SignedDuration = SignedDuration::from_secs(730 * DAY);
/// Image targets: 1 year.
pub const IMAGE_TARGETS: SignedDuration = SignedDuration::from_secs(365 * DAY);
/// Image snapshot: 30 days.
pub const IMAGE_SNAPSHOT: SignedDuration = SignedDuration::from_secs(30 * DAY);
/// Image timestamp: 14 days.
pub const IMAGE_TIMESTAMP: SignedDuration = SignedDuration::from_secs(14 * DAY);
/// Every role of the Director but its root: 7 days.
pub const DIRECTOR: SignedDuration = SignedDuration::from_secs(7 * DAY);

/// When a role that is signed at `now` expires: whole seconds, since python-tuf refuses others. At
/// the end of the calendar it stops there.
pub fn expiry(now: Timestamp, lifetime: SignedDuration) -> Timestamp {
    whole_seconds(now.checked_add(lifetime).unwrap_or(Timestamp::MAX))
}

/// `time` without its fraction of a second, towards the past.
pub(crate) fn whole_seconds(time: Timestamp) -> Timestamp {
    let seconds = time.as_second() - i64::from(time.subsec_nanosecond() < 0);
    Timestamp::from_second(seconds).unwrap_or(time)
}
