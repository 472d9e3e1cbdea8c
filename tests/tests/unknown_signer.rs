//! A package signed by an unknown key: refused by the registry, and by the device itself when a
//! whole other registry speaks to it through its own broker.

#![allow(clippy::unwrap_used)]

use std::process::Command;

use selvedge_tests::broker::Broker;
use selvedge_tests::command::Selvedge;
use selvedge_tests::packages::{identity, package, push_identity};
use selvedge_tests::process::Process;
use selvedge_tests::programs::program;
use selvedge_tests::stack::{DEVICE, Stack};
use selvedge_tests::wait;

#[test]
fn the_registry_refuses_a_release_under_other_keys() {
    let stack = Stack::without_agent();
    let other = stack.path("other-keys");
    Selvedge::new().run(&["keys", "init", &other]);
    let package = package(&stack, &identity(&stack, 0), "identity", "1.0.0", 1);
    let (code, said) = stack.selvedge().refused(&["release", &package, "--keys", &other]);
    assert_eq!(code, 9, "{said}");
    assert_eq!(stack.selvedge().json(&["packages"])["items"], serde_json::json!([]));
}

#[test]
fn the_device_refuses_a_strange_registry_and_then_obeys_its_own() {
    // In plain text: with certificates the stranger would not even reach the device.
    let mut stack = Stack::start_over(Broker::Mosquitto(""));
    wait::until("the device to be heard", || {
        let target = stack.target();
        if target["facts"]["architecture"].is_string() { Ok(()) } else { Err(target) }
    });
    stack.registry.as_mut().unwrap().stop();

    // Everything about the stranger is sound but its keys.
    let keys = stack.path("stranger/keys");
    std::fs::create_dir(stack.path("stranger")).unwrap();
    Selvedge::new().run(&["keys", "init", &keys]);
    let address = stack.path("stranger/address");
    let mut command = Command::new(program("selvedge-registry"));
    command
        .args(["serve", "--listen", "127.0.0.1:0", "--data", &stack.path("stranger/data")])
        .args(["--broker", &stack.broker_url(), "--address-file", &address])
        .args(["--online-keys", &format!("{keys}/online"), "--roots", &format!("{keys}/roots")]);
    let log = stack.dir.path().join("stranger.log");
    let mut stranger = Process::start("stranger", &mut command, &log);
    let listening = wait::until("the stranger to listen", || std::fs::read_to_string(&address));
    let selvedge = || {
        Selvedge::new()
            .env("SELVEDGE_REGISTRY", &format!("http://{}", listening.trim()))
            .env("SELVEDGE_TOKEN_FILE", &stack.path("stranger/data/token"))
    };
    selvedge().run(&["target", "enrol", DEVICE, "--out", &stack.path("stranger/enrolment.json")]);
    let theirs = package(&stack, &identity(&stack, 1000), "stranger", "1.0.0", 1);
    selvedge().run(&["release", &theirs, "--keys", &keys]);
    selvedge().run(&["deploy", "stranger", "--target", DEVICE]);
    // The device hears the stranger when it is born again.
    stack.agent().kill();
    stack.start_agent();

    let status = wait::until("the device to say that it refused", || {
        let output = Command::new(program("selvedge-agent"))
            .args(["status", "--json", "--data", &stack.path("agent")])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        match value["state"]["refused"].as_str() {
            Some(refused) => Ok(refused.to_owned()),
            None => Err(text),
        }
    });
    assert!(status.contains("not trusted") || status.contains("trust"), "{status}");
    stranger.stop();
    let stored = std::fs::read_dir(stack.path("agent/blobs/sha256")).map_or(0, Iterator::count);
    assert_eq!(stored, 0, "something of the stranger was stored");

    stack.start_registry();
    push_identity(&stack, 1000);
    stack.wait_committed("identity", 1);
    assert_eq!(stack.get("/v2/models/stranger").unwrap().0, 404);
}
