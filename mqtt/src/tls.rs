//! TLS to the broker, and to any other server: whom the client believes, at what time, and who it says it is.
//!
//! Name and chain are checked always. Time is what the owner says it is (`now` of the trust design), not
//! what the system's clock shows: a device that starts in 1970 must reach its broker.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WantsClientCert, WebPkiServerVerifier};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, ConfigBuilder, DigitallySignedStruct, Error, RootCertStore,
    SignatureScheme,
};

/// Most bytes of PEM that are read: stops a file that is none from filling memory.
const LONGEST: usize = 256 * 1024;
/// Most certificates in one chain or store of authorities.
const MOST: usize = 32;

/// How a client speaks TLS.
#[derive(Clone)]
pub struct Tls {
    /// The authorities that may have signed the broker's certificate, as PEM. No others are believed.
    pub ca: Vec<u8>,
    /// The name in the broker's certificate, where it is not the one in its address.
    pub name: Option<String>,
    /// Who the client is; none where the broker asks for none.
    pub client: Option<ClientCredential>,
    /// What time it is, each time that a certificate is judged.
    pub now: Arc<dyn Fn() -> TlsTime + Send + Sync>,
}

/// A client's certificate and key.
#[derive(Clone)]
pub struct ClientCredential {
    /// The chain as PEM, the client's own certificate first.
    pub chain: Vec<u8>,
    /// The key as PEM.
    pub key: Vec<u8>,
}

/// What time it is, and how far that can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TlsTime {
    /// Certificates are judged at this time.
    pub at: SystemTime,
    /// Whether the clock is synchronised. While it is not, a certificate may begin in the future: the
    /// clock is more likely to be wrong than the certificate.
    pub synchronised: bool,
}

/// TLS that cannot be spoken as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// A file is not PEM of the kind that it should be.
    #[error("the {what} cannot be read: {why}")]
    Unreadable {
        /// Which.
        what: &'static str,
        /// Why not.
        why: String,
    },
    /// The broker's name cannot be one.
    #[error("`{0}` cannot be the name in a broker's certificate")]
    Name(String),
    /// The certificate and the key are not one pair, or of a kind that is not spoken.
    #[error("the client's certificate and key cannot be used: {0}")]
    Credential(String),
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("ca", &format_args!("{} bytes", self.ca.len()))
            .field("name", &self.name)
            .field("client", &self.client)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ClientCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCredential")
            .field("chain", &format_args!("{} bytes", self.chain.len()))
            .finish_non_exhaustive()
    }
}

impl Tls {
    /// What rustls needs, checked as far as it can be without a broker.
    pub(crate) fn spoken(&self) -> Result<Spoken, TlsError> {
        let mut authorities = RootCertStore::empty();
        for certificate in certificates("certificate of the broker's authority", &self.ca)? {
            authorities.add(certificate).map_err(|error| TlsError::Unreadable {
                what: "certificate of the broker's authority",
                why: error.to_string(),
            })?;
        }
        let name = self.name.as_ref().map(|name| {
            ServerName::try_from(name.clone()).map_err(|_| TlsError::Name(name.chars().take(120).collect()))
        });
        let (config, verifier) = judging(authorities, name.transpose()?, self.now.clone())?;
        let mut config = match &self.client {
            None => config.with_no_client_auth(),
            Some(credential) => {
                let chain = certificates("client's certificate", &credential.chain)?;
                let key = PrivateKeyDer::from_pem_slice(bounded("client's key", &credential.key)?)
                    // What could not be read of a key is not shown.
                    .map_err(|_| TlsError::Unreadable {
                        what: "client's key",
                        why: "it is no key in PEM".into(),
                    })?;
                config
                    .with_client_auth_cert(chain, key)
                    .map_err(|error| TlsError::Credential(error.to_string()))?
            }
        };
        // A session that is taken up again is not judged again, and costs memory.
        config.resumption = Resumption::disabled();
        Ok(Spoken { config: Arc::new(config), verifier })
    }
}

/// TLS as one client speaks it.
#[derive(Debug)]
pub(crate) struct Spoken {
    pub config: Arc<ClientConfig>,
    verifier: AtGivenTime,
}

impl Spoken {
    /// The same for one connection that says when the server has shown a certificate that is believed.
    pub fn reporting(&self, believed: Arc<AtomicBool>) -> Arc<ClientConfig> {
        let mut config = (*self.config).clone();
        let verifier = AtGivenTime { believed: Some(believed), ..self.verifier.clone() };
        config.dangerous().set_certificate_verifier(Arc::new(verifier));
        Arc::new(config)
    }
}

