//! Whom the device believes that a web server is what it says: the system's list of authorities, or a
//! file of the device's owner. Trust in packages never rests on it.

use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use selvedge_mqtt::{TlsTime, anonymous_client};

use crate::bounded;

/// Bytes of a list of authorities.
const LARGEST: u64 = 2 << 20;
/// Certificates in it.
const MOST: usize = 1000;
/// Where systems keep theirs.
const SYSTEMS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
];

/// Where the authorities are, and what time certificates are judged at.
#[derive(Clone)]
pub struct Authorities {
    /// A file with certificates in PEM; none: the system's own.
    pub file: Option<PathBuf>,
    /// What time it is, each time that a certificate is judged.
    pub now: Arc<dyn Fn() -> TlsTime + Send + Sync>,
}

impl fmt::Debug for Authorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authorities").field("file", &self.file).finish_non_exhaustive()
    }
}

/// Which list it is, as far as that can be seen without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stamp {
    path: PathBuf,
    file: (u64, u64),
    size: u64,
    changed: (i64, i64),
}

impl Authorities {
    /// Which list is to be read now.
    pub(super) fn stamp(&self) -> Result<Stamp, String> {
        let systems = SYSTEMS.iter().map(Path::new).find(|path| path.is_file());
        let Some(path) = self.file.as_deref().or(systems) else {
            return Err("this system has no list of authorities: name one with `http-ca`".to_owned());
        };
        let found = std::fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Stamp {
            path: path.to_owned(),
            file: (found.dev(), found.ino()),
            size: found.size(),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }

    /// What TLS needs, from that list. It takes a while: the system's has more than a hundred certificates.
    pub(super) fn config(&self, stamp: &Stamp) -> Result<ClientConfig, String> {
        let path = &stamp.path;
        let roots = read(path).map_err(|why| format!("{}: {why}", path.display()))?;
        let mut config = anonymous_client(roots, Arc::clone(&self.now)).map_err(|error| error.to_string())?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn read(path: &Path) -> Result<RootCertStore, String> {
    let pem = bounded::read(path, LARGEST).map_err(|error| error.to_string())?;
    let mut roots = RootCertStore::empty();
    // Lists have old certificates in them that cannot be used; the others count.
    let found = CertificateDer::pem_slice_iter(&pem).take(MOST).filter_map(Result::ok);
    roots.add_parsable_certificates(found);
    if roots.is_empty() {
        return Err("there is no certificate in PEM in it".to_owned());
    }
    Ok(roots)
}
