//! Enrolment over its whole life: certificates, a machine set up anew, revoked and detached ones, and
//! those who cheat.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod support;

use std::collections::BTreeMap;

use rcgen::{CertificateParams, DnType, KeyPair};
use reqwest::Method;
use selvedge_mqtt::Incoming;
use selvedge_protocol::envelope::Body;
use selvedge_protocol::message::{
    DeviceEvent, DeviceState, Enrol, Enrolled, PackageReport, Refusal, ReleaseRef, ReportBody,
};
use selvedge_protocol::signed::{PrivateKey, PublicKey, Purpose};
use selvedge_protocol::topic::Kind;
use selvedge_signing::OnlineKeys;
use serde_json::{Value, json};
use support::device::Device;
use support::packages::package;
use support::{Registry, wait_for};

const BLOCK: u32 = 65_536;
const TARGET: &str = "/v1/workspaces/default/targets/edge-1";

/// A certificate request in some name; its key.
fn request(name: &str) -> (Vec<u8>, KeyPair) {
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    (params.serialize_request(&key).unwrap().der().to_vec(), key)
}

async fn certified(device: &mut Device, csr: &[u8]) -> Vec<u8> {
    match device.enrol_with(csr).await {
        Enrolled::Certificate(chain) => chain[0].0.clone(),
        other => panic!("{other:?}"),
    }
}

fn refused(answer: Enrolled) -> String {
    match answer {
        Enrolled::Refused(why) => why,
        other => panic!("{other:?}"),
    }
}

/// Common name, key, and serial number of a certificate, which must be signed by the authority.
async fn read(registry: &Registry, der: &[u8]) -> (String, Vec<u8>, String) {
    let ca = registry.request(Method::GET, "/v1/pki/ca").send().await.unwrap().text().await.unwrap();
    let ca = pem::parse(ca).unwrap();
    let (_, ca) = x509_parser::parse_x509_certificate(ca.contents()).unwrap();
    let (_, certificate) = x509_parser::parse_x509_certificate(der).unwrap();
    certificate.verify_signature(Some(ca.public_key())).unwrap();
    let name = certificate.subject().iter_common_name().next().unwrap().as_str().unwrap().to_owned();
    let serial = certificate.raw_serial().iter().map(|byte| format!("{byte:02x}")).collect();
    (name, certificate.public_key().raw.to_vec(), serial)
}

/// Serial numbers of the list of revoked certificates.
async fn revoked(registry: &Registry) -> Vec<String> {
    let text = registry.request(Method::GET, "/v1/pki/crl").send().await.unwrap().text().await.unwrap();
    // What REST gives is what brokers on this machine read.
    assert_eq!(text, std::fs::read_to_string(registry.path("registry/pki/crl.pem")).unwrap());
    let block = pem::parse(text).unwrap();
    let (_, list) = x509_parser::parse_x509_crl(block.contents()).unwrap();
    let serial = |entry: &x509_parser::revocation_list::RevokedCertificate<'_>| {
        entry.raw_serial().iter().map(|byte| format!("{byte:02x}")).collect()
    };
    list.iter_revoked_certificates().map(serial).collect()
}

fn director(registry: &Registry) -> PublicKey {
    let online = OnlineKeys::load(&registry.path("keys/online")).unwrap();
    PublicKey(*online.director_targets.public_key().as_bytes())
}

fn facts(cores: &str) -> ReportBody {
    ReportBody::Facts(BTreeMap::from([("cores".to_owned(), cores.to_owned())]))
}

fn event(what: &str) -> ReportBody {
    ReportBody::Event(DeviceEvent { kind: "committed".to_owned(), package: None, what: what.to_owned() })
}

async fn again(registry: &Registry) -> Value {
    let (status, value) = registry.post(&format!("{TARGET}/enrolment"), json!({})).await;
    assert_eq!(status, 201, "{value}");
    value["enrolment"].clone()
}

#[tokio::test]
async fn a_device_gets_a_certificate_for_its_own_name_whatever_it_asks_for() {
    let registry = Registry::start().await;
    let mut edge = Device::connect(&registry.add_target("edge-1").await).await;
    let (csr, key) = request("registry");
    let certificate = certified(&mut edge, &csr).await;
    let (name, public, serial) = read(&registry, &certificate).await;
    assert_eq!((name.as_str(), public), ("edge-1", rcgen::PublicKeyData::subject_public_key_info(&key)));
    let target = registry.target("edge-1").await;
    assert_eq!(target["certificate"]["serial"], json!(serial), "{target}");
    assert!(target["certificate"]["expires_at"].is_string());
    // An answer was lost: the same request gets the same certificate.
    assert_eq!(certified(&mut edge, &csr).await, certificate);
    // Renewal: the registered key, no token, another request.
    edge.token = String::new();
    let (next, _) = request("edge-1");
    assert_ne!(certified(&mut edge, &next).await, certificate);
    assert_eq!(revoked(&registry).await, [""; 0]);
}

