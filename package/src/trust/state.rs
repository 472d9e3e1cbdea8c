//! What a device keeps of all that it accepted, and its form on disk.
//!
//! It is one record, to be written in one transaction with what follows from it. A record that
//! does not read back is damage and must be treated as such: it is never "no state yet".

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::accept::{confirm, signs_for};
use super::assignment::{Desired, DirectorAssignment};
use super::repository::{BEFORE_EVERYTHING, Held};
use super::source::Nothing;
use super::update::{Holding, Update};
use super::{Repository, TrustError, distinct};
use crate::name::DeviceId;

/// The format that is written.
const FORMAT: u32 = 2;

/// Everything that a device trusts, and the floors below which it never goes again.
///
/// Serialises as its tagged form of version 2.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Stored", try_from = "Stored")]
pub struct TrustState {
    pub(super) image: Held,
    pub(super) director: Held,
    /// Bytes of the accepted `<device>.json`; absent before the first, and after a root that
    /// changed the Director's keys.
    pub(super) assignment: Option<Vec<u8>>,
    pub(super) floor: Timestamp,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Stored {
    format: u32,
    image: Held,
    director: Held,
    #[serde(with = "super::octets::option")]
    assignment: Option<Vec<u8>>,
    floor: Timestamp,
}

impl From<TrustState> for Stored {
    fn from(state: TrustState) -> Self {
        let TrustState { image, director, assignment, floor } = state;
        Self { format: FORMAT, image, director, assignment, floor }
    }
}

impl TryFrom<Stored> for TrustState {
    type Error = TrustError;

    fn try_from(stored: Stored) -> Result<Self, TrustError> {
        // Format 1 had no delegated roles; it reads as one without any.
        if !(1..=FORMAT).contains(&stored.format) {
            return Err(TrustError::StateFormat { found: stored.format });
        }
        let Stored { image, director, assignment, floor, .. } = stored;
        Ok(Self { image, director, assignment, floor })
    }
}

impl TrustState {
    /// The state of a device that was just given its two roots. `floor` is a time that has surely
    /// passed, such as the build date of the agent.
    pub fn enrol(image_root: &[u8], director_root: &[u8], floor: Timestamp) -> Result<Self, TrustError> {
        distinct::in_root(Repository::Image, image_root)?;
        distinct::in_root(Repository::Director, director_root)?;
        Ok(Self {
            image: Held::from_root(Repository::Image, image_root)?,
            director: Held::from_root(Repository::Director, director_root)?,
            assignment: None,
            floor,
        })
    }

    /// The form for disk: JSON, version 2.
    pub fn encode(&self) -> Result<Vec<u8>, TrustError> {
        serde_json::to_vec(self).map_err(TrustError::StateJson)
    }

    /// Reads what [`TrustState::encode`] wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self, TrustError> {
        serde_json::from_slice(bytes).map_err(TrustError::StateJson)
    }

    /// A time that has surely passed. It never goes back.
    pub fn floor(&self) -> Timestamp {
        self.floor
    }

    /// The time to judge expiry by: the clock where it is synchronised, but never below the floor.
    pub fn now(&self, synchronised_clock: Option<Timestamp>) -> Timestamp {
        synchronised_clock.map_or(self.floor, |clock| clock.max(self.floor))
    }

    /// Sequence of the accepted assignment; 0: none.
    pub fn sequence(&self) -> u64 {
        self.accepted().ok().flatten().map_or(0, |accepted| accepted.sequence)
    }

    /// Version of the newest Image root that was accepted.
    pub fn image_root_version(&self) -> Result<u64, TrustError> {
        self.image.root_version(Repository::Image)
    }

    /// Version of the newest Director root that was accepted.
    pub fn director_root_version(&self) -> Result<u64, TrustError> {
        self.director.root_version(Repository::Director)
    }

    /// Versions of the metadata that were accepted: Image timestamp, snapshot and targets, then the
    /// Director's; 0 where there is none.
    pub fn accepted_versions(&self) -> ([u64; 3], [u64; 3]) {
        (self.image.versions(), self.director.versions())
    }

    /// The ed25519 public keys, 32 bytes each, that speak for the Director's targets role: they also
    /// sign the registry's acknowledgements. Keys of other kinds are left out.
    pub fn director_keys(&self) -> Result<Vec<[u8; 32]>, TrustError> {
        self.director.targets_keys(Repository::Director)
    }

    /// What was accepted last, verified again from what is stored, with no regard to expiry:
    /// expired metadata stops new acceptance, not what runs. `None` before the first acceptance.
    pub fn desired(&self, device: &DeviceId) -> Result<Option<Desired>, TrustError> {
        let mut image = held(Repository::Image, &self.image)?;
        let director = held(Repository::Director, &self.director)?;
        let (Some(bytes), Some(_), Some(directed)) = (&self.assignment, image.loaded(), director.loaded())
        else {
            return Ok(None);
        };
        let directed = directed.clone();
        let released = |target: &str| image.find(target).map_err(damaged);
        confirm(released, &directed, bytes, device).map(Some)
    }

    /// The assignment that was accepted last, checked against the Director's stored signature.
    pub(super) fn held_assignment(
        &self,
        device: &DeviceId,
    ) -> Result<Option<DirectorAssignment>, TrustError> {
        let director = held(Repository::Director, &self.director)?;
        match (&self.assignment, director.loaded()) {
            (None, None) => Ok(None),
            (Some(bytes), Some(targets)) if signs_for(targets, device, bytes).is_ok() => self.accepted(),
            _ => Err(TrustError::DamagedAssignment),
        }
    }

    fn accepted(&self) -> Result<Option<DirectorAssignment>, TrustError> {
        self.assignment.as_deref().map(DirectorAssignment::parse).transpose()
    }
}

/// What is held, verified again with no regard to expiry.
fn held(which: Repository, held: &Held) -> Result<Update<Nothing>, TrustError> {
    Update::new(which, held, Holding::Whole, Nothing, BEFORE_EVERYTHING)
}

/// A delegated role that was stored and does not verify, or is gone, is damage.
fn damaged(error: TrustError) -> TrustError {
    match error {
        TrustError::Role { repository, source, .. } => TrustError::Damaged { repository, source },
        TrustError::Missing { repository, role } => {
            let source = sigstore_tuf::Error::Malformed(format!("the stored {role} is missing"));
            TrustError::Damaged { repository, source }
        }
        other => other,
    }
}
