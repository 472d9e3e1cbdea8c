//! The enrolment file: who the device is, whom it trusts, and where its broker is.
//!
//! Whoever writes this file decides what the device will ever run, so it is read once, at the first
//! start; later starts take only a new broker or token from it, never a root or another identity.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use selvedge_package::DeviceId;
use serde::{Deserialize, Serialize};

use crate::credential::{CertificateError, Credential};

/// Largest file, in bytes: two roots of 64 KiB, escaped, and little else.
const LARGEST: u64 = 512 * 1024;

/// A file that is no enrolment.
#[derive(Debug, thiserror::Error)]
pub enum EnrolmentError {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// It is too large.
    #[error("{} has more than {LARGEST} bytes: it is no enrolment file", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// It is not the expected JSON.
    #[error(
        "{} is no enrolment file (made by `selvedge target enrol NAME --out FILE`)",
        path.display()
    )]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// It is of a later format.
    #[error(
        "{} has format {format}; this agent reads formats 1 and 2: update the agent",
        path.display()
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// What it says.
        format: u32,
    },
}

/// What kind of compute target the device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The machine of the person who runs `selvedge up`.
    Local,
    /// An enrolled device.
    Device,
}

/// The file's content.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Enrolment {
    /// Version of this format: 1, or 2, which has `broker_ca`, `broker_name` and `credential` besides.
    pub format: u32,
    /// Who the device is.
    pub device: DeviceId,
    /// What it is.
    pub kind: Kind,
    /// `mqtts://host:port`, or `mqtt://host:port` on this machine.
    pub broker: String,
    /// The authority of the registry, PEM: the broker's certificate and the device's own are from it.
    #[serde(default)]
    pub broker_ca: Option<String>,
    /// The name in the broker's certificate, where it is not the one in its address.
    #[serde(default)]
    pub broker_name: Option<String>,
    /// One-time token that registers the device's key.
    pub token: String,
    /// The Image repository's root, its exact bytes.
    pub image_root: String,
    /// The Director repository's root, its exact bytes.
    pub director_root: String,
    /// What the device shows to its broker until it has a certificate of its own.
    #[serde(default)]
    pub credential: Option<BootstrapCredential>,
}

/// A certificate whose key was made elsewhere: it opens the way to a better one.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BootstrapCredential {
    /// PEM.
    pub certificate: String,
    /// PEM, PKCS#8.
    pub key: String,
}

impl std::fmt::Debug for BootstrapCredential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BootstrapCredential")
    }
}

impl std::fmt::Debug for Enrolment {
    /// Without the token and the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Enrolment")
            .field("format", &self.format)
            .field("device", &self.device)
            .field("kind", &self.kind)
            .field("broker", &self.broker)
            .field("broker_name", &self.broker_name)
            .finish_non_exhaustive()
    }
}

impl Enrolment {
    /// Reads the file.
    pub fn from_file(path: &Path) -> Result<Self, EnrolmentError> {
        let read = |source| EnrolmentError::Read { path: path.to_owned(), source };
        // Not what the file says of its length: a device or a pipe says 0 and may never end.
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path).map_err(read)?;
        file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(read)?;
        if bytes.len() as u64 > LARGEST {
            return Err(EnrolmentError::TooLarge { path: path.to_owned() });
        }
        let enrolment: Self = serde_json::from_slice(&bytes)
            .map_err(|source| EnrolmentError::Content { path: path.to_owned(), source })?;
        match enrolment.format {
            1 | 2 => Ok(enrolment),
            format => Err(EnrolmentError::Format { path: path.to_owned(), format }),
        }
    }

    /// What it brings to show to the broker.
    pub fn credential(&self) -> Result<Option<Credential>, CertificateError> {
        let Some(credential) = &self.credential else {
            return Ok(None);
        };
        let authority = self.broker_ca.as_ref().ok_or(CertificateError::Authority)?;
        Credential::from_pem(credential, authority, &self.device).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("enrolment.json");
        std::fs::write(&path, text).unwrap();
        let found = match Enrolment::from_file(&path) {
            Ok(enrolment) => format!("{} by {}", enrolment.device, enrolment.broker),
            Err(error) => error.to_string(),
        };
        assert!(found.contains(expected), "{found}");
    }

    #[test]
    fn files_that_are_one_and_files_that_are_not() {
        let rest =
            r#""kind":"device","broker":"mqtt://h:1","token":"t","image_root":"{}","director_root":"{}""#;
        check(&format!(r#"{{"format":1,"device":"edge-1",{rest}}}"#), "edge-1 by mqtt://h:1");
        check(&format!(r#"{{"format":3,"device":"edge-1",{rest}}}"#), "reads formats 1 and 2");
        let more = r#""broker_ca":"x","broker_name":null,"credential":{"certificate":"a","key":"b"}"#;
        check(&format!(r#"{{"format":2,"device":"edge-1",{rest},{more}}}"#), "edge-1 by mqtt://h:1");
        check(&format!(r#"{{"format":2,"device":"edge-1",{rest},"credential":7}}"#), "no enrolment file");
        check(&format!(r#"{{"format":1,"device":"../x",{rest}}}"#), "no enrolment file");
        check(&format!(r#"{{"format":1,"device":"a","more":1,{rest}}}"#), "no enrolment file");
        check("", "no enrolment file");
        check(&"[".repeat(200_000), "no enrolment file");
        check(&" ".repeat(600_000), "more than");
    }

    #[test]
    fn a_file_without_end_is_not_read_to_its_end() {
        let found = Enrolment::from_file(Path::new("/dev/zero"));
        assert!(matches!(found, Err(EnrolmentError::TooLarge { .. })), "{found:?}");
    }
}
