//! Why a source does not do, how far that reaches, and for how long it is left alone.

use std::collections::BTreeMap;
use std::time::Duration;

use selvedge_package::{Digest, Origin};

/// Longest that a source may ask for patience.
const LONGEST_WISH: Duration = Duration::from_secs(3600);
/// Rest added at random, so that a fleet does not come back all at once: up to this share.
const SPREAD: f64 = 0.25;

/// Why a source does not do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Trouble {
    #[error("no connection: {0}")]
    Connect(String),
    #[error("nothing came for too long")]
    Slow,
    #[error("the connection broke off: {0}")]
    Cut(String),
    #[error("it answers {status}")]
    Status { status: u16, wait: Option<Duration> },
    #[error("its answer cannot be used: {0}")]
    Answer(String),
    #[error("it answers no ranges, and most of the blob is here already")]
    NoRanges,
    #[error("what it has is not what was signed")]
    Bytes,
}

impl Trouble {
    /// Whether another blob may well be had from it.
    fn is_of_one_blob(&self) -> bool {
        match self {
            Self::Connect(_) | Self::Slow | Self::Cut(_) => false,
            Self::Status { status, .. } => (400..500).contains(status) && ![408, 429].contains(status),
            Self::Answer(_) | Self::NoRanges | Self::Bytes => true,
        }
    }

    /// First and longest rest.
    fn rests(&self) -> (Duration, Duration) {
        let seconds = Duration::from_secs;
        match self {
            Self::Connect(_) | Self::Slow | Self::Cut(_) => (seconds(5), seconds(600)),
            Self::Status { .. } if !self.is_of_one_blob() => (seconds(5), seconds(600)),
            Self::Status { .. } | Self::Answer(_) | Self::NoRanges => (seconds(60), seconds(3600)),
            Self::Bytes => (seconds(600), seconds(6 * 3600)),
        }
    }
}

/// What rests: a source, or one blob of it.
type Key = (Origin, Option<Digest>);

/// Sources that are left alone, and until when.
#[derive(Debug, Default)]
pub(super) struct Rests {
    /// End of the rest, and the pause that it was.
    until: BTreeMap<Key, (Duration, Duration)>,
    looked: Duration,
}

impl Rests {
    /// Begins a rest, longer than the one before. `random` in 0..1. Returns whether it is the first in
    /// a row.
    pub fn begin(
        &mut self,
        origin: &Origin,
        digest: Digest,
        trouble: &Trouble,
        now: Duration,
        random: f64,
    ) -> bool {
        let key = (origin.clone(), trouble.is_of_one_blob().then_some(digest));
        let last = self.until.get(&key).map(|(_, pause)| *pause);
        let (first, longest) = trouble.rests();
        let pause = last.map_or(first, |last| (last * 2).clamp(first, longest));
        let wish = match trouble {
            Trouble::Status { wait: Some(wait), .. } => (*wait).min(LONGEST_WISH),
            _ => Duration::ZERO,
        };
        let rest = pause.max(wish).mul_f64(1.0 + SPREAD * random.clamp(0.0, 1.0));
        self.until.insert(key, (now + rest, pause));
        last.is_none()
    }

    /// Whether a source may not be asked for this blob now.
    pub fn has(&self, origin: &Origin, digest: &Digest, now: Duration) -> bool {
        [None, Some(*digest)]
            .into_iter()
            .any(|blob| self.until.get(&(origin.clone(), blob)).is_some_and(|(until, _)| *until > now))
    }

    /// A whole blob has come from it.
    pub fn forget(&mut self, origin: &Origin, digest: &Digest) {
        self.until.remove(&(origin.clone(), None));
        self.until.remove(&(origin.clone(), Some(*digest)));
    }

    /// Forgets sources that nobody names any more.
    pub fn keep(&mut self, named: impl Fn(&Origin, Option<&Digest>) -> bool) {
        self.until.retain(|(origin, digest), _| named(origin, digest.as_ref()));
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

    fn origin(name: &str) -> Origin {
        format!("https://{name}/{{digest}}").parse().unwrap()
    }

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_dead_server_rests_for_every_blob_and_a_missing_blob_for_itself() {
        let (mut rests, a, b) = (Rests::default(), origin("a"), origin("b"));
        let (one, two) = (Digest::of(b"1"), Digest::of(b"2"));
        let missing = Trouble::Status { status: 404, wait: None };
        assert!(rests.begin(&a, one, &missing, seconds(0), 0.0));
        assert!(rests.has(&a, &one, seconds(59)) && !rests.has(&a, &two, seconds(0)));
        assert!(rests.begin(&a, two, &Trouble::Slow, seconds(0), 0.0));
        assert!(rests.has(&a, &two, seconds(4)) && !rests.has(&b, &one, seconds(0)));
        assert!(!rests.has(&a, &two, seconds(5)));
        assert_eq!(rests.wake_at(), Some(seconds(5)));
        assert!(rests.over(seconds(5)) && !rests.over(seconds(6)));
        assert_eq!(rests.wake_at(), Some(seconds(60)));
        rests.keep(|_, digest| digest != Some(&one));
        assert_eq!(rests.wake_at(), None);
    }

    #[test]
    fn rests_grow_to_a_bound_whatever_the_source_wishes() {
        let (mut rests, a, blob) = (Rests::default(), origin("a"), Digest::of(b"1"));
        let busy = Trouble::Status { status: 503, wait: Some(seconds(90)) };
        rests.begin(&a, blob, &busy, seconds(0), 0.0);
        assert!(rests.has(&a, &blob, seconds(89)) && !rests.has(&a, &blob, seconds(90)));
        let cruel = Trouble::Status { status: 503, wait: Some(Duration::MAX) };
        rests.begin(&a, blob, &cruel, seconds(0), 1.0);
        assert!(!rests.has(&a, &blob, seconds(4500)));
        for trouble in [Trouble::Slow, Trouble::Bytes, Trouble::NoRanges] {
            for _ in 0..100 {
                assert!(!rests.begin(&a, blob, &trouble, seconds(0), 1.0) || trouble == Trouble::Bytes);
            }
            assert!(!rests.has(&a, &blob, seconds(6 * 3600 * 5 / 4)));
        }
        rests.forget(&a, &blob);
        assert!(!rests.has(&a, &blob, seconds(0)));
    }
}
