//! The authority: opened, or made at first use. A half-made one is finished, a changed one refused.

use std::fs::TryLockError;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use rcgen::{Issuer, KeyPair, PublicKeyData};
use selvedge_package::DeviceId;

use super::certificate::{self, Draft, Issued};
use super::request::{self, RequestError};
use super::revocation::{self, Revoked};
use crate::durable::{self, Access};
use crate::error::Error;

/// Longest file of a key or certificate in bytes.
const LONGEST: u64 = 64 << 10;
/// Longest list of revoked certificates in bytes: some 200 000.
pub(super) const LONGEST_LIST: u64 = 16 << 20;

/// The authority of one registry.
pub struct Authority {
    folder: PathBuf,
    ca_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate with its key, as PEM.
#[derive(Clone)]
pub struct Credential {
    /// What was issued.
    pub issued: Issued,
    /// The chain, leaf first.
    pub certificate_pem: String,
    /// PKCS#8.
    pub key_pem: String,
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credential").field("issued", &self.issued).finish_non_exhaustive()
    }
}

impl Authority {
    /// Opens the authority in `folder`, or makes it: a new key, the registry's own certificate and an
    /// empty list of revoked ones. The registry's own certificate is renewed when half of its life is
    /// over.
    pub fn open_or_create(folder: &Path, now: Timestamp) -> Result<Self, Error> {
        durable::private_directory(folder)?;
        let _lock = lock(&folder.join("lock"))?;
        let (certificate, key) = (folder.join("ca.pem"), folder.join("ca.key"));
        let kept = read(&certificate)?;
        let (pair, fresh) = match (read(&key)?, &kept) {
            (Some(text), _) => (parse_key(&key, &text)?, false),
            (None, None) => (new_key()?, true),
            (None, Some(_)) => {
                let why = format!(
                    "its key is missing; restore {} from a backup, or move the folder away: then a new \
                     authority is made, and every device must be enrolled again",
                    key.display()
                );
                return Err(Error::Keys { what: certificate.display().to_string(), why });
            }
        };
        if fresh {
            // The key first: a certificate without its key would be of no use after a power cut.
            durable::write(&key, pair.serialize_pem().as_bytes(), Access::Owner)?;
        }
        let ca_pem = match kept {
            Some(text) => text,
            None => {
                let draft = certificate::authority(&pair.subject_public_key_info(), now)?;
                let made = draft.params.self_signed(&pair).map_err(failed("sign its certificate"))?;
                durable::write(&certificate, made.pem().as_bytes(), Access::All)?;
                made.pem()
            }
        };
        check(&certificate, &ca_pem, &pair)?;
        let issuer = Issuer::from_ca_cert_pem(&ca_pem, pair).map_err(failed("read its certificate"))?;
        let authority = Self { folder: folder.to_owned(), ca_pem, issuer };
        authority.own_certificate(now)?;
        if !folder.join("crl.pem").exists() {
            authority.write_crl(&[], now)?;
        }
        Ok(authority)
    }

    /// Where it lies.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The authority's certificate, which devices and brokers are given.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// A certificate for `device` with the key of a request that came over the network. Only the key
    /// is taken from it.
    pub fn issue_device(
        &self,
        request: &[u8],
        device: &DeviceId,
        now: Timestamp,
        lifetime: Duration,
    ) -> Result<Result<Issued, RequestError>, Error> {
        let key = match request::key_of(request) {
            Ok(key) => key,
            Err(refused) => return Ok(Err(refused)),
        };
        self.sign(certificate::device(device, now, lifetime)?, &key).map(Ok)
    }

    /// The certificate and key of an enrolment file: good enough to reach the broker the first time.
    pub fn bootstrap(&self, device: &DeviceId, now: Timestamp) -> Result<Credential, Error> {
        self.with_new_key(certificate::device(device, now, super::BOOTSTRAP_LIFETIME)?)
    }

    /// A certificate with a new key, for a device that is enrolled by hand.
    pub fn device_with_key(
        &self,
        device: &DeviceId,
        now: Timestamp,
        lifetime: Duration,
    ) -> Result<Credential, Error> {
        self.with_new_key(certificate::device(device, now, lifetime)?)
    }

    /// The list of revoked certificates, signed.
    pub fn crl_pem(&self, revoked: &[Revoked], now: Timestamp) -> Result<String, Error> {
        let list = revocation::list(revoked, now)?;
        let signed = list.signed_by(&self.issuer).map_err(failed("sign the list of revoked certificates"))?;
        signed.pem().map_err(failed("write the list of revoked certificates"))
    }

    /// Signs the list and writes it to `crl.pem`, where brokers on this machine read it.
    pub fn write_crl(&self, revoked: &[Revoked], now: Timestamp) -> Result<(), Error> {
        let text = self.crl_pem(revoked, now)?;
        durable::write(&self.folder.join("crl.pem"), text.as_bytes(), Access::All)
    }

    /// The list as it was last written.
    pub fn written_crl(&self) -> Result<String, Error> {
        let path = self.folder.join("crl.pem");
        let bytes = durable::read_limited(&path, LONGEST_LIST)?.unwrap_or_default();
        String::from_utf8(bytes)
            .map_err(|error| Error::Keys { what: path.display().to_string(), why: error.to_string() })
    }

