//! How long a host that has ended is left alone before it is started again.

use std::time::Duration;

/// A host that ran for so long has proved that it can: what ended it is not its start.
const STEADY: Duration = Duration::from_secs(10);
/// Shortest pause but none, and longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));

/// Pauses, each twice the last. The first end costs none: what is committed must be back soon.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    next: Duration,
}

impl Backoff {
    /// It has ended after running for so long: the pause before its next start.
    pub fn ended(&mut self, ran: Duration) -> Duration {
        let pause = if ran >= STEADY { Duration::ZERO } else { self.next };
        self.next = (pause * 2).clamp(PAUSES.0, PAUSES.1);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_crash_long_after_others_waits_for_nothing() {
        let mut backoff = Backoff::default();
        let soon = Duration::from_secs(2);
        let pauses: Vec<u128> = (0..10).map(|_| backoff.ended(soon).as_millis()).collect();
        assert_eq!(pauses, [0, 250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
        assert_eq!(backoff.ended(STEADY), Duration::ZERO);
        assert_eq!(backoff.ended(soon), PAUSES.0);
    }
}
