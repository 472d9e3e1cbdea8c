//! Decides what a device may run, from signed metadata alone.
//!
//! Two TUF repositories in Uptane's shape: the Image repository says what exists, the Director
//! what this device shall run. [`accept`] takes the held state and an offer and returns the new
//! state and the desired packages, or an error and no state at all: nothing of an offer becomes
//! state before the Director's part has proved to be for this device. Time is an argument. Nothing
//! here reads a file or a socket, or stops what already runs.

mod assignment;
pub mod bins;
mod image_files;
mod images;
mod octets;
mod repository;
mod state;

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sigstore_tuf::Targets;

use crate::digest::Digest;
use crate::limits::MetadataLimits;
use crate::name::{DeviceId, PackageName};
use crate::rules::ManifestError;

pub use assignment::{AssignedPackage, Assignment, Desired, DirectorAssignment, FORMAT};
pub use image_files::{ImageFiles, verify_image};
pub use images::{ImageCustom, ImageTargets, ReleasedTarget, target_name, verify_targets};
pub use repository::{DelegatedFile, RepositoryMetadata};
pub use state::TrustState;

/// One of the two repositories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repository {
    /// What exists.
    Image,
    /// What this device shall run.
    Director,
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Image => "Image",
            Self::Director => "Director",
        })
    }
}

/// Everything that a device needs to accept a new desired state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetadataBundle {
    /// The Image repository.
    pub image: RepositoryMetadata,
    /// The Director repository of this device.
    pub director: RepositoryMetadata,
    /// Bytes of `<device>.json`.
    #[serde(with = "octets")]
    pub assignment: Vec<u8>,
}

/// An offer that was accepted. Commit `state` in the transaction that takes `desired` over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// The state to store.
    pub state: TrustState,
    /// What the device shall run.
    pub desired: Desired,
}

/// Why an offer, or a held state, is not accepted.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum TrustError {
    #[error("{what} has {found} bytes; at most {most} are allowed")]
    TooLarge { what: &'static str, found: usize, most: usize },
    #[error("{found} {what} in one bundle; at most {most} are allowed")]
    TooMany { what: &'static str, found: usize, most: usize },
    #[error("the {repository} repository's {role} is not trusted")]
    Role {
        repository: Repository,
        role: String,
        #[source]
        source: sigstore_tuf::Error,
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
    #[error("the stored trust state has format {found}; this program reads format 1")]
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
            | Self::IssuedTooLate { .. } => "bad-assignment",
            Self::NotReleased { .. } | Self::Target { .. } | Self::Disagree { .. } => "not-released",
        }
    }
}

/// Verifies an offer against the held state.
///
/// `now` is the clock's time where the clock is synchronised, else [`TrustState::floor`]; it is
/// raised to the floor in any case. On an error the held state stays as it is; what runs goes on.
pub fn accept(
    state: &TrustState,
    bundle: &MetadataBundle,
    device: &DeviceId,
    now: Timestamp,
) -> Result<Accepted, TrustError> {
    let now = now.max(state.floor);
    let most = MetadataLimits::DEVICE.assignment_bytes;
    sized("the assignment", &bundle.assignment, most)?;
    // Another device's offer is recognised before anything of it is compared with our floors. This
    // only words the refusal: the binding itself is checked below, on verified bytes.
    if let Ok(claimed) = DirectorAssignment::parse(&bundle.assignment)
        && claimed.device != *device
    {
        return Err(TrustError::WrongDevice { device: device.clone(), named: claimed.device.to_string() });
    }
    let image = state.image.update(Repository::Image, &bundle.image, now)?;
    let director = state.director.update(Repository::Director, &bundle.director, now)?;
    let desired = confirm(&image.targets, &director.targets, &bundle.assignment, device)?;

    // Floors of the last assignment hold as long as the keys that signed it do.
    let followed = state.director.follow_roots(Repository::Director, &bundle.director.roots)?;
    let floors_hold = followed.targets.is_some();
    if let (Some(held), true) = (state.held_assignment(device)?, floors_hold) {
        if desired.sequence < held.sequence {
            return Err(TrustError::SequenceRollback { held: held.sequence, offered: desired.sequence });
        }
        let offered = DirectorAssignment::parse(&bundle.assignment)?;
        if desired.sequence == held.sequence && offered.assignments != held.assignments {
            return Err(TrustError::SequenceReused { sequence: held.sequence });
        }
    }
    // A time that a stolen online key signs may not push the floor beyond what the offline keys
    // have vouched for.
    let expires = image.root.expires.min(director.root.expires).min(image.targets.expires);
    if desired.issued_at >= expires {
        return Err(TrustError::IssuedTooLate { issued_at: desired.issued_at, expires });
    }
    let floor = state.floor.max(desired.issued_at);
    let state = TrustState {
        image: image.held,
        director: director.held,
        assignment: Some(bundle.assignment.clone()),
        floor,
    };
    Ok(Accepted { state, desired })
}

