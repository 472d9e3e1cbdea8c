//! Lines of the log about what anybody may send: some in a row, then one every half minute, with the
//! number of those that were left out. Who can publish must not be able to fill the disk.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use selvedge_package::DeviceId;
use selvedge_protocol::block::{Bucket, Rate};
use selvedge_protocol::line::one_line;

use crate::clock;

/// What a line costs, in tokens that come one a second: 20 lines at once, then one in 30 seconds.
const LINE: u64 = 30;
const RATE: Rate = Rate { per_second: 1, burst: 20 * LINE };
/// Longest line, in characters.
const LONGEST: usize = 500;

/// Counts them.
pub struct Noise(Mutex<(Bucket, u64)>);

impl Noise {
    /// Silent so far.
    pub fn new(now: Duration) -> Self {
        Self(Mutex::new((Bucket::new(RATE, now), 0)))
    }

    /// A line about `device`, unless there were too many.
    pub fn warn(&self, device: &DeviceId, what: &str) {
        let Some(others) = self.allow(clock::running()) else { return };
        let what = one_line(what, LONGEST);
        match others {
            0 => tracing::warn!(%device, "{what}"),
            others => tracing::warn!(%device, others, "{what}"),
        }
    }

    /// Whether a line may be written, and how many were left out before it.
    fn allow(&self, now: Duration) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (bucket, left_out) = &mut *state;
        if bucket.take(LINE, now).is_err() {
            *left_out += 1;
            return None;
        }
        Some(std::mem::take(left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_some_lines_and_a_count() {
        let noise = Noise::new(Duration::ZERO);
        let written = (0..1000).filter(|_| noise.allow(Duration::ZERO).is_some()).count();
        assert_eq!(written, 20);
        assert_eq!(noise.allow(Duration::from_secs(29)), None);
        assert_eq!(noise.allow(Duration::from_secs(30)), Some(981));
        assert_eq!(noise.allow(Duration::from_secs(60)), Some(0));
    }
}