#[tokio::test]
async fn requests_that_prove_nothing_are_refused_and_change_nothing() {
    let registry = Registry::start().await;
    let mut edge = Device::connect(&registry.add_target("edge-1").await).await;
    let (good, _) = request("edge-1");
    let mut forged = good.clone();
    *forged.last_mut().unwrap() ^= 1;
    let long = vec![0x30; 100_000];
    for bad in [&forged[..], b"x", &good[..good.len() - 1], &long] {
        refused(edge.enrol_with(bad).await);
    }
    assert_eq!(registry.target("edge-1").await["enrolled"], false);
    // Sealed by another key than the one that is to be registered; open; for another device.
    let token = edge.token.clone();
    let public_key = PrivateKey::generate().unwrap().0.public().0.to_vec();
    let theirs = Body::Enrol(Enrol::new(&edge.id, &token, public_key, Vec::new()));
    edge.send_sealed(Kind::Enrol, Purpose::Enrol, theirs);
    refused(edge.enrolled().await);
    let own = Enrol::new(&edge.id, &token, edge.key.public().0.to_vec(), Vec::new());
    edge.send(Kind::Enrol, Body::Enrol(own.clone()));
    edge.send_sealed(Kind::Enrol, Purpose::Report, Body::Enrol(own));
    refused(edge.enrolled().await);
    assert_eq!(registry.target("edge-1").await["enrolled"], false);
    let other = Device::connect(&registry.add_target("edge-2").await).await;
    edge.token.clone_from(&other.token);
    refused(edge.enrol().await);
    assert_eq!(registry.target("edge-1").await["enrolled"], false);
}

#[tokio::test]
async fn a_recorded_enrolment_is_worth_nothing_to_others() {
    let registry = Registry::start().await;
    let mut edge = Device::connect(&registry.add_target("edge-1").await).await;
    let (csr, _) = request("edge-1");
    let public_key = edge.key.public().0.to_vec();
    let recorded =
        edge.sealed(Purpose::Enrol, Body::Enrol(Enrol::new(&edge.id, &edge.token, public_key, csr)));
    edge.send(Kind::Enrol, recorded.clone());
    let Enrolled::Certificate(first) = edge.enrolled().await else { panic!() };
    // Said again, it brings the same certificate: no other key, no other certificate.
    edge.send(Kind::Enrol, recorded.clone());
    assert_eq!(edge.enrolled().await, Enrolled::Certificate(first));
    // Under another name the seal does not hold.
    let mut other = Device::connect(&registry.add_target("edge-2").await).await;
    other.send(Kind::Enrol, recorded);
    refused(other.enrolled().await);
    assert_eq!(registry.target("edge-2").await["enrolled"], false);
}

#[tokio::test]
async fn a_token_is_used_up_by_the_first_report_that_is_acknowledged() {
    let registry = Registry::start().await;
    let mut edge = Device::connect(&registry.add_target("edge-1").await).await;
    assert_eq!(edge.enrol().await, Enrolled::Accepted);
    let row = edge.report(1, 1, facts("4"));
    edge.send_rows(vec![row]);
    assert_eq!(edge.ack(&director(&registry)).await, (1, 1));
    // Whoever finds the file now gets nothing by it, not even after the target has lost its key.
    let own = std::mem::replace(&mut edge.key, PrivateKey::generate().unwrap().0);
    assert!(refused(edge.enrol().await).contains("token"));
    assert_ne!(registry.target("edge-1").await["health"], "enrolment-refused");
    edge.key = own;
    assert_eq!(edge.enrol().await, Enrolled::Accepted);
}

