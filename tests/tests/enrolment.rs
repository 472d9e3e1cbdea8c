//! A device's life with its certificates, over Mosquitto as `pki mosquitto` sets it up and over the
//! embedded broker: enrolled, renewed, revoked, wiped, away for too long, detached. Whatever happens to
//! them, the model keeps answering.

#![allow(clippy::unwrap_used)]

use selvedge_tests::broker::Broker;
use selvedge_tests::clock;
use selvedge_tests::packages::push_identity;
use selvedge_tests::stack::{DEVICE, Stack};
use selvedge_tests::wait;
use serde_json::Value;

const INPUT: &str = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2,3],"data":[1,2,3,4,5,6]}]}"#;

fn answers(stack: &Stack) {
    let (status, answer) = stack.post("/v2/models/identity/infer", INPUT).unwrap();
    assert_eq!(status, 200, "{answer}");
}

/// A device that runs a model, with certificates that are good for so many seconds.
fn running(broker: Broker, seconds: u64) -> Stack {
    let mut stack = Stack::without_agent_over(broker);
    stack.registry_arguments = vec!["--certificate-seconds".into(), seconds.to_string()];
    stack.registry.as_mut().unwrap().stop();
    stack.start_registry();
    stack.start_agent();
    push_identity(&stack, 100_000);
    stack.wait_committed("identity", 1);
    certified(&stack);
    answers(&stack);
    stack
}

fn certificate(stack: &Stack) -> Value {
    stack.agent_status()["certificate"].clone()
}

/// Waits until the device connects with a certificate for a key of its own; gives its end.
fn certified(stack: &Stack) -> String {
    wait::until("a proven certificate of the device's own", || {
        let shown = certificate(stack);
        let proven = shown["origin"] == "issued" && shown["unproven"] == false;
        if proven { Ok(shown["not_after"].to_string()) } else { Err(stack.agent_status()) }
    })
}

fn online(stack: &Stack, expected: bool) {
    wait::until(if expected { "the device to be online" } else { "the device to be offline" }, || {
        let target = stack.target();
        if target["online"] == expected { Ok(()) } else { Err(target) }
    });
}

/// Another enrolment for the same device.
fn enrol_again(stack: &Stack) {
    let file = stack.path("enrolment.json");
    let _ = std::fs::remove_file(&file);
    stack.selvedge().run(&["target", "enrol", DEVICE, "--again", "--out", &file]);
}

fn restart_agent(stack: &mut Stack) {
    stack.agent().stop();
    stack.start_agent();
}

fn renewed(broker: Broker) {
    let stack = running(broker, 36);
    let mut last = certified(&stack);
    for _ in 0..2 {
        last = wait::until("the next certificate", || {
            let shown = certificate(&stack);
            assert_eq!(shown["expired"], false, "{shown}");
            let next = shown["not_after"].to_string();
            let proven = shown["unproven"] == false && next != last;
            if proven { Ok(next) } else { Err(shown) }
        });
        answers(&stack);
        online(&stack, true);
    }
}

fn revoked(broker: Broker) {
    let mut stack = running(broker, 86_400);
    stack.selvedge().run(&["target", "revoke", DEVICE]);
    stack.publish_revocations();
    if broker == Broker::EmbeddedTls {
        refused(&stack);
    }
    answers(&stack);
    // Mosquitto keeps the connection that was there; the next one is refused by both.
    restart_agent(&mut stack);
    refused(&stack);
    stack.wait_ready("identity", "1.0.0");
    answers(&stack);
    online(&stack, false);

    enrol_again(&stack);
    restart_agent(&mut stack);
    online(&stack, true);
    certified(&stack);
    stack.wait_committed("identity", 1);
    answers(&stack);
}

/// Waits until the agent says that the broker does not take its certificate.
fn refused(stack: &Stack) {
    wait::until("the refusal", || {
        let status = stack.agent_status();
        let said = status.to_string();
        if said.contains("certificate: it is revoked") { Ok(()) } else { Err(status) }
    });
}

fn wiped(broker: Broker) {
    let mut stack = running(broker, 86_400);
    let before = stack.target();
    stack.agent().stop();
    stack.kill_host();
    std::fs::remove_dir_all(stack.path("agent")).unwrap();
    enrol_again(&stack);
    stack.start_agent();
    // What was assigned comes again, to a device with other keys.
    stack.wait_ready("identity", "1.0.0");
    stack.wait_committed("identity", 1);
    certified(&stack);
    assert_ne!(stack.target()["public_key"], before["public_key"]);
    assert_eq!(stack.target()["labels"], before["labels"]);
    answers(&stack);
}

fn away_for_too_long(broker: Broker) {
    let mut stack = running(broker, 20);
    // Nobody is there to renew it.
    stack.registry.as_mut().unwrap().stop();
    wait::until("the certificate to be over", || {
        let shown = certificate(&stack);
        let end: jiff::Timestamp = shown["not_after"].as_str().unwrap().parse().unwrap();
        // Certificates count in whole seconds.
        if end + jiff::SignedDuration::from_secs(2) < clock::date() { Ok(()) } else { Err(shown) }
    });
    stack.agent().stop();
    stack.start_registry();
    stack.start_agent();
    // By its own clock, or as the broker says: a machine without a synchronised clock cannot know.
    wait::until("the agent to say that its certificate is over", || {
        let status = stack.agent_status();
        let said = status["trouble"].to_string();
        if said.contains("expired") || said.contains("over since") { Ok(()) } else { Err(status) }
    });
    stack.wait_ready("identity", "1.0.0");
    answers(&stack);
    stack.registry_arguments.clear();
    stack.registry.as_mut().unwrap().stop();
    stack.start_registry();
    enrol_again(&stack);
    restart_agent(&mut stack);
    online(&stack, true);
    certified(&stack);
    answers(&stack);
}

fn detached(broker: Broker) {
    let mut stack = running(broker, 86_400);
    stack.selvedge().run(&["target", "detach", DEVICE]);
    stack.publish_revocations();
    let (code, said) = stack.selvedge().refused(&["targets", DEVICE]);
    assert_eq!(code, 3, "{said}");
    answers(&stack);
    stack.agent().kill();
    stack.kill_host();
    stack.start_agent();
    stack.wait_ready("identity", "1.0.0");
    answers(&stack);
}

macro_rules! over_both {
    ($($story:ident: $mosquitto:ident, $embedded:ident;)*) => {$(
        #[test]
        fn $mosquitto() {
            $story(Broker::MosquittoTls(""));
        }

        #[test]
        fn $embedded() {
            $story(Broker::EmbeddedTls);
        }
    )*};
}

over_both! {
    renewed: renewed_over_mosquitto, renewed_over_the_embedded_broker;
    revoked: revoked_over_mosquitto, revoked_over_the_embedded_broker;
    wiped: wiped_over_mosquitto, wiped_over_the_embedded_broker;
    away_for_too_long: away_for_too_long_over_mosquitto, away_for_too_long_over_the_embedded_broker;
    detached: detached_over_mosquitto, detached_over_the_embedded_broker;
}