/// What rustls needs for any other server: it is believed where one of these authorities vouches for
/// the name that was asked for, at the owner's time. The client says of itself nothing.
pub fn anonymous_client(
    authorities: RootCertStore,
    now: Arc<dyn Fn() -> TlsTime + Send + Sync>,
) -> Result<ClientConfig, TlsError> {
    let mut config = judging(authorities, None, now)?.0.with_no_client_auth();
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// A configuration that lacks only who the client is.
fn judging(
    authorities: RootCertStore,
    name: Option<ServerName<'static>>,
    now: Arc<dyn Fn() -> TlsTime + Send + Sync>,
) -> Result<(ConfigBuilder<ClientConfig, WantsClientCert>, AtGivenTime), TlsError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(authorities), provider.clone())
        .build()
        .map_err(|error| TlsError::Unreadable { what: "list of authorities", why: error.to_string() })?;
    let verifier = AtGivenTime { inner, name, now: Now(now), believed: None };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::Credential(error.to_string()))?;
    Ok((builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier.clone())), verifier))
}

fn bounded<'a>(what: &'static str, pem: &'a [u8]) -> Result<&'a [u8], TlsError> {
    match pem.len() {
        0..=LONGEST => Ok(pem),
        length => Err(TlsError::Unreadable { what, why: format!("it has {length} bytes") }),
    }
}

fn certificates(what: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unreadable = |why: String| TlsError::Unreadable { what, why };
    let found = CertificateDer::pem_slice_iter(bounded(what, pem)?)
        .take(MOST + 1)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| unreadable(error.to_string()))?;
    match found.len() {
        1..=MOST => Ok(found),
        0 => Err(unreadable("there is no certificate in PEM in it".to_owned())),
        _ => Err(unreadable(format!("there are more than {MOST} certificates in it"))),
    }
}

#[derive(Clone)]
struct Now(Arc<dyn Fn() -> TlsTime + Send + Sync>);

impl fmt::Debug for Now {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Now")
    }
}

/// The usual judgement of a server's certificate, at the owner's time and for the owner's name.
#[derive(Debug, Clone)]
struct AtGivenTime {
    inner: Arc<WebPkiServerVerifier>,
    name: Option<ServerName<'static>>,
    now: Now,
    /// Set when a certificate was believed.
    believed: Option<Arc<AtomicBool>>,
}

impl ServerCertVerifier for AtGivenTime {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        _system: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let name = self.name.as_ref().unwrap_or(name);
        let now = (self.now.0)();
        let since = now.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let mut at = UnixTime::since_unix_epoch(since);
        // Each certificate of the chain may begin later than the one before.
        for _ in 0..=MOST {
            let judged = self.inner.verify_server_cert(certificate, intermediates, name, ocsp, at);
            match judged {
                Err(Error::InvalidCertificate(CertificateError::NotValidYetContext {
                    not_before, ..
                })) if !now.synchronised && not_before.as_secs() > at.as_secs() => at = not_before,
                judged => {
                    if let (Ok(_), Some(believed)) = (&judged, &self.believed) {
                        believed.store(true, Ordering::Relaxed);
                    }
                    return judged;
                }
            }
        }
        Err(Error::InvalidCertificate(CertificateError::NotValidYet))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{
        BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, date_time_ymd,
    };

    struct Pki {
        ca: String,
        issuer: Issuer<'static, KeyPair>,
    }

    fn pki() -> Pki {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = params.self_signed(&key).unwrap().pem();
        Pki { ca, issuer: Issuer::new(params, key) }
    }

    impl Pki {
        /// Good from 2026 to the end of 2027.
        fn certificate(&self, name: &str, usage: ExtendedKeyUsagePurpose) -> (Vec<u8>, String, String) {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            params.not_before = date_time_ymd(2026, 1, 1);
            params.not_after = date_time_ymd(2028, 1, 1);
            params.extended_key_usages = vec![usage];
            let signed = params.signed_by(&key, &self.issuer).unwrap();
            (signed.der().to_vec(), signed.pem(), key.serialize_pem())
        }
    }

    /// Seconds since 1970 of the first of January.
    fn year(year: u64) -> u64 {
        let days: u64 = (1970..year).map(|y| if y % 4 == 0 && y % 100 != 0 { 366 } else { 365 }).sum();
        days * 86_400
    }

