//! Where a broker is: `mqtts://host:port`, or `mqtt://host:port` on this machine. Refuses plaintext to
//! anything but loopback.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A broker that may be spoken to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerAddress {
    host: String,
    port: u16,
    loopback: bool,
    tls: bool,
}

/// An address that is refused, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Not of the form.
    #[error(
        "`{0}` is not a broker's address: expected mqtts://HOST:PORT, or mqtt://HOST:PORT on this machine"
    )]
    Form(String),
    /// Plaintext to another machine.
    #[error(
        "`{0}` is not on this machine, and plaintext MQTT leaves it open to everyone on the way; \
         use mqtts://, or a broker on 127.0.0.1, [::1] or localhost"
    )]
    Plaintext(String),
}

impl BrokerAddress {
    /// The host; an IPv6 address without its brackets, as it stands in certificates. rumqttc puts the
    /// port behind it with a colon, which resolves all the same: the last colon counts.
    pub fn host(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }

    /// Whether TLS is spoken there.
    pub fn is_tls(&self) -> bool {
        self.tls
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
        let (tls, authority) = match (url.strip_prefix("mqtts://"), url.strip_prefix("mqtt://")) {
            (Some(authority), _) => (true, authority),
            (_, Some(authority)) => (false, authority),
            _ => return Err(form()),
        };
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        let (host, port) = match authority.rfind(':') {
            Some(colon) if !authority.ends_with(']') => {
                (&authority[..colon], authority[colon + 1..].parse().map_err(|_| form())?)
            }
            _ => (authority, if tls { 8883 } else { 1883 }),
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
        if !loopback && !tls {
            return Err(AddressError::Plaintext(shown()));
        }
        Ok(Self { host: host.to_owned(), port, loopback, tls })
    }
}

impl fmt::Display for BrokerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "mqtts" } else { "mqtt" };
        write!(f, "{scheme}://{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_and_tls_are_allowed() {
        for (url, shown) in [
            ("mqtt://127.0.0.1:1884", "mqtt://127.0.0.1:1884"),
            ("mqtt://127.8.0.1", "mqtt://127.8.0.1:1883"),
            ("mqtt://localhost:1/", "mqtt://localhost:1"),
            ("mqtt://[::1]:1883", "mqtt://[::1]:1883"),
            ("mqtt://[::1]", "mqtt://[::1]:1883"),
            ("mqtts://127.0.0.1", "mqtts://127.0.0.1:8883"),
            ("mqtts://broker.example:8884", "mqtts://broker.example:8884"),
            ("mqtts://[2001:db8::1]", "mqtts://[2001:db8::1]:8883"),
        ] {
            assert_eq!(url.parse::<BrokerAddress>().unwrap().to_string(), shown);
        }
        let far: BrokerAddress = "mqtts://[2001:db8::1]".parse().unwrap();
        assert!(far.is_tls() && !far.is_loopback());
        assert_eq!(far.host(), "2001:db8::1");
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
            "mqtts://",
            "mqtts://a b",
            "mqttss://a",
        ] {
            assert!(matches!(refused(url), AddressError::Form(_)), "{url}");
        }
    }
}
