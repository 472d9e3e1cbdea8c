//! Web servers with certificates: whom a device believes, at what time, and that it stays with TLS.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::{PrivateKeyDer, pem::PemObject as _};
use rustls::{ServerConfig, crypto};
use selvedge_mqtt::TlsTime;
use selvedge_package::Digest;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::connect::Shared;
use super::tests::{Bench, CALM, bytes};
use super::trouble::Rests;
use super::web::Manner;
use super::*;

/// Days since 1970, in seconds.
const fn days(days: u64) -> u64 {
    days * 86_400
}
const IN_2026: u64 = days(20_500);
const IN_2029: u64 = days(21_600);

/// TLS in front of a plain server, with a certificate for this name, good in 2026 and 2027; the
/// authority's certificate as PEM.
async fn front(web: &str, name: &str) -> (SocketAddr, String) {
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::default();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pem = ca.self_signed(&ca_key).unwrap().pem();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    (params.not_before, params.not_after) = (date_time_ymd(2026, 1, 1), date_time_ymd(2028, 1, 1));
    let signed = params.signed_by(&key, &Issuer::new(ca, ca_key)).unwrap();
    let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
    let provider = Arc::new(crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![signed.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, web) = (listener.local_addr().unwrap(), web.to_owned());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, web) = (acceptor.clone(), web.clone());
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut plain = TcpStream::connect(web).await.unwrap();
                let _ = copy_bidirectional(&mut stream, &mut plain).await;
            });
        }
    });
    (address, pem)
}

/// A bench whose only source is behind TLS, and that believes this authority at this time.
async fn bench(name: &str, at: u64, synchronised: bool, believed: bool) -> (Bench, super::web::Web, Vec<u8>) {
    let mut bench = Bench::new(&[]);
    let web = bench.web();
    let (address, pem) = front(&web.address, name).await;
    let (_, other) = front(&web.address, name).await;
    let file = bench.place.path().join("ca.pem");
    std::fs::write(&file, if believed { pem } else { other }).unwrap();
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(at);
    let now = Arc::new(move || TlsTime { at, synchronised });
    bench.sources.allow(Authorities { file: Some(file), now }, CALM);
    bench.origins = vec![format!("https://{address}/blobs/sha256/{{digest}}").parse().unwrap()];
    let blob = bytes(300_000);
    bench.publish(&blob);
    bench.start(bench.partial(&blob));
    (bench, web, blob)
}

#[tokio::test]
async fn a_server_is_believed_for_its_name_its_authority_and_at_the_devices_time() {
    for (at, synchronised) in [(IN_2026, true), (IN_2026, false), (0, false)] {
        let (mut bench, web, blob) = bench("127.0.0.1", at, synchronised, true).await;
        bench.comes(&blob).await;
        assert_eq!((web.given(), web.connections().0), (300_000, 1));
        let received = bench.sources.take_received();
        assert!((300_500..320_000).contains(&received), "{received} bytes with TLS");
    }
    for (name, at, synchronised, believed, why) in [
        ("127.0.0.1", IN_2026, true, false, "invalid peer certificate"),
        ("127.0.0.1", 0, false, false, "invalid peer certificate"),
        ("192.0.2.1", IN_2026, true, true, "not valid for"),
        ("files.example", 0, false, true, "not valid for"),
        ("127.0.0.1", 0, true, true, "not valid yet"),
        ("127.0.0.1", IN_2029, true, true, "expired"),
        ("127.0.0.1", IN_2029, false, true, "expired"),
    ] {
        let (mut bench, web, _) = bench(name, at, synchronised, believed).await;
        bench.falls(why).await;
        assert!(web.heads().is_empty(), "{name} was asked");
    }
}

#[tokio::test]
async fn nobody_is_believed_without_authorities_and_nobody_leads_out_of_tls() {
    let (mut bench, web, blob) = bench("127.0.0.1", 0, false, true).await;
    web.set(Manner::Elsewhere(format!("http://{}", web.address)));
    bench.falls("from https to http").await;
    for (content, why) in [("", "no certificate in PEM"), ("nonsense", "no certificate in PEM")] {
        std::fs::write(bench.place.path().join("ca.pem"), content).unwrap();
        bench.sources.rests = Rests::default();
        bench.told.clear();
        bench.start(bench.partial(&blob));
        bench.falls(why).await;
    }
    std::fs::remove_file(bench.place.path().join("ca.pem")).unwrap();
    bench.sources.rests = Rests::default();
    bench.start(bench.partial(&blob));
    bench.falls("ca.pem").await;
    assert!(!bench.store.has(&Digest::of(&blob)).unwrap());
}

#[tokio::test]
async fn a_list_that_is_no_list_is_not_read_into_memory() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("large");
    std::fs::File::create(&file).unwrap().set_len(1 << 40).unwrap();
    let now = Arc::new(|| TlsTime { at: SystemTime::UNIX_EPOCH, synchronised: false });
    let refused = Authorities { file: Some(file), now };
    let refused = refused.config(&refused.stamp().unwrap()).unwrap_err();
    assert!(refused.contains("more than"), "{refused}");
}

#[tokio::test]
async fn the_list_is_read_once_and_again_when_it_has_changed() {
    let place = tempfile::tempdir().unwrap();
    let (_, pem) = front("127.0.0.1:1", "127.0.0.1").await;
    let file = place.path().join("ca.pem");
    std::fs::write(&file, pem).unwrap();
    let now = Arc::new(|| TlsTime { at: SystemTime::UNIX_EPOCH, synchronised: false });
    let shared = Shared::new(Authorities { file: Some(file.clone()), now }, CALM);
    let read = async || Arc::downgrade(&shared.tls().await.unwrap());
    let first = read().await;
    assert!(first.upgrade().is_some(), "no connection uses it, and something is fetched");
    assert!(first.ptr_eq(&read().await));
    // It is replaced, as updates do it.
    let new = place.path().join("new.pem");
    std::fs::copy(&file, &new).unwrap();
    std::fs::rename(&new, &file).unwrap();
    let second = read().await;
    assert!(first.upgrade().is_none() && second.upgrade().is_some());
    shared.let_go();
    assert!(second.upgrade().is_none(), "it is large: nobody needs it now");
}
