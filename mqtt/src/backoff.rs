//! How long to wait before connecting again: full jitter, so that a fleet does not return at once.

use std::time::Duration;

use rand::Rng as _;

const FLEET_PER_SECOND: u32 = 200;
/// A connection must have held for so long to count as a success.
const HELD: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    ceiling: Duration,
}

impl Backoff {
    pub fn new(fleet: u32, longest: Duration) -> Self {
        let second = Duration::from_secs(1);
        let first = (second * fleet / FLEET_PER_SECOND).max(second).min(longest);
        Self { first, longest, ceiling: first }
    }

    /// A connection ended after so long. One that the broker ends at once, again and again, is no
    /// reason to come back sooner.
    pub fn ended(&mut self, held: Duration) {
        if held >= HELD {
            self.ceiling = self.first;
        }
    }

    /// The next delay: uniform between zero and a bound that doubles each time.
    pub fn next(&mut self, random: &mut impl rand::RngCore) -> Duration {
        let ceiling = self.ceiling;
        self.ceiling = (ceiling * 2).min(self.longest);
        random.random_range(Duration::ZERO..=ceiling)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;

    #[test]
    fn delays_double_up_to_five_minutes_and_start_again_after_success() {
        let mut random = StdRng::seed_from_u64(1);
        const LONGEST: Duration = Duration::from_secs(300);
        for (fleet, first) in [(0, 1), (1, 1), (10_000, 50), (u32::MAX, 300)] {
            let mut backoff = Backoff::new(fleet, LONGEST);
            let mut ceiling = Duration::from_secs(first);
            for _ in 0..20 {
                assert_eq!(backoff.ceiling, ceiling);
                assert!(backoff.next(&mut random) <= ceiling);
                ceiling = (ceiling * 2).min(LONGEST);
            }
            backoff.ended(Duration::from_secs(1));
            assert_eq!(backoff.ceiling, LONGEST);
            backoff.ended(HELD);
            assert_eq!(backoff.ceiling, Duration::from_secs(first));
        }
    }
}
