//! Pauses after failures that are not for good: each longer than the last, and one wake-up for each.

use std::collections::BTreeMap;
use std::time::Duration;

/// What pauses, and until when.
#[derive(Debug)]
pub struct Pauses<K> {
    /// End of the rest, and the pause that it came from.
    until: BTreeMap<K, (Duration, Duration)>,
    looked: Duration,
}

impl<K> Default for Pauses<K> {
    fn default() -> Self {
        Self { until: BTreeMap::new(), looked: Duration::ZERO }
    }
}

impl<K: Ord> Pauses<K> {
    /// Begins a pause: the first of `bounds`, or twice the last one, up to the second of `bounds`. `rest`
    /// makes of it how long it really lasts. Returns whether it is the first in a row.
    pub fn begin(
        &mut self,
        key: K,
        bounds: (Duration, Duration),
        now: Duration,
        rest: impl FnOnce(Duration) -> Duration,
    ) -> bool {
        let last = self.until.get(&key).map(|(_, pause)| *pause);
        let pause = last.map_or(bounds.0, |last| (last * 2).clamp(bounds.0, bounds.1));
        self.until.insert(key, (now + rest(pause), pause));
        last.is_none()
    }

    /// Whether it pauses now.
    pub fn has(&self, key: &K, now: Duration) -> bool {
        self.until.get(key).is_some_and(|(until, _)| *until > now)
    }

    /// It works again.
    pub fn forget(&mut self, key: &K) {
        self.until.remove(key);
    }

    /// Forgets what is of no interest any more.
    pub fn keep(&mut self, wanted: impl Fn(&K) -> bool) {
        self.until.retain(|key, _| wanted(key));
    }

    /// When the next pause ends that has not ended at the last [`Pauses::over`].
    pub fn wake_at(&self) -> Option<Duration> {
        self.until.values().map(|(until, _)| *until).filter(|until| *until > self.looked).min()
    }

    /// Whether a pause has ended since this was last asked.
    pub fn over(&mut self, now: Duration) -> bool {
        let over = self.until.values().any(|(until, _)| *until > self.looked && *until <= now);
        self.looked = now;
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_wake_once() {
        let mut pauses = Pauses::default();
        let second = Duration::from_secs(1);
        let bounds = (second, second * 300);
        let begin = |pauses: &mut Pauses<&str>, now| pauses.begin("p", bounds, now, |pause| pause);
        assert!(begin(&mut pauses, Duration::ZERO));
        assert!(pauses.has(&"p", Duration::ZERO));
        assert_eq!(pauses.wake_at(), Some(second));
        assert!(pauses.over(second));
        assert!(!pauses.over(second * 2));
        assert_eq!(pauses.wake_at(), None);
        assert!(!begin(&mut pauses, second * 2));
        assert_eq!(pauses.wake_at(), Some(second * 4));
        for _ in 0..20 {
            begin(&mut pauses, Duration::ZERO);
        }
        assert_eq!(pauses.wake_at(), Some(bounds.1));
        pauses.forget(&"p");
        assert!(!pauses.has(&"p", Duration::ZERO));
    }
}
