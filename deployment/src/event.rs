//! What can happen to a deployment, what is worth telling, and what is refused.

use std::collections::BTreeMap;

use selvedge_package::{Digest, PackageName};

use crate::state::{Measured, Release, Rules};

/// Something that happened. Time arrives inside events: device time in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A desired state was verified and accepted: all assignments of the device.
    Desired {
        /// The Director's sequence.
        sequence: u64,
        /// Every assignment; a package that is not named is to be removed.
        assignments: Vec<(PackageName, Release)>,
        /// Those of them that this device's hardware cannot run, and why, for people.
        unfit: BTreeMap<PackageName, String>,
        /// Whether its sequence may be below the one in force: after the Director's keys were changed
        /// nothing is left that it has to be above.
        anew: bool,
    },
    /// All files of the release are stored, verified and laid out.
    Fetched {
        /// Package.
        package: PackageName,
        /// Release.
        digest: Digest,
        /// From its manifest.
        rules: Rules,
    },
    /// The release cannot be used on this device: a bad manifest, wrong hardware, too large.
    /// (A link that is down is no event: the transfer waits.)
    Unusable {
        /// Package.
        package: PackageName,
        /// Release.
        digest: Digest,
        /// A word for programs.
        reason: String,
        /// For people.
        what: String,
    },
    /// The driver is about to start the staged release: written before the start.
    Begin {
        /// Package.
        package: PackageName,
    },
    /// Memory would not hold the release on trial beside the one that answers: the old one is to be
    /// stopped first, and comes back when the new one fails. Before the host has it open.
    Tight {
        /// Package.
        package: PackageName,
        /// Release.
        digest: Digest,
    },
    /// The host has it open and ran its acceptance cases.
    Accepted {
        /// Package.
        package: PackageName,
        /// Release.
        digest: Digest,
        /// How many cases passed; all of them, or it is a [`Event::TrialFailed`].
        cases: usize,
    },
    /// The trial is lost: the host refused it, a case failed, it broke a budget on probation.
    TrialFailed {
        /// Package.
        package: PackageName,
        /// Release.
        digest: Digest,
        /// A word for programs.
        reason: String,
        /// For people.
        what: String,
    },
    /// The trial did not get on, and not by its own doing: the host refused for a reason of its own, or could
    /// not be run. It starts again as long as it has attempts left.
    Hindered {
        /// Package.
        package: PackageName,
        /// Release.
        digest: Digest,
        /// For people.
        what: String,
    },
    /// What is committed is refused by the host, again and again, for what it is.
    Refused {
        /// Package.
        package: PackageName,
        /// Release.
        digest: Digest,
        /// A word for programs.
        reason: String,
        /// For people.
        what: String,
    },
    /// The host has moved the route to it.
    Activated {
        /// Package.
        package: PackageName,
        /// Release.
        digest: Digest,
        /// Now.
        now_ms: u64,
    },
    /// Time has passed, or requests were served on probation.
    Proved {
        /// Package.
        package: PackageName,
        /// Release.
        digest: Digest,
        /// What was measured since the route moved.
        measured: Measured,
        /// Now.
        now_ms: u64,
    },
    /// A file of a committed, staged or tried release does not have its digest any more.
    Damaged {
        /// Package.
        package: PackageName,
        /// Release.
        digest: Digest,
    },
    /// The host ended without being asked to, and everything that it had open is gone.
    HostDied {
        /// Releases that are held to have brought it down.
        suspects: Vec<Digest>,
        /// Now.
        now_ms: u64,
        /// Crashes of a committed release count together when they come within this time of the first:
        /// [`crate::CRASH_WINDOW_MS`], or longer where opening one release alone may take long.
        within_ms: u64,
    },
    /// The agent has started and read this state. A probation goes on: where the host is not the one that
    /// was on it, a [`Event::HostDied`] follows.
    Restarted,
    /// The agent was told to end: what a probation has behind it is not to be lost.
    Stopping {
        /// Now.
        now_ms: u64,
    },
}

impl Event {
    /// A desired state that this device's hardware can run, newer than the one in force.
    pub fn desired(sequence: u64, assignments: Vec<(PackageName, Release)>) -> Self {
        Self::Desired { sequence, assignments, unfit: BTreeMap::new(), anew: false }
    }
}

/// Something worth a line in the outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// A release answers for good.
    Committed(PackageName, Release),
    /// A release was given up; the slot's `failure` says why.
    RolledBack(PackageName, Release),
    /// A package is gone.
    Removed(PackageName),
    /// An assignment was refused because the floor is higher.
    BelowFloor(PackageName, Release, u64),
    /// An assignment was refused because this device's hardware cannot run it.
    Unfit(PackageName, Release, String),
    /// A committed release is fetched again.
    Repairing(PackageName),
    /// A committed release is not served any more.
    Quarantined(PackageName),
    /// A committed release that the host refuses: this one, the one before it, starts as a new trial.
    GivesWay(PackageName, Release),
    /// The release that answers is stopped before the one on trial starts, for want of memory.
    StopsFirst(PackageName, Release),
}

/// An event that does not fit the state. It changes nothing; the driver logs it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Illegal {
    /// About a package that the device does not have.
    #[error("event {event} is about `{package}`, which this device does not have")]
    UnknownPackage {
        /// Which event.
        event: &'static str,
        /// Which package.
        package: PackageName,
    },
    /// About a release that is not, or no longer, in the stage that the event needs.
    #[error("event {event} came for `{package}` while it is {stage}; a newer intent replaced it")]
    WrongStage {
        /// Which event.
        event: &'static str,
        /// Which package.
        package: PackageName,
        /// Where it is.
        stage: &'static str,
    },
    /// A commit without a passed acceptance case.
    #[error("`{0}` has no passed acceptance case: it cannot be committed")]
    NoCase(PackageName),
    /// A desired state older than the one in force.
    #[error("desired state {offered} is older than {current}")]
    OldDesired {
        /// Its sequence.
        offered: u64,
        /// The one in force.
        current: u64,
    },
}
