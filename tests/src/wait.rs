//! Waiting for a condition: polled, with a limit that only catches a hang.

use std::fmt::Debug;
use std::time::Duration;

use crate::clock;

/// Longest wait for anything. Not a speed that is asserted: it ends a hung test.
pub const HUNG: Duration = Duration::from_secs(120);

/// Time between two polls.
const POLL: Duration = Duration::from_millis(2);

/// Polls `probe` until it gives a value.
///
/// # Panics
/// After [`HUNG`], with what was waited for and what the last poll saw.
pub fn until<T, E: Debug>(what: &str, probe: impl FnMut() -> Result<T, E>) -> T {
    within(HUNG, POLL, what, probe)
}

/// The same for what takes longer, or is dearer to look at: at most `limit`, looking every `poll`.
///
/// # Panics
/// As [`until`], after `limit`.
pub fn within<T, E: Debug>(
    limit: Duration,
    poll: Duration,
    what: &str,
    mut probe: impl FnMut() -> Result<T, E>,
) -> T {
    let start = clock::now();
    loop {
        match probe() {
            Ok(value) => return value,
            Err(seen) if start.elapsed() > limit => {
                panic!("waited {limit:?} for {what}; last seen: {seen:?}")
            }
            Err(_) => std::thread::sleep(poll),
        }
    }
}
