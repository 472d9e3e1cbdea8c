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
        let first = first(fleet, longest);
        Self { first, longest, ceiling: first }
    }

    /// The fleet is so large, as far as is known now.
    pub fn of_fleet(&mut self, fleet: u32) {
        self.first = first(fleet, self.longest);
        self.ceiling = self.ceiling.max(self.first);
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

fn first(fleet: u32, longest: Duration) -> Duration {
    let second = Duration::from_secs(1);
    (second * fleet / FLEET_PER_SECOND).max(second).min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;

    const LONGEST: Duration = Duration::from_secs(300);

    #[test]
    fn delays_double_up_to_five_minutes_and_start_again_after_success() {
        let mut random = StdRng::seed_from_u64(1);
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
    proptest! {
        #[test]
        fn every_delay_lies_below_its_bound_and_the_bound_doubles(
            seed: u64, fleet: u32, ends in prop::collection::vec((0u64..20, any::<Option<u32>>()), 1..60),
        ) {
            let mut random = StdRng::seed_from_u64(seed);
            let mut backoff = Backoff::new(fleet, LONGEST);
            let (mut fleet, mut doubled) = (fleet, 0);
            for (held, heard) in ends {
                if let Some(heard) = heard {
                    // A larger fleet counts at once, a smaller one after the next success.
                    let larger = first(heard, LONGEST) > first(fleet, LONGEST);
                    fleet = heard;
                    backoff.of_fleet(fleet);
                    doubled = if larger { 0 } else { doubled };
                }
                backoff.ended(Duration::from_secs(held));
                if held >= HELD.as_secs() {
                    doubled = 0;
                }
                let bound = backoff.ceiling;
                let least = first(fleet, LONGEST).saturating_mul(1u32.checked_shl(doubled).unwrap_or(u32::MAX));
                prop_assert!(bound >= least.min(LONGEST) && bound <= LONGEST);
                prop_assert!(backoff.next(&mut random) <= bound);
                prop_assert_eq!(backoff.ceiling, (bound * 2).min(LONGEST));
                doubled += 1;
            }
        }
    }

    /// A broker that is gone for a while and the whole fleet with it: how many come back in the busiest
    /// second, with one attempt each whenever its delay is over.
    fn busiest(fleet: u32, told: u32, away: Duration, seed: u64) -> u32 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut seconds = std::collections::BTreeMap::new();
        for _ in 0..fleet {
            let mut backoff = Backoff::new(told, LONGEST);
            let mut at = Duration::ZERO;
            loop {
                at += backoff.next(&mut random);
                *seconds.entry(at.as_secs()).or_insert(0) += 1;
                if at >= away {
                    break;
                }
                backoff.ended(Duration::ZERO);
            }
        }
        seconds.into_values().max().unwrap_or(0)
    }

    #[test]
    fn a_fleet_that_knows_its_size_returns_at_some_hundred_a_second() {
        let (fleet, seed) = (20_000, 7);
        for away in [0, 30, 600].map(Duration::from_secs) {
            let storm = busiest(fleet, fleet, away, seed);
            println!("seed {seed}: away for {away:?}, {storm} in the busiest second");
            // Second attempts of some fall together with first ones of others, and chance adds a few.
            assert!(storm < 400, "{storm} of {fleet} in one second");
        }
        let storm = busiest(fleet, 1, Duration::ZERO, seed);
        assert!(storm > 10_000, "without the hint it is a storm, or this test sees none: {storm}");
    }
}
