//! Pushes that go wrong, or begin badly: a device that comes later, a push that is killed, two at
//! once, a package that was changed or fails on the device, a device that a registry directs.

#![allow(clippy::unwrap_used)]

mod pushing;

use std::path::Path;

use pushing::Pushing;
use selvedge_tests::broker::Broker;
use selvedge_tests::command::Selvedge;
use selvedge_tests::packages::{deploy, identity, keys, package};
use selvedge_tests::process::Process;
use selvedge_tests::stack::{DEVICE, Stack};
use selvedge_tests::{versions, wait};

const INPUT: &str = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2,3],"data":[1,2,3,4,5,6]}]}"#;

#[test]
fn a_push_that_is_killed_goes_on_and_two_do_not_fork() {
    let mut pushing = Pushing::start(Broker::Embedded);
    let package = pushing.package("identity", 12_000_000, "1.0.0", 1);
    // It waits for a device that is not there yet; meanwhile nobody else may sign.
    let mut first = pushing.push_started(&package, &[]);
    wait::until("the first push to wait", || match first.log() {
        log if log.contains("was not heard yet") => Ok(()),
        log => Err(log),
    });
    let (code, said) = pushing.push_refused(&package, &[]);
    assert_eq!(code, 5, "{said}");
    pushing.start_agent();
    wait::until("the transfer to be under way", || match first.log() {
        log if log.contains("fetching") => Ok(()),
        log => Err(log),
    });
    first.kill();
    let killed = pushing.memory(DEVICE);
    let pushed = pushing.push_json(&package, &[]);
    // The same sequence: nothing of what the device shall run has changed. The signatures grow.
    assert_eq!((&pushed["sequence"], &killed["sequence"]), (&1.into(), &1.into()));
    let version = |memory: &serde_json::Value| memory["version"].as_u64().unwrap();
    assert!(version(&pushing.memory(DEVICE)) >= version(&killed));
    assert_eq!(pushing.post("/v2/models/identity/infer", INPUT).unwrap().0, 200);
}

#[test]
fn broker_and_agent_die_in_the_middle_and_the_push_goes_on() {
    let mut pushing = Pushing::start(Broker::Mosquitto(""));
    let package = pushing.package("identity", 20_000_000, "1.0.0", 1);
    pushing.start_agent();
    let mut push = pushing.push_started(&package, &[]);
    let under_way = |push: &Process| {
        wait::until("the transfer to be under way", || match push.log() {
            log if log.contains("fetching") => Ok(()),
            log => Err(log),
        });
    };
    under_way(&push);
    pushing.restart_broker();
    pushing.agent.as_mut().unwrap().kill();
    pushing.start_agent();
    wait::until("the push to end", || if push.runs() { Err(push.log()) } else { Ok(()) });
    assert!(push.log().contains("edge-1 serves identity 1.0.0 (r1)"), "{}", push.log());
    assert_eq!(pushing.post("/v2/models/identity/infer", INPUT).unwrap().0, 200);
}

#[test]
fn a_changed_byte_is_found_before_anything_is_signed() {
    let pushing = Pushing::start(Broker::Embedded);
    let package = pushing.package("identity", 100_000, "1.0.0", 1);
    let blobs = Path::new(&package).join("blobs/sha256");
    let largest = std::fs::read_dir(&blobs)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .max_by_key(|path| path.metadata().unwrap().len())
        .unwrap();
    let mut bytes = std::fs::read(&largest).unwrap();
    bytes[50_000] ^= 1;
    std::fs::write(&largest, bytes).unwrap();
    let (code, said) = pushing.push_refused(&package, &[]);
    assert!(code == 9 && said.contains("identity-1.0.0.onnx"), "{code}: {said}");
    assert_eq!(pushing.memory(DEVICE)["version"], 0, "nothing was signed for the device");
    assert!(!Path::new(&pushing.path("keys/push/repository.json")).exists());
}

#[test]
fn a_package_that_fails_on_the_device_is_told_with_the_case() {
    let mut pushing = Pushing::start(Broker::Embedded);
    pushing.start_agent();
    let folder = pushing.dir.path().join("wrong");
    versions::identity(&folder, "identity", "1.0.0", 10, 41.5, "");
    let (folder, out) = (folder.display().to_string(), pushing.path("wrong.pkg"));
    Selvedge::new().run(&["package", &folder, "--release", "1", "--out", &out, "--skip-acceptance"]);
    let (code, said) = pushing.push_refused(&out, &[]);
    assert_eq!(code, 4, "{said}");
    assert!(said.contains("golden") && said.contains("41.5") && said.contains('6'), "{said}");
    let right = pushing.package("identity", 10, "1.0.1", 2);
    pushing.push_json(&right, &[]);
}

#[test]
fn what_cannot_be_is_told_at_once() {
    let pushing = Pushing::start(Broker::Embedded);
    let package = pushing.package("identity", 10, "1.0.0", 1);
    let check = |more: &[&str], code: i32, words: &str| {
        let (found, said) = pushing.push_refused(&package, more);
        assert!(found == code && said.contains(words), "{more:?}: {found}, {said}");
    };
    check(&["--set", "threshold=1"], 4, "no setting");
    check(&["--target", "edge-2"], 3, "not enrolled");
    check(&["--target", "edge-2", "--device-key", &"ab".repeat(32)], 2, "--take-over");
    check(&["--timeout", "1"], 7, "not heard");
    let enrolled = pushing.selvedge().refused(&[
        "target",
        "enrol",
        DEVICE,
        "--offline",
        "--keys",
        &pushing.path("keys"),
        "--broker",
        &pushing.broker_url(),
        "--out",
        &pushing.path("again.json"),
    ]);
    assert!(enrolled.0 == 5 && !Path::new(&pushing.path("again.json")).exists(), "{enrolled:?}");
    let nobody = Selvedge::new().refused(&[
        "push",
        &package,
        "--keys",
        &pushing.path("keys"),
        "--target",
        DEVICE,
        "--broker",
        "mqtt://127.0.0.1:1",
        "--timeout",
        "2",
    ]);
    assert_eq!(nobody.0, 6, "{}", nobody.1);
}

#[test]
fn a_registrys_device_is_taken_over_and_the_registry_is_noticed() {
    let stack = Stack::start_over(Broker::Mosquitto(""));
    let first = package(&stack, &identity(&stack, 100_000), "identity", "1.0.0", 1);
    stack.selvedge().run(&["release", &first, "--keys", &keys(&stack)]);
    deploy(&stack, "identity", 1);
    stack.wait_committed("identity", 1);
    let key = stack.target()["public_key"].as_str().unwrap().to_owned();

    let second = package(&stack, &identity(&stack, 100_001), "identity", "2.0.0", 2);
    let broker = format!("mqtt://{}", stack.broker_address());
    let keys = keys(&stack);
    let push =
        ["push", &second, "--keys", &keys, "--broker", &broker, "--target", DEVICE, "--device-key", &key];
    let (code, said) = Selvedge::new().refused(&push);
    assert!(code == 2 && said.contains("--take-over"), "{code}: {said}");
    let mut taking = push.to_vec();
    taking.extend(["--take-over", "--timeout", "120"]);
    // The registry is there all the while: it answers the same births, and is refused from now on.
    let pushed = Selvedge::new().output(&taking);
    let said = String::from_utf8_lossy(&pushed.stderr).into_owned();
    assert!(pushed.status.success(), "{said}");
    assert!(said.contains("also told by somebody else"), "{said}");
    let (_, answer) = stack.post("/v2/models/identity/infer", INPUT).unwrap();
    assert_eq!(answer["model_version"], "2.0.0");
}
