//! Reports and acknowledgements signed with ed25519, as COSE_Sign1 (RFC 9052, RFC 9053).
//!
//! Untagged, algorithm EdDSA in the protected header and nothing else in either header; the
//! external data binds a signature to what it is for and to one device, so that an acknowledgement
//! can never pass for a report, nor one device's report for another's. Everything else is refused.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use coset::{CborSerializable, CoseSign1, CoseSign1Builder, HeaderBuilder, iana};
use selvedge_package::DeviceId;

/// Largest signed message that is read, in bytes.
pub const LARGEST: usize = 256 * 1024;

/// What a signature is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A device's report: signed by the device.
    Report,
    /// An acknowledgement of reports: signed by the registry.
    Ack,
    /// A request to be enrolled, or for another certificate: signed by the device.
    Enrol,
    /// A command or a remote inference request: signed by the registry.
    Question,
    /// What came of it: signed by the device.
    Answer,
}

/// Why a signed message is refused, or a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SignedError {
    /// Larger than [`LARGEST`].
    #[error("a signed message of {0} bytes is larger than the {LARGEST} that are read")]
    TooLarge(usize),
    /// Not a COSE_Sign1 of the form above.
    #[error("not a COSE_Sign1 message of ours: {0}")]
    Malformed(String),
    /// The signature is not by that key, for that purpose, for that device.
    #[error("the signature does not verify")]
    Signature,
    /// The private key cannot be read or made.
    #[error("not an ed25519 private key in PKCS#8")]
    Key,
    /// The public key does not have 32 bytes.
    #[error("an ed25519 public key has 32 bytes, not {0}")]
    PublicKey(usize),
}

/// An ed25519 public key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicKey(pub [u8; 32]);

impl TryFrom<&[u8]> for PublicKey {
    type Error = SignedError;

    fn try_from(bytes: &[u8]) -> Result<Self, SignedError> {
        bytes.try_into().map(Self).map_err(|_| SignedError::PublicKey(bytes.len()))
    }
}

/// An ed25519 private key.
pub struct PrivateKey(Ed25519KeyPair);

impl PrivateKey {
    /// A new key, with the PKCS#8 document (DER) to be kept.
    pub fn generate() -> Result<(Self, Vec<u8>), SignedError> {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| SignedError::Key)?;
        let pkcs8 = document.as_ref().to_vec();
        Ok((Self::from_pkcs8(&pkcs8)?, pkcs8))
    }

    /// From a PKCS#8 document (DER).
    pub fn from_pkcs8(pkcs8: &[u8]) -> Result<Self, SignedError> {
        Ed25519KeyPair::from_pkcs8_maybe_unchecked(pkcs8).map(Self).map_err(|_| SignedError::Key)
    }

    /// The raw ed25519 signature of `bytes`.
    pub fn raw(&self, bytes: &[u8]) -> [u8; 64] {
        let mut signature = [0; 64];
        signature.copy_from_slice(self.0.sign(bytes).as_ref());
        signature
    }

    /// The public half.
    pub fn public(&self) -> PublicKey {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(self.0.public_key().as_ref());
        PublicKey(bytes)
    }
}

impl std::fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PrivateKey({:?})", self.public())
    }
}

/// Signs `payload` for one purpose and one device.
pub fn sign(
    key: &PrivateKey,
    purpose: Purpose,
    device: &DeviceId,
    payload: Vec<u8>,
) -> Result<Vec<u8>, SignedError> {
    sign_with(purpose, device, payload, |bytes| Ok(key.raw(bytes)))
}

/// Like [`sign`], with a key that is somewhere else: `signer` makes the raw ed25519 signature.
pub fn sign_with<E: From<SignedError>>(
    purpose: Purpose,
    device: &DeviceId,
    payload: Vec<u8>,
    signer: impl FnOnce(&[u8]) -> Result<[u8; 64], E>,
) -> Result<Vec<u8>, E> {
    let message = CoseSign1Builder::new()
        .protected(HeaderBuilder::new().algorithm(iana::Algorithm::EdDSA).build())
        .payload(payload)
        .try_create_signature(&bound_to(purpose, device), |bytes| {
            signer(bytes).map(|signature| signature.to_vec())
        })?
        .build();
    let bytes = message.to_vec().map_err(|error| SignedError::Malformed(error.to_string()))?;
    if bytes.len() > LARGEST {
        return Err(SignedError::TooLarge(bytes.len()).into());
    }
    Ok(bytes)
}