#[tokio::test]
async fn a_machine_that_was_set_up_anew_takes_the_place_of_the_old_one() {
    let registry = Registry::start().await;
    let director = director(&registry);
    let mut old = Device::connect(&registry.add_target("edge-1").await).await;
    let (csr, _) = request("edge-1");
    let (_, _, serial) = read(&registry, &certified(&mut old, &csr).await).await;
    registry.release(&package("file-type", "1.0.0", 1, 100)).await;
    registry.deploy("file-type", "edge-1").await;
    old.epoch = 9;
    let rows = vec![old.report(9, 1, facts("4")), old.report(9, 2, event("old"))];
    old.send_rows(rows);
    assert_eq!(old.ack(&director).await, (9, 2));
    let file = again(&registry).await;
    // Until the new one comes, the old one counts; its reports do not use up the new token.
    let row = old.report(9, 3, event("still"));
    old.send_rows(vec![row]);
    assert_eq!(old.ack(&director).await, (9, 3));
    let mut thief = Device::connect(&file).await;
    thief.token = "0".repeat(64);
    refused(thief.enrol().await);
    // Clients with one id throw each other out for ever.
    drop((old.handle, thief));

    let mut new = Device::connect(&file).await;
    let (csr, _) = request("edge-1");
    let certificate = certified(&mut new, &csr).await;
    // The old key and its certificate are gone for good, the new ones are not.
    assert_eq!(revoked(&registry).await, [serial]);
    let (_, _, fresh) = read(&registry, &certificate).await;
    assert_eq!(registry.target("edge-1").await["certificate"]["serial"], json!(fresh));
    let own = std::mem::replace(&mut new.key, old.key);
    let row = new.report(10, 1, facts("stolen"));
    new.send_rows(vec![row]);
    assert!(new.nothing_on(Kind::Ack).await);
    assert!(refused(new.enrol().await).starts_with("revoked-key"));
    new.key = own;
    // It numbers its reports from the beginning, and is heard all the same.
    new.epoch = 1;
    new.birth(b"new", BLOCK);
    let accepted = new.accepts().await;
    assert_eq!((&accepted.desired.nonce[..], accepted.desired.assignments.len()), (&b"new"[..], 1));
    let rows = vec![new.report(1, 1, facts("8")), new.report(1, 2, event("new"))];
    new.send_rows(rows);
    assert_eq!(new.ack(&director).await, (1, 2));
    let target = registry.target("edge-1").await;
    assert_eq!(target["facts"], json!({"cores": "8"}));
    let events = target["events"].as_array().unwrap();
    let own: Vec<_> = events.iter().filter(|event| event["kind"] == "committed").collect();
    let what: Vec<&str> = own.iter().map(|event| event["what"].as_str().unwrap()).collect();
    assert_eq!(what, ["new", "still", "old"]);
    // The new token is used up too.
    new.key = PrivateKey::generate().unwrap().0;
    refused(new.enrol().await);
}

#[tokio::test]
async fn who_is_revoked_is_believed_nothing_told_nothing_and_sent_nothing() {
    let mut registry = Registry::start().await;
    let director = director(&registry);
    let mut edge = Device::connect(&registry.add_target("edge-1").await).await;
    let (csr, _) = request("edge-1");
    let (_, _, serial) = read(&registry, &certified(&mut edge, &csr).await).await;
    let package = package("file-type", "1.0.0", 1, 1000);
    registry.release(&package).await;
    registry.deploy("file-type", "edge-1").await;
    edge.birth(b"n", BLOCK);
    edge.accepts().await;
    let row = edge.report(1, 1, facts("4"));
    edge.send_rows(vec![row]);
    edge.ack(&director).await;
    let (model, bytes) = package.model();
    assert!(edge.pull(model, bytes.len() as u64, BLOCK).await.is_ok());

    let (status, value) = registry.post(&format!("{TARGET}/revoke"), json!({})).await;
    assert_eq!(
        (status.as_u16(), &value["health"], &value["enrolled"]),
        (200, &json!("revoked"), &json!(false))
    );
    assert!(value["revoked_at"].is_string() && value["certificate"].is_null() && value["online"] == false);
    assert_eq!(revoked(&registry).await, std::slice::from_ref(&serial));
    for restarted in [false, true] {
        if restarted {
            registry.stop();
            registry.run().await;
            assert_eq!(revoked(&registry).await, std::slice::from_ref(&serial));
        }
        edge.birth(b"m", BLOCK);
        let row = edge.report(1, 2, facts("lies"));
        edge.send_rows(vec![row]);
        assert_eq!(edge.pull(model, bytes.len() as u64, BLOCK).await, Err(Refusal::Unknown));
        assert!(edge.nothing_on(Kind::Want).await);
        assert!(edge.nothing_on(Kind::Ack).await);
        // Renewal, by the revoked key; and with its old file.
        let (csr, _) = request("edge-1");
        assert!(refused(edge.enrol_with(&csr).await).starts_with("revoked-key"));
    }
    let (status, value) = registry.get(&format!("{TARGET}/bundle")).await;
    assert_eq!((status.as_u16(), &value["reason"]), (409, &json!("revoked")));
    assert_eq!(registry.get(&format!("{TARGET}/logs")).await.1["reason"], "offline");
    assert_eq!(registry.target("edge-1").await["facts"], json!({"cores": "4"}));

    // The way back: a new file and a new key. The deployment is still there.
    edge.token = again(&registry).await["token"].as_str().unwrap().to_owned();
    assert!(refused(edge.enrol().await).starts_with("revoked-key"));
    edge.key = PrivateKey::generate().unwrap().0;
    assert_eq!(edge.enrol().await, Enrolled::Accepted);
    edge.birth(b"back", BLOCK);
    wait_for("the deployment", async || {
        let desired = edge.accepts().await.desired;
        (desired.nonce == b"back" && desired.assignments.len() == 1).then_some(())
    })
    .await;
    let target = registry.target("edge-1").await;
    assert_eq!((&target["revoked_at"], &target["enrolled"]), (&Value::Null, &json!(true)));
}

