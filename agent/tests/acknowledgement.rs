//! Which acknowledgements make the device forget a report: those that a Director key of the
//! accepted root has signed for this device, and no other.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use selvedge_agent::report::{AckError, Acknowledged, Reporter};
use selvedge_agent::store::{RealDisk, Store};
use selvedge_package::DeviceId;
use selvedge_package::trust::TrustState;
use selvedge_protocol::envelope::to_cbor;
use selvedge_protocol::message::Ack;
use selvedge_protocol::signed::{PrivateKey, Purpose, sign_with};
use selvedge_signing::Signer;
use selvedge_signing::keyring::{self, OnlineKeys};

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn keys(place: &Path) -> (keyring::RootFiles, OnlineKeys) {
    let roots = keyring::init(place, "2026-11-27T00:00:00Z".parse().unwrap()).unwrap();
    (roots, OnlineKeys::load(&place.join("online")).unwrap())
}

fn ack(keys: &OnlineKeys, purpose: Purpose, signed_for: &DeviceId, named: &DeviceId) -> Vec<u8> {
    let ack = Ack { device: named.clone(), rows: vec![(1, 1)], fleet: 10_000 };
    sign_with(purpose, signed_for, to_cbor(&ack).unwrap(), |bytes| {
        Ok::<_, Failure>(keys.director_targets.sign(bytes)?)
    })
    .unwrap()
}

#[test]
fn only_the_director_of_the_accepted_root_is_believed() {
    let place = tempfile::tempdir().unwrap();
    let (roots, director) = keys(&place.path().join("keys"));
    let (_, stranger) = keys(&place.path().join("stranger"));
    let now = "2026-11-27T00:00:00Z".parse().unwrap();
    let trust = TrustState::enrol(&roots.image, &roots.director, now).unwrap();
    let store = Store::open(Arc::new(RealDisk), &place.path().join("data")).unwrap();
    let device: DeviceId = "edge-1".parse().unwrap();
    let other: DeviceId = "edge-2".parse().unwrap();
    let (key, _) = PrivateKey::generate().unwrap();
    let mut reporter = Reporter::new(store.clone(), device.clone(), Arc::new(key), 1).unwrap();
    reporter.event("committed", None, "first").unwrap();
    reporter.event("committed", None, "second").unwrap();

    for forged in [
        ack(&stranger, Purpose::Ack, &device, &device),
        ack(&director, Purpose::Report, &device, &device),
        ack(&director, Purpose::Ack, &other, &other),
        ack(&director, Purpose::Ack, &device, &other),
        Vec::new(),
        vec![0x5f; 100],
    ] {
        let refused = reporter.acknowledged(&trust, &forged).unwrap_err();
        assert!(matches!(refused, AckError::Signature | AckError::OtherDevice(_)), "{refused}");
        assert_eq!(store.database().rows_waiting().unwrap(), 2);
    }
    let mut changed = ack(&director, Purpose::Ack, &device, &device);
    let middle = changed.len() / 2;
    changed[middle] ^= 1;
    assert!(reporter.acknowledged(&trust, &changed).is_err());

    let good = ack(&director, Purpose::Ack, &device, &device);
    assert_eq!(
        reporter.acknowledged(&trust, &good).unwrap(),
        Acknowledged { gone: 1, of_this_run: true, fleet: 10_000 }
    );
    assert_eq!(store.database().rows_waiting().unwrap(), 1);
    assert_eq!(reporter.acknowledged(&trust, &good).unwrap().gone, 0, "it may come twice");
    let left = reporter.due(Duration::MAX / 2).unwrap().unwrap();
    assert_eq!(left.rows.len(), 1);
}