/// The payload of a signed message whose signature nobody has checked: to find out which key should
/// have signed it, and for nothing else.
pub fn payload(bytes: &[u8]) -> Result<Vec<u8>, SignedError> {
    read(bytes)?.payload.ok_or_else(|| SignedError::Malformed("without a payload".into()))
}

/// The payload, if `key` signed it for this purpose and this device.
pub fn verify(
    key: &PublicKey,
    purpose: Purpose,
    device: &DeviceId,
    bytes: &[u8],
) -> Result<Vec<u8>, SignedError> {
    let message = read(bytes)?;
    message.verify_signature(&bound_to(purpose, device), |signature, signed| {
        UnparsedPublicKey::new(&ED25519, key.0).verify(signed, signature).map_err(|_| SignedError::Signature)
    })?;
    message.payload.ok_or_else(|| SignedError::Malformed("without a payload".into()))
}

fn read(bytes: &[u8]) -> Result<CoseSign1, SignedError> {
    if bytes.len() > LARGEST {
        return Err(SignedError::TooLarge(bytes.len()));
    }
    let message = CoseSign1::from_slice(bytes).map_err(|error| SignedError::Malformed(error.to_string()))?;
    let expected = HeaderBuilder::new().algorithm(iana::Algorithm::EdDSA).build();
    if message.protected.header != expected || !message.unprotected.is_empty() {
        return Err(SignedError::Malformed("other headers than EdDSA alone".into()));
    }
    Ok(message)
}

fn bound_to(purpose: Purpose, device: &DeviceId) -> Vec<u8> {
    let word = match purpose {
        Purpose::Report => "report",
        Purpose::Ack => "ack",
        Purpose::Enrol => "enrol",
        Purpose::Question => "question",
        Purpose::Answer => "answer",
    };
    format!("selvedge/v1/{word}/{device}").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str) -> DeviceId {
        name.parse().unwrap()
    }

    #[test]
    fn a_signature_holds_for_its_key_purpose_and_device_alone() {
        let (key, pkcs8) = PrivateKey::generate().unwrap();
        let public = PrivateKey::from_pkcs8(&pkcs8).unwrap().public();
        assert_eq!(public, key.public());
        let bytes = sign(&key, Purpose::Report, &device("a"), b"hello".to_vec()).unwrap();
        let read = |key, purpose, name| verify(key, purpose, &device(name), &bytes);
        assert_eq!(read(&public, Purpose::Report, "a").unwrap(), b"hello");
        assert!(matches!(read(&public, Purpose::Report, "b"), Err(SignedError::Signature)));
        assert!(matches!(read(&public, Purpose::Ack, "a"), Err(SignedError::Signature)));
        let other = PrivateKey::generate().unwrap().0.public();
        assert!(matches!(read(&other, Purpose::Report, "a"), Err(SignedError::Signature)));
    }

    #[test]
    fn no_changed_byte_passes() {
        let (key, _) = PrivateKey::generate().unwrap();
        let bytes = sign(&key, Purpose::Ack, &device("a"), b"payload".to_vec()).unwrap();
        for index in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[index] ^= 1 << bit;
                let read = verify(&key.public(), Purpose::Ack, &device("a"), &changed);
                assert!(read.is_err(), "byte {index}, bit {bit}");
            }
        }
    }

    #[test]
    fn garbage_and_depth_are_refused() {
        let key = PrivateKey::generate().unwrap().0.public();
        for bad in [&b""[..], b"x", &[0x84; 100_000], &[0x81; 200_000], &vec![0; LARGEST + 1]] {
            assert!(verify(&key, Purpose::Ack, &device("a"), bad).is_err());
        }
        assert!(PrivateKey::from_pkcs8(b"nonsense").is_err());
        assert!(PublicKey::try_from(&[0u8; 31][..]).is_err());
    }
}
