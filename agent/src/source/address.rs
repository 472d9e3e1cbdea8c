//! Where to ask: server and path of one blob, from the signed address or from a redirection.

use std::net::IpAddr;

use hyper::Uri;

use super::Trouble;

/// Bytes of an address that a server redirects to.
const LONGEST: usize = 2048;

/// A server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Server {
    pub tls: bool,
    /// A name or an address, an IPv6 one without brackets.
    pub host: String,
    pub port: u16,
}

/// Whether an address is this machine's or its link's own: what listens there is not for others.
pub(super) fn is_near(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => address.is_loopback() || address.is_link_local() || address.is_unspecified(),
        IpAddr::V6(address) => {
            address.is_loopback() || address.is_unicast_link_local() || address.is_unspecified()
        }
    }
}

/// What to ask a server for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub server: Server,
    /// Path and query.
    pub target: String,
    /// Whether the server may be this machine or its link's own: where a package says so, but not where
    /// a server elsewhere redirects there.
    pub near: bool,
}

impl Server {
    /// The header that tells the server under which name it was asked.
    pub fn host_header(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let usual = if self.tls { 443 } else { 80 };
        if self.port == usual { host } else { format!("{host}:{}", self.port) }
    }
}

impl Address {
    /// Reads an absolute address.
    pub fn parse(text: &str) -> Result<Self, Trouble> {
        let wrong = |why: &str| Trouble::Answer(format!("it names an address that {why}"));
        if text.len() > LONGEST {
            return Err(wrong("is too long"));
        }
        let text = text.split('#').next().unwrap_or_default();
        let uri: Uri = text.parse().map_err(|_| wrong("cannot be read"))?;
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong("is neither http nor https")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("names no server"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("has a user in it"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = match authority.as_str().strip_prefix(authority.host()) {
            Some("") | None => None,
            Some(_) => Some(authority.port_u16().ok_or_else(|| wrong("has no usable port"))?),
        };
        if host.is_empty() || port == Some(0) {
            return Err(wrong("names no server"));
        }
        let target = uri.path_and_query().map_or("/", |both| both.as_str());
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        let server = Server { tls, host, port: port.unwrap_or(if tls { 443 } else { 80 }) };
        Ok(Self { server, target, near: true })
    }

    /// Where a server, which is `near` or is not, says that it lies now. Never from https to http.
    pub fn redirected(&self, location: &[u8], near: bool) -> Result<Self, Trouble> {
        let wrong = || Trouble::Answer("it redirects to what is no address".to_owned());
        let location = std::str::from_utf8(location).map_err(|_| wrong())?;
        let lower = location.chars().take(64).collect::<String>().to_ascii_lowercase();
        let scheme = if self.server.tls { "https" } else { "http" };
        let text = if lower.starts_with("http://") || lower.starts_with("https://") {
            location.to_owned()
        } else if location.starts_with("//") {
            format!("{scheme}:{location}")
        } else if lower.split('/').next().is_some_and(|first| first.contains(':')) {
            return Err(wrong());
        } else {
            let folder = match location.starts_with('/') {
                true => "",
                false => self
                    .target
                    .split('?')
                    .next()
                    .and_then(|path| path.rfind('/'))
                    .map_or("/", |end| &self.target[..=end]),
            };
            format!("{scheme}://{}{folder}{location}", self.server.host_header())
        };
        let there = Self::parse(&text)?;
        if self.server.tls && !there.server.tls {
            return Err(Trouble::Answer("it redirects from https to http".to_owned()));
        }
        Ok(Self { near, ..there })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(address: &Address) -> (bool, &str, u16, &str) {
        let Address { server, target, .. } = address;
        (server.tls, &server.host, server.port, target)
    }

    #[test]
    fn addresses_come_apart() {
        for (text, tls, host, port, target, header) in [
            ("https://a.example/b?c=d", true, "a.example", 443, "/b?c=d", "a.example"),
            ("http://192.0.2.1:8080/b", false, "192.0.2.1", 8080, "/b", "192.0.2.1:8080"),
            ("http://[2001:db8::1]:80/b", false, "2001:db8::1", 80, "/b", "[2001:db8::1]"),
            ("https://[::1]:8443/b#x", true, "::1", 8443, "/b", "[::1]:8443"),
            ("https://a?x", true, "a", 443, "/?x", "a"),
        ] {
            let address = Address::parse(text).unwrap();
            assert_eq!(parts(&address), (tls, host, port, target));
            assert_eq!(address.server.host_header(), header);
        }
        for bad in [
            "",
            "/b",
            "ftp://a/b",
            "https://u:p@a/b",
            "https://a:99999/",
            "https://a:x/",
            "https:///b",
            "https://a b/",
        ] {
            assert!(Address::parse(bad).is_err(), "{bad}");
        }
        assert!(Address::parse(&format!("https://a/{}", "x".repeat(3000))).is_err());
    }

    #[test]
    fn redirections_lead_on_but_never_out_of_tls() {
        let from = Address::parse("https://a.example:444/x/y?q=/z").unwrap();
        for (location, host, port, target) in [
            ("https://b.example/c", "b.example", 443, "/c"),
            ("HTTPS://b.example/c", "b.example", 443, "/c"),
            ("//b.example:1/c", "b.example", 1, "/c"),
            ("/c?d", "a.example", 444, "/c?d"),
            ("c", "a.example", 444, "/x/c"),
            ("#top", "a.example", 444, "/x/"),
        ] {
            let there = from.redirected(location.as_bytes(), false).unwrap();
            assert_eq!(parts(&there), (true, host, port, target), "{location}");
        }
        for bad in [
            "http://a.example/x/y",
            "file:///etc/passwd",
            "javascript:1",
            "https://u@b/c",
            "http:b",
            "\u{7f}",
        ] {
            assert!(from.redirected(bad.as_bytes(), false).is_err(), "{bad}");
        }
        assert!(from.redirected(b"/\xff", true).is_err());
        for (near, text) in [
            (true, "127.0.0.1"),
            (true, "::1"),
            (true, "::ffff:127.1.2.3"),
            (true, "169.254.169.254"),
            (true, "fe80::1"),
            (true, "0.0.0.0"),
            (true, "::"),
            (false, "192.0.2.1"),
            (false, "10.0.0.1"),
            (false, "2001:db8::1"),
        ] {
            assert_eq!(is_near(text.parse().unwrap()), near, "{text}");
        }
        let plain = Address::parse("http://a.example/x").unwrap();
        assert!(plain.redirected(b"https://a.example/x", true).unwrap().server.tls);
    }
}