    fn judge(ca: &str, at: u64, synchronised: bool, name: Option<&str>, der: &[u8]) -> Result<(), Error> {
        let now = TlsTime { at: SystemTime::UNIX_EPOCH + Duration::from_secs(at), synchronised };
        let tls = Tls {
            ca: ca.as_bytes().to_vec(),
            name: name.map(str::to_owned),
            client: None,
            now: Arc::new(move || now),
        };
        tls.spoken().unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap()).unwrap();
        let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        let name = name.map(|name| ServerName::try_from(name.to_owned()).unwrap());
        let verifier = AtGivenTime { inner, name, now: Now(tls.now), believed: None };
        let addressed = ServerName::try_from("192.0.2.1").unwrap();
        // The system's clock, which is not asked.
        let system = UnixTime::since_unix_epoch(Duration::from_secs(year(2099)));
        verifier.verify_server_cert(&der.to_vec().into(), &[], &addressed, &[], system).map(drop)
    }

    #[test]
    fn time_is_the_owners_and_a_clock_that_is_not_set_does_not_shut_out() {
        let pki = pki();
        let (server, ..) = pki.certificate("broker.example", ExtendedKeyUsagePurpose::ServerAuth);
        let name = Some("broker.example");
        for (at, synchronised, good) in [
            (year(2027), true, true),
            (year(2027), false, true),
            (0, false, true),
            (0, true, false),
            (year(2025), false, true),
            (year(2025), true, false),
            (year(2029), true, false),
            // Too late is too late: the floor never runs ahead of the truth.
            (year(2029), false, false),
        ] {
            let judged = judge(&pki.ca, at, synchronised, name, &server);
            assert_eq!(judged.is_ok(), good, "{at} {synchronised}: {judged:?}");
        }
    }

    #[test]
    fn name_chain_and_purpose_count_with_any_clock() {
        let (ours, other) = (pki(), pki());
        let (server, ..) = ours.certificate("broker.example", ExtendedKeyUsagePurpose::ServerAuth);
        let (device, ..) = ours.certificate("broker.example", ExtendedKeyUsagePurpose::ClientAuth);
        for (at, synchronised) in [(0, false), (year(2027), false), (year(2027), true)] {
            let judge = |ca: &Pki, name, der: &[u8]| judge(&ca.ca, at, synchronised, name, der);
            assert!(judge(&ours, Some("broker.example"), &server).is_ok());
            assert!(judge(&ours, Some("another.example"), &server).is_err());
            assert!(judge(&ours, None, &server).is_err(), "the name in the address is another");
            assert!(judge(&other, Some("broker.example"), &server).is_err());
            assert!(judge(&ours, Some("broker.example"), &device).is_err(), "a device is no broker");
        }
    }

    #[test]
    fn what_cannot_be_used_is_refused_before_anything_is_sent_and_keys_are_never_shown() {
        let pki = pki();
        let (_, chain, key) = pki.certificate("edge-1", ExtendedKeyUsagePurpose::ClientAuth);
        let (_, _, other) = pki.certificate("edge-2", ExtendedKeyUsagePurpose::ClientAuth);
        let tls = |ca: &str, name: &str, chain: &str, key: &str| Tls {
            ca: ca.as_bytes().to_vec(),
            name: Some(name.to_owned()),
            client: Some(ClientCredential { chain: chain.as_bytes().to_vec(), key: key.as_bytes().to_vec() }),
            now: Arc::new(|| TlsTime { at: SystemTime::UNIX_EPOCH, synchronised: false }),
        };
        let good = tls(&pki.ca, "b", &chain, &key);
        good.spoken().unwrap();
        for wrong in [
            tls("", "b", &chain, &key),
            tls(&key, "b", &chain, &key),
            tls(&pki.ca, "a b", &chain, &key),
            tls(&pki.ca, "b", "", &key),
            tls(&pki.ca, "b", &chain, ""),
            tls(&pki.ca, "b", &chain, &other),
            tls(&pki.ca.repeat(40), "b", &chain, &key),
            tls(&"x".repeat(300_000), "b", &chain, &key),
        ] {
            assert!(wrong.spoken().is_err(), "{wrong:?}");
        }
        let secret = key.lines().nth(1).unwrap();
        assert!(!format!("{good:?} {:?}", good.spoken().unwrap()).contains(secret));
    }
}
