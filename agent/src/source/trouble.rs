//! Why a source does not do, how far that reaches, and for how long it is left alone.

use std::time::Duration;

use selvedge_package::{Digest, Origin};

use crate::pauses::Pauses;

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
    #[error("it gives {0} bytes a second, and there is another way")]
    Crawls(u64),
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
            Self::Connect(_) | Self::Slow | Self::Crawls(_) | Self::Cut(_) => false,
            Self::Status { status, .. } => (400..500).contains(status) && ![408, 429].contains(status),
            Self::Answer(_) | Self::NoRanges | Self::Bytes => true,
        }
    }

    /// First and longest rest.
    fn rests(&self) -> (Duration, Duration) {
        let seconds = Duration::from_secs;
        match self {
            Self::Connect(_) | Self::Slow | Self::Cut(_) => (seconds(5), seconds(600)),
            // It was given its time to show that it has become better.
            Self::Crawls(_) => (seconds(60), seconds(600)),
            Self::Status { .. } if !self.is_of_one_blob() => (seconds(5), seconds(600)),
            Self::Status { .. } | Self::Answer(_) | Self::NoRanges => (seconds(60), seconds(3600)),
            Self::Bytes => (seconds(600), seconds(6 * 3600)),
        }
    }
}

/// What rests: a source, or one blob of it.
type Key = (Origin, Option<Digest>);

/// Sources that are left alone, and until when.
pub(super) type Rests = Pauses<Key>;

impl Rests {
    /// Begins a rest, longer than the one before. `random` in 0..1. Returns whether it is the first in
    /// a row.
    pub(super) fn rest(
        &mut self,
        origin: &Origin,
        digest: Digest,
        trouble: &Trouble,
        now: Duration,
        random: f64,
    ) -> bool {
        let key = (origin.clone(), trouble.is_of_one_blob().then_some(digest));
        let wish = match trouble {
            Trouble::Status { wait: Some(wait), .. } => (*wait).min(LONGEST_WISH),
            _ => Duration::ZERO,
        };
        self.begin(key, trouble.rests(), now, |pause| {
            pause.max(wish).mul_f64(1.0 + SPREAD * random.clamp(0.0, 1.0))
        })
    }

    /// Whether a source may not be asked for this blob now.
    pub(super) fn are_on(&self, origin: &Origin, digest: &Digest, now: Duration) -> bool {
        [None, Some(*digest)].into_iter().any(|blob| self.has(&(origin.clone(), blob), now))
    }

    /// A whole blob has come from it.
    pub(super) fn end(&mut self, origin: &Origin, digest: &Digest) {
        for blob in [None, Some(*digest)] {
            self.forget(&(origin.clone(), blob));
        }
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
        assert!(rests.rest(&a, one, &missing, seconds(0), 0.0));
        assert!(rests.are_on(&a, &one, seconds(59)) && !rests.are_on(&a, &two, seconds(0)));
        assert!(rests.rest(&a, two, &Trouble::Slow, seconds(0), 0.0));
        assert!(rests.are_on(&a, &two, seconds(4)) && !rests.are_on(&b, &one, seconds(0)));
        assert!(!rests.are_on(&a, &two, seconds(5)));
        assert_eq!(rests.wake_at(), Some(seconds(5)));
        assert!(rests.over(seconds(5)) && !rests.over(seconds(6)));
        assert_eq!(rests.wake_at(), Some(seconds(60)));
        rests.keep(|(_, digest)| *digest != Some(one));
        assert_eq!(rests.wake_at(), None);
    }

    #[test]
    fn rests_grow_to_a_bound_whatever_the_source_wishes() {
        let (mut rests, a, blob) = (Rests::default(), origin("a"), Digest::of(b"1"));
        let busy = Trouble::Status { status: 503, wait: Some(seconds(90)) };
        rests.rest(&a, blob, &busy, seconds(0), 0.0);
        assert!(rests.are_on(&a, &blob, seconds(89)) && !rests.are_on(&a, &blob, seconds(90)));
        let cruel = Trouble::Status { status: 503, wait: Some(Duration::MAX) };
        rests.rest(&a, blob, &cruel, seconds(0), 1.0);
        assert!(!rests.are_on(&a, &blob, seconds(4500)));
        for trouble in [Trouble::Slow, Trouble::Bytes, Trouble::NoRanges] {
            for _ in 0..100 {
                assert!(!rests.rest(&a, blob, &trouble, seconds(0), 1.0) || trouble == Trouble::Bytes);
            }
            assert!(!rests.are_on(&a, &blob, seconds(6 * 3600 * 5 / 4)));
        }
        rests.end(&a, &blob);
        assert!(!rests.are_on(&a, &blob, seconds(0)));
    }
}
