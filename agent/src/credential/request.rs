//! A key for the link, and the request for its certificate. ECDSA P-256: every broker reads that.

use rcgen::{
    CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData as _,
};
use rustls::pki_types::PrivatePkcs8KeyDer;
use selvedge_package::DeviceId;
use serde_bytes::ByteBuf;

use super::Request;

/// Why there is no request.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The key or the request cannot be made, or the key not be read.
    #[error("the key of the device's certificate cannot be made or read")]
    Key(#[from] rcgen::Error),
}

/// Makes a key, and a request in this device's name.
pub fn make(device: &DeviceId) -> Result<Request, RequestError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, device.as_str());
    let csr = params.serialize_request(&key)?;
    Ok(Request { key: ByteBuf::from(key.serialize_der()), csr: ByteBuf::from(csr.der().to_vec()) })
}

/// The public half of a key (SubjectPublicKeyInfo, DER).
pub fn public_key(pkcs8: &[u8]) -> Result<Vec<u8>, RequestError> {
    let pkcs8 = PrivatePkcs8KeyDer::from(pkcs8);
    let key = KeyPair::from_pkcs8_der_and_sign_algo(&pkcs8, &PKCS_ECDSA_P256_SHA256)?;
    Ok(key.subject_public_key_info())
}
