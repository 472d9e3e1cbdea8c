//! So many at once, and one more every so often: for whatever anyone outside can cause.

use std::time::Duration;

/// A bucket of permissions.
#[derive(Debug)]
pub struct Rate {
    most: u32,
    every: Duration,
    left: u32,
    filled: Duration,
    refused: u64,
}

impl Rate {
    /// `most` in a row, then one every `every`.
    pub fn new(most: u32, every: Duration) -> Self {
        Self { most, every, left: most, filled: Duration::ZERO, refused: 0 }
    }

    /// Whether one more may be. `now` is the time since any fixed moment.
    pub fn allow(&mut self, now: Duration) -> bool {
        let since = now.saturating_sub(self.filled);
        let more = since.as_nanos() / self.every.as_nanos().max(1);
        if more > 0 {
            self.left = self.left.saturating_add(u32::try_from(more).unwrap_or(u32::MAX)).min(self.most);
            // What is left over of a period counts towards the next one, except where it was full.
            let rest = u64::try_from(since.as_nanos() % self.every.as_nanos().max(1)).unwrap_or(0);
            self.filled = now.saturating_sub(Duration::from_nanos(rest));
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                true
            }
            None => {
                self.refused += 1;
                false
            }
        }
    }

    /// How many were refused since this was last asked.
    pub fn refused(&mut self) -> u64 {
        std::mem::take(&mut self.refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_a_flood_does_not() {
        let mut rate = Rate::new(3, Duration::from_secs(1));
        let at = Duration::from_secs(100);
        assert_eq!((0..10).filter(|_| rate.allow(at)).count(), 3);
        assert_eq!(rate.refused(), 7);
        let passed = (0..1000).filter(|n| rate.allow(at + Duration::from_millis(10 * n))).count();
        assert_eq!(passed, 9, "one a second");
        assert_eq!((0..10).filter(|_| rate.allow(at * 2)).count(), 3);
    }
}
