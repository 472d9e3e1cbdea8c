//! What the device shows to its broker: a certificate of the registry's own authority, and its key.
//!
//! The key is made here and never leaves the device; the registry signs a request for it, which travels
//! sealed by the device's key ([`request`]). What comes back counts for nothing by itself: chain, name,
//! key and dates are checked ([`certificate`]). A new certificate takes the place of the old one only
//! when a connection has been made with it and something that the Director signed has come over that
//! connection ([`machine`]). Trust in updates never rests on any of this.

pub mod certificate;
pub mod machine;
pub mod request;

use jiff::Timestamp;
use selvedge_package::DeviceId;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::enrolment::BootstrapCredential;

pub use certificate::CertificateError;
pub use machine::{Effect, Event, Machine, Using};
pub use request::RequestError;

/// A certificate with its key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credential {
    /// X.509 in DER, the device's own first, the authority not among them.
    pub chain: Vec<ByteBuf>,
    /// The private key, PKCS#8 in DER.
    pub key: ByteBuf,
    /// From when it is valid.
    pub not_before: Timestamp,
    /// Until when.
    pub not_after: Timestamp,
    /// Where it is from.
    pub origin: Origin,
}

/// Where a credential is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// The enrolment file: its key was made elsewhere, so it is for the first connection only.
    Enrolment,
    /// The registry's authority, for a key that was made here.
    Issued,
}

/// A key that waits for its certificate.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The private key, PKCS#8 in DER.
    pub key: ByteBuf,
    /// The signing request, PKCS#10 in DER.
    pub csr: ByteBuf,
}

/// Everything that is kept of them; one record of the database.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The one that has worked; before that, the one that came with the enrolment.
    pub proven: Option<Credential>,
    /// The one that is to take its place and has not worked yet.
    pub next: Option<Credential>,
    /// What was asked for.
    pub request: Option<Request>,
}

/// [`Kept`] as it is written.
#[derive(Debug, Serialize, Deserialize)]
pub enum KeptRecord {
    /// First format.
    V1(Kept),
}

impl From<Kept> for KeptRecord {
    fn from(kept: Kept) -> Self {
        Self::V1(kept)
    }
}

impl From<KeptRecord> for Kept {
    fn from(KeptRecord::V1(kept): KeptRecord) -> Self {
        kept
    }
}

impl Kept {
    /// At the beginning: only what came with the enrolment, if anything.
    pub fn enrolled(proven: Option<Credential>) -> Self {
        Self { proven, next: None, request: None }
    }
}

impl Credential {
    /// What an enrolment file brings, for this device: certificate and key must be a pair, in its name,
    /// by that authority. Whether it is over is seen when it is used.
    pub fn from_pem(
        from: &BootstrapCredential,
        authority: &str,
        device: &DeviceId,
    ) -> Result<Self, CertificateError> {
        let chain = certificate::from_pem(from.certificate.as_bytes())?;
        let key = certificate::key_of(&chain, from.key.as_bytes())?;
        let leaf = chain.first().ok_or(CertificateError::Empty)?;
        let facts = certificate::read(leaf)?;
        let then = certificate::Now { at: facts.not_before, synchronised: false };
        certificate::check(&chain, authority.as_bytes(), device, &facts.key, then)?;
        Ok(Self {
            chain: chain.iter().map(|der| ByteBuf::from(der.to_vec())).collect(),
            key: ByteBuf::from(key),
            not_before: facts.not_before,
            not_after: facts.not_after,
            origin: Origin::Enrolment,
        })
    }

    /// What the registry's authority has issued for the key of a request.
    pub fn issued(
        request: &Request,
        chain: &[selvedge_protocol::message::ByteString],
        authority: &str,
        device: &DeviceId,
        now: certificate::Now,
    ) -> Result<Self, CertificateError> {
        let key = request::public_key(&request.key).map_err(|_| CertificateError::OtherKey)?;
        let ders: Vec<&[u8]> = chain.iter().map(|one| one.0.as_slice()).collect();
        let facts = certificate::check(&ders, authority.as_bytes(), device, &key, now)?;
        Ok(Self {
            chain: chain.iter().map(|one| ByteBuf::from(one.0.clone())).collect(),
            key: request.key.clone(),
            not_before: facts.not_before,
            not_after: facts.not_after,
            origin: Origin::Issued,
        })
    }

    /// The chain as PEM.
    pub fn chain_pem(&self) -> Vec<u8> {
        let blocks: Vec<_> =
            self.chain.iter().map(|der| pem::Pem::new("CERTIFICATE", der.to_vec())).collect();
        pem::encode_many(&blocks).into_bytes()
    }

    /// The key as PEM.
    pub fn key_pem(&self) -> Vec<u8> {
        pem::encode(&pem::Pem::new("PRIVATE KEY", self.key.to_vec())).into_bytes()
    }

    /// Whether it is over.
    pub fn has_expired(&self, now: Timestamp) -> bool {
        self.not_after <= now
    }

    /// When the next one is to be asked for: at two thirds of its life.
    pub fn renew_at(&self) -> Timestamp {
        let life = self.not_after.duration_since(self.not_before);
        self.not_before.saturating_add(life / 3 * 2).unwrap_or(Timestamp::MIN)
    }
}

// Keys are nobody's to see, not in a log either.
impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Credential({:?}, {} to {})", self.origin, self.not_before, self.not_after)
    }
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Request")
    }
}
