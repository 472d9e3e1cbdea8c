//! Whether a certificate is this device's: signed by the enrolment's authority, for this device's name,
//! for the key that was made here, and valid.
//!
//! Signatures, chain and purpose are checked by rustls; this reads the name, the key and the dates out
//! of the leaf, of which rustls shows none. The reader knows just so much of DER, and refuses the rest.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::DateTime;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use selvedge_package::DeviceId;

/// Largest certificate that is read, in bytes.
const LARGEST: usize = 16 * 1024;
/// Longest chain.
const LONGEST: usize = 4;

/// Why a certificate is not taken.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum CertificateError {
    #[error("it comes without a certificate")]
    Empty,
    #[error("it is too large: at most {LONGEST} certificates of {LARGEST} bytes are read")]
    TooLarge,
    #[error("the enrolment's authority cannot be read")]
    Authority,
    #[error("the certificate cannot be read: {0}")]
    Malformed(&'static str),
    #[error("it is for `{found}`, not for `{device}`")]
    OtherName { found: String, device: DeviceId },
    #[error("it is for another key than the one that was made for it")]
    OtherKey,
    #[error("it is over since {0}")]
    Expired(Timestamp),
    #[error("the enrolment's authority did not issue it for this use")]
    Chain(#[source] rustls::Error),
}

/// What a certificate says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The last common name of its subject.
    pub common_name: Option<String>,
    /// The subject's public key (SubjectPublicKeyInfo, DER).
    pub key: Vec<u8>,
    /// From when it is valid.
    pub not_before: Timestamp,
    /// Until when.
    pub not_after: Timestamp,
}

/// When to judge by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// A time that has surely passed.
    pub at: Timestamp,
    /// Whether it is the time, too; else a date from which on something is valid says nothing.
    pub synchronised: bool,
}

/// Checks a chain for this device; `key` is what the certificate must be for (SubjectPublicKeyInfo).
pub fn check(
    chain: &[impl AsRef<[u8]>],
    authority_pem: &[u8],
    device: &DeviceId,
    key: &[u8],
    now: Now,
) -> Result<Facts, CertificateError> {
    let leaf = chain.first().ok_or(CertificateError::Empty)?.as_ref();
    if chain.len() > LONGEST || chain.iter().any(|one| one.as_ref().len() > LARGEST) {
        return Err(CertificateError::TooLarge);
    }
    let facts = read(leaf)?;
    let mut at = now.at;
    if facts.not_after <= at {
        return Err(CertificateError::Expired(facts.not_after));
    }
    if !now.synchronised {
        at = at.max(facts.not_before);
    }
    issued(chain, authority_pem, at)?;
    if facts.common_name.as_deref() != Some(device.as_str()) {
        let found = facts.common_name.unwrap_or_default();
        let found = selvedge_protocol::line::one_line(&found, 80);
        return Err(CertificateError::OtherName { found, device: device.clone() });
    }
    if facts.key != key {
        return Err(CertificateError::OtherKey);
    }
    Ok(facts)
}

/// The certificates of a PEM text.
pub fn from_pem(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    match read {
        Ok(read) if !read.is_empty() => Ok(read),
        _ => Err(CertificateError::Malformed("there is no certificate in PEM")),
    }
}

/// The private key in a PEM text, PKCS#8 in DER; it must be the one of the chain's first certificate.
pub fn key_of(chain: &[CertificateDer<'static>], text: &[u8]) -> Result<Vec<u8>, CertificateError> {
    let unreadable = CertificateError::Malformed("its key is not PKCS#8 in PEM");
    let Ok(key @ PrivateKeyDer::Pkcs8(_)) = PrivateKeyDer::from_pem_slice(text) else {
        return Err(unreadable);
    };
    let bytes = key.secret_der().to_vec();
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    CertifiedKey::from_der(chain.to_vec(), key, &provider).map_err(|_| CertificateError::OtherKey)?;
    Ok(bytes)
}

fn issued(chain: &[impl AsRef<[u8]>], authority_pem: &[u8], at: Timestamp) -> Result<(), CertificateError> {
    let mut roots = RootCertStore::empty();
    for root in from_pem(authority_pem).map_err(|_| CertificateError::Authority)? {
        roots.add(root).map_err(|_| CertificateError::Authority)?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|_| CertificateError::Authority)?;
    let chain: Vec<CertificateDer<'_>> = chain.iter().map(|der| CertificateDer::from(der.as_ref())).collect();
    let (leaf, others) = chain.split_first().ok_or(CertificateError::Empty)?;
    let at = UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(at.as_second()).unwrap_or(0)));
    verifier.verify_client_cert(leaf, others, at).map_err(CertificateError::Chain)?;
    Ok(())
}

