//! The certificate that the device shows to its broker, from the enrolment's to its own and the next ones:
//! the real program over TLS, killed wherever it could lose one, against an authority and a broker that
//! the test plays.
#![allow(clippy::unwrap_used)]

mod played;

use std::sync::Arc;
use std::time::Duration;

use played::*;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm,
};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use selvedge_agent::credential::Origin;
use selvedge_package::{DeviceId, Digest};
use selvedge_protocol::envelope::{Body, Envelope, to_cbor};
use selvedge_protocol::message::{Ack, ByteString, Enrol, Enrolled};
use selvedge_protocol::sealed;
use selvedge_protocol::signed::{self, PublicKey, Purpose, SignedError};
use selvedge_protocol::topic::Kind;
use selvedge_signing::Signer;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// The public point of a request's key.
struct Point(Vec<u8>);

impl PublicKeyData for Point {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl Point {
    fn of(csr: &[u8]) -> Self {
        let head = hex::decode("3059301306072a8648ce3d020106082a8648ce3d030107034200").unwrap();
        let at = csr.windows(head.len()).position(|bytes| bytes == head).unwrap() + head.len();
        Self(csr[at..at + 65].to_vec())
    }
}

struct Authority {
    certificate: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.distinguished_name.push(DnType::CommonName, "registry");
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    /// For `name`, valid from so many days ago for so many days.
    fn issue(&self, name: &str, key: &impl PublicKeyData, ago: i64, days: i64) -> Certificate {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let day = |days: i64| {
            let date = today().saturating_add(jiff::Span::new().days(days));
            rcgen::date_time_ymd(date.year().into(), date.month() as u8, date.day() as u8)
        };
        (params.not_before, params.not_after) = (day(-ago), day(days - ago));
        params.signed_by(key, &self.issuer).unwrap()
    }

    /// What an enrolment file brings.
    fn bootstrap(&self, ago: i64) -> (serde_json::Value, Vec<u8>) {
        let key = KeyPair::generate().unwrap();
        let certificate = self.issue(DEVICE, &key, ago, 30);
        let pem = json!({ "certificate": certificate.pem(), "key": key.serialize_pem() });
        (pem, certificate.der().to_vec())
    }
}

#[allow(clippy::disallowed_methods)]
fn today() -> jiff::civil::Date {
    jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date()
}

struct Broker {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    heard: Heard,
}

impl Broker {
    async fn new(authority: &Authority) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.signed_by(&key, &authority.issuer).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(authority.certificate.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().unwrap();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients)
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self { listener, acceptor: TlsAcceptor::from(Arc::new(config)), heard: Heard::default() }
    }

    fn enrolment(&self, authority: &Authority) -> serde_json::Value {
        let port = self.listener.local_addr().unwrap().port();
        let ca = authority.certificate.pem();
        json!({ "format": 2, "broker": format!("mqtts://127.0.0.1:{port}"), "broker_ca": ca, "broker_name": null })
    }

    /// The next connection that shows a certificate which the authority has issued, and that certificate.
    /// Where `greet` is not, it is ended at once.
    async fn shown(&self, greet: bool) -> (Option<Connection>, Vec<u8>) {
        loop {
            let (stream, _) = within("a connection", self.listener.accept()).await.unwrap();
            let Ok(stream) = self.acceptor.accept(stream).await else { continue };
            let shown = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
            if !greet {
                return (None, shown);
            }
            if let Some(connection) = Connection::greet(stream, &self.heard).await {
                return (Some(connection), shown);
            }
        }
    }

    async fn connected(&self) -> (Connection, Vec<u8>) {
        let (connection, shown) = self.shown(true).await;
        (connection.unwrap(), shown)
    }

