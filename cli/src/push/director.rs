//! The Director's side of a push: what one device shall run, signed so that the device takes it.
//!
//! Versions and sequence only grow, above what was signed before and above what the device says
//! that it has accepted. What it says of that is not signed: it is believed up to a bound, counted
//! from the start of this push, so that nobody can use the numbers up.

use jiff::Timestamp;
use selvedge_package::DeviceId;
use selvedge_package::trust::{
    AssignedPackage, DirectorAssignment, FORMAT, MetadataBundle, RepositoryMetadata, TrustState, accept,
};
use selvedge_protocol::envelope::to_cbor;
use selvedge_protocol::message::Birth;
use selvedge_signing::director::sign_device;
use selvedge_signing::lifetimes::{DIRECTOR, expiry};

use super::release::{self, is_due, text};
use super::repository::{Device, Image, Signed};
use super::ring::Ring;
use crate::failure::Failure;
use crate::keyring::failed;

/// How far above what was remembered at its start a push follows what a device says. More than any
/// Director signs, and far from the end of the numbers.
pub const LEAP: u64 = 1_000_000;

/// What a device says that it has accepted, as far as that is believed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Claims {
    /// Sequence of the desired state.
    pub sequence: u64,
    /// Newest version of the Director's metadata.
    pub director: u64,
    /// Image repository: timestamp, snapshot, targets.
    pub image: [u64; 3],
}

/// What was remembered when the push began: belief is counted from here.
#[derive(Debug, Clone, Copy)]
pub struct Start {
    sequence: u64,
    director: u64,
    image: [u64; 3],
}

impl Start {
    /// Of these memories.
    pub fn of(image: &Image, device: &Device) -> Result<Self, Failure> {
        Ok(Self { sequence: device.sequence, director: device.version, image: release::versions(image)? })
    }

    /// The claims of a birth. `Err`: with this number, which is beyond belief, and none is taken.
    pub fn believe(&self, birth: &Birth) -> Result<Claims, u64> {
        let within = |claimed: u64, known: u64| {
            if claimed <= known.saturating_add(LEAP) { Ok(claimed) } else { Err(claimed) }
        };
        let director = birth.accepted.director.into_iter().max().unwrap_or(0);
        let mut image = birth.accepted.image;
        for (claimed, known) in image.iter_mut().zip(self.image) {
            *claimed = within(*claimed, known)?;
        }
        Ok(Claims {
            sequence: within(birth.desired, self.sequence)?,
            director: within(director, self.director)?,
            image,
        })
    }
}

/// What is to be signed for.
#[derive(Debug)]
pub struct Wish<'a> {
    /// Everything that the device shall run.
    pub assignments: &'a [AssignedPackage],
    /// The nonce of its birth.
    pub nonce: &'a [u8],
    /// What it says that it has accepted.
    pub claims: Claims,
    /// Sign everything again, above all that is known, for a device that does not take what was
    /// signed before: another Director may have used the same numbers.
    pub above: bool,
    /// Sign everything again.
    pub always: bool,
}

/// Signs what is due, in `image` and in `device`; says what has changed of each. Nothing is written.
pub fn direct(
    image: &mut Image,
    device: &mut Device,
    ring: &Ring,
    wish: &Wish<'_>,
    now: Timestamp,
) -> Result<(bool, bool), Failure> {
    let Claims { sequence, director, image: accepted } = wish.claims;
    let mut least = accepted;
    if wish.above {
        for (least, ours) in least.iter_mut().zip(release::versions(image)?) {
            *least = ours.max(*least).saturating_add(1);
        }
    }
    let image_changed = release::refresh(image, ring, least, wish.always, now)?;

    let same = device.assignments == wish.assignments && sequence <= device.sequence && !wish.above;
    let nonce = hex::encode(wish.nonce);
    let fresh = match &device.signed {
        Some(signed) => !is_due(signed.timestamp.as_bytes(), director, DIRECTOR, now)?,
        None => false,
    };
    if same && fresh && device.nonce == nonce && !wish.always {
        return Ok((image_changed, false));
    }
    let next = |what: &'static str, number: u64| {
        number.checked_add(1).ok_or_else(|| Failure::Internal {
            what: "there is no number left to sign with",
            source: what.into(),
        })
    };
    if !same {
        device.sequence = next("sequence", device.sequence.max(sequence))?;
    }
    device.version = next("version", device.version.max(director))?;
    device.assignments = wish.assignments.to_vec();
    device.nonce = nonce;
    let assignment = DirectorAssignment {
        format: FORMAT,
        device: device.device.clone(),
        sequence: device.sequence,
        issued_at: now,
        nonce: wish.nonce.to_vec(),
        assignments: device.assignments.clone(),
    };
    let signed = sign_device(device.version, &assignment, expiry(now, DIRECTOR), ring.online.director())
        .map_err(|error| failed(format!("sign what {} shall run", device.device), error))?;
    device.signed = Some(Signed {
        timestamp: text(signed.timestamp)?,
        snapshot: text(signed.snapshot)?,
        targets: text(signed.targets)?,
        assignment: text(signed.assignment)?,
    });
    Ok((image_changed, true))
}

/// Everything that the device needs to take it, in CBOR. What no device would take is told here.
pub fn bundle(image: &Image, device: &Device, now: Timestamp) -> Result<Vec<u8>, Failure> {
    let internal = |what: &'static str, why: &str| Failure::Internal { what, source: why.into() };
    let Some(signed) = &device.signed else {
        return Err(internal("nothing was signed for the device", "its memory has no signed files"));
    };
    let bytes = |text: &String| text.as_bytes().to_vec();
    let bundle = MetadataBundle {
        image: release::offered(image, &device.assignments),
        director: RepositoryMetadata {
            roots: image.director_roots.iter().map(bytes).collect(),
            timestamp: bytes(&signed.timestamp),
            snapshot: bytes(&signed.snapshot),
            targets: bytes(&signed.targets),
            ..RepositoryMetadata::default()
        },
        assignment: bytes(&signed.assignment),
    };
    prove(&bundle, &device.device, now)?;
    to_cbor(&bundle).map_err(|why| internal("cannot write what the device shall run", &why))
}

/// That a device which trusts these roots takes it.
fn prove(bundle: &MetadataBundle, device: &DeviceId, now: Timestamp) -> Result<(), Failure> {
    let newest = |roots: &Vec<Vec<u8>>| roots.last().cloned().unwrap_or_default();
    let proof = TrustState::enrol(&newest(&bundle.image.roots), &newest(&bundle.director.roots), now)
        .and_then(|state| accept(&state, bundle, device, Some(now)));
    proof.map(drop).map_err(|source| Failure::Untrusted {
        what: "no device would take what these keys sign".to_owned(),
        advice: "the roots in the directory of the keys must name these keys, and must not be expired"
            .to_owned(),
        source: Some(source.into()),
    })
}
