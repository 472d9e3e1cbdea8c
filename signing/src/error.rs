//! Why something was not signed, or a key not read.

use std::path::PathBuf;

use selvedge_package::PackageName;
use selvedge_package::trust::TrustError;

/// Why something was not signed, or a key not read. Nothing was written where it is returned,
/// except by [`crate::keyring::init`], which says what it left.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum SigningError {
    #[error("cannot {action} {path}")]
    File {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{path} exists already; keys are never overwritten")]
    Exists { path: PathBuf },
    #[error("{path} can be read by others (mode {mode:03o}): run `chmod 600` on it")]
    Permissions { path: PathBuf, mode: u32 },
    #[error("{path} is not an ed25519 private key in PKCS#8 PEM: {reason}")]
    KeyFormat { path: PathBuf, reason: &'static str },
    #[error("{path} is not an ed25519 public key in PEM: {reason}")]
    PublicFormat { path: PathBuf, reason: &'static str },
    #[error("{path} is encrypted, and no passphrase was given")]
    Encrypted { path: PathBuf },
    #[error("the passphrase of {path} is another one")]
    WrongPassphrase { path: PathBuf },
    #[error("no passphrase could be asked for {path}")]
    NoPassphrase {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("this is no passphrase: {reason}")]
    Passphrase { reason: &'static str },
    #[error("the key could not be generated")]
    Generate,
    #[error("the key could not be used to sign")]
    Sign,
    #[error("no key was given to sign with")]
    NoSigner,
    #[error("{what} has {found} bytes; at most {most} are allowed")]
    TooLarge { what: &'static str, found: u64, most: u64 },
    #[error("this is not a signed {what}")]
    NotMetadata {
        what: &'static str,
        #[source]
        source: serde_json::Error,
    },
    #[error("this is not a {what}: {reason}")]
    NotRead { what: &'static str, reason: &'static str },
    #[error("this is a {role} file; only roots and lists of releases are signed by people")]
    NotForPeople { role: String },
    #[error("the {what} has fields that this program does not know and could not keep")]
    Unknown { what: &'static str },
    #[error("the {what} cannot be written as canonical JSON")]
    Canonical {
        what: &'static str,
        #[source]
        source: Box<tough::schema::Error>,
    },
    #[error("the {what} cannot be written as JSON")]
    Json {
        what: &'static str,
        #[source]
        source: serde_json::Error,
    },
    #[error("version {version} of the {what} is not a version, or has none after it")]
    Version { what: &'static str, version: u64 },
    #[error("the {role} role needs {threshold} of {keys} keys, which is not possible")]
    Threshold { role: &'static str, threshold: u64, keys: usize },
    #[error("`{name}` was released before; a version is released once: raise the version")]
    Released { name: String },
    #[error("release {release} of `{package}` is not above the last one, {last}: use `--release {}`", last + 1)]
    ReleaseNotAbove { package: PackageName, release: u64, last: u64 },
    #[error("`min-release` {min_release} is above the release {release} itself")]
    MinRelease { release: u64, min_release: u64 },
    #[error("`{name}` cannot be the name of a target")]
    TargetName {
        name: String,
        #[source]
        source: Box<tough::error::Error>,
    },
    #[error("the assignment cannot be written")]
    Assignment(#[source] TrustError),
}
