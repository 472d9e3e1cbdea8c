//! Keys: ed25519, kept as PKCS#8 PEM files that only their owner can read and that openssl reads,
//! encrypted with a passphrase or plain; public keys as PEM files beside them.
//!
//! A key file that others can read is refused, and no key file is ever overwritten. Where a
//! passphrase comes from is the caller's: nothing here asks for one, and none is ever printed.

mod encrypted;
mod passphrase;

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::str::FromStr;

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tough::schema::decoded::{Decoded, Hex};
use tough::schema::key::{Ed25519Key, Ed25519Scheme, Key};

pub use passphrase::{Passphrase, Passphrases};

use crate::SigningError;

/// A key file larger than this is not one.
const LARGEST_KEY_FILE: u64 = 16 << 10;

/// What stands before the 32 bytes of an ed25519 key in a SubjectPublicKeyInfo (RFC 8410).
const SPKI: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// An ed25519 public key: 32 bytes. Displays as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; 32]);

/// Text that is not a public key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a public key: expected 64 hexadecimal digits")]
pub struct PublicKeyError;

impl PublicKey {
    /// A public key from its 32 bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Reads a public key file: PEM as [`PublicKey::save`] and openssl write it.
    pub fn load(path: &Path) -> Result<Self, SigningError> {
        let failed = |source| SigningError::File { action: "read", path: path.to_owned(), source };
        let block = read_pem(fs::File::open(path).map_err(failed)?).map_err(failed)?;
        let wrong = |reason| SigningError::PublicFormat { path: path.to_owned(), reason };
        let block = block.map_err(wrong)?;
        if block.tag() != "PUBLIC KEY" {
            return Err(wrong(match block.tag() {
                "PRIVATE KEY" | "ENCRYPTED PRIVATE KEY" => {
                    "it holds a PRIVATE key: give the .pub file beside it"
                }
                _ => "it holds something else than a public key",
            }));
        }
        let bytes = block.contents().strip_prefix(&SPKI).and_then(|key| key.try_into().ok());
        bytes.map(Self).ok_or_else(|| wrong("its key is not an ed25519 key"))
    }

    /// Writes the key to a new file that everyone may read.
    pub fn save(&self, path: &Path) -> Result<(), SigningError> {
        write_pem(path, "PUBLIC KEY", &[&SPKI[..], &self.0].concat(), 0o644)
    }

    /// The key's id in TUF metadata: SHA-256 of its canonical form, in hexadecimal.
    pub fn key_id(&self) -> Result<String, SigningError> {
        Ok(hex::encode(self.tuf_key_id()?))
    }

    pub(crate) fn tuf_key(&self) -> Key {
        Key::Ed25519 {
            keyval: Ed25519Key { public: self.0.to_vec().into(), _extra: Default::default() },
            scheme: Ed25519Scheme::Ed25519,
            _extra: Default::default(),
        }
    }

    pub(crate) fn tuf_key_id(&self) -> Result<Decoded<Hex>, SigningError> {
        self.tuf_key()
            .key_id()
            .map_err(|source| SigningError::Canonical { what: "key", source: Box::new(source) })
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublicKey {
    type Err = PublicKeyError;

    fn from_str(text: &str) -> Result<Self, PublicKeyError> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| PublicKeyError)?;
        Ok(Self(bytes))
    }
}

impl Serialize for PublicKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PublicKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Something that signs with an ed25519 key, wherever the key is. It is all that the code which
/// signs knows of keys.
///
/// A key in hardware or in a key service plugs in here and nowhere else:
/// - PKCS#11: keep the module's session and the handle of the private key; `public_key` is its
///   `CKA_EC_POINT` (read once, when the signer is made), `sign` is `C_Sign` with `CKM_EDDSA` over
///   the whole message.
/// - A key service: `public_key` is asked for once, `sign` sends the message and waits. What it
///   answers is checked by whoever publishes, as every signature is, so a service that lies can
///   only make a file that nobody accepts.
///
/// Both belong in the program that offers them, not in this crate: it knows no driver and no network.
pub trait Signer: fmt::Debug + Send + Sync {
    /// The public half.
    fn public_key(&self) -> PublicKey;

    /// The signature of `message`, 64 bytes. It may take long where the key is not in this process.
    fn sign(&self, message: &[u8]) -> Result<[u8; 64], SigningError>;
}

/// A private key in this process.
pub struct SigningKey(Ed25519KeyPair);

impl SigningKey {
    /// A new key.
    pub fn generate() -> Result<Self, SigningError> {
        Ed25519KeyPair::generate().map(Self).map_err(|_| SigningError::Generate)
    }

    /// Reads a plain key file. One that others may read, or its group may write, is refused.
    pub fn load(path: &Path) -> Result<Self, SigningError> {
        Self::load_with(path, &passphrase::Never)
    }

