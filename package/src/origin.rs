//! Where blobs lie besides the registry: the address of a web server, with a place for the digest.
//!
//! What comes from there is checked like everything else, chunk by chunk; the address says where to
//! ask, never what to believe. It is signed with the package, so it cannot be anyone's.

use core::net::Ipv6Addr;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::digest::Digest;

/// Where the digest goes, as 64 hexadecimal digits.
const PLACE: &str = "{digest}";
/// Bytes of an address.
const LONGEST: usize = 1024;

/// An address such as `https://files.example/blobs/sha256/{digest}`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin(String);

/// An address that no package has. The text says which rule it breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{address}` cannot be a source: {rule}")]
pub struct OriginError {
    /// The offending text, cut to 80 characters.
    pub address: String,
    /// The rule that it breaks.
    pub rule: &'static str,
}

impl Origin {
    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Where the blob with this digest lies.
    pub fn address_of(&self, digest: &Digest) -> String {
        self.0.replace(PLACE, &digest.hex())
    }
}

impl FromStr for Origin {
    type Err = OriginError;

    fn from_str(text: &str) -> Result<Self, OriginError> {
        match broken_rule(text) {
            None => Ok(Self(text.to_owned())),
            Some(rule) => {
                let address = text.chars().take(80).collect::<String>().escape_debug().to_string();
                Err(OriginError { address, rule })
            }
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Origin {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Origin {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

fn broken_rule(text: &str) -> Option<&'static str> {
    if text.len() > LONGEST {
        return Some("it has at most 1024 bytes");
    }
    let Some(rest) = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")) else {
        return Some("it begins with `https://` or `http://`");
    };
    let Some((authority, path)) = rest.split_once('/') else {
        return Some("a path follows the server, with `{digest}` in it");
    };
    if !path.contains(PLACE) {
        return Some("its path has `{digest}`, where the blob's sha256 goes");
    }
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~:/?@!$&'()*+,;=%[]".contains(&b);
    if !path.replace(PLACE, "").bytes().all(plain) {
        return Some("its path has letters, digits and -._~:/?@!$&'()*+,;=%[] only, and `{digest}`");
    }
    if authority.contains('@') {
        return Some("it names no user and no password: everyone who has the package would have them");
    }
    if is_server(authority) { None } else { Some("its server is a name, an address or [an IPv6 address]") }
}

/// Whether text is a host with or without a port.
fn is_server(authority: &str) -> bool {
    let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) => {
            if address.parse::<Ipv6Addr>().is_err() {
                return false;
            }
            ("", port.strip_prefix(':').or_else(|| port.is_empty().then_some("1")))
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, Some("1")),
        },
    };
    let bracketed = authority.starts_with('[');
    let named = !host.is_empty()
        && host.len() <= 253
        && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
    let digits = |port: &str| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    (bracketed || named)
        && port.is_some_and(|port| digits(port) && port.parse::<u16>().is_ok_and(|port| port > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_what_can_be_asked_and_nothing_else() {
        for good in [
            "https://files.example/blobs/sha256/{digest}",
            "http://192.0.2.1:8080/{digest}",
            "http://[2001:db8::1]/{digest}?token=a%20b",
            "https://[::1]:65535/x/{digest}/{digest}",
        ] {
            let origin: Origin = good.parse().unwrap();
            assert_eq!(
                serde_json::from_str::<Origin>(&serde_json::to_string(&origin).unwrap()).unwrap(),
                origin
            );
        }
        let long = format!("https://a/{}{{digest}}", "x".repeat(1024));
        for bad in [
            "",
            "ftp://a/{digest}",
            "HTTPS://a/{digest}",
            "https://a",
            "https://a/",
            "https://a/{digest",
            "https://{digest}/a",
            "https://{digest}/{digest}",
            "https://user:secret@a/{digest}",
            "https:///{digest}",
            "https://:80/{digest}",
            "https://a:/{digest}",
            "https://a:0/{digest}",
            "https://a:65536/{digest}",
            "https://a:+1/{digest}",
            "https://a b/{digest}",
            "https://a\r\nHost: b/{digest}",
            "https://a/{digest}#x",
            "https://a/{digest}\r\nX: y",
            "https://a/{digest} ",
            "https://a/{other}/{digest}",
            "https://[::1/{digest}",
            "https://[fe80::1%25eth0]/{digest}",
            "https://[::1]80/{digest}",
            "https://[::1]:/{digest}",
            "https://ä/{digest}",
            &long,
        ] {
            assert!(bad.parse::<Origin>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_digest_goes_where_it_belongs() {
        let digest = Digest::of(b"x");
        let origin: Origin = "https://a/{digest}/b?c={digest}".parse().unwrap();
        let hex = digest.hex();
        assert_eq!(origin.address_of(&digest), format!("https://a/{hex}/b?c={hex}"));
    }
}
