//! What rests after a failure that is not for good, and for how long: up to five minutes.

use std::time::Duration;

use selvedge_package::{Digest, PackageName};

use crate::pauses::Pauses;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(300);

/// What rests.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rest {
    /// Everything about a package.
    Package(PackageName),
    /// Opening what is committed of a package.
    Serve(PackageName),
    /// Opening a committed release for which the host had to end: it comes back without it.
    Stuck(Digest),
    /// The trial of a package, or its next start; what is committed of it is served meanwhile.
    Trial(PackageName),
    /// The transfer of a blob.
    Blob(Digest),
    /// Fetching a package, for want of room; what is committed of it is served meanwhile.
    Fetch(PackageName),
    /// Telling the host that it has everything.
    Ready,
    /// Asking whether a release has answered its last requests.
    Drain,
}

impl Rest {
    fn bounds(&self) -> (Duration, Duration) {
        match self {
            // Whether there is room is cheap to see, and somebody may have just made it.
            Self::Fetch(_) => (FIRST, LONGEST / 10),
            Self::Trial(_) | Self::Stuck(_) => (FIRST * 5, LONGEST),
            Self::Package(_) | Self::Serve(_) | Self::Blob(_) | Self::Ready | Self::Drain => (FIRST, LONGEST),
        }
    }
}

/// What rests, and until when.
pub type Rests = Pauses<Rest>;

impl Rests {
    /// Begins a rest, longer than the one before. Returns whether it is the first in a row.
    pub fn rest(&mut self, rest: Rest, now: Duration) -> bool {
        let bounds = rest.bounds();
        self.begin(rest, bounds, now, |pause| pause)
    }

    /// Forgets releases that are committed no longer.
    pub fn keep_stuck(&mut self, committed: impl Fn(&Digest) -> bool) {
        self.keep(|rest| !matches!(rest, Rest::Stuck(digest) if !committed(digest)));
    }

    /// Forgets blobs that are wanted no longer.
    pub fn keep_blobs(&mut self, wanted: impl Fn(&Digest) -> bool) {
        self.keep(|rest| !matches!(rest, Rest::Blob(digest) if !wanted(digest)));
    }
}
