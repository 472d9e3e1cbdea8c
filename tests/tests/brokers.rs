//! The whole story over other brokers than the embedded one with certificates: Debian's Mosquitto as
//! `pki mosquitto` sets it up, the same with `listener` and `allow_anonymous true` and all else default,
//! one that takes packets of 16 KiB at most, and the embedded one in plain text.

#![allow(clippy::unwrap_used)]

use selvedge_tests::broker::Broker;
use selvedge_tests::packages::{deploy, identity, keys, package};
use selvedge_tests::stack::{DEVICE, Stack, reported};

const INPUT: &str = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2,3],"data":[1,2,3,4,5,6]}]}"#;

/// Enrol, release, deploy, pull, serve, report; then a second version; then none.
fn story(broker: Broker) {
    let mut stack = Stack::start_over(broker);
    for (version, release, padding) in [("1.0.0", 1, 1_000_000), ("2.0.0", 2, 1_000_001)] {
        let package = package(&stack, &identity(&stack, padding), "identity", version, release);
        stack.selvedge().run(&["release", &package, "--keys", &keys(&stack)]);
        deploy(&stack, "identity", release);
        stack.wait_ready("identity", version);
        let (status, answer) = stack.post("/v2/models/identity/infer", INPUT).unwrap();
        assert_eq!((status, &answer["model_version"]), (200, &version.into()), "{answer}");
        stack.wait_committed("identity", release);
    }
    let report = reported(&stack.target(), "identity").unwrap().clone();
    assert!(report["failure"].is_null() && report["pending"].is_null(), "{report}");
    // A broker that was away: the device comes back by itself and is told what is new.
    stack.broker.as_mut().unwrap().kill();
    stack.start_broker();
    deploy(&stack, "identity", 1);
    stack.wait_committed("identity", 1);
    let settled = stack.selvedge().json(&["targets", DEVICE]);
    assert_eq!(settled["online"], true, "{settled}");
}

#[test]
fn mosquitto_with_default_settings() {
    story(Broker::Mosquitto(""));
}

#[test]
fn a_broker_that_takes_packets_of_16_kib() {
    story(Broker::Mosquitto("max_packet_size 16384"));
}

#[test]
fn mosquitto_with_certificates() {
    story(Broker::MosquittoTls(""));
}

#[test]
fn the_embedded_broker_in_plain_text() {
    story(Broker::Embedded);
}
