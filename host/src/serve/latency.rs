//! How long a package takes to answer: counts in a fixed number of bounds, so that a percentile costs no
//! memory that grows and no lock.
//!
//! Bounds grow by an eighth: a time that is told is at most that much below the true one, and never above,
//! so that nobody is blamed for time that they did not take.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Parts of each doubling.
const PARTS: u64 = 8;
/// Up to 2^32 µs, which is longer than any deadline.
const BOUNDS: usize = (PARTS * 30) as usize;

/// Times of answers.
#[derive(Debug)]
pub struct Latency {
    counts: [AtomicU64; BOUNDS],
}

impl Default for Latency {
    fn default() -> Self {
        Self { counts: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl Latency {
    /// One answer came after this time.
    pub fn add(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.counts[place(micros)].fetch_add(1, Ordering::Relaxed);
    }

    /// The time within which so many of 100 answers came; zero before the first.
    pub fn percentile(&self, percent: u64) -> Duration {
        let counts: Vec<u64> = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let all: u64 = counts.iter().sum();
        let wanted = (all * percent).div_ceil(100);
        let mut seen = 0;
        for (place, count) in counts.iter().enumerate() {
            seen += count;
            if *count > 0 && seen >= wanted {
                return Duration::from_micros(least(place));
            }
        }
        Duration::ZERO
    }
}

/// The place of a time: small ones have one each, then eight to a doubling.
fn place(micros: u64) -> usize {
    let doubling = u64::from(micros.max(1).ilog2());
    let place = match doubling.checked_sub(3) {
        None => micros,
        Some(above) => (above + 1) * PARTS + ((micros >> above) - PARTS),
    };
    usize::try_from(place).unwrap_or(usize::MAX).min(BOUNDS - 1)
}

/// The least time of a place.
fn least(place: usize) -> u64 {
    let place = place as u64;
    match (place / PARTS).checked_sub(1) {
        None => place,
        Some(above) => (PARTS + place % PARTS) << above,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_begins_at_most_an_eighth_below() {
        for micros in (0..5000).chain([1 << 20, (1 << 31) + 12345]) {
            let least = least(place(micros));
            assert!(least <= micros && micros - least <= micros / 8, "{micros} is at {least}");
        }
        assert!(place(u64::MAX) == BOUNDS - 1 && place(least(BOUNDS - 1)) == BOUNDS - 1);
    }

    #[test]
    fn the_slow_few_do_not_count_and_the_many_do() {
        let latency = Latency::default();
        assert_eq!(latency.percentile(95), Duration::ZERO);
        for _ in 0..95 {
            latency.add(Duration::from_millis(2));
        }
        for _ in 0..5 {
            latency.add(Duration::from_secs(3));
        }
        let ms = latency.percentile(95).as_secs_f64() * 1e3;
        assert!((1.75..=2.0).contains(&ms), "{ms}");
        latency.add(Duration::from_secs(3));
        assert!(latency.percentile(95) > Duration::from_secs(2));
    }
}
