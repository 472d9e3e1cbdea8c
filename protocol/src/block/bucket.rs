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
        let passed = now.saturating_sub(self.filled);
        let gained = u128::from(self.rate.per_second) * passed.as_micros() / 1_000_000;
        if gained > 0 {
            let gained = u64::try_from(gained).unwrap_or(u64::MAX);
            self.tokens = self.tokens.saturating_add(gained).min(self.rate.burst);
            self.filled = now;
        }
        let wanted = wanted.min(self.rate.burst);
        match self.tokens.checked_sub(wanted) {
            Some(left) => {
                self.tokens = left;
                Ok(())
            }
            None => {
                let lacking = wanted - self.tokens;
                let millis = lacking.saturating_mul(1000).div_ceil(self.rate.per_second.max(1));
                Err(Duration::from_millis(millis.max(1)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
