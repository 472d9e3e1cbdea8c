//! Token buckets: how much a device, and all of them together, may take a second.
//!
//! Time is an argument: what has passed since any fixed start.

use std::time::Duration;

/// How fast a bucket fills and how much it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Tokens a second.
    pub per_second: u64,
    /// Tokens when full.
    pub burst: u64,
}

/// A bucket; full when it is made.
#[derive(Debug, Clone)]
pub struct Bucket {
    rate: Rate,
    tokens: u64,
    filled: Duration,
}

impl Bucket {
    /// A full bucket.
    pub fn new(rate: Rate, now: Duration) -> Self {
        Self { rate, tokens: rate.burst, filled: now }
    }

    /// Take `wanted` tokens, or say how long it takes until they are there. What is larger than the
    /// whole bucket is given when the bucket is full.
    pub fn take(&mut self, wanted: u64, now: Duration) -> Result<(), Duration> {
        self.fill(now);
        let wanted = wanted.min(self.rate.burst);
        match self.tokens.checked_sub(wanted) {
            Some(left) => {
                self.tokens = left;
                Ok(())
            }
            None => Err(self.wait_for(wanted)),
        }
    }

    /// Puts back what was taken and not used.
    pub fn give_back(&mut self, unused: u64) {
        self.tokens = self.tokens.saturating_add(unused).min(self.rate.burst);
    }

    /// How long it takes until so many tokens are there.
    fn wait_for(&self, wanted: u64) -> Duration {
        let lacking = wanted.min(self.rate.burst).saturating_sub(self.tokens);
        let millis = lacking.saturating_mul(1000).div_ceil(self.rate.per_second.max(1));
        Duration::from_millis(millis.max(1))
    }

    fn fill(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.filled);
        let gained = u128::from(self.rate.per_second) * passed.as_micros() / 1_000_000;
        if gained > 0 {
            let gained = u64::try_from(gained).unwrap_or(u64::MAX);
            self.tokens = self.tokens.saturating_add(gained).min(self.rate.burst);
            self.filled = now;
        }
    }
}

/// Shortest time for which somebody is asked to wait: less would be more requests than blocks.
const SHORTEST: Duration = Duration::from_millis(50);

/// Takes for as many of `costs`, in order, as both buckets have tokens; how many those are, and how
/// long it takes until there are tokens for the rest. One that costs more than a whole bucket is given
/// when that is full.
pub fn take_of_both(
    one: &mut Bucket,
    other: &mut Bucket,
    costs: &[u64],
    now: Duration,
) -> (usize, Option<Duration>) {
    let mut given = 0;
    for bucket in [&mut *one, &mut *other] {
        bucket.fill(now);
    }
    for &cost in costs {
        let price = [cost.min(one.rate.burst), cost.min(other.rate.burst)];
        if price[0] > one.tokens || price[1] > other.tokens {
            break;
        }
        one.tokens -= price[0];
        other.tokens -= price[1];
        given += 1;
    }
    let rest: u64 = costs[given..].iter().sum();
    let wait = (rest > 0).then(|| one.wait_for(rest).max(other.wait_for(rest)).max(SHORTEST));
    (given, wait)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_both_have_is_given_and_the_rest_waits() {
        let at = Duration::from_millis;
        let mut device = Bucket::new(Rate { per_second: 1000, burst: 500 }, at(0));
        let mut all = Bucket::new(Rate { per_second: 2000, burst: 350 }, at(0));
        assert_eq!(take_of_both(&mut device, &mut all, &[100; 5], at(0)), (3, Some(at(75))));
        assert_eq!((device.tokens, all.tokens), (200, 50));
        assert_eq!(take_of_both(&mut device, &mut all, &[100; 2], at(75)), (2, None));
        assert_eq!(take_of_both(&mut device, &mut all, &[], at(75)), (0, None));
        // The device has 75 left: 25 more are there in 25 ms, and less than 50 nobody waits.
        assert_eq!(take_of_both(&mut device, &mut all, &[100], at(75)), (0, Some(at(50))));
        // What was not used is there again, and never more than the bucket holds.
        device.give_back(20);
        assert_eq!(device.tokens, 95);
        device.give_back(u64::MAX);
        assert_eq!(device.tokens, 500);
        // What no bucket ever holds is given when it is full.
        let large = take_of_both(&mut device, &mut all, &[10_000], at(5000));
        assert_eq!(large, (1, None));
    }

    #[test]
    fn a_bucket_gives_its_burst_then_its_rate() {
        let at = Duration::from_millis;
        let mut bucket = Bucket::new(Rate { per_second: 1000, burst: 500 }, at(0));
        assert_eq!(bucket.take(400, at(0)), Ok(()));
        assert_eq!(bucket.take(300, at(0)), Err(at(200)));
        assert_eq!(bucket.take(300, at(200)), Ok(()));
        assert_eq!(bucket.take(1, at(200)), Err(at(1)));
        // Never more than the burst, and never stuck on what is larger than the bucket.
        assert_eq!(bucket.take(10_000, at(60_000)), Ok(()));
        assert_eq!(bucket.take(500, at(60_000)), Err(at(500)));
        // A clock that stands still or goes back gives nothing and does not panic.
        assert!(bucket.take(500, at(0)).is_err());
    }
}
