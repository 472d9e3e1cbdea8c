//! What stands in a certificate. Everything is decided here; nothing comes from whoever asked for it
//! but the public key.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyUsagePurpose, SanType, SerialNumber,
};
use selvedge_package::DeviceId;
use sha2::{Digest as _, Sha256};

use crate::error::Error;

/// Common name of the registry's own client certificate, which a broker lets do everything below
/// `sv/v1`. No device may have it.
pub const REGISTRY: &str = "registry";

/// Whether no device may have this name: it is the registry's own, or the client id of one.
pub fn reserved(name: &str) -> bool {
    name == REGISTRY || name.starts_with("selvedge-registry")
}

/// Clocks differ: a certificate is good from an hour before it was made, a short-lived one from a tenth
/// of its life, so that most of it lies ahead.
const BACKDATED: Duration = Duration::from_secs(3600);
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// The authority itself: longer than any device that it names.
const AUTHORITY_LIFETIME: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
/// The registry's own: its key lies beside the authority's, so that a short life would gain nothing.
pub(super) const REGISTRY_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// A broker's.
pub(super) const SERVER_LIFETIME: Duration = Duration::from_secs(2 * YEAR.as_secs());

/// A certificate that was issued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issued {
    /// Serial number, in hex: what a revocation names.
    pub serial: String,
    /// Good until then.
    pub not_after: Timestamp,
    /// DER, the device's certificate first; the authority's own is not among them.
    pub chain: Vec<Vec<u8>>,
}

impl Issued {
    /// The chain as PEM.
    pub fn pem(&self) -> String {
        let blocks: Vec<_> = self.chain.iter().map(|der| pem::Pem::new("CERTIFICATE", der.clone())).collect();
        pem::encode_many_config(&blocks, pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF))
    }
}

/// A certificate that is to be signed, with what must be remembered of it.
pub(super) struct Draft {
    pub params: CertificateParams,
    pub serial: String,
    pub not_after: Timestamp,
}

/// The authority's own, for this public key.
pub(super) fn authority(key: &[u8], now: Timestamp) -> Result<Draft, Error> {
    let mut draft = draft(now, AUTHORITY_LIFETIME)?;
    // Two authorities must not have one name, or openssl would try the wrong one; and one that is
    // made again for the same key must, or nothing that it has issued would be believed.
    let name = format!("Selvedge CA {}", hex::encode(&Sha256::digest(key)[..4]));
    draft.params.distinguished_name.push(DnType::CommonName, name);
    draft.params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    draft.params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    draft.params.extended_key_usages = Vec::new();
    Ok(draft)
}

/// A device's; with a bootstrap key or its own.
pub(super) fn device(device: &DeviceId, now: Timestamp, lifetime: Duration) -> Result<Draft, Error> {
    if reserved(device.as_str()) {
        let why = "a device of that name would be the registry to every broker; enrol it under another";
        return Err(Error::Pki { action: "issue a certificate for `registry`", why: why.to_owned() });
    }
    let mut draft = draft(now, lifetime)?;
    draft.params.distinguished_name.push(DnType::CommonName, device.as_str());
    draft.params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    Ok(draft)
}

/// The registry's own client certificate.
pub(super) fn registry(now: Timestamp) -> Result<Draft, Error> {
    let mut draft = draft(now, REGISTRY_LIFETIME)?;
    draft.params.distinguished_name.push(DnType::CommonName, REGISTRY);
    draft.params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    Ok(draft)
}

/// A broker's.
pub(super) fn server(names: &[String], now: Timestamp) -> Result<Draft, Error> {
    let mut draft = draft(now, SERVER_LIFETIME)?;
    draft.params.distinguished_name.push(DnType::CommonName, "Selvedge broker");
    draft.params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    if names.is_empty() || names.len() > 32 {
        let why = format!("{} names were given, 1 to 32 are possible", names.len());
        return Err(Error::Pki { action: "issue a server's certificate", why });
    }
    for name in names {
        draft.params.subject_alt_names.push(alternative(name)?);
    }
    Ok(draft)
}

fn alternative(name: &str) -> Result<SanType, Error> {
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(address));
    }
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let refused = || {
        let shown: String = name.chars().take(80).collect();
        let why = format!("`{shown}` is neither a host name nor an IP address");
        Error::Pki { action: "issue a server's certificate", why }
    };
    if name.len() > 253 || !name.split('.').all(label) {
        return Err(refused());
    }
    Ok(SanType::DnsName(name.try_into().map_err(|_| refused())?))
}

fn draft(now: Timestamp, lifetime: Duration) -> Result<Draft, Error> {
    let mut serial = [0_u8; 16];
    aws_lc_rs::rand::fill(&mut serial).map_err(|_| Error::Random)?;
    // Positive, and as long in DER as it is here.
    serial[0] = serial[0] & 0x7f | 0x40;
    let from = SystemTime::from(now) - BACKDATED.min(lifetime / 10);
    let not_after = crate::clock::whole_seconds(
        now.checked_add(lifetime)
            .map_err(|error| Error::Pki { action: "date a certificate", why: error.to_string() })?,
    );
    let mut params = CertificateParams::default();
    params.not_before = from.into();
    params.not_after = SystemTime::from(not_after).into();
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params.distinguished_name = DistinguishedName::new();
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    Ok(Draft { params, serial: hex::encode(serial), not_after })
}
