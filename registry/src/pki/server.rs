//! The folder from which a broker speaks TLS: `server.pem` and `server.key`, `ca.pem`, `crl.pem`.

use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::authority::{self, Authority};
use super::certificate::SERVER_LIFETIME;
use crate::durable::{self, Access};
use crate::error::Error;

/// What a broker on this machine alone is called.
pub const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// The files of one broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Its certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authority of its clients.
    pub ca: PathBuf,
    /// Which of their certificates are revoked.
    pub crl: PathBuf,
}

impl Server {
    /// The files of a broker in `folder`.
    pub fn of(folder: &Path) -> Self {
        Self {
            certificate: folder.join("server.pem"),
            key: folder.join("server.key"),
            ca: folder.join("ca.pem"),
            crl: folder.join("crl.pem"),
        }
    }

    /// The files of a broker beside the registry: the authority is made when there is none, the
    /// server's certificate when there is none or a third of its life is left. In a folder without
    /// the authority's key, such as `pki server` writes, nothing is made.
    pub fn beside_registry(folder: &Path, names: &[String], now: Timestamp) -> Result<Self, Error> {
        let server = Self::of(folder);
        if server.ca.exists() && server.certificate.exists() && !folder.join("ca.key").exists() {
            return Ok(server);
        }
        let authority = Authority::open_or_create(folder, now)?;
        let left = authority::good_for(&server.certificate, &server.key, authority.ca_pem(), now)?;
        let wanted = folder.join("server.names");
        let listed = names.join("\n");
        let same = durable::read_limited(&wanted, 64 << 10)?.is_some_and(|kept| kept == listed.as_bytes());
        if left < SERVER_LIFETIME / 3 || !same {
            authority.write_pair(&authority.server(names, now)?, &server.certificate, &server.key)?;
            durable::write(&wanted, listed.as_bytes(), Access::All)?;
        }
        Ok(server)
    }

    /// Writes a new certificate with its key, the authority and the present list into `folder`.
    pub fn write(
        authority: &Authority,
        folder: &Path,
        names: &[String],
        now: Timestamp,
    ) -> Result<Self, Error> {
        let server = Self::of(folder);
        let made = authority.server(names, now)?;
        durable::private_directory(folder)?;
        authority.write_pair(&made, &server.certificate, &server.key)?;
        durable::write(&server.ca, authority.ca_pem().as_bytes(), Access::All)?;
        durable::write(&server.crl, authority.written_crl()?.as_bytes(), Access::All)?;
        Ok(server)
    }
}
