//! Encrypted PKCS#8 documents: PBES2 of RFC 8018, as `openssl pkey` reads and writes them.
//!
//! A file says itself how much work its passphrase costs, so the work is bounded before it begins.

use pkcs8::EncryptedPrivateKeyInfo;
use pkcs8::der::{Encode as _, SecretDocument};
use pkcs8::pkcs5::pbes2::{Kdf, Parameters};
use pkcs8::pkcs5::{EncryptionScheme, scrypt};

use super::Passphrase;
use crate::SigningError;

/// Work of scrypt: N = 2^14 and r = 8 take the 16 MiB that openssl allows by default; p = 5 makes
/// up for it.
const SCRYPT: (u8, u32, u32) = (14, 8, 5);
/// Most memory that reading a file may take, in bytes: 128 · N · r.
const MOST_MEMORY: u64 = 256 << 20;
/// Most work that reading a file may take: N · r · p of scrypt, as 64 of our own files take.
const MOST_WORK: u64 = 64 * 5 * (8 << 14);
/// Most rounds of PBKDF2.
const MOST_ROUNDS: u32 = 10_000_000;

/// An encrypted document whose parameters are within bounds.
pub struct Sealed<'a>(EncryptedPrivateKeyInfo<'a>);

/// Reads the outside of a document.
pub fn read(document: &[u8]) -> Result<Sealed<'_>, &'static str> {
    let info = EncryptedPrivateKeyInfo::try_from(document).map_err(|_| "it is not encrypted PKCS#8")?;
    let EncryptionScheme::Pbes2(parameters) = &info.encryption_algorithm else {
        return Err(
            "it is encrypted by PBES1, which is broken: encrypt it again with `openssl pkcs8 -topk8 -scrypt`",
        );
    };
    match &parameters.kdf {
        Kdf::Scrypt(kdf) => {
            let (n, r, p) = (kdf.cost_parameter, u64::from(kdf.block_size), u64::from(kdf.parallelization));
            let memory = n.saturating_mul(r).saturating_mul(128);
            if n < 2 || !n.is_power_of_two() || r == 0 || p == 0 {
                return Err("its parameters of scrypt are impossible");
            }
            if memory > MOST_MEMORY || n.saturating_mul(r).saturating_mul(p) > MOST_WORK {
                return Err("its passphrase would cost too much memory or time to check");
            }
        }
        Kdf::Pbkdf2(kdf) if kdf.iteration_count > MOST_ROUNDS => {
            return Err("its passphrase would cost too much time to check");
        }
        Kdf::Pbkdf2(_) => {}
        _ => return Err("it is encrypted in a way that is not known here"),
    }
    Ok(Sealed(info))
}

impl Sealed<'_> {
    /// The document inside; `None`: the passphrase is another one.
    pub fn open(&self, passphrase: &Passphrase) -> Option<SecretDocument> {
        self.0.decrypt(passphrase.reveal()).ok()
    }
}

/// Encrypts a document.
pub fn seal(document: &[u8], passphrase: &Passphrase) -> Result<Vec<u8>, SigningError> {
    passphrase.check_new()?;
    let (salt, iv): ([u8; 16], [u8; 16]) = (rand::random(), rand::random());
    let (log_n, r, p) = SCRYPT;
    let cost = scrypt::Params::new(log_n, r, p, 32).map_err(|_| SigningError::Generate)?;
    let parameters = Parameters::scrypt_aes256cbc(cost, &salt, &iv).map_err(|_| SigningError::Generate)?;
    let encrypted_data =
        parameters.encrypt(passphrase.reveal(), document).map_err(|_| SigningError::Generate)?;
    let info =
        EncryptedPrivateKeyInfo { encryption_algorithm: parameters.into(), encrypted_data: &encrypted_data };
    info.to_der().map_err(|_| SigningError::Generate)
}
