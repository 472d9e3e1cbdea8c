//! Why metadata is refused, in words for people and in one for programs.

use jiff::Timestamp;

use super::assignment::FORMAT;
use super::{Repository, SourceError};
use crate::name::{DeviceId, PackageName};
use crate::rules::ManifestError;

/// Why an offer, or a held state, is not accepted.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum TrustError {
    #[error("{what} has {found} bytes; at most {most} are allowed")]
    TooLarge { what: String, found: usize, most: usize },
    #[error("{found} {what} in one bundle; at most {most} are allowed")]
    TooMany { what: &'static str, found: usize, most: usize },
    #[error("the {repository} repository's {role} is not trusted")]
    Role {
        repository: Repository,
        role: String,
        #[source]
        source: sigstore_tuf::Error,
    },
    #[error("the {repository} repository's {role} is needed, and is neither offered nor held")]
    Missing { repository: Repository, role: String },
    #[error("the {repository} repository's {role} could not be fetched")]
    Source {
        repository: Repository,
        role: String,
        #[source]
        source: SourceError,
    },
    #[error("the {repository} repository's {role} expired at {expires}")]
    Expired { repository: Repository, role: String, expires: Timestamp },
    #[error("the {repository} repository's {role} would go back from version {held} to {offered}")]
    Rollback { repository: Repository, role: String, held: u64, offered: u64 },
    #[error("the Image repository's {role} has a form that is not used here: {reason}")]
    Tree { role: String, reason: &'static str },
    #[error("the {repository} repository delegates, which this program does not follow")]
    Delegations { repository: Repository },
    #[error("the stored metadata of the {repository} repository is damaged")]
    Damaged {
        repository: Repository,
        #[source]
        source: sigstore_tuf::Error,
    },
    #[error("the stored assignment is not the one that the stored metadata signs for")]
    DamagedAssignment,
    #[error("the stored trust state has format {found}; this program reads formats 1 and 2")]
    StateFormat { found: u32 },
    #[error("the stored trust state cannot be read or written")]
    StateJson(#[source] serde_json::Error),
    #[error("this is for the device `{named}`, not for `{device}`")]
    WrongDevice { device: DeviceId, named: String },
    #[error("the assignment is not what the Director signed for")]
    AssignmentBytes,
    #[error("the assignment is not what this program reads")]
    AssignmentJson(#[source] serde_json::Error),
    #[error("the assignment has format {found}; this program reads format {FORMAT}")]
    AssignmentFormat { found: u32 },
    #[error("the assignment has sequence 0; sequences begin with 1")]
    NoSequence,
    #[error("`{package}` is assigned twice")]
    AssignedTwice { package: PackageName },
    #[error("the settings of `{package}` break a rule")]
    Settings {
        package: PackageName,
        #[source]
        source: ManifestError,
    },
    #[error("the sequence would go back from {held} to {offered}")]
    SequenceRollback { held: u64, offered: u64 },
    #[error("sequence {sequence} was accepted with other assignments")]
    SequenceReused { sequence: u64 },
    #[error("the assignment is dated {issued_at}, after the metadata around it expires at {expires}")]
    IssuedTooLate { issued_at: Timestamp, expires: Timestamp },
    #[error("the assignment is dated {issued_at}, more than a day after the clock, which says {clock}")]
    IssuedAhead { issued_at: Timestamp, clock: Timestamp },
    #[error("`{package}` runs on {architectures}; this device is {device}")]
    WrongHardware { package: PackageName, architectures: String, device: String },
    #[error("release {release} of `{package}` is below {floor}, the least that its releases allow")]
    BelowFloor { package: PackageName, release: u64, floor: u64 },
    #[error("the Director assigns `{target}`, which was never released")]
    NotReleased { target: String },
    #[error("the released `{target}` has a description that this program does not read: {reason}")]
    Target { target: String, reason: String },
    #[error("the Director and the release disagree on the {what} of `{target}`: {assigned} and {released}")]
    Disagree { target: String, what: &'static str, assigned: String, released: String },
}

impl TrustError {
    /// A word for reports and programs.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::TooLarge { .. } | Self::TooMany { .. } => "too-large",
            Self::Role { .. } | Self::Delegations { .. } | Self::Tree { .. } => "not-trusted",
            Self::Missing { .. } => "incomplete",
            Self::Source { .. } => "not-fetched",
            Self::Expired { .. } => "expired",
            Self::Rollback { .. } | Self::SequenceRollback { .. } => "rollback",
            Self::Damaged { .. }
            | Self::DamagedAssignment
            | Self::StateFormat { .. }
            | Self::StateJson(_) => "damaged-state",
            Self::WrongDevice { .. } => "wrong-device",
            Self::AssignmentBytes
            | Self::AssignmentJson(_)
            | Self::AssignmentFormat { .. }
            | Self::NoSequence
            | Self::AssignedTwice { .. }
            | Self::Settings { .. }
            | Self::SequenceReused { .. }
            | Self::IssuedTooLate { .. }
            | Self::IssuedAhead { .. } => "bad-assignment",
            Self::WrongHardware { .. } => "wrong-hardware",
            Self::BelowFloor { .. } => "below-floor",
            Self::NotReleased { .. } | Self::Target { .. } | Self::Disagree { .. } => "not-released",
        }
    }
}
