//! Passphrases of key files: what one is, and whom to ask. Never shown, not even to the debugger.

use std::fmt;
use std::path::Path;

use crate::SigningError;

/// Longest passphrase, in bytes.
const LONGEST: usize = 1024;
/// Shortest passphrase that a key is encrypted with, in bytes. Reading takes any.
const SHORTEST: usize = 8;

/// The passphrase of a key file.
#[derive(Clone, PartialEq, Eq)]
pub struct Passphrase(Vec<u8>);

impl Passphrase {
    /// One line of text: the end of the line does not belong to it.
    pub fn new(text: impl Into<Vec<u8>>) -> Result<Self, SigningError> {
        let mut bytes: Vec<u8> = text.into();
        if bytes.ends_with(b"\n") {
            bytes.pop();
            if bytes.ends_with(b"\r") {
                bytes.pop();
            }
        }
        let wrong = |reason| Err(SigningError::Passphrase { reason });
        match bytes.len() {
            0 => wrong("it is empty"),
            length if length > LONGEST => wrong("it is longer than 1024 bytes"),
            _ if bytes.contains(&b'\n') => wrong("it has more than one line"),
            _ => Ok(Self(bytes)),
        }
    }

    /// Refuses one that is too short to encrypt with.
    pub fn check_new(&self) -> Result<(), SigningError> {
        let reason = "a new one must have at least 8 characters";
        if self.0.len() < SHORTEST { Err(SigningError::Passphrase { reason }) } else { Ok(()) }
    }

    pub(super) fn reveal(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Passphrase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Passphrase(…)")
    }
}

/// Somebody who knows passphrases: a person at a terminal, a file, the environment.
pub trait Passphrases {
    /// The passphrase of the encrypted key file at `key`.
    fn passphrase(&self, key: &Path) -> Result<Passphrase, SigningError>;
}

/// Nobody: encrypted keys are refused.
pub(super) struct Never;

impl Passphrases for Never {
    fn passphrase(&self, key: &Path) -> Result<Passphrase, SigningError> {
        Err(SigningError::Encrypted { path: key.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_passphrase_is_one_line_and_is_not_shown() {
        assert_eq!(Passphrase::new("abc\r\n").unwrap(), Passphrase::new("abc").unwrap());
        for bad in ["", "\n", "a\nb", &"x".repeat(2000)] {
            assert!(matches!(Passphrase::new(bad), Err(SigningError::Passphrase { .. })), "{bad:?}");
        }
        assert!(Passphrase::new("short").unwrap().check_new().is_err());
        assert!(Passphrase::new("longer than that").unwrap().check_new().is_ok());
        assert!(!format!("{:?}", Passphrase::new("secret").unwrap()).contains("secret"));
    }
}
