//! Where a broker is: `mqtt://host:port`. Refuses plaintext to anything but loopback.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A broker that may be spoken to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerAddress {
    host: String,
    port: u16,
    loopback: bool,
}

/// An address that is refused, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Not of the form.
    #[error("`{0}` is not a broker's address: expected mqtt://HOST:PORT")]
    Form(String),
    /// TLS, which this version does not speak.
    #[error("`{0}`: mqtts is not supported by this version yet; use mqtt:// on loopback")]
    Tls(String),
    /// Plaintext to another machine.
    #[error(
        "`{0}` is not on this machine, and plaintext MQTT leaves it open to everyone on the way; \
         use a broker on 127.0.0.1, [::1] or localhost"
    )]
    Plaintext(String),
}

impl BrokerAddress {
    /// The host as rumqttc wants it: IPv6 in brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Whether the broker is on this machine.
    pub fn is_loopback(&self) -> bool {
        self.loopback
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl FromStr for BrokerAddress {
    type Err = AddressError;

    fn from_str(url: &str) -> Result<Self, AddressError> {
        let shown = || url.chars().take(120).collect::<String>();
        let form = || AddressError::Form(shown());
        if url.starts_with("mqtts://") {
            return Err(AddressError::Tls(shown()));
        }
        let authority = url.strip_prefix("mqtt://").ok_or_else(form)?;
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        let (host, port) = match authority.rfind(':') {
            Some(colon) if !authority.ends_with(']') => {
                (&authority[..colon], authority[colon + 1..].parse().map_err(|_| form())?)
            }
            _ => (authority, 1883),
        };
        let named = |text: &str| {
            !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte))
        };
        let loopback = if let Some(inner) = host.strip_prefix('[') {
            let inner = inner.strip_suffix(']').ok_or_else(form)?;
            inner.parse::<Ipv6Addr>().map_err(|_| form())?.is_loopback()
        } else if named(host) {
            host == "localhost" || host.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback())
        } else {
            return Err(form());
        };
        if port == 0 {
            return Err(form());
        }
        if !loopback {
            return Err(AddressError::Plaintext(shown()));
        }
        Ok(Self { host: host.to_owned(), port, loopback })
    }
}

impl fmt::Display for BrokerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mqtt://{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_allowed() {
        for (url, shown) in [
            ("mqtt://127.0.0.1:1884", "mqtt://127.0.0.1:1884"),
            ("mqtt://127.8.0.1", "mqtt://127.8.0.1:1883"),
            ("mqtt://localhost:1/", "mqtt://localhost:1"),
            ("mqtt://[::1]:1883", "mqtt://[::1]:1883"),
            ("mqtt://[::1]", "mqtt://[::1]:1883"),
        ] {
            assert_eq!(url.parse::<BrokerAddress>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn everything_else_is_refused_for_its_own_reason() {
        let refused = |url: &str| url.parse::<BrokerAddress>().unwrap_err();
        for url in [
            "mqtt://10.0.0.1:1883",
            "mqtt://broker.example:1883",
            "mqtt://localhost.example",
            "mqtt://127.0.0.1.example",
            "mqtt://[2001:db8::1]:1883",
        ] {
            assert!(matches!(refused(url), AddressError::Plaintext(_)), "{url}");
        }
        assert!(matches!(refused("mqtts://127.0.0.1:8883"), AddressError::Tls(_)));
        for url in [
            "",
            "127.0.0.1:1883",
            "http://127.0.0.1",
            "mqtt://",
            "mqtt://:1883",
            "mqtt://127.0.0.1:0",
            "mqtt://127.0.0.1:99999",
            "mqtt://user@127.0.0.1",
            "mqtt://127.0.0.1/path",
            "mqtt://[::1",
            "mqtt://[x]:1",
        ] {
            assert!(matches!(refused(url), AddressError::Form(_)), "{url}");
        }
    }
}
