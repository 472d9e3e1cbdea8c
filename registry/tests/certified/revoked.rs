//! Revocation at a running broker.

use std::time::Duration;

use jiff::Timestamp;
use selvedge_mqtt::{Client, Incoming, Qos, Reason};

use crate::broker::{Broker, Kind, connected, issued, judged, message, next, refused};

async fn a_revoked_certificate_is_refused_and_others_are_not(kind: Kind) {
    let broker = Broker::start(kind).await;
    let day = Duration::from_secs(86_400);
    let (serial, stolen) = issued(&broker.authority, "edge-1", Timestamp::now(), day);
    let start = || Client::start(broker.options("edge-1", broker.tls(Some(stolen.clone())))).unwrap();
    let (first, mut inbox) = start();
    connected(&mut inbox).await;
    let (registry, _heard) = broker.registry().await;
    let (_other, mut other) = broker.device("edge-2").await;

    broker.revoke(&[&serial]);
    if kind == Kind::Embedded {
        // The live session is cut; Mosquitto's goes on until it ends (docs/brokers.md).
        let (reason, why) = loop {
            match next(&mut inbox).await {
                Incoming::Disconnected { reason: Reason::Link, .. } => {}
                Incoming::Disconnected { reason, why, .. } => break (reason, why),
                _ => {}
            }
        };
        assert_eq!(reason, Reason::Credential, "{why}");
        assert!(why.contains("revoked"), "{why}");
    }
    first.close();
    // Mosquitto reads the list when it gets to its signal: one that asks before that is still let in.
    let (_again, reason, why) = loop {
        let (again, mut inbox) = start();
        match judged(&mut inbox).await {
            Some((reason, why)) => break (again, reason, why),
            None => again.close(),
        }
    };
    assert_eq!(reason, Reason::Credential);
    assert!(why.contains("revoked"), "{why}");
    registry.publish("sv/v1/d/edge-2/dn/want", Qos::AtLeastOnce, "still there").unwrap();
    assert_eq!(message(&mut other).await.1, "still there");
    // The same device with another certificate.
    broker.device("edge-1").await;
}

#[tokio::test]
async fn a_revoked_certificate_is_refused_by_mosquitto() {
    a_revoked_certificate_is_refused_and_others_are_not(Kind::Mosquitto).await;
}

#[tokio::test]
async fn a_revoked_certificate_is_cut_off_by_the_embedded_broker() {
    a_revoked_certificate_is_refused_and_others_are_not(Kind::Embedded).await;
}

#[tokio::test]
async fn a_torn_or_foreign_list_lets_nobody_back_in_and_shuts_nobody_out() {
    let broker = Broker::start(Kind::Embedded).await;
    let (serial, stolen) = issued(&broker.authority, "edge-1", Timestamp::now(), Duration::from_secs(86_400));
    broker.revoke(&[&serial]);
    let tls = || broker.tls(Some(stolen.clone()));
    let path = broker.authority.folder().join("crl.pem");
    let whole = std::fs::read(&path).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let foreign = crate::broker::stranger(dir.path()).written_crl().unwrap();
    let (_handle, mut inbox) = Client::start(broker.options("edge-1", tls())).unwrap();
    while !matches!(next(&mut inbox).await, Incoming::Disconnected { reason: Reason::Credential, .. }) {}
    for bad in [&whole[..whole.len() / 2], b"", b"nonsense", foreign.as_bytes()] {
        std::fs::write(&path, bad).unwrap();
        // It is looked at once a second.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let (_handle, mut inbox) = Client::start(broker.options("edge-1", tls())).unwrap();
        assert_eq!(refused(&mut inbox).await.0, Reason::Credential);
        broker.device("edge-2").await;
    }
    std::fs::remove_file(&path).unwrap();
    broker.revoke(&[]);
    let (_handle, mut inbox) = Client::start(broker.options("edge-1", tls())).unwrap();
    while !matches!(next(&mut inbox).await, Incoming::Connected { .. }) {}
}