#[tokio::test]
async fn a_detached_device_keeps_what_it_runs_and_its_key_counts_nowhere() {
    let registry = Registry::start().await;
    let mut edge = Device::connect(&registry.add_target("edge-1").await).await;
    let (csr, _) = request("edge-1");
    let (_, _, serial) = read(&registry, &certified(&mut edge, &csr).await).await;
    let committed = PackageReport {
        name: "file-type".parse().unwrap(),
        committed: Some(ReleaseRef {
            release: 3,
            version: "1.2.0".to_owned(),
            digest: selvedge_package::Digest::of(b"x"),
        }),
        pending: None,
        serving: true,
        failure: None,
    };
    let state = DeviceState { packages: vec![committed], ..DeviceState::default() };
    let row = edge.report(1, 1, ReportBody::State(state));
    edge.send_rows(vec![row]);
    edge.ack(&director(&registry)).await;
    let (status, value) = registry.post(&format!("{TARGET}/detach"), json!({})).await;
    assert_eq!(status, 200, "{value}");
    assert_eq!(value["keeps"], json!([{"package": "file-type", "release": 3, "version": "1.2.0"}]));
    assert_eq!(registry.get(TARGET).await.0, 404);
    assert_eq!(revoked(&registry).await, [serial]);
    // A new target of that name, or another one, does not take its key.
    for name in ["edge-1", "edge-2"] {
        let mut next = Device::connect(&registry.add_target(name).await).await;
        let own = std::mem::replace(&mut next.key, PrivateKey::generate().unwrap().0);
        std::mem::swap(&mut next.key, &mut edge.key);
        assert!(refused(next.enrol().await).starts_with("revoked-key"), "{name}");
        std::mem::swap(&mut next.key, &mut edge.key);
        next.key = own;
        assert_eq!(next.enrol().await, Enrolled::Accepted);
    }
}

#[tokio::test]
async fn floods_of_requests_cost_little() {
    let registry = Registry::start().await;
    let mut edge = Device::connect(&registry.add_target("edge-1").await).await;
    let (csr, _) = request("edge-1");
    certified(&mut edge, &csr).await;
    // Certificates: five at once.
    let mut issued = 1;
    let why = loop {
        match edge.enrol_with(&request("edge-1").0).await {
            Enrolled::Certificate(_) => issued += 1,
            Enrolled::Refused(why) => break why,
            Enrolled::Accepted => panic!(),
        }
    };
    assert_eq!(issued, 5, "{why}");
    // The one that it has is still given.
    certified(&mut edge, &csr).await;
    // A name that nobody has made a target for is answered a few times, and then not at all.
    let mut file = registry.add_target("gone").await;
    file["device"] = json!("nobody");
    let mut stranger = Device::connect(&file).await;
    for _ in 0..100 {
        let (token, public_key) = (stranger.token.clone(), stranger.key.public().0.to_vec());
        let enrol = Body::Enrol(Enrol::new(&stranger.id, &token, public_key, Vec::new()));
        stranger.send_sealed(Kind::Enrol, Purpose::Enrol, enrol);
    }
    assert!(matches!(stranger.enrolled().await, Enrolled::Refused(_)));
    let mut answers = 1;
    while let Some(answer) = stranger.within(Kind::Enrolled, 1000).await {
        assert!(matches!(answer, Body::Enrolled(Enrolled::Refused(_))));
        answers += 1;
    }
    assert!(answers < 50, "{answers}");
    certified(&mut edge, &csr).await;
}

