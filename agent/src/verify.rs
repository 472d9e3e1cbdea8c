//! Accepting a desired state: from bytes that anyone may have sent to a commitment.
//!
//! Everything is decided by `selvedge_package::trust`; this reads the bundle within limits, keeps
//! newer roots whatever becomes of the rest, and writes the new trust state together with the
//! deployment that follows from it, in one transaction. A refusal changes nothing else.

use std::collections::BTreeMap;

use jiff::Timestamp;
use selvedge_deployment::{Event, Release};
use selvedge_package::trust::{self, Assignment, Desired, MetadataBundle, TrustError, TrustState};
use selvedge_package::{DeviceId, PackageName};
use selvedge_protocol::envelope::from_cbor;

use crate::fetch::Hardware;
use crate::store::{Key, Store, StoreError};

/// Why an offer was not taken.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// It is not a bundle.
    #[error("the desired state cannot be read: {0}")]
    Unreadable(String),
    /// It is not trusted.
    #[error("the desired state was refused")]
    Trust(#[source] TrustError),
    /// The store has failed in an acceptance before this one.
    #[error("nothing is accepted: {0}")]
    Latched(String),
    /// The store failed; this says nothing about the offer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Refused {
    /// Whether it is only older than what was accepted: a late message, or one that was replayed.
    pub fn is_late(&self) -> bool {
        matches!(self, Self::Trust(TrustError::SequenceRollback { .. } | TrustError::Rollback { .. }))
    }

    /// A word for reports.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unreadable(_) => "unreadable",
            Self::Trust(error) => error.reason(),
            Self::Latched(_) | Self::Store(_) => "store-fault",
        }
    }
}

/// An offer that was accepted, and is not yet written down.
#[derive(Debug)]
pub struct Accepted {
    /// The trust state to write.
    pub state: TrustState,
    /// What the device shall run.
    pub desired: Desired,
}

/// What became of an offer.
#[derive(Debug)]
pub struct Verdict {
    /// Whether newer roots came with it and were kept.
    pub newer_roots: bool,
    /// The rest of it.
    pub offer: Result<Accepted, Refused>,
}

/// Verifies an offer at the time of a clock that is synchronised, where there is one. Newer roots are kept
/// at once, whatever becomes of the rest; nothing else is written.
pub fn offer(
    store: &Store,
    trust: &mut TrustState,
    device: &DeviceId,
    bytes: &[u8],
    clock: Option<Timestamp>,
) -> Verdict {
    match from_cbor(bytes) {
        Ok(offered) => bundle(store, trust, device, &offered, clock),
        Err(why) => Verdict { newer_roots: false, offer: Err(Refused::Unreadable(why)) },
    }
}

/// The same for an offer that was read, whatever brought it.
pub fn bundle(
    store: &Store,
    trust: &mut TrustState,
    device: &DeviceId,
    bundle: &MetadataBundle,
    clock: Option<Timestamp>,
) -> Verdict {
    let mut newer_roots = false;
    let mut take = || {
        if let Some(rooted) = trust::adopt_roots(trust, bundle).map_err(Refused::Trust)? {
            store.database().write(|transaction| transaction.put(Key::Trust, &rooted))?;
            *trust = rooted;
            newer_roots = true;
        }
        let accepted = trust::accept(trust, bundle, device, clock).map_err(Refused::Trust)?;
        Ok(Accepted { state: accepted.state, desired: accepted.desired })
    };
    let offer = take();
    Verdict { newer_roots, offer }
}

/// Assigned packages that this device's hardware cannot run, by what their release keys say of them.
pub fn unfit(desired: &Desired, hardware: &Hardware) -> BTreeMap<PackageName, String> {
    let unfit = |assigned: &Assignment| {
        let error = assigned.check_hardware(hardware.architecture).err()?;
        Some((assigned.package.clone(), error.to_string()))
    };
    desired.assignments.iter().filter_map(unfit).collect()
}

/// The desired state as the deployment takes it.
pub fn event(desired: &Desired, hardware: &Hardware, anew: bool) -> Event {
    let (unfit, assignments) = (unfit(desired, hardware), assignments(desired));
    Event::Desired { sequence: desired.sequence, assignments, unfit, anew }
}

/// The assignments as the deployment takes them.
pub fn assignments(desired: &Desired) -> Vec<(PackageName, Release)> {
    desired.assignments.iter().map(|assignment| (assignment.package.clone(), release(assignment))).collect()
}

fn release(assignment: &Assignment) -> Release {
    Release {
        digest: assignment.digest,
        length: assignment.length,
        release: assignment.release,
        min_release: assignment.min_release,
        settings: assignment.settings.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_is_refused_whatever_it_is() {
        let mut nested = vec![0x81; 200_000];
        nested.push(0);
        for bytes in [&b""[..], b"\x00", b"{}", b"\xa1", &nested, &[0x5b; 64], &vec![0; 2 << 20]] {
            assert!(from_cbor::<MetadataBundle>(bytes).is_err());
        }
    }
}