/// Reads the leaf.
pub fn read(der: &[u8]) -> Result<Facts, CertificateError> {
    if der.len() > LARGEST {
        return Err(CertificateError::TooLarge);
    }
    let mut outer = Reader(der);
    let mut certificate = Reader(outer.take(SEQUENCE)?);
    let mut body = Reader(certificate.take(SEQUENCE)?);
    if body.tag() == Some(VERSION) {
        body.take(VERSION)?;
    }
    for tag in [INTEGER, SEQUENCE, SEQUENCE] {
        body.take(tag)?; // serial, algorithm, issuer
    }
    let mut validity = Reader(body.take(SEQUENCE)?);
    let (not_before, not_after) = (validity.time()?, validity.time()?);
    let common_name = common_name(body.take(SEQUENCE)?)?;
    let key = body.whole(SEQUENCE)?.to_vec();
    Ok(Facts { common_name, key, not_before, not_after })
}

const INTEGER: u8 = 0x02;
const OBJECT: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const VERSION: u8 = 0xa0;
/// 2.5.4.3
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
/// UTF8String, PrintableString, IA5String
const STRINGS: [u8; 3] = [0x0c, 0x13, 0x16];

fn common_name(subject: &[u8]) -> Result<Option<String>, CertificateError> {
    let mut subject = Reader(subject);
    let mut found = None;
    while subject.tag().is_some() {
        let mut set = Reader(subject.take(SET)?);
        while set.tag().is_some() {
            let mut attribute = Reader(set.take(SEQUENCE)?);
            if attribute.take(OBJECT)? != COMMON_NAME {
                continue;
            }
            let tag = attribute.tag().ok_or(CUT)?;
            if !STRINGS.contains(&tag) {
                return Err(CertificateError::Malformed("its name is no text"));
            }
            let text = std::str::from_utf8(attribute.take(tag)?);
            found = Some(text.map_err(|_| CertificateError::Malformed("its name is no text"))?.to_owned());
        }
    }
    Ok(found)
}

const CUT: CertificateError = CertificateError::Malformed("it is not DER of a certificate");

/// Reads one element after the other.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn tag(&self) -> Option<u8> {
        self.0.first().copied()
    }

    /// The content of the next element, which must have this tag.
    fn take(&mut self, tag: u8) -> Result<&'a [u8], CertificateError> {
        let (head, length) = self.head(tag)?;
        let content = self.0.get(head..head + length).ok_or(CUT)?;
        self.0 = &self.0[head + length..];
        Ok(content)
    }

    /// The next element with its tag and length.
    fn whole(&mut self, tag: u8) -> Result<&'a [u8], CertificateError> {
        let (head, length) = self.head(tag)?;
        let whole = self.0.get(..head + length).ok_or(CUT)?;
        self.0 = &self.0[head + length..];
        Ok(whole)
    }

    /// Bytes of tag and length, and of the content. Lengths of up to two bytes: nothing larger is read.
    fn head(&self, tag: u8) -> Result<(usize, usize), CertificateError> {
        match *self.0 {
            [found, ..] if found != tag => Err(CUT),
            [_, length @ 0..=0x7f, ..] => Ok((2, usize::from(length))),
            [_, 0x81, length, ..] => Ok((3, usize::from(length))),
            [_, 0x82, high, low, ..] => Ok((4, usize::from(high) << 8 | usize::from(low))),
            _ => Err(CUT),
        }
    }

    fn time(&mut self) -> Result<Timestamp, CertificateError> {
        let tag = self.tag().ok_or(CUT)?;
        let bad = || CertificateError::Malformed("its dates are none");
        let content =
            if matches!(tag, UTC_TIME | GENERALIZED_TIME) { self.take(tag)? } else { return Err(bad()) };
        let text = std::str::from_utf8(content).map_err(|_| bad())?;
        // UTCTime has two digits of the year, for 1950 to 2049 (RFC 5280, 4.1.2.5.1).
        let text = match (tag, text.as_bytes().first()) {
            (UTC_TIME, Some(b'5'..=b'9')) => format!("19{text}"),
            (UTC_TIME, _) => format!("20{text}"),
            _ => text.to_owned(),
        };
        let time = DateTime::strptime("%Y%m%d%H%M%SZ", &text).map_err(|_| bad())?;
        let zoned = time.to_zoned(jiff::tz::TimeZone::UTC).map_err(|_| bad())?;
        Ok(zoned.timestamp())
    }
}