#[tokio::test]
async fn no_target_is_called_as_the_registry_is() {
    let registry = Registry::start().await;
    registry.refused("/v1/workspaces/default/targets", json!({"name": "registry"}), 400, "malformed").await;
}

/// A certificate that was issued, with its key, as the broker is shown it.
fn pair(der: &[u8], key: &KeyPair) -> (Vec<u8>, Vec<u8>) {
    let chain = pem::encode(&pem::Pem::new("CERTIFICATE", der));
    (chain.into_bytes(), key.serialize_pem().into_bytes())
}

/// Whether a device with this certificate gets in, or is turned away.
async fn gets_in(file: &Value, credential: &(Vec<u8>, Vec<u8>)) -> bool {
    let mut device = Device::begin(file, Some(credential.clone()));
    let first = async {
        loop {
            match device.inbox.recv().await.unwrap() {
                Incoming::Connected { .. } => return true,
                Incoming::Disconnected { .. } => return false,
                _ => {}
            }
        }
    };
    tokio::time::timeout(support::PATIENCE, first).await.unwrap()
}

#[tokio::test]
async fn a_certificates_whole_life_at_a_broker_that_wants_one() {
    let mut registry = Registry::start_certified().await;
    let director = director(&registry);
    let file = registry.add_target("edge-1").await;
    assert_eq!((&file["format"], &file["broker_name"]), (&json!(2), &Value::Null));
    let ca = registry.request(Method::GET, "/v1/pki/ca").send().await.unwrap().text().await.unwrap();
    assert_eq!(file["broker_ca"], json!(ca));
    // The file's certificate opens the door to an own one.
    let mut edge = Device::connect(&file).await;
    let text = |part: &str| file["credential"][part].as_str().unwrap().as_bytes().to_vec();
    let first = (text("certificate"), text("key"));
    let (csr, key) = request("edge-1");
    let own = pair(&certified(&mut edge, &csr).await, &key);
    let device_key = edge.key;
    edge.handle.close();
    let mut edge = Device::begin(&file, Some(own.clone()));
    support::device::connected(&mut edge.inbox).await;
    edge.key = device_key;
    let row = edge.report(1, 1, facts("4"));
    edge.send_rows(vec![row]);
    assert_eq!(edge.ack(&director).await, (1, 1));
    // The next one, over the connection with this one; both get in until this one ends.
    edge.token = String::new();
    let (csr, key) = request("edge-1");
    let next = pair(&certified(&mut edge, &csr).await, &key);
    edge.handle.close();
    for credential in [&own, &next, &first] {
        assert!(gets_in(&file, credential).await);
    }
    // Another file: the one before opens nothing any more.
    let again_file = again(&registry).await;
    wait_for("the broker to hear of it", async || (!gets_in(&file, &first).await).then_some(())).await;
    assert!(gets_in(&file, &next).await);
    // A new key takes the place of the old one: the old certificates are of no use.
    let mut anew = Device::connect(&again_file).await;
    let (csr, key) = request("edge-1");
    let newest = pair(&certified(&mut anew, &csr).await, &key);
    anew.handle.close();
    wait_for("the broker to hear of it", async || (!gets_in(&file, &next).await).then_some(())).await;
    assert!(!gets_in(&file, &own).await && gets_in(&file, &newest).await);
    // Revoked: a connection that is there is cut, and the list holds after a restart of both.
    let mut edge = Device::begin(&file, Some(newest.clone()));
    support::device::connected(&mut edge.inbox).await;
    assert_eq!(registry.post(&format!("{TARGET}/revoke"), json!({})).await.0, 200);
    let cut = async { while !matches!(edge.inbox.recv().await.unwrap(), Incoming::Disconnected { .. }) {} };
    tokio::time::timeout(support::PATIENCE, cut).await.unwrap();
    registry.stop();
    registry.run().await;
    assert!(!gets_in(&file, &newest).await);
    // The way back.
    let mut back = Device::connect(&again(&registry).await).await;
    let (csr, _) = request("edge-1");
    certified(&mut back, &csr).await;
    let events = registry.target("edge-1").await;
    assert_eq!((&events["revoked_at"], &events["enrolled"]), (&Value::Null, &json!(true)));
}
