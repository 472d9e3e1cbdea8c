//! Pauses after failures that are not for good: each longer than the last, up to five minutes.

use std::collections::BTreeMap;
use std::time::Duration;

use selvedge_package::{Digest, PackageName};

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(300);

/// What rests.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rest {
    /// Everything about a package.
    Package(PackageName),
    /// The transfer of a blob.
    Blob(Digest),
    /// Fetching a package, for want of room; what is committed of it is served meanwhile.
    Fetch(PackageName),
    /// Telling the host that it has everything.
    Ready,
    /// Asking whether a release has answered its last requests.
    Drain,
}

/// What rests, and until when.
#[derive(Debug, Default)]
pub struct Rests {
    /// End of the rest, and the pause that it was.
    until: BTreeMap<Rest, (Duration, Duration)>,
    looked: Duration,
}

impl Rests {
    /// Begins a rest, longer than the one before. Returns whether it is the first in a row.
    pub fn begin(&mut self, rest: Rest, now: Duration) -> bool {
        let last = self.until.get(&rest).map(|(_, pause)| *pause);
        // Whether there is room is cheap to see, and somebody may have just made it.
        let longest = if matches!(rest, Rest::Fetch(_)) { LONGEST / 10 } else { LONGEST };
        let pause = last.map_or(FIRST, |last| (last * 2).min(longest));
        self.until.insert(rest, (now + pause, pause));
        last.is_none()
    }

    /// Whether it rests now.
    pub fn has(&self, rest: &Rest, now: Duration) -> bool {
        self.until.get(rest).is_some_and(|(until, _)| *until > now)
    }

    /// It works again.
    pub fn forget(&mut self, rest: &Rest) {
        self.until.remove(rest);
    }

    /// Forgets blobs that are wanted no longer.
    pub fn keep_blobs(&mut self, wanted: impl Fn(&Digest) -> bool) {
        self.until.retain(|rest, _| match rest {
            Rest::Blob(digest) => wanted(digest),
            Rest::Package(_) | Rest::Fetch(_) | Rest::Ready | Rest::Drain => true,
        });
    }

    /// When the next rest ends that has not ended at the last [`Rests::over`].
    pub fn wake_at(&self) -> Option<Duration> {
        self.until.values().map(|(until, _)| *until).filter(|until| *until > self.looked).min()
    }

    /// Whether a rest has ended since this was last asked.
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
    fn rests_grow_and_wake_once() {
        let mut rests = Rests::default();
        let rest = Rest::Package("p".parse().unwrap());
        let second = Duration::from_secs(1);
        assert!(rests.begin(rest.clone(), Duration::ZERO));
        assert!(rests.has(&rest, Duration::ZERO));
        assert_eq!(rests.wake_at(), Some(second));
        assert!(rests.over(second));
        assert!(!rests.over(second * 2));
        assert_eq!(rests.wake_at(), None);
        assert!(!rests.begin(rest.clone(), second * 2));
        assert_eq!(rests.wake_at(), Some(second * 4));
        for _ in 0..20 {
            rests.begin(rest.clone(), Duration::ZERO);
        }
        assert_eq!(rests.wake_at(), Some(LONGEST));
        rests.forget(&rest);
        assert!(!rests.has(&rest, Duration::ZERO));
    }
}
