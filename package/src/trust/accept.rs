//! Acceptance: an offer and the held state in, a new state and the desired packages out.

use jiff::{SignedDuration, Timestamp};
use sigstore_tuf::{TargetFile, Targets};

use super::assignment::{Desired, DirectorAssignment};
use super::repository::{Held, RepositoryMetadata};
use super::source::Offer;
use super::update::{Holding, Update};
use super::{MetadataBundle, Repository, TrustError, TrustState, images, sized};
use crate::digest::Digest;
use crate::limits::MetadataLimits;
use crate::name::DeviceId;

/// How far a Director may date ahead of a synchronised clock.
pub const DATED_AHEAD: SignedDuration = SignedDuration::from_hours(24);

/// How far a clock that is vouched for may be below the floor and still be believed: more than
/// [`DATED_AHEAD`], or whoever dates as far ahead as he may has the clock disbelieved at its next small
/// step back, and dates on from there.
pub const BELIEVED_BELOW: SignedDuration = SignedDuration::from_hours(48);

/// An offer that was accepted. Commit `state` in the transaction that takes `desired` over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// The state to store.
    pub state: TrustState,
    /// What the device shall run.
    pub desired: Desired,
}

/// Verifies an offer against the held state.
///
/// `synchronised` is the clock's time where the clock is synchronised; without one the floor is the
/// time. On an error the held state stays as it is; what runs goes on.
pub fn accept(
    state: &TrustState,
    bundle: &MetadataBundle,
    device: &DeviceId,
    synchronised: Option<Timestamp>,
) -> Result<Accepted, TrustError> {
    let now = state.now(synchronised);
    let most = MetadataLimits::DEVICE.assignment_bytes;
    sized("the assignment", &bundle.assignment, most)?;
    // Another device's offer is recognised before anything of it is compared with our floors. This
    // only words the refusal: the binding itself is checked below, on verified bytes.
    if let Ok(claimed) = DirectorAssignment::parse(&bundle.assignment)
        && claimed.device != *device
    {
        return Err(TrustError::WrongDevice { device: device.clone(), named: claimed.device.to_string() });
    }
    let mut image = open(Repository::Image, &state.image, &bundle.image, now)?;
    image.refresh()?;
    let mut director = open(Repository::Director, &state.director, &bundle.director, now)?;
    director.roots()?;
    // Floors of the last assignment hold as long as the keys that signed it do.
    let floors_hold = director.held().targets.is_some();
    director.top_level()?;
    let directed = director.targets()?;
    if directed.delegations.as_ref().is_some_and(|delegations| !delegations.roles.is_empty()) {
        return Err(TrustError::Delegations { repository: Repository::Director });
    }
    let desired = confirm(|target| image.find(target), directed, &bundle.assignment, device)?;

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
    // have vouched for, nor beyond what the clock says.
    let roots = image.root().expires.min(director.root().expires);
    let expires = image.targets_expire().map_or(roots, |targets| targets.min(roots));
    let issued_at = desired.issued_at;
    if issued_at >= expires {
        return Err(TrustError::IssuedTooLate { issued_at, expires });
    }
    if let Some(clock) = synchronised {
        let after = |by| clock.checked_add(by).unwrap_or(Timestamp::MAX);
        // A clock far below a time that has surely passed is wrong, whoever vouches for it; and a date that
        // was taken already pushes nothing.
        let believed = state.floor <= after(BELIEVED_BELOW);
        if believed && issued_at > state.floor.max(after(DATED_AHEAD)) {
            return Err(TrustError::IssuedAhead { issued_at, clock });
        }
    }
    let floor = state.floor.max(issued_at);
    let assignment = Some(bundle.assignment.clone());
    let state = TrustState { image: image.finish()?, director: director.finish()?, assignment, floor };
    Ok(Accepted { state, desired })
}

/// Follows the roots of an offer, whatever becomes of the rest of it (TUF 5.3.8: a root is kept as
/// soon as it is verified). `None` where there is nothing newer. Commit the state before calling
/// [`accept`], so that a revoked key stays revoked even if the rest of the offer is bad.
pub fn adopt_roots(state: &TrustState, bundle: &MetadataBundle) -> Result<Option<TrustState>, TrustError> {
    let follow = |which, held: &Held, offered: &RepositoryMetadata| {
        let offer = Offer::roots_only(which, offered, held.root_version(which)?)?;
        // Roots are verified at any time; it is acceptance that needs one in force.
        let mut update = Update::new(which, held, Holding::Whole, offer, state.floor)?;
        let followed = update.roots();
        if update.held() != held {
            // What follows in the chain may be bad: acceptance will say so.
            return Ok(update.held().clone());
        }
        followed.map(|()| held.clone())
    };
    let image = follow(Repository::Image, &state.image, &bundle.image);
    let director = follow(Repository::Director, &state.director, &bundle.director);
    let (image, director) = match (image, director) {
        (Ok(image), Ok(director)) => (image, director),
        (Ok(image), Err(_)) if image != state.image => (image, state.director.clone()),
        (Err(_), Ok(director)) if director != state.director => (state.image.clone(), director),
        (Err(error), _) | (_, Err(error)) => return Err(error),
    };
    if image == state.image && director == state.director {
        return Ok(None);
    }
    // An assignment whose signers were revoked is no floor any more.
    let assignment = state.assignment.clone().filter(|_| director.targets.is_some());
    Ok(Some(TrustState { image, director, assignment, floor: state.floor }))
}

pub(super) fn open<'a>(
    which: Repository,
    held: &Held,
    offered: &'a RepositoryMetadata,
    now: Timestamp,
) -> Result<Update<Offer<'a>>, TrustError> {
    let offer = Offer::new(which, offered, held.root_version(which)?)?;
    Update::new(which, held, Holding::Whole, offer, now)
}

/// Joins the Director's assignment with what the Image repository says of each package: `released`
/// looks a target up.
pub(super) fn confirm(
    mut released: impl FnMut(&str) -> Result<Option<TargetFile>, TrustError>,
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
        .map(|assigned| images::join(released(&assigned.target)?.as_ref(), assigned))
        .collect::<Result<_, _>>()?;
    Ok(Desired { sequence: read.sequence, issued_at: read.issued_at, nonce: read.nonce, assignments })
}

/// Checks that the Director signs for `bytes` as the assignment of `device`.
pub(super) fn signs_for(director: &Targets, device: &DeviceId, bytes: &[u8]) -> Result<(), TrustError> {
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
            confirm(|name| Ok(image.target(name).cloned()), &director, bytes, &device).unwrap_err()
        };
        let error = confirm_with(&entry, bytes);
        assert!(matches!(&error, TrustError::WrongDevice { named, .. } if named == "edge-2"), "{error}");
        assert!(matches!(confirm_with(&entry, b"other"), TrustError::AssignmentBytes));
        entry["hashes"] = serde_json::json!({ "sha512": "00" });
        assert!(matches!(confirm_with(&entry, bytes), TrustError::Target { .. }));
    }
}
