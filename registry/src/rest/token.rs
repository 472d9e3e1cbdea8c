//! The bearer token: made once, kept in `<data>/token` for its owner, demanded always.
//!
//! It is demanded on loopback too, because whoever may speak here makes the registry sign.

use std::path::Path;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use axum::http::{HeaderMap, header::AUTHORIZATION};
use selvedge_package::Digest;

use crate::durable::{self, Access};
use crate::error::Error;
use crate::refusal::Refusal;

/// Longest token file that makes sense.
const LONGEST: u64 = 4096;
/// Shortest token that is one.
const SHORTEST: usize = 16;

/// The token, as a hash.
#[derive(Debug, Clone)]
pub struct Token {
    hash: Digest,
}

impl Token {
    /// Read the token at `path`, or make one.
    pub fn open(path: &Path) -> Result<Self, Error> {
        if let Some(bytes) = durable::read_limited(path, LONGEST)? {
            let text = bytes.trim_ascii();
            if text.len() < SHORTEST {
                let what = path.display().to_string();
                let why = format!("it has fewer than {SHORTEST} characters; remove it for a new token");
                return Err(Error::Keys { what, why });
            }
            return Ok(Self { hash: Digest::of(text) });
        }
        let token = random_token()?;
        durable::write(path, format!("{token}\n").as_bytes(), Access::Owner)?;
        Ok(Self { hash: Digest::of(token.as_bytes()) })
    }

    /// Whether the headers carry the token. Takes the same time for every wrong one.
    pub fn check(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let value = headers.get(AUTHORIZATION).ok_or(Refusal::NoToken)?.as_bytes();
        let (scheme, token) = value.split_at_checked(7).ok_or(Refusal::NoToken)?;
        if !scheme.eq_ignore_ascii_case(b"bearer ") {
            return Err(Refusal::NoToken);
        }
        let given = Digest::of(token.trim_ascii());
        verify_slices_are_equal(given.as_bytes(), self.hash.as_bytes()).map_err(|_| Refusal::WrongToken)
    }
}

/// 256 random bits as hexadecimal text.
pub fn random_token() -> Result<String, Error> {
    let mut bytes = [0; 32];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| Error::Random)?;
    Ok(hex::encode(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn headers(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, value.parse().unwrap());
        headers
    }

    #[test]
    fn one_token_for_its_owner_and_no_other_is_taken() {
        let data = tempfile::tempdir().unwrap();
        let path = data.path().join("token");
        let token = Token::open(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let text = std::fs::read_to_string(&path).unwrap();
        let again = Token::open(&path).unwrap();
        for token in [token, again] {
            assert!(token.check(&headers(&format!("Bearer {}", text.trim()))).is_ok());
            assert!(matches!(token.check(&HeaderMap::new()), Err(Refusal::NoToken)));
            for wrong in ["Basic abc", "Bearer", ""] {
                assert!(matches!(token.check(&headers(wrong)), Err(Refusal::NoToken)), "{wrong}");
            }
            assert!(matches!(token.check(&headers("Bearer abc")), Err(Refusal::WrongToken)));
        }
        std::fs::write(&path, "short").unwrap();
        assert!(Token::open(&path).is_err());
    }
}
