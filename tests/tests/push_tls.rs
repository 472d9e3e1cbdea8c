//! `selvedge push` over brokers that let nobody in without a certificate, with keys that have a
//! passphrase, to a device that was enrolled by hand: no registry runs anywhere. Nobody issues the
//! device another certificate, and it goes on with the one of its enrolment.

#![allow(clippy::unwrap_used)]

mod pushing;

use pushing::Pushing;
use selvedge_tests::broker::Broker;
use selvedge_tests::stack::agent_status;
use selvedge_tests::wait;
use serde_json::Value;

const INPUT: &str = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2,3],"data":[1,2,3,4,5,6]}]}"#;

fn answers(pushing: &Pushing, version: &str) {
    let (status, answer) = pushing.post("/v2/models/identity/infer", INPUT).unwrap();
    assert_eq!((status, &answer["model_version"]), (200, &version.into()), "{answer}");
}

fn certificate(pushing: &Pushing) -> Value {
    let status = agent_status(&pushing.dir.path().join("agent/run/agent.sock")).unwrap_or_default();
    status["certificate"].clone()
}

/// Waits until the device wants a certificate for a key of its own; what it shows is its enrolment's.
fn wants_another(pushing: &Pushing) {
    wait::until("the device to ask for a certificate", || {
        let shown = certificate(pushing);
        if shown["origin"] == "enrolment" && shown["asked"] == true { Ok(()) } else { Err(shown) }
    });
}

fn log(pushing: &Pushing) -> String {
    std::fs::read_to_string(pushing.dir.path().join("agent.log")).unwrap()
}

fn story(broker: Broker) {
    let mut pushing = Pushing::start(broker);
    pushing.start_agent();
    wants_another(&pushing);
    let first = pushing.package("identity", 300_000, "1.0.0", 1);
    assert_eq!(pushing.push_json(&first, &[])["sequence"], 1);
    answers(&pushing, "1.0.0");
    // Its key is known, and no certificate came with that.
    wants_another(&pushing);
    assert!(log(&pushing).contains("no certificate was issued"), "{}", log(&pushing));

    // Started again, with what it has kept.
    pushing.agent.take().unwrap().stop();
    pushing.start_agent();
    let second = pushing.package("identity", 300_001, "2.0.0", 2);
    assert_eq!(pushing.push_json(&second, &[])["sequence"], 2);
    answers(&pushing, "2.0.0");
    wants_another(&pushing);
    assert!(!log(&pushing).contains("refuses this device's key"), "{}", log(&pushing));

    // Without a certificate the broker lets no push in.
    let ca = pushing.path("registry/pki/ca.pem");
    let (code, said) = pushing.push_refused(&second, &["--broker-ca", &ca]);
    assert_eq!(code, 6, "{said}");
    // With a wrong passphrase nothing is signed.
    std::fs::write(pushing.path("wrong"), "correct horse baterry\n").unwrap();
    let (code, said) = pushing.push_refused(&second, &["--passphrase-file", &pushing.path("wrong")]);
    assert_eq!(code, 9, "{said}");
}

#[test]
fn over_mosquitto_with_certificates() {
    story(Broker::MosquittoTls(""));
}

#[test]
fn over_the_embedded_broker_with_certificates() {
    story(Broker::EmbeddedTls);
}
