//! The list of revoked certificates, as brokers read it.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use rcgen::{CertificateRevocationListParams, KeyIdMethod, RevokedCertParams, SerialNumber};

use crate::error::Error;

/// A broker that finds its list out of date shuts everybody out. A registry that is away must not do
/// that to the fleet, so the list is good for as long as anyone may need it.
const GOOD_FOR: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// A certificate that is no longer believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revoked {
    /// Its serial number, in hex.
    pub serial: String,
    /// Since when.
    pub at: Timestamp,
}

pub(super) fn list(revoked: &[Revoked], now: Timestamp) -> Result<CertificateRevocationListParams, Error> {
    let entries = revoked.iter().map(|revoked| {
        let serial = hex::decode(&revoked.serial).ok().filter(|serial| (1..=20).contains(&serial.len()));
        let serial = serial.ok_or_else(|| Error::Corrupt {
            what: "certificate's serial number",
            why: format!("`{}` is not 1 to 20 bytes in hex", revoked.serial),
        })?;
        Ok(RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: SystemTime::from(revoked.at).into(),
            reason_code: None,
            invalidity_date: None,
        })
    });
    let number = u64::try_from(now.as_millisecond()).unwrap_or_default();
    Ok(CertificateRevocationListParams {
        this_update: (SystemTime::from(now) - Duration::from_secs(3600)).into(),
        next_update: (SystemTime::from(now) + GOOD_FOR).into(),
        crl_number: SerialNumber::from(number),
        issuing_distribution_point: None,
        revoked_certs: entries.collect::<Result<_, Error>>()?,
        key_identifier_method: KeyIdMethod::Sha256,
    })
}
