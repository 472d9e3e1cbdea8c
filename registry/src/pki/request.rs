//! What a device asks for: a PKCS#10 request from an open network. It proves that the sender holds the
//! key, and says nothing else that counts: its names and extensions are not read.

use rcgen::SubjectPublicKeyInfo;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer as _;

/// Longest request in bytes: stops a parser from being fed megabytes. Ours have about 200.
const LONGEST: usize = 4096;

/// A request that is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// It has no bytes, or too many.
    #[error("a certificate request has 1 to {LONGEST} bytes")]
    Length,
    /// It is no PKCS#10.
    #[error("the certificate request is not PKCS#10 in DER")]
    Form,
    /// Whoever sent it does not hold the key.
    #[error("the certificate request is not signed by the key that it names")]
    Signature,
    /// Another kind of key.
    #[error("the certificate request names a key that is neither P-256 nor Ed25519")]
    Key,
}

/// The key of a request whose sender holds it.
pub(super) fn key_of(der: &[u8]) -> Result<SubjectPublicKeyInfo, RequestError> {
    if der.is_empty() || der.len() > LONGEST {
        return Err(RequestError::Length);
    }
    let (rest, request) = X509CertificationRequest::from_der(der).map_err(|_| RequestError::Form)?;
    if !rest.is_empty() {
        return Err(RequestError::Form);
    }
    let key = request.certification_request_info.subject_pki.raw;
    let key = SubjectPublicKeyInfo::from_der(key).map_err(|_| RequestError::Key)?;
    let algorithm = rcgen::PublicKeyData::algorithm(&key);
    if *algorithm != rcgen::PKCS_ECDSA_P256_SHA256 && *algorithm != rcgen::PKCS_ED25519 {
        return Err(RequestError::Key);
    }
    request.verify_signature().map_err(|_| RequestError::Signature)?;
    Ok(key)
}
