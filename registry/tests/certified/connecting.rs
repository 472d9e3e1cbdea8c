//! Who is let in, and who believes whom.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use selvedge_mqtt::{Client, ClientCredential, Reason, Tls, TlsTime};
use selvedge_registry::pki::LOOPBACK;
use std::sync::Arc;

use crate::broker::{Broker, Kind, certified, connected, credential, issued, own, refused, stranger};

async fn the_right_ones_are_let_in(kind: Kind) {
    let broker = Broker::start(kind).await;
    let bootstrap = broker.authority.bootstrap(&"edge-2".parse().unwrap(), Timestamp::now()).unwrap();
    for (id, client) in [
        ("edge-1", certified(&broker.authority, "edge-1")),
        ("edge-2", credential(&bootstrap)),
        ("selvedge-registry-7", own(&broker.authority)),
    ] {
        let (_handle, mut inbox) = Client::start(broker.options(id, broker.tls(Some(client)))).unwrap();
        connected(&mut inbox).await;
    }
}

async fn the_wrong_ones_are_told_that_it_is_their_certificate(kind: Kind) {
    let broker = Broker::start(kind).await;
    let dir = tempfile::tempdir().unwrap();
    let other = stranger(dir.path());
    let ago = Timestamp::now().checked_sub(Duration::from_secs(86_400 * 30)).unwrap();
    let later = Timestamp::now().checked_add(Duration::from_secs(86_400 * 30)).unwrap();
    let day = Duration::from_secs(86_400);
    let server = broker.authority.server(&LOOPBACK.map(str::to_owned), Timestamp::now()).unwrap();
    let cases: [(&str, Option<ClientCredential>); 6] = [
        ("none", None),
        ("of another authority", Some(certified(&other, "edge-1"))),
        ("the other registry", Some(own(&other))),
        ("expired", Some(issued(&broker.authority, "edge-1", ago, day).1)),
        ("not good yet", Some(issued(&broker.authority, "edge-1", later, day).1)),
        ("a server's", Some(credential(&server))),
    ];
    for (what, client) in cases {
        let (_handle, mut inbox) = Client::start(broker.options("edge-1", broker.tls(client))).unwrap();
        let (reason, why) = refused(&mut inbox).await;
        assert_eq!(reason, Reason::Credential, "{what}: {why}");
    }
}

async fn a_client_believes_its_broker_by_name_and_chain_at_its_own_time(kind: Kind) {
    let broker = Broker::start(kind).await;
    let dir = tempfile::tempdir().unwrap();
    let other = stranger(dir.path());
    let at = |years: u64, synchronised| {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(years * 365 * 86_400);
        move || TlsTime { at, synchronised }
    };
    let good = || broker.tls(Some(certified(&broker.authority, "edge-1")));
    let cases: [(&str, Tls, bool); 7] = [
        ("as it should be", good(), true),
        ("the name that it has besides", Tls { name: Some("localhost".into()), ..good() }, true),
        ("another name", Tls { name: Some("broker.example".into()), ..good() }, false),
        ("another authority", Tls { ca: other.ca_pem().as_bytes().to_vec(), ..good() }, false),
        ("a clock that was never set", Tls { now: Arc::new(at(0, false)), ..good() }, true),
        ("a clock that is set to 1970", Tls { now: Arc::new(at(0, true)), ..good() }, false),
        ("in 2069", Tls { now: Arc::new(at(99, false)), ..good() }, false),
    ];
    for (what, tls, believed) in cases {
        eprintln!("{what}");
        let (_handle, mut inbox) = Client::start(broker.options("edge-1", tls)).unwrap();
        if believed {
            connected(&mut inbox).await;
        } else {
            assert_eq!(refused(&mut inbox).await.0, Reason::Broker, "{what}");
        }
    }
}

#[tokio::test]
async fn the_right_ones_are_let_in_by_mosquitto() {
    the_right_ones_are_let_in(Kind::Mosquitto).await;
}

#[tokio::test]
async fn the_right_ones_are_let_in_by_the_embedded_broker() {
    the_right_ones_are_let_in(Kind::Embedded).await;
}

#[tokio::test]
async fn the_wrong_ones_are_kept_out_by_mosquitto() {
    the_wrong_ones_are_told_that_it_is_their_certificate(Kind::Mosquitto).await;
}

#[tokio::test]
async fn the_wrong_ones_are_kept_out_by_the_embedded_broker() {
    the_wrong_ones_are_told_that_it_is_their_certificate(Kind::Embedded).await;
}

#[tokio::test]
async fn a_client_judges_mosquitto() {
    a_client_believes_its_broker_by_name_and_chain_at_its_own_time(Kind::Mosquitto).await;
}

#[tokio::test]
async fn a_client_judges_the_embedded_broker() {
    a_client_believes_its_broker_by_name_and_chain_at_its_own_time(Kind::Embedded).await;
}
