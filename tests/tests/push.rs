//! `selvedge push`: a package to a device through a broker that knows nothing of it, without a
//! registry, over the embedded broker, Mosquitto, and one that takes packets of 16 KiB only.

#![allow(clippy::unwrap_used)]

mod pushing;

use pushing::Pushing;
use selvedge_tests::broker::Broker;
use selvedge_tests::stack::DEVICE;

const INPUT: &str = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2,3],"data":[1,2,3,4,5,6]}]}"#;

/// The whole story of one broker: enrol, push, ask; a second version; a second package beside it.
fn story(broker: Broker) {
    let mut pushing = Pushing::start(broker);
    pushing.start_agent();
    let first = pushing.package("identity", 300_000, "1.0.0", 1);
    let pushed = pushing.push_json(&first, &[]);
    assert_eq!(
        (&pushed["target"], &pushed["release"], &pushed["sequence"]),
        (&DEVICE.into(), &1.into(), &1.into())
    );
    assert!(pushed["sent_bytes"].as_u64().unwrap() >= 300_000, "{pushed}");
    let (status, answer) = pushing.post("/v2/models/identity/infer", INPUT).unwrap();
    assert_eq!((status, &answer["model_version"]), (200, &"1.0.0".into()));

    let second = pushing.package("identity", 300_001, "2.0.0", 2);
    assert_eq!(pushing.push_json(&second, &[])["sequence"], 2);
    let (_, answer) = pushing.post("/v2/models/identity/infer", INPUT).unwrap();
    assert_eq!(answer["model_version"], "2.0.0");

    // Back to the first: a push like any other, for which no model has to be sent.
    let back = pushing.push_json(&first, &[]);
    assert_eq!(back["sequence"], 3);
    assert!(back["sent_bytes"].as_u64().unwrap() < 100_000, "{back}");
    let (_, answer) = pushing.post("/v2/models/identity/infer", INPUT).unwrap();
    assert_eq!(answer["model_version"], "1.0.0");

    let beside = pushing.package("other", 10, "1.0.0", 1);
    pushing.push_json(&beside, &[]);
    for model in ["identity", "other"] {
        assert_eq!(pushing.post(&format!("/v2/models/{model}/infer"), INPUT).unwrap().0, 200, "{model}");
    }
    // The same again is done already, and sends nothing.
    let again = pushing.push_json(&beside, &[]);
    assert_eq!((&again["sequence"], &again["sent_bytes"]), (&4.into(), &0.into()));
    // Alone, the others are uninstalled.
    pushing.push_json(&beside, &["--only"]);
    pushing.wait_gone("identity");
}

#[test]
fn over_the_embedded_broker() {
    story(Broker::Embedded);
}

#[test]
fn over_mosquitto_with_default_settings() {
    story(Broker::Mosquitto(""));
}

#[test]
fn over_a_broker_that_takes_packets_of_16_kib() {
    story(Broker::Mosquitto("max_packet_size 16384"));
}
