//! A whole message under one signature, so that whoever carries it can neither make nor change it.
//!
//! The payload of the COSE_Sign1 ([`crate::signed`]) is an envelope in CBOR; the outer envelope says
//! nothing that counts. What may travel open, and what only sealed, is the receiver's to know:
//!
//! | message | sealed by |
//! |---|---|
//! | `up/enrol` | the key that it asks to enrol |
//! | `dn/cmd`, `dn/infer` | the Director's targets key |
//! | `up/res`, `up/infer` | the device's key |

use selvedge_package::DeviceId;

use crate::envelope::{Body, Envelope, EnvelopeError};
use crate::message::ByteString;
use crate::signed::{self, PublicKey, Purpose, SignedError};

/// Why a sealed message is not opened, or a message not sealed.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// It travels without a signature, which this kind of message must have.
    #[error("a `{0}` without a signature is not taken")]
    Open(&'static str),
    /// No key that may speak for the sender has signed it.
    #[error("the message's signature is refused")]
    Signature(#[source] SignedError),
    /// What is inside is no message.
    #[error("what is signed is not a message")]
    Content(#[source] EnvelopeError),
}

impl From<SignedError> for SealError {
    fn from(error: SignedError) -> Self {
        Self::Signature(error)
    }
}

/// Seals a message; `signer` makes the raw ed25519 signature. What it fails with is given back.
pub fn seal<E: From<SealError>>(
    purpose: Purpose,
    device: &DeviceId,
    inner: &Envelope,
    signer: impl FnOnce(&[u8]) -> Result<[u8; 64], E>,
) -> Result<Body, E> {
    let payload = inner.encode().map_err(|error| E::from(SealError::Content(error)))?;
    let bytes = signed::sign_with(purpose, device, payload, |bytes| signer(bytes).map_err(Failed::Signer))
        .map_err(|failed| match failed {
            Failed::Signer(error) => error,
            Failed::Form(error) => E::from(SealError::Signature(error)),
        })?;
    Ok(Body::Signed(ByteString(bytes)))
}

enum Failed<E> {
    Signer(E),
    Form(SignedError),
}

impl<E> From<SignedError> for Failed<E> {
    fn from(error: SignedError) -> Self {
        Self::Form(error)
    }
}

/// Opens a message that one of `keys` must have sealed for this purpose and this device.
pub fn open(
    keys: &[PublicKey],
    purpose: Purpose,
    device: &DeviceId,
    body: &Body,
) -> Result<Envelope, SealError> {
    let Body::Signed(ByteString(bytes)) = body else {
        return Err(SealError::Open(body.ty()));
    };
    let mut refused = SignedError::Signature;
    for key in keys {
        match signed::verify(key, purpose, device, bytes) {
            Ok(payload) => return Envelope::decode(&payload).map_err(SealError::Content),
            Err(error) => refused = error,
        }
    }
    Err(SealError::Signature(refused))
}

/// Opens a message that is sealed by a key inside it: `key` reads the key out of what nobody has
/// verified yet, and the seal is checked with that key before anything is given back.
pub fn open_by_its_own(
    purpose: Purpose,
    device: &DeviceId,
    body: &Body,
    key: impl FnOnce(&Body) -> Option<PublicKey>,
) -> Result<Envelope, SealError> {
    let Body::Signed(ByteString(bytes)) = body else {
        return Err(SealError::Open(body.ty()));
    };
    let unverified = Envelope::decode(&signed::payload(bytes)?).map_err(SealError::Content)?;
    let key = key(&unverified.body).ok_or(SealError::Signature(SignedError::Signature))?;
    open(&[key], purpose, device, body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Enrol;
    use crate::signed::PrivateKey;

    fn enrol(key: &PrivateKey) -> Envelope {
        let public_key = key.public().0.to_vec();
        let body = Body::Enrol(Enrol { proof: vec![3], public_key, csr: vec![1, 2] });
        Envelope { id: 1, epoch: 2, sequence: 3, at_ms: 4, body }
    }

    fn its_key(body: &Body) -> Option<PublicKey> {
        let Body::Enrol(enrol) = body else { return None };
        enrol.public_key.as_slice().try_into().ok()
    }

    #[test]
    fn what_is_sealed_comes_out_for_its_key_purpose_and_device_alone() {
        let (key, other) = (PrivateKey::generate().unwrap().0, PrivateKey::generate().unwrap().0);
        let device: DeviceId = "edge-1".parse().unwrap();
        let body =
            seal::<SealError>(Purpose::Enrol, &device, &enrol(&key), |bytes| Ok(key.raw(bytes))).unwrap();
        let keys = [other.public(), key.public()];
        assert_eq!(open(&keys, Purpose::Enrol, &device, &body).unwrap(), enrol(&key));
        assert!(open(&keys[..1], Purpose::Enrol, &device, &body).is_err());
        assert!(open(&keys, Purpose::Answer, &device, &body).is_err());
        assert!(open(&keys, Purpose::Enrol, &"edge-2".parse().unwrap(), &body).is_err());
        assert!(matches!(
            open(&keys, Purpose::Enrol, &device, &enrol(&key).body),
            Err(SealError::Open("enrol"))
        ));
        assert_eq!(open_by_its_own(Purpose::Enrol, &device, &body, its_key).unwrap(), enrol(&key));
        // Sealed by another key than the one inside: nobody has proved to have that.
        let body =
            seal::<SealError>(Purpose::Enrol, &device, &enrol(&key), |bytes| Ok(other.raw(bytes))).unwrap();
        assert!(open_by_its_own(Purpose::Enrol, &device, &body, its_key).is_err());
    }
}