/// Follows the roots of an offer, whatever becomes of the rest of it (TUF 5.3.8: a root is kept as
/// soon as it is verified). `None` where there is nothing newer. Commit the state before calling
/// [`accept`], so that a revoked key stays revoked even if the rest of the offer is bad.
pub fn adopt_roots(state: &TrustState, bundle: &MetadataBundle) -> Result<Option<TrustState>, TrustError> {
    let image = state.image.follow_roots(Repository::Image, &bundle.image.roots)?;
    let director = state.director.follow_roots(Repository::Director, &bundle.director.roots)?;
    if image == state.image && director == state.director {
        return Ok(None);
    }
    // An assignment whose signers were revoked is no floor any more.
    let assignment = state.assignment.clone().filter(|_| director.targets.is_some());
    Ok(Some(TrustState { image, director, assignment, floor: state.floor }))
}

/// Joins the Director's assignment with what the Image repository says of each package.
fn confirm(
    image: &Targets,
    director: &Targets,
    bytes: &[u8],
    device: &DeviceId,
) -> Result<Desired, TrustError> {
    signs_for(director, device, bytes)?;
    let read = DirectorAssignment::parse(bytes)?;
    if read.device != *device {
        return Err(TrustError::WrongDevice { device: device.clone(), named: read.device.to_string() });
    }
    let assignments = read
        .assignments
        .into_iter()
        .map(|assigned| images::join(image, assigned))
        .collect::<Result<_, _>>()?;
    Ok(Desired { sequence: read.sequence, issued_at: read.issued_at, nonce: read.nonce, assignments })
}

/// Checks that the Director signs for `bytes` as the assignment of `device`.
fn signs_for(director: &Targets, device: &DeviceId, bytes: &[u8]) -> Result<(), TrustError> {
    let name = DirectorAssignment::target_name(device);
    let Some(signed) = director.target(&name) else {
        let named = director.targets.keys().next().map_or("nobody", |name| name.as_str());
        return Err(TrustError::WrongDevice {
            device: device.clone(),
            named: named.strip_suffix(".json").unwrap_or(named).chars().take(80).collect(),
        });
    };
    let digest = images::sha256(&name, signed)?;
    if signed.length != bytes.len() as u64 || digest != Digest::of(bytes) {
        return Err(TrustError::AssignmentBytes);
    }
    Ok(())
}

fn sized(what: &'static str, bytes: &[u8], most: usize) -> Result<(), TrustError> {
    if bytes.len() <= most { Ok(()) } else { Err(TrustError::TooLarge { what, found: bytes.len(), most }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(listed: serde_json::Value) -> Targets {
        serde_json::from_value(serde_json::json!({
            "_type": "targets", "spec_version": "1.0.31", "version": 1,
            "expires": "2030-01-01T00:00:00Z", "targets": listed,
        }))
        .unwrap()
    }

    /// A Director that is confused, or whose keys were stolen, signs one device's assignment under
    /// the name of another.
    #[test]
    fn the_name_inside_the_assignment_must_be_the_devices_too() {
        let device: DeviceId = "edge-1".parse().unwrap();
        let bytes = br#"{"format":1,"device":"edge-2","sequence":1,"issued-at":"2026-01-01T00:00:00Z","nonce":"","assignments":[]}"#;
        let mut entry = serde_json::json!({
            "length": bytes.len(), "hashes": { "sha256": Digest::of(bytes).hex() },
        });
        let image = targets(serde_json::json!({}));
        let confirm_with = |entry: &serde_json::Value, bytes: &[u8]| {
            let director = targets(serde_json::json!({ "edge-1.json": entry }));
            confirm(&image, &director, bytes, &device).unwrap_err()
        };
        let error = confirm_with(&entry, bytes);
        assert!(matches!(&error, TrustError::WrongDevice { named, .. } if named == "edge-2"), "{error}");
        assert!(matches!(confirm_with(&entry, b"other"), TrustError::AssignmentBytes));
        entry["hashes"] = serde_json::json!({ "sha512": "00" });
        assert!(matches!(confirm_with(&entry, bytes), TrustError::Target { .. }));
    }
}
