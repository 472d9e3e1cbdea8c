//! What the device knows about every package, as it is kept on disk.

use std::collections::BTreeMap;

pub use selvedge_package::manifest::Swap;
use selvedge_package::{Digest, PackageName};
use serde::{Deserialize, Serialize};

/// A release as the verified desired state names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// Digest of the OCI manifest.
    pub digest: Digest,
    /// Length of the OCI manifest in bytes.
    pub length: u64,
    /// Release counter.
    pub release: u64,
    /// The floor that this release sets once it is committed.
    pub min_release: u64,
    /// Settings of the deployment.
    pub settings: BTreeMap<String, String>,
}

/// What the package's own signed manifest says about taking over; known once it has arrived.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// Side by side or one after the other.
    pub swap: Swap,
    /// Probation after the route has moved, in milliseconds.
    pub probation_ms: u64,
    /// Requests that end the probation early; 0: time alone.
    pub probation_requests: u64,
    /// What it may do on probation without being taken back.
    #[serde(default)]
    pub budget: Budget,
}

/// What a release may do on probation without being taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Share of its requests that may fail by its own fault, in percent; 100: all of them.
    pub failures_percent: u32,
    /// Time within which 95 of 100 of its answers come, in milliseconds; 0: any.
    pub latency_ms: u32,
    /// Memory by which the host may have grown since it was opened, in MiB; 0: any.
    pub memory_mib: u32,
}

impl Default for Budget {
    fn default() -> Self {
        Self { failures_percent: 50, latency_ms: 0, memory_mib: 0 }
    }
}

/// What was measured of a release since the route moved to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measured {
    /// Requests answered well.
    pub requests: u64,
    /// Requests that failed by its fault.
    pub failures: u64,
    /// Time within which 95 of 100 of its answers came, in milliseconds.
    pub latency_ms: u64,
    /// Bytes of memory by which the host has grown since it was opened.
    pub memory: u64,
}

/// The device's whole deployment state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Counter of committed sets of assignments: grows with every commit and uninstallation.
    pub generation: u64,
    /// Sequence of the desired state in force.
    pub desired: u64,
    /// Every package that is assigned or present.
    pub slots: BTreeMap<PackageName, Slot>,
    /// Highest `min-release` ever committed for a name; outlives the slot.
    pub floors: BTreeMap<PackageName, u64>,
}

/// One package.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// What the desired state assigns; `None`: nothing that this device may run.
    pub wanted: Option<Release>,
    /// What answers.
    pub committed: Option<Committed>,
    /// What answered before it: the one to go back to.
    pub previous: Option<(Release, Rules)>,
    /// What is on its way.
    pub stage: Stage,
    /// The newest failure; it shuts out the release that it names until the assignment changes.
    pub failure: Option<Failure>,
}

/// A committed release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {
    /// Which.
    pub release: Release,
    /// Its rules.
    pub rules: Rules,
    /// Whether it can be served.
    pub health: Health,
}

/// Whether a committed release can be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Health {
    /// It can.
    Sound {
        /// Crashes of the host for which it was named, within a time of the first.
        crashes: u32,
        /// When the first of them was, in milliseconds since the device was started.
        first_ms: u64,
    },
    /// A file of it is damaged: it is fetched again.
    Damaged,
    /// It has brought the host down too often, or what is damaged of it cannot be had again: not served
    /// until it is assigned anew, with other settings or after something else.
    Quarantined,
}

/// What is on its way.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// Nothing.
    #[default]
    Idle,
    /// Blobs are being pulled and verified.
    Fetching(Release),
    /// Everything is stored and laid out. `attempts` were started already and did not end.
    Staged {
        /// Which.
        release: Release,
        /// Its rules.
        rules: Rules,
        /// Starts so far.
        attempts: u32,
        /// Milliseconds of probation that it has behind it.
        #[serde(default)]
        proved_ms: u64,
    },
    /// Attempt number `attempt` runs.
    Trial {
        /// Which.
        release: Release,
        /// Its rules.
        rules: Rules,
        /// This start's number, from 1; 0 when one that ended in order was forgiven.
        attempt: u32,
        /// How far it is.
        phase: Phase,
        /// Milliseconds of probation that it has behind it, as far as that is written down.
        #[serde(default)]
        proved_ms: u64,
    },
}

/// How far a trial is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// The host opens it and runs its acceptance cases.
    Loading,
    /// At least one case, and all of them, passed: the route may move.
    Accepted,
    /// The route has moved; on probation until the time named (device time, milliseconds).
    Probation {
        /// End of the probation.
        until_ms: u64,
    },
}

/// Why a release was not kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Digest of the release.
    pub digest: Digest,
    /// Its counter.
    pub release: u64,
    /// A word for programs.
    pub reason: String,
    /// For people: at most [`Failure::LONGEST`] bytes.
    pub what: String,
}

impl Failure {
    /// Longest text that is kept, in bytes: it goes into every report.
    pub const LONGEST: usize = 2000;

    /// A failure of `release`, its text cut where it is too long.
    pub fn of(release: &Release, reason: &str, what: &str) -> Self {
        let mut end = what.len().min(Self::LONGEST);
        while !what.is_char_boundary(end) {
            end -= 1;
        }
        Self {
            digest: release.digest,
            release: release.release,
            reason: reason.to_owned(),
            what: what[..end].to_owned(),
        }
    }
}

impl Health {
    /// Sound, and never named for a crash.
    pub const SOUND: Self = Self::Sound { crashes: 0, first_ms: 0 };
}

impl Stage {
    /// The release on its way.
    pub fn release(&self) -> Option<&Release> {
        match self {
            Self::Idle => None,
            Self::Fetching(release) | Self::Staged { release, .. } | Self::Trial { release, .. } => {
                Some(release)
            }
        }
    }

    /// The word used in reports; `None` when nothing is on its way.
    pub fn word(&self) -> Option<&'static str> {
        Some(match self {
            Self::Idle => return None,
            Self::Fetching(_) => "fetching",
            Self::Staged { .. } => "staged",
            Self::Trial { .. } => "trial",
        })
    }
}

impl State {
    /// What is left when nobody assigns anything any more: what is committed, and every floor. What was
    /// on its way is given up; sequences begin anew with the next Director.
    pub fn detached(self) -> Self {
        let mut left = Self { generation: self.generation, floors: self.floors, ..Self::default() };
        for (name, slot) in self.slots {
            let Some(committed) = slot.committed else { continue };
            let (wanted, previous) = (Some(committed.release.clone()), slot.previous);
            let committed = Some(committed);
            left.slots.insert(name, Slot { wanted, committed, previous, ..Slot::default() });
        }
        left
    }
}

impl Slot {
    /// The committed release, where it may be served.
    pub fn servable(&self) -> Option<&Committed> {
        self.committed.as_ref().filter(|committed| matches!(committed.health, Health::Sound { .. }))
    }
}

/// The state as it is written: tagged, so that a later version reads an earlier one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum StateRecord {
    /// First format.
    V1(State),
}

impl From<State> for StateRecord {
    fn from(state: State) -> Self {
        Self::V1(state)
    }
}

impl From<StateRecord> for State {
    fn from(StateRecord::V1(state): StateRecord) -> Self {
        state
    }
}