    /// A broker's certificate and key, for these host names and addresses.
    pub fn server(&self, names: &[String], now: Timestamp) -> Result<Credential, Error> {
        self.with_new_key(certificate::server(names, now)?)
    }

    fn with_new_key(&self, draft: Draft) -> Result<Credential, Error> {
        let key = new_key()?;
        let issued = self.sign(draft, &key)?;
        Ok(Credential { certificate_pem: issued.pem(), key_pem: key.serialize_pem(), issued })
    }

    fn sign(&self, draft: Draft, key: &impl PublicKeyData) -> Result<Issued, Error> {
        let Draft { params, serial, not_after } = draft;
        let signed = params.signed_by(key, &self.issuer).map_err(failed("sign a certificate"))?;
        Ok(Issued { serial, not_after, chain: vec![signed.der().to_vec()] })
    }

    fn own_certificate(&self, now: Timestamp) -> Result<(), Error> {
        let (certificate, key) = (self.folder.join("registry.pem"), self.folder.join("registry.key"));
        let half = certificate::REGISTRY_LIFETIME / 2;
        if good_for(&certificate, &key, &self.ca_pem, now)? > half {
            return Ok(());
        }
        self.write_pair(&self.with_new_key(certificate::registry(now)?)?, &certificate, &key)
    }

    /// A pair that does not fit together after a power cut is found by [`good_for`] and made again.
    pub(super) fn write_pair(&self, made: &Credential, certificate: &Path, key: &Path) -> Result<(), Error> {
        durable::write(key, made.key_pem.as_bytes(), Access::Owner)?;
        durable::write(certificate, made.certificate_pem.as_bytes(), Access::All)
    }
}

/// For how long a pair of files is still good: zero when it is missing, torn, of another authority,
/// or over.
pub(super) fn good_for(
    certificate: &Path,
    key: &Path,
    ca_pem: &str,
    now: Timestamp,
) -> Result<Duration, Error> {
    let (Some(certificate), Some(key)) = (read(certificate)?, read(key)?) else {
        return Ok(Duration::ZERO);
    };
    Ok(remaining(&certificate, &key, ca_pem, now).unwrap_or_default())
}

fn remaining(certificate: &str, key: &str, ca_pem: &str, now: Timestamp) -> Option<Duration> {
    let (certificate, ca) = (pem::parse(certificate).ok()?, pem::parse(ca_pem).ok()?);
    let key = KeyPair::from_pem(key).ok()?;
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate.contents()).ok()?;
    let (_, ca) = x509_parser::parse_x509_certificate(ca.contents()).ok()?;
    certificate.verify_signature(Some(ca.public_key())).ok()?;
    let fits = certificate.public_key().raw == key.subject_public_key_info();
    let end = certificate.validity().not_after.timestamp();
    let seconds = u64::try_from(end.checked_sub(now.as_second())?).ok()?;
    fits.then_some(Duration::from_secs(seconds))
}

/// That certificate and key are one pair: another's key would sign what nobody believes.
fn check(path: &Path, ca_pem: &str, pair: &KeyPair) -> Result<(), Error> {
    let wrong = |why: &str| Error::Keys { what: path.display().to_string(), why: why.to_owned() };
    let block = pem::parse(ca_pem).map_err(|error| wrong(&error.to_string()))?;
    let (_, certificate) = x509_parser::parse_x509_certificate(block.contents())
        .map_err(|_| wrong("it is not a certificate; restore it from a backup"))?;
    if certificate.public_key().raw != pair.subject_public_key_info() {
        return Err(wrong("it does not fit ca.key; restore both from one backup"));
    }
    Ok(())
}

fn read(path: &Path) -> Result<Option<String>, Error> {
    let Some(bytes) = durable::read_limited(path, LONGEST)? else { return Ok(None) };
    let text = String::from_utf8(bytes)
        .map_err(|error| Error::Keys { what: path.display().to_string(), why: error.to_string() })?;
    Ok(Some(text))
}

fn parse_key(path: &Path, text: &str) -> Result<KeyPair, Error> {
    let wrong = |why: String| Error::Keys { what: path.display().to_string(), why };
    let pair = KeyPair::from_pem(text).map_err(|error| wrong(error.to_string()))?;
    match pair.algorithm() == &rcgen::PKCS_ECDSA_P256_SHA256 {
        true => Ok(pair),
        false => Err(wrong("it is not a P-256 key".to_owned())),
    }
}

fn new_key() -> Result<KeyPair, Error> {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(failed("make a key"))
}

fn failed(action: &'static str) -> impl FnOnce(rcgen::Error) -> Error {
    move |error| Error::Pki { action, why: error.to_string() }
}

/// Two programs may open one authority at the same time: the registry and a broker beside it.
fn lock(path: &Path) -> Result<std::fs::File, Error> {
    let file = std::fs::File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(Error::file("open", path))?;
    for _ in 0..100 {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(50)),
            Err(TryLockError::Error(error)) => return Err(Error::file("lock", path)(error)),
        }
    }
    Err(Error::InUse { path: path.to_owned() })
}
