//! What a device keeps of all that it accepted, and its form on disk.
//!
//! It is one record, to be written in one transaction with what follows from it. A record that
//! does not read back is damage and must be treated as such: it is never "no state yet".

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::assignment::{Desired, DirectorAssignment};
use super::repository::Held;
use super::{Repository, TrustError, confirm, signs_for};
use crate::name::DeviceId;

/// Everything that a device trusts, and the floors below which it never goes again.
///
/// Serialises as its tagged form of version 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "StoredV1", try_from = "StoredV1")]
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
struct StoredV1 {
    format: u32,
    image: Held,
    director: Held,
    #[serde(with = "super::octets::option")]
    assignment: Option<Vec<u8>>,
    floor: Timestamp,
}

impl From<TrustState> for StoredV1 {
    fn from(state: TrustState) -> Self {
        let TrustState { image, director, assignment, floor } = state;
        Self { format: 1, image, director, assignment, floor }
    }
}

impl TryFrom<StoredV1> for TrustState {
    type Error = TrustError;

    fn try_from(stored: StoredV1) -> Result<Self, TrustError> {
        if stored.format != 1 {
            return Err(TrustError::StateFormat { found: stored.format });
        }
        let StoredV1 { image, director, assignment, floor, .. } = stored;
        Ok(Self { image, director, assignment, floor })
    }
}

impl TrustState {
    /// The state of a device that was just given its two roots. `floor` is a time that has surely
    /// passed, such as the build date of the agent.
    pub fn enrol(image_root: &[u8], director_root: &[u8], floor: Timestamp) -> Result<Self, TrustError> {
        Ok(Self {
            image: Held::from_root(Repository::Image, image_root)?,
            director: Held::from_root(Repository::Director, director_root)?,
            assignment: None,
            floor,
        })
    }

    /// The form for disk: JSON, version 1.
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
        let image = self.image.targets(Repository::Image)?;
        let director = self.director.targets(Repository::Director)?;
        match (&self.assignment, image, director) {
            (Some(bytes), Some(image), Some(director)) => confirm(&image, &director, bytes, device).map(Some),
            _ => Ok(None),
        }
    }

    /// The assignment that was accepted last, checked against the Director's stored signature.
    pub(super) fn held_assignment(
        &self,
        device: &DeviceId,
    ) -> Result<Option<DirectorAssignment>, TrustError> {
        match (&self.assignment, self.director.targets(Repository::Director)?) {
            (None, None) => Ok(None),
            (Some(bytes), Some(targets)) if signs_for(&targets, device, bytes).is_ok() => self.accepted(),
            _ => Err(TrustError::DamagedAssignment),
        }
    }

    fn accepted(&self) -> Result<Option<DirectorAssignment>, TrustError> {
        self.assignment.as_deref().map(DirectorAssignment::parse).transpose()
    }
}
