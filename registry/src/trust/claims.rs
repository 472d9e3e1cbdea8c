//! What a device's birth says that it has: its nonce, and the versions that it has accepted.
//!
//! A birth is not signed. What it claims saves bytes, and brings a registry that was restored from a
//! backup above what its devices have accepted; a lie can only delay its own device.

use selvedge_protocol::message::{Accepted, Birth};

/// Versions ahead of ours that are believed: a forged birth must not use them all up.
pub(super) const BELIEVED: u64 = 1_000_000;

/// What a device has, as far as its registry knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claims {
    /// Of its newest birth; to be echoed.
    pub nonce: Vec<u8>,
    /// Sequence of the desired state that it has accepted.
    pub desired: u64,
    /// Version of its Image root.
    pub image_root: u64,
    /// Version of its Director root.
    pub director_root: u64,
    /// Versions of everything else.
    pub accepted: Accepted,
    /// Whether it is enrolled: only then it moves versions.
    pub enrolled: bool,
}

impl Claims {
    /// What a birth says.
    pub fn of(birth: &Birth, enrolled: bool) -> Self {
        Self {
            nonce: birth.nonce.clone(),
            desired: birth.desired,
            image_root: birth.image_root,
            director_root: birth.director_root,
            accepted: birth.accepted,
            enrolled,
        }
    }

    /// The version of the Director's metadata that it has accepted, if that is believed to be above
    /// `held`, the newest that was signed here.
    pub(super) fn director_above(&self, held: u64) -> Option<u64> {
        let seen = self.accepted.director.into_iter().max().unwrap_or(0);
        (self.enrolled && seen > held && seen - held <= BELIEVED).then_some(seen)
    }

    /// The same for the sequence.
    pub(super) fn sequence_above(&self, held: u64) -> Option<u64> {
        let seen = self.desired;
        (self.enrolled && seen > held && seen - held <= BELIEVED).then_some(seen)
    }
}