    /// Reads a key file; `passphrases` is asked where it is encrypted, and only then.
    pub fn load_with(path: &Path, passphrases: &dyn Passphrases) -> Result<Self, SigningError> {
        let failed = |source| SigningError::File { action: "read", path: path.to_owned(), source };
        let file = fs::File::open(path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o777;
        if mode & 0o027 != 0 {
            return Err(SigningError::Permissions { path: path.to_owned(), mode });
        }
        let block = read_pem(file)
            .map_err(failed)?
            .map_err(|reason| SigningError::KeyFormat { path: path.to_owned(), reason })?;
        let wrong = |reason| SigningError::KeyFormat { path: path.to_owned(), reason };
        match block.tag() {
            "PRIVATE KEY" => Self::from_der(block.contents()).map_err(wrong),
            "ENCRYPTED PRIVATE KEY" => {
                let sealed = encrypted::read(block.contents()).map_err(wrong)?;
                let passphrase = passphrases.passphrase(path)?;
                let document = sealed
                    .open(&passphrase)
                    .ok_or_else(|| SigningError::WrongPassphrase { path: path.to_owned() })?;
                // With a wrong passphrase one in 256 decrypts to something.
                Self::from_der(document.as_bytes())
                    .map_err(|_| SigningError::WrongPassphrase { path: path.to_owned() })
            }
            "PUBLIC KEY" => Err(wrong("it holds the public key, not the private one")),
            _ => Err(wrong("it holds something else than a private key")),
        }
    }

    /// Whether the key file at `path` is encrypted: then reading it needs its passphrase.
    pub fn is_encrypted(path: &Path) -> Result<bool, SigningError> {
        let failed = |source| SigningError::File { action: "read", path: path.to_owned(), source };
        let block = read_pem(fs::File::open(path).map_err(failed)?).map_err(failed)?;
        let block = block.map_err(|reason| SigningError::KeyFormat { path: path.to_owned(), reason })?;
        Ok(block.tag() == "ENCRYPTED PRIVATE KEY")
    }

    /// Writes the key to a new file that only its owner can read.
    pub fn save(&self, path: &Path) -> Result<(), SigningError> {
        let document = self.0.to_pkcs8v1().map_err(|_| SigningError::Generate)?;
        write_pem(path, "PRIVATE KEY", document.as_ref(), 0o600)
    }

    /// Writes the key to a new file that only its owner can read, encrypted (PKCS#8 with PBES2:
    /// scrypt and AES-256-CBC).
    pub fn save_encrypted(&self, path: &Path, passphrase: &Passphrase) -> Result<(), SigningError> {
        let document = self.0.to_pkcs8v1().map_err(|_| SigningError::Generate)?;
        let sealed = encrypted::seal(document.as_ref(), passphrase)?;
        write_pem(path, "ENCRYPTED PRIVATE KEY", &sealed, 0o600)
    }

    /// The public half.
    pub fn public_key(&self) -> PublicKey {
        Signer::public_key(self)
    }

    /// The key's id in TUF metadata.
    pub fn key_id(&self) -> Result<String, SigningError> {
        self.public_key().key_id()
    }

    fn from_der(document: &[u8]) -> Result<Self, &'static str> {
        Ed25519KeyPair::from_pkcs8(document)
            .or_else(|_| Ed25519KeyPair::from_pkcs8_maybe_unchecked(document))
            .map(Self)
            .map_err(|_| "its key is not an ed25519 key")
    }
}

/// The one block of a PEM file; the inner error says what it is instead.
fn read_pem(file: fs::File) -> std::io::Result<Result<pem::Pem, &'static str>> {
    let mut text = Vec::new();
    file.take(LARGEST_KEY_FILE + 1).read_to_end(&mut text)?;
    if text.len() as u64 > LARGEST_KEY_FILE {
        return Ok(Err("it is too large"));
    }
    Ok(pem::parse(text).map_err(|_| "it is not PEM"))
}

fn write_pem(path: &Path, tag: &str, document: &[u8], mode: u32) -> Result<(), SigningError> {
    let config = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    let text = pem::encode_config(&pem::Pem::new(tag, document), config);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(
        |source| match source.kind() {
            std::io::ErrorKind::AlreadyExists => SigningError::Exists { path: path.to_owned() },
            _ => SigningError::File { action: "create", path: path.to_owned(), source },
        },
    )?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(|source| SigningError::File {
        action: "write",
        path: path.to_owned(),
        source,
    })
}

impl Signer for SigningKey {
    fn public_key(&self) -> PublicKey {
        let bytes: [u8; 32] =
            self.0.public_key().as_ref().try_into().expect("an ed25519 public key has 32 bytes");
        PublicKey(bytes)
    }

    fn sign(&self, message: &[u8]) -> Result<[u8; 64], SigningError> {
        let signature = self.0.try_sign(message).map_err(|_| SigningError::Sign)?;
        signature.as_ref().try_into().map_err(|_| SigningError::Sign)
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({})", Signer::public_key(self))
    }
}