    /// The next enrolment that asks for a certificate.
    async fn asked(&self) -> (Enrol, PublicKey) {
        let mut found = None;
        within("a request", async {
            while found.is_none() {
                for (topic, payload) in std::mem::take(&mut *self.heard.lock().unwrap()) {
                    if topic == played::topic(Kind::Enrol) {
                        let body = Envelope::decode(&payload).unwrap().body;
                        found = Some(opened(&body)).filter(|(enrol, _)| !enrol.csr.is_empty());
                    }
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        found.unwrap()
    }
}

fn opened(body: &Body) -> (Enrol, PublicKey) {
    let mut key = None;
    let inner = sealed::open_by_its_own(Purpose::Enrol, &DEVICE.parse().unwrap(), body, |body| match body {
        Body::Enrol(enrol) => {
            key = PublicKey::try_from(enrol.public_key.as_slice()).ok();
            key
        }
        _ => None,
    });
    match inner.unwrap().body {
        Body::Enrol(enrol) => (enrol, key.unwrap()),
        other => panic!("{other:?}"),
    }
}

fn certificate(certificates: &[&Certificate]) -> Vec<u8> {
    let chain = certificates.iter().map(|one| ByteString(one.der().to_vec())).collect();
    envelope(Body::Enrolled(Enrolled::Certificate(chain)))
}

/// An acknowledgement of a row of the agent's run that this epoch names.
fn ack(agent: &Agent, epoch: u64) -> Vec<u8> {
    let device: DeviceId = DEVICE.parse().unwrap();
    let keys = agent.keys();
    let ack = to_cbor(&Ack { device: device.clone(), rows: vec![(epoch, 1)], fleet: 0 }).unwrap();
    let signed = signed::sign_with::<SignedError>(Purpose::Ack, &device, ack, |bytes| {
        keys.director_targets.sign(bytes).map_err(|_| SignedError::Key)
    });
    envelope(Body::Ack(ByteString(signed.unwrap())))
}

/// The epoch of the newest run of the agent that was heard.
fn newest_epoch(heard: &Heard) -> u64 {
    let heard = heard.lock().unwrap();
    heard
        .iter()
        .filter_map(|(_, payload)| Envelope::decode(payload).ok())
        .map(|said| said.epoch)
        .max()
        .unwrap()
}

async fn until_status(
    agent: &mut Agent,
    what: &str,
    enough: impl Fn(&selvedge_agent::status::Status) -> bool,
) {
    within(what, async {
        while !enough(&agent.status().await) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn from_the_enrolments_certificate_to_its_own_and_to_the_next() {
    let authority = Authority::new();
    let broker = Broker::new(&authority).await;
    let (credential, first) = authority.bootstrap(1);
    let mut enrolment = broker.enrolment(&authority);
    enrolment["credential"] = credential;
    let mut agent = Agent::enrolled(enrolment);
    let (connection, shown) = broker.connected().await;
    assert_eq!(shown, first, "the first connection shows what the enrolment brought");
    let (asked, _) = broker.asked().await;
    assert!(asked.proves(&DEVICE.parse().unwrap(), &Digest::of(b"t")));
    let point = Point::of(&asked.csr);

    // Whoever can publish can send certificates: none of these is taken.
    let stranger = Authority::new();
    let other = KeyPair::generate().unwrap();
    for bad in [
        stranger.issue(DEVICE, &point, 1, 365),
        authority.issue("edge-2", &point, 1, 365),
        authority.issue(DEVICE, &other, 1, 365),
        authority.issue(DEVICE, &point, 600, 30),
    ] {
        connection.say(Kind::Enrolled, &certificate(&[&bad])).await;
    }
    connection.say(Kind::Enrolled, &certificate(&[])).await;
    connection
        .say(
            Kind::Enrolled,
            &envelope(Body::Enrolled(Enrolled::Certificate(vec![
                ByteString(vec![0x30; 20_000]),
                ByteString(vec![]),
            ]))),
        )
        .await;
    let status = agent.status().await.certificate.unwrap();
    assert!(status.origin == Some(Origin::Enrolment) && !status.unproven, "{status:?}");

    // A good one. It is shown, and when that does not work the old one is shown again.
    let own = authority.issue(DEVICE, &point, 1, 365);
    connection.say(Kind::Enrolled, &certificate(&[&own])).await;
    for _ in 0..3 {
        assert_eq!(broker.shown(false).await.1, own.der().to_vec());
    }
    drop(connection);
    let (connection, shown) = broker.connected().await;
    assert_eq!(shown, first, "what has worked is gone back to");
    drop(connection);

    // Killed, it begins with the new one; nothing is lost before something signed has come.
    agent.kill_and_start();
    let (connection, shown) = broker.connected().await;
    assert_eq!(shown, own.der().to_vec());
    until("a birth or an enrolment", &broker.heard, |_, _| true).await;
    assert!(agent.status().await.certificate.unwrap().unproven);
    drop(connection);
    let before = newest_epoch(&broker.heard);
    agent.kill_and_start();
    let (connection, shown) = broker.connected().await;
    assert_eq!(shown, own.der().to_vec());
    // One that was recorded in an earlier run says nothing about the key of this one.
    connection.say(Kind::Ack, &ack(&agent, before)).await;
    until("this run to be heard", &broker.heard, |_, payload| {
        Envelope::decode(payload).is_ok_and(|said| said.epoch > before)
    })
    .await;
    assert!(!agent.status().await.enrolled, "by an acknowledgement of another run");
    connection.say(Kind::Ack, &ack(&agent, newest_epoch(&broker.heard))).await;
    until_status(&mut agent, "its own to be proven", |status| {
        let certificate = status.certificate.as_ref().unwrap();
        status.enrolled && certificate.origin == Some(Origin::Issued) && !certificate.unproven
    })
    .await;
    drop(connection);

    // The same enrolment file at the next start changes nothing.
    agent.kill_and_start();
    let (connection, shown) = broker.connected().await;
    assert_eq!(shown, own.der().to_vec());
    broker.heard.lock().unwrap().clear();
    drop(connection);

    // Its registry enrols it again: a new key, a new token, what the new file brings. The certificate
    // that comes then has seen two thirds of its life already: the next start asks for the next one, by name
    // alone. Not this run: where the date is wrong, every one would be due when it comes.
    let (credential, second) = authority.bootstrap(0);
    change_enrolment(agent.place.path(), json!({ "token": "again", "credential": credential }));
    let old_key = agent.status().await.public_key;
    agent.kill_and_start();
    let (connection, shown) = broker.connected().await;
    assert_eq!(shown, second);
    let (asked, key) = broker.asked().await;
    assert!(asked.proves(&DEVICE.parse().unwrap(), &Digest::of(b"again")));
    assert_ne!(hex::encode(key.0), old_key, "the old one may be revoked");
    let aged = authority.issue(DEVICE, &Point::of(&asked.csr), 300, 365);
    connection.say(Kind::Enrolled, &certificate(&[&aged])).await;
    let (connection, shown) = broker.connected().await;
    assert_eq!(shown, aged.der().to_vec());
    until("the new run to be heard", &broker.heard, |_, _| true).await;
    let epoch = newest_epoch(&broker.heard);
    broker.heard.lock().unwrap().clear();
    connection.say(Kind::Ack, &ack(&agent, epoch)).await;
    until_status(&mut agent, "the aged one to be proven", |status| {
        let certificate = status.certificate.as_ref().unwrap();
        certificate.origin == Some(Origin::Issued) && !certificate.unproven && !certificate.asked
    })
    .await;
    drop(connection);
    agent.kill_and_start();
    let (connection, shown) = broker.connected().await;
    assert_eq!(shown, aged.der().to_vec());
    let (asked, _) = broker.asked().await;
    assert!(asked.proof.is_empty(), "it is known already");
    let next = authority.issue(DEVICE, &Point::of(&asked.csr), 1, 365);
    connection.say(Kind::Enrolled, &certificate(&[&next])).await;
    let (connection, shown) = broker.connected().await;
    assert_eq!(shown, next.der().to_vec());
    until("the last run to be heard", &broker.heard, |_, payload| {
        Envelope::decode(payload).is_ok_and(|said| said.epoch > epoch)
    })
    .await;
    connection.say(Kind::Ack, &ack(&agent, newest_epoch(&broker.heard))).await;
    until_status(&mut agent, "the next one", |status| {
        let certificate = status.certificate.as_ref().unwrap();
        !certificate.unproven
            && !certificate.asked
            && status.trouble.iter().all(|t| !t.contains("certificate"))
    })
    .await;
}

#[tokio::test]
async fn a_certificate_that_is_over_ends_nothing_and_a_new_enrolment_brings_the_device_back() {
    let authority = Authority::new();
    let broker = Broker::new(&authority).await;
    let mut enrolment = broker.enrolment(&authority);
    enrolment["credential"] = authority.bootstrap(90).0;
    let mut agent = Agent::enrolled(enrolment);
    until_status(&mut agent, "word of it", |status| {
        let over = status.certificate.as_ref().is_some_and(|certificate| certificate.expired);
        over && status.trouble.iter().any(|text| text.contains("is over") && text.contains("--again"))
    })
    .await;
    let (credential, fresh) = authority.bootstrap(0);
    change_enrolment(agent.place.path(), json!({ "token": "again", "credential": credential }));
    agent.kill_and_start();
    let (_connection, shown) = broker.connected().await;
    assert_eq!(shown, fresh);
    until_status(&mut agent, "an end of the trouble", |status| {
        status.connected && status.trouble.iter().all(|text| !text.contains("is over"))
    })
    .await;
}

#[tokio::test]
async fn a_broker_of_another_authority_is_told_nothing() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let broker = Broker::new(&stranger).await;
    let mut enrolment = broker.enrolment(&authority);
    enrolment["credential"] = authority.bootstrap(1).0;
    let mut agent = Agent::enrolled(enrolment);
    for _ in 0..2 {
        let (stream, _) = within("a connection", broker.listener.accept()).await.unwrap();
        assert!(broker.acceptor.accept(stream).await.is_err(), "the device goes no further");
    }
    let status = agent.status().await;
    assert!(!status.connected && broker.heard.lock().unwrap().is_empty(), "{status:?}");
}
