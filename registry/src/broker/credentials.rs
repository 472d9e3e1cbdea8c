//! The broker's own certificate and what it believes of its clients', read again when the files change.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio::sync::watch;
use x509_parser::prelude::FromDer as _;

use crate::clock;
use crate::durable;
use crate::error::Error;
use crate::pki::{REGISTRY, Server};
use selvedge_package::DeviceId;

/// How often it is looked whether a file has changed: for so long a revoked device is still there.
const LOOK: Duration = Duration::from_secs(1);
/// How often the server's certificate is looked at, whether it must be renewed.
const RENEW: Duration = Duration::from_secs(12 * 3600);
/// Longest file in bytes.
const LONGEST: u64 = 16 << 20;

/// What holds at the moment.
pub(super) struct Current {
    /// For new connections.
    pub config: Arc<ServerConfig>,
    verifier: Arc<dyn ClientCertVerifier>,
}

/// The folder with the files, and the names that a broker's certificate is made for when the authority
/// lies there too.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub folder: std::path::PathBuf,
    pub names: Vec<String>,
}

impl Source {
    /// Reads everything, making what is missing.
    pub fn open(&self) -> Result<(Server, Current), Error> {
        let files = Server::beside_registry(&self.folder, &self.names, clock::now())?;
        let current = load(&files)?;
        Ok((files, current))
    }

    /// Keeps `current` up to date until nobody looks at it any more. A file that cannot be used changes
    /// nothing: a torn list must neither let a revoked device in nor shut the others out.
    pub async fn keep(self, files: Server, current: watch::Sender<Arc<Current>>) {
        let mut seen = stamps(&files);
        let mut since_renewal = Duration::ZERO;
        while !current.is_closed() {
            tokio::time::sleep(LOOK).await;
            since_renewal += LOOK;
            if since_renewal >= RENEW {
                since_renewal = Duration::ZERO;
                if let Err(error) = Server::beside_registry(&self.folder, &self.names, clock::now()) {
                    tracing::error!("the broker's certificate could not be renewed: {}", error.chain());
                }
            }
            let now = stamps(&files);
            if now == seen {
                continue;
            }
            match load(&files) {
                Ok(fresh) => {
                    tracing::info!("certificates and the list of revoked ones were read again");
                    current.send_replace(Arc::new(fresh));
                }
                Err(error) => tracing::error!("still with the old certificates: {}", error.chain()),
            }
            seen = now;
        }
    }
}

impl Current {
    /// Whether a client that came in earlier may stay no longer: its certificate is revoked, or over.
    pub fn revokes(&self, chain: &[CertificateDer<'_>]) -> bool {
        let Some((leaf, others)) = chain.split_first() else { return true };
        let judged = self.verifier.verify_client_cert(leaf, others, UnixTime::now());
        // One that is over is told as that even where it is revoked, and is no reason to stay either.
        judged.is_err()
    }
}

/// The name in a verified certificate; `None` if no broker rule could hold for it.
pub(super) fn name(certificate: &CertificateDer<'_>) -> Option<Arc<str>> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let mut names = certificate.subject().iter_common_name();
    let name = names.next()?.as_str().ok()?;
    let known = name == REGISTRY || name.parse::<DeviceId>().is_ok();
    (names.next().is_none() && known).then(|| name.into())
}

fn load(files: &Server) -> Result<Current, Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let ca_pem = read(&files.ca)?;
    let ca = CertificateDer::from_pem_slice(&ca_pem).map_err(unusable(&files.ca))?;
    let crl_pem = read(&files.crl)?;
    let crl = CertificateRevocationListDer::from_pem_slice(&crl_pem).map_err(unusable(&files.crl))?;
    check_list(&ca, &crl).map_err(|why| unusable::<&str>(&files.crl)(why))?;
    let mut authorities = RootCertStore::empty();
    authorities.add(ca).map_err(unusable(&files.ca))?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), Arc::clone(&provider))
        .with_crls([crl])
        .build()
        .map_err(unusable(&files.crl))?;
    let certificate = read(&files.certificate)?;
    let chain = CertificateDer::pem_slice_iter(&certificate)
        .collect::<Result<Vec<_>, _>>()
        .map_err(unusable(&files.certificate))?;
    let key = PrivateKeyDer::from_pem_slice(&read(&files.key)?)
        .map_err(|_| unusable::<&str>(&files.key)("it is no key in PEM"))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(unusable(&files.certificate))?
        .with_client_cert_verifier(Arc::clone(&verifier))
        .with_single_cert(chain, key)
        .map_err(unusable(&files.certificate))?;
    // Whoever takes up an old session is not asked for a certificate again, revoked or not.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Current { config: Arc::new(config), verifier })
}

/// A list that the authority did not sign would shut everybody out: better to keep the old one.
fn check_list(ca: &CertificateDer<'_>, crl: &CertificateRevocationListDer<'_>) -> Result<(), &'static str> {
    let (_, ca) = x509_parser::parse_x509_certificate(ca).map_err(|_| "the authority is no certificate")?;
    let (_, list) = x509_parser::revocation_list::CertificateRevocationList::from_der(crl)
        .map_err(|_| "it is no list")?;
    list.verify_signature(ca.public_key()).map_err(|_| "it is not signed by the authority")
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let missing = || Error::file("open", path)(std::io::ErrorKind::NotFound.into());
    durable::read_limited(path, LONGEST)?.ok_or_else(missing)
}

fn unusable<E: std::fmt::Display>(path: &Path) -> impl FnOnce(E) -> Error {
    let what = path.display().to_string();
    move |error| Error::Keys { what, why: error.to_string() }
}

type Stamp = Option<(SystemTime, u64, u64)>;

fn stamps(files: &Server) -> [Stamp; 4] {
    use std::os::unix::fs::MetadataExt as _;
    [&files.certificate, &files.key, &files.ca, &files.crl].map(|path| {
        let metadata = std::fs::metadata(path).ok()?;
        Some((metadata.modified().ok()?, metadata.len(), metadata.ino()))
    })
}
