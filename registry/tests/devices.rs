//! Devices over MQTT: enrolment, desired state, blocks and reports, and those who cheat.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod support;

use std::collections::BTreeMap;

use reqwest::Method;
use selvedge_package::Digest;
use selvedge_protocol::block::Frame;
use selvedge_protocol::envelope::{Body, Envelope, to_cbor};
use selvedge_protocol::message::{
    DeviceEvent, DeviceState, Enrolled, Heartbeat, PackageReport, Refusal, ReleaseRef, ReportBody, Want, Will,
};
use selvedge_protocol::signed::{PrivateKey, PublicKey};
use selvedge_protocol::topic::{Direction, Kind};
use selvedge_signing::OnlineKeys;
use serde_json::{Value, json};
use support::device::Device;
use support::packages::package;
use support::{Registry, wait_for};

const BLOCK: u32 = 65_536;

async fn device(registry: &Registry, name: &str) -> Device {
    Device::connect(&registry.add_target(name).await).await
}

async fn enrolled(registry: &Registry, name: &str) -> Device {
    let mut device = device(registry, name).await;
    assert_eq!(device.enrol().await, Enrolled::Accepted);
    device
}

async fn online(registry: &Registry, wanted: bool) {
    wait_for("its presence", async || (registry.target("edge-1").await["online"] == wanted).then_some(()))
        .await;
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn ack_key(registry: &Registry) -> PublicKey {
    let online = OnlineKeys::load(&registry.path("keys/online")).unwrap();
    PublicKey(*online.director_targets.public_key().as_bytes())
}

#[tokio::test]
async fn a_device_enrols_once_with_its_token() {
    let mut registry = Registry::start().await;
    let mut edge = device(&registry, "edge-1").await;
    let token = std::mem::replace(&mut edge.token, "0".repeat(64));
    assert!(matches!(edge.enrol().await, Enrolled::Refused(_)));
    assert_eq!(registry.target("edge-1").await["enrolled"], false);
    edge.token = token;
    assert_eq!(edge.enrol().await, Enrolled::Accepted);
    let target = registry.target("edge-1").await;
    assert_eq!(
        (&target["enrolled"], &target["public_key"]),
        (&json!(true), &json!(hex(&edge.key.public().0)))
    );
    registry.stop();
    registry.run().await;
    assert_eq!(edge.enrol().await, Enrolled::Accepted);
    // The token does not open the door to another key.
    let own = std::mem::replace(&mut edge.key, PrivateKey::generate().unwrap().0);
    assert!(matches!(edge.enrol().await, Enrolled::Refused(_)));
    edge.key = own;
    assert_eq!(edge.enrol().await, Enrolled::Accepted);
}

#[tokio::test]
async fn a_device_is_told_what_to_run_and_pulls_it() {
    let mut registry = Registry::start().await;
    let mut edge = enrolled(&registry, "edge-1").await;
    // Nothing was released: there is nothing that could be signed.
    edge.birth(b"n0", BLOCK);
    assert!(edge.nothing_on(Kind::Want).await);

    let package = package("file-type", "1.0.0", 1, 300_000);
    registry.release(&package).await;
    edge.birth(b"nonce-1", BLOCK);
    let accepted = edge.accepts().await;
    assert_eq!(accepted.desired.assignments, []);
    assert_eq!((accepted.desired.sequence, &accepted.desired.nonce[..]), (1, &b"nonce-1"[..]));

    // Not assigned yet: it does not get a byte.
    let (model, bytes) = package.model();
    assert_eq!(edge.pull(model, bytes.len() as u64, BLOCK).await, Err(Refusal::Unknown));
    registry.deploy("file-type", "edge-1").await;
    let accepted = edge.accepts().await;
    assert_eq!((accepted.desired.sequence, &accepted.desired.nonce[..]), (2, &b"nonce-1"[..]));
    let assignment = &accepted.desired.assignments[0];
    assert_eq!((assignment.digest, assignment.release), (package.digest(), 1));
    for block in [4096, 16_384, 65_536] {
        assert_eq!(edge.pull(model, bytes.len() as u64, block).await.unwrap(), bytes);
    }
    let manifest = edge.pull(assignment.digest, assignment.length, BLOCK).await.unwrap();
    assert_eq!(manifest, package.built.manifest);
    for blob in package.built.bundle.blobs() {
        assert_eq!(Digest::of(&edge.pull(blob.digest, blob.size, BLOCK).await.unwrap()), blob.digest);
    }

    // What was read a moment ago is answered in the order in which it is asked for: but where, once in a while, the
    // registry has to look it up anew.
    let mut rounds = Vec::new();
    for round in 9..12 {
        (0..60).for_each(|number| edge.ask(model, 4096, round, number, 1));
        let mut numbers = Vec::new();
        while numbers.len() < 60 {
            match Frame::decode(&edge.receive(Kind::Block).await).unwrap() {
                Frame::Block { transfer, number, .. } if transfer == round => numbers.push(number),
                Frame::Refusal { transfer, refusal } if transfer == round => panic!("{refusal:?}"),
                _ => {}
            }
        }
        rounds.push(numbers);
    }
    assert!(rounds.iter().any(|numbers| numbers.is_sorted()), "{rounds:?}");

    // Another device does not get it, enrolled or not.
    let mut other = enrolled(&registry, "edge-2").await;
    assert_eq!(other.pull(model, bytes.len() as u64, BLOCK).await, Err(Refusal::Unknown));
    let mut stranger = device(&registry, "edge-3").await;
    registry.deploy("file-type", "edge-3").await;
    assert_eq!(stranger.pull(model, bytes.len() as u64, BLOCK).await, Err(Refusal::Unknown));

    // After a restart the same comes, with the new nonce and no new sequence.
    registry.stop();
    registry.run().await;
    edge.birth(b"nonce-2", BLOCK);
    wait_for("the new nonce", async || {
        // It may be told once more what it was told before: it did not say that it has accepted.
        let again = edge.accepts().await.desired;
        assert_eq!(again.sequence, 2);
        (again.nonce == b"nonce-2").then_some(())
    })
    .await;

    // Removing the deployment uninstalls, and closes the blobs.
    let list = registry.get("/v1/workspaces/default/deployments").await.1;
    let ids = list["items"].as_array().unwrap();
    let id = ids.iter().find(|row| row["target"] == "edge-1").unwrap()["id"].as_str().unwrap();
    let path = format!("/v1/workspaces/default/deployments/{id}");
    assert_eq!(registry.send(registry.request(Method::DELETE, &path)).await.0, 204);
    let accepted = edge.accepts().await;
    assert_eq!((accepted.desired.sequence, accepted.desired.assignments.len()), (3, 0));
    assert_eq!(edge.pull(model, bytes.len() as u64, BLOCK).await, Err(Refusal::Unknown));
    let file = registry.path("registry/tuf/director/edge-1/edge-1.json");
    let signed: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(signed["sequence"], 3);
}

#[tokio::test]
async fn a_desired_state_that_is_too_large_is_pulled() {
    let mut registry = Registry::start().await;
    let mut edge = enrolled(&registry, "edge-1").await;
    let mut other = enrolled(&registry, "edge-2").await;
    registry.release(&package("file-type", "1.0.0", 1, 10)).await;
    edge.birth(b"n", 1024);
    let Want::Pull { digest, size } = edge.want().await else { panic!("inline") };
    let bytes = edge.pull(digest, size, 4096).await.unwrap();
    assert_eq!(edge.accept(&bytes).desired.sequence, 1);
    assert_eq!(other.pull(digest, size, 4096).await, Err(Refusal::Unknown));
    // What it was told before a restart is still answered after it.
    registry.stop();
    registry.run().await;
    // Enrolling again is queued for it, a request for blocks would be lost.
    assert_eq!(edge.enrol().await, Enrolled::Accepted);
    let bytes = edge.pull(digest, size, 4096).await.unwrap();
    assert_eq!(Digest::of(&bytes), digest);
}

#[tokio::test]
async fn a_registry_that_was_away_tells_what_changed() {
    let mut registry = Registry::start().await;
    let mut edge = enrolled(&registry, "edge-1").await;
    registry.release(&package("file-type", "1.0.0", 1, 10)).await;
    edge.birth(b"n", BLOCK);
    edge.accepts().await;
    // It dies after the change and before the device heard of it; the device never notices.
    registry.deploy("file-type", "edge-1").await;
    registry.running.take().unwrap().kill();
    registry.run().await;
    wait_for("the new desired state", async || {
        (edge.accepts().await.desired.assignments.len() == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn reports_are_kept_once_and_acknowledged() {
    let mut registry = Registry::start().await;
    let mut edge = enrolled(&registry, "edge-1").await;
    let director = ack_key(&registry);
    edge.birth(b"n", BLOCK);
    let facts = |cores: &str| ReportBody::Facts(BTreeMap::from([("cores".to_owned(), cores.to_owned())]));
    let event = |what: &str| {
        ReportBody::Event(DeviceEvent { kind: "committed".to_owned(), package: None, what: what.to_owned() })
    };
    let state = |generation| {
        ReportBody::State(DeviceState {
            generation,
            desired: 1,
            fresh: None,
            refused: None,
            packages: vec![PackageReport {
                name: "file-type".parse().unwrap(),
                committed: Some(ReleaseRef { release: 1, version: "1.0.0".into(), digest: Digest::of(b"x") }),
                pending: None,
                serving: true,
                failure: None,
            }],
        })
    };
    let first =
        vec![edge.report(1, 1, facts("4")), edge.report(1, 2, state(7)), edge.report(1, 3, event("one"))];
    edge.send_rows(first.clone());
    assert_eq!(edge.ack(&director).await, (1, 3));
    // A second copy changes nothing and is acknowledged again, after a restart too.
    registry.stop();
    registry.run().await;
    edge.send_rows(first.clone());
    assert_eq!(edge.ack(&director).await, (1, 3));
    // A newer start of the agent; then the old ones late, and out of order.
    let newer = vec![edge.report(2, 1, state(9)), edge.report(2, 2, event("two"))];
    edge.send_rows(newer);
    assert_eq!(edge.ack(&director).await, (2, 2));
    let late =
        vec![edge.report(1, 9, state(8)), edge.report(1, 10, event("late")), edge.report(1, 11, facts("8"))];
    edge.send_rows(late);
    assert_eq!(edge.ack(&director).await, (1, 11));
    // A broker that hands on the newest row alone does not make the device forget the others.
    edge.send_rows(vec![first[2].clone()]);
    assert_eq!(edge.acknowledged(&director).await, [(1, 3)]);
    edge.send_rows(first);
    assert_eq!(edge.acknowledged(&director).await, [(1, 1), (1, 2), (1, 3)]);

    let shown = registry.target("edge-1").await;
    assert_eq!(shown["facts"], json!({"cores": "8"}));
    assert_eq!(shown["reported"]["generation"], 9);
    assert_eq!(shown["reported"]["packages"][0]["committed"]["release"], 1);
    let events: Vec<&str> =
        shown["events"].as_array().unwrap().iter().map(|event| event["what"].as_str().unwrap()).collect();
    assert_eq!(events, ["two", "late", "one"]);
    assert_eq!((&shown["online"], &shown["health"]), (&json!(true), &json!("updating")));
}

#[tokio::test]
async fn reports_that_a_device_did_not_sign_are_dropped() {
    let registry = Registry::start().await;
    let mut edge = enrolled(&registry, "edge-1").await;
    let director = ack_key(&registry);
    let facts = |value: &str| ReportBody::Facts(BTreeMap::from([("cores".to_owned(), value.to_owned())]));
    let other = PrivateKey::generate().unwrap().0;
    let good = edge.report(1, 1, facts("4"));
    let forged = edge.report_by(&other, 1, 2, facts("forged"));
    let mut changed = edge.report(1, 2, facts("changed"));
    let last = changed.0.len() - 1;
    changed.0[last] ^= 1;
    let beyond = edge.report(u64::MAX, 1, facts("beyond"));
    for bad in [forged, changed, beyond] {
        // Nothing behind the bad one is looked at.
        let behind = edge.report(1, 3, facts("behind"));
        edge.send_rows(vec![good.clone(), bad.clone(), behind]);
        assert_eq!(edge.ack(&director).await, (1, 1));
        edge.send_rows(vec![bad]);
        assert!(edge.nothing_on(Kind::Ack).await);
    }
    // What it did sign but nobody can keep is told as such, and holds up nothing.
    let many = ReportBody::Facts((0..1000).map(|number| (number.to_string(), String::new())).collect());
    let later =
        edge.sign_report(&to_cbor(&json!({"epoch": 1, "sequence": 3, "body": {"later": 1}})).unwrap());
    let rows = vec![edge.report(1, 2, many), later, edge.report(1, 4, facts("6"))];
    edge.send_rows(rows);
    assert_eq!(edge.ack(&director).await, (1, 4));
    let shown = registry.target("edge-1").await;
    assert_eq!(shown["facts"], json!({"cores": "6"}));
    let events = shown["events"].as_array().unwrap();
    assert_eq!(events.len(), 2);
    assert!(events.iter().all(|event| event["kind"] == "unreadable-report"), "{events:?}");
    // One device's report does not pass for another's.
    let mut rival = enrolled(&registry, "edge-2").await;
    rival.send_rows(vec![good]);
    assert!(rival.nothing_on(Kind::Ack).await);
}

#[tokio::test]
async fn a_device_is_online_while_it_is_heard() {
    let registry = Registry::start().await;
    let mut edge = enrolled(&registry, "edge-1").await;
    assert_eq!(registry.target("edge-1").await["health"], "never-heard");
    edge.epoch = 5;
    edge.birth(b"n", BLOCK);
    online(&registry, true).await;
    // The will of an earlier life means nothing, its own does, until the device is heard again.
    edge.epoch = 4;
    edge.send(Kind::Will, Body::Will(Will {}));
    assert!(edge.nothing_on(Kind::Want).await);
    assert_eq!(registry.target("edge-1").await["online"], true);
    edge.epoch = 5;
    edge.send(Kind::Will, Body::Will(Will {}));
    online(&registry, false).await;
    assert_eq!(registry.target("edge-1").await["health"], "silent");
    edge.send(Kind::Heartbeat, Body::Heartbeat(Heartbeat { generation: 0, desired: 0 }));
    online(&registry, true).await;
}

#[tokio::test]
async fn a_forged_birth_does_not_silence_a_device() {
    let registry = Registry::start().await;
    let mut edge = enrolled(&registry, "edge-1").await;
    let director = ack_key(&registry);
    registry.release(&package("file-type", "1.0.0", 1, 10)).await;
    edge.epoch = i64::MAX as u64;
    edge.birth(b"forged", BLOCK);
    edge.accepts().await;
    edge.epoch = 3;
    edge.birth(b"own", BLOCK);
    assert_eq!(edge.accepts().await.desired.nonce, b"own");
    // A device that stays connected is heard again with its next signed report.
    edge.epoch = i64::MAX as u64;
    edge.birth(b"forged", BLOCK);
    edge.accepts().await;
    edge.epoch = 3;
    let proof = edge.report(3, 0, ReportBody::Facts(BTreeMap::new()));
    edge.send_rows(vec![proof]);
    assert_eq!(edge.ack(&director).await, (3, 0));
    edge.send(Kind::Will, Body::Will(Will {}));
    online(&registry, false).await;
    edge.send(Kind::Heartbeat, Body::Heartbeat(Heartbeat { generation: 0, desired: 0 }));
    online(&registry, true).await;
    // Once a signed report has proven an epoch, what is older is a late copy.
    let facts = edge.report(3, 1, ReportBody::Facts(BTreeMap::new()));
    edge.send_rows(vec![facts]);
    assert_eq!(edge.ack(&director).await, (3, 1));
    edge.epoch = 2;
    edge.birth(b"late", BLOCK);
    assert!(edge.nothing_on(Kind::Want).await);
}

#[tokio::test]
async fn garbage_from_a_device_hurts_nobody() {
    let registry = Registry::start().await;
    let mut edge = enrolled(&registry, "edge-1").await;
    let will =
        Envelope { id: 1, epoch: 1, sequence: 1, at_ms: 0, body: Body::Will(Will {}) }.encode().unwrap();
    let up = Kind::ALL.iter().filter(|kind| kind.direction() == Direction::Up);
    for kind in up {
        for payload in [
            Vec::new(),
            vec![0xff; 1000],
            vec![0x81; 100_000],
            b"{".repeat(50_000),
            vec![0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            will.clone(),
        ] {
            edge.publish(*kind, payload);
        }
    }
    for topic in ["sv/v1/d/nobody/up/birth", "sv/v1/d/UPPER/up/hb", "sv/v1/d/edge-1/up/what"] {
        edge.handle.publish(topic, Kind::Birth.qos(), b"x".to_vec()).unwrap();
    }
    edge.birth(&[0; 10_000], BLOCK);
    edge.epoch = u64::MAX;
    edge.birth(b"n", BLOCK);
    edge.epoch = 1;
    for (block, first, count) in [(1, 0, 1), (4096, u32::MAX, 8), (65_536, 0, 4096)] {
        edge.ask(Digest::of(b"x"), block, 1, first, count);
    }
    assert!(edge.nothing_on(Kind::Want).await);
    assert_eq!(edge.enrol().await, Enrolled::Accepted);
    assert_eq!(registry.target("edge-1").await["health"], "never-heard");
}

#[tokio::test]
async fn who_asks_for_too_much_is_told_to_wait_and_gets_it_later() {
    let mut registry = Registry::start().await;
    registry.arguments = vec!["--device-rate".to_owned(), "500000".to_owned()];
    registry.stop();
    registry.run().await;
    let mut edge = enrolled(&registry, "edge-1").await;
    let package = package("file-type", "1.0.0", 1, 3_000_000);
    registry.release(&package).await;
    registry.deploy("file-type", "edge-1").await;
    let (model, bytes) = package.model();
    // More than it is given in the time that this takes, and less than it would be given at once without a limit.
    for first in [0, 16, 32].repeat(2) {
        edge.ask(model, BLOCK, 1, first, 14);
    }
    let waits = async {
        loop {
            match Frame::decode(&edge.receive(Kind::Block).await).unwrap() {
                // Said where the registry has too much to do, whatever a device may have.
                Frame::Refusal { refusal: Refusal::Busy { retry_after_ms: 250 }, .. } => {}
                Frame::Refusal { refusal, .. } => return refusal,
                _ => {}
            }
        }
    };
    assert!(matches!(waits.await, Refusal::Busy { retry_after_ms: 1..60_000 }));
    assert_eq!(edge.pull(model, bytes.len() as u64, BLOCK).await.unwrap(), bytes);
}

#[tokio::test]
async fn another_key_for_a_target_is_seen_by_people() {
    let registry = Registry::start().await;
    let mut edge = enrolled(&registry, "edge-1").await;
    // A wrong token is no news: anyone could send it. Whoever has the registered key needs none.
    let token = std::mem::replace(&mut edge.token, "0".repeat(64));
    assert_eq!(edge.enrol().await, Enrolled::Accepted);
    let own = std::mem::replace(&mut edge.key, PrivateKey::generate().unwrap().0);
    assert!(matches!(edge.enrol().await, Enrolled::Refused(_)));
    assert_ne!(registry.target("edge-1").await["health"], "enrolment-refused");
    edge.token = token;
    for _ in 0..3 {
        assert!(matches!(edge.enrol().await, Enrolled::Refused(_)));
    }
    let target = registry.target("edge-1").await;
    assert_eq!(target["health"], "enrolment-refused");
    let events = target["events"].as_array().unwrap();
    assert_eq!(events.len(), 1, "{target}");
    assert_eq!((&events[0]["kind"], &events[0]["clock"]), (&json!("enrolment-refused"), &json!("registry")));
    // The right device reports: it is there after all.
    edge.key = own;
    edge.birth(b"n", BLOCK);
    let row = edge.report(1, 1, ReportBody::State(DeviceState::default()));
    edge.send_rows(vec![row]);
    edge.ack(&ack_key(&registry)).await;
    let target = registry.target("edge-1").await;
    assert_eq!(
        (&target["health"], &target["events"][0]["kind"]),
        (&json!("ok"), &json!("enrolment-refused"))
    );
    // A target made anew has no history.
    let path = "/v1/workspaces/default/targets/edge-1";
    assert_eq!(registry.send(registry.request(Method::DELETE, path)).await.0, 204);
    registry.add_target("edge-1").await;
    assert_eq!(registry.target("edge-1").await["events"], json!([]));
}

#[tokio::test]
async fn a_damaged_blob_is_missing_until_it_comes_again() {
    let registry = Registry::start().await;
    let mut edge = enrolled(&registry, "edge-1").await;
    let package = package("file-type", "1.0.0", 1, 100_000);
    registry.release(&package).await;
    registry.deploy("file-type", "edge-1").await;
    let (model, bytes) = package.model();
    let size = bytes.len() as u64;
    let head = async || {
        let request = registry.request(Method::HEAD, &format!("/v1/blobs/{model}"));
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!(head().await, 200);
    let path = registry.path("registry/blobs/sha256").join(model.hex());
    for damage in [Some(&bytes[..70_000]), Some(&[]), None] {
        match damage {
            Some(part) => std::fs::write(&path, part).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
        assert_eq!(head().await, 404);
        assert_eq!(edge.pull(model, size, BLOCK).await, Err(Refusal::Unknown));
        let target = registry.target("edge-1").await;
        let events = target["events"].as_array().unwrap();
        assert_eq!((events.len(), &events[0]["kind"]), (1, &json!("damaged-blob")), "{target}");
        assert!(events[0]["what"].as_str().unwrap().contains(&model.to_string()));
        assert!(matches!(registry.put(model, bytes).await.0, 200 | 201));
        assert_eq!(head().await, 200);
        assert_eq!(edge.pull(model, size, BLOCK).await.unwrap(), bytes);
    }
}

#[tokio::test]
async fn the_sequence_of_what_a_target_shall_run_does_not_wait_for_the_device() {
    let registry = Registry::start().await;
    let package = package("file-type", "1.0.0", 1, 1000);
    registry.release(&package).await;
    registry.add_target("edge-1").await;
    let sequence = async || registry.target("edge-1").await["desired_sequence"].as_u64().unwrap();
    assert_eq!(sequence().await, 0);
    registry.deploy("file-type", "edge-1").await;
    assert_eq!(sequence().await, 1);

    let mut edge = enrolled(&registry, "edge-2").await;
    edge.birth(b"n", BLOCK);
    edge.accepts().await;
    registry.deploy("file-type", "edge-2").await;
    // Right after the answer, signed or not: never the sequence of before.
    let told = registry.target("edge-2").await["desired_sequence"].as_u64().unwrap();
    assert_eq!(edge.accepts().await.desired.sequence, told);
    assert_eq!(registry.target("edge-2").await["desired_sequence"], told);
}
