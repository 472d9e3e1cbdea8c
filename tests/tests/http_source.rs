//! Packages that name a web server: their blobs come from there and not over MQTT, as long as it does
//! what it should; otherwise they come over MQTT, and every byte is right either way.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::Duration;

use selvedge_package::Digest;
use selvedge_tests::broker::Broker;
use selvedge_tests::command::Selvedge;
use selvedge_tests::packages::{deploy, identity, keys};
use selvedge_tests::stack::Stack;
use selvedge_tests::wait;
use selvedge_tests::web::{Manner, Web};
use selvedge_tests::wire::Wire;

const INPUT: &str = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2,3],"data":[1,2,3,4,5,6]}]}"#;

/// A stack whose agent's traffic with the broker is counted, and a web server of an empty folder.
fn stack() -> (Stack, Web, Wire) {
    stack_with("")
}

/// The same, with lines in the agent's configuration.
fn stack_with(configuration: &str) -> (Stack, Web, Wire) {
    let mut stack = Stack::without_agent_over(Broker::Embedded);
    let wire = Wire::to(stack.broker_address());
    stack.agents_broker = wire.address.clone();
    let file = stack.path("agent.toml");
    std::fs::write(&file, configuration).unwrap();
    stack.agent_arguments = vec!["--config".to_owned(), file];
    stack.start_agent();
    let root = stack.dir.path().join("web");
    std::fs::create_dir_all(&root).unwrap();
    (stack, Web::serve(&root), wire)
}

/// Packages and releases a model of that many extra bytes as `name` r1, with a source, and puts what
/// `selvedge export --oci` writes onto the web server.
fn release(stack: &Stack, web: &Web, name: &str, padding: usize) {
    let (model, out) = (identity(stack, padding), stack.path(&format!("{name}.pkg")));
    Selvedge::new().run(&["package", &model, "--name", name, "--source", &web.source(), "--out", &out]);
    stack.selvedge().run(&["release", &out, "--keys", &keys(stack)]);
    let layout = stack.path(&format!("{name}.oci"));
    stack.selvedge().run(&["export", &format!("{name}@1.0.0"), "--oci", &layout]);
    let blobs = stack.dir.path().join("web/blobs/sha256");
    std::fs::create_dir_all(&blobs).unwrap();
    for blob in std::fs::read_dir(Path::new(&layout).join("blobs/sha256")).unwrap() {
        let blob = blob.unwrap();
        std::fs::copy(blob.path(), blobs.join(blob.file_name())).unwrap();
    }
}

/// Every blob that the device has is what its name says. How many bytes they have.
fn blobs_are_right(stack: &Stack) -> u64 {
    let blobs = std::fs::read_dir(stack.dir.path().join("agent/blobs/sha256")).unwrap();
    let mut total = 0;
    for blob in blobs {
        let blob = blob.unwrap();
        let bytes = std::fs::read(blob.path()).unwrap();
        assert_eq!(blob.file_name().to_str().unwrap(), Digest::of(&bytes).hex());
        total += bytes.len() as u64;
    }
    total
}

#[test]
fn a_good_source_spares_the_broker_and_a_bad_one_changes_nothing_but_the_way() {
    let (stack, web, wire) = stack();
    release(&stack, &web, "good", 5_000_000);
    let before = wire.down();
    deploy(&stack, "good", 1);
    stack.wait_committed("good", 1);
    let (all, over_mqtt) = (blobs_are_right(&stack), wire.down() - before);
    println!(
        "good: {} bytes over HTTP in {} requests, {over_mqtt} bytes over MQTT",
        web.given(),
        web.heads().len()
    );
    // All but the two manifests came from there, once: but what was doubted for a moment and asked for again.
    let range = all - 8192..all + 500_000;
    assert!(range.contains(&web.given()), "{} of {all} bytes over HTTP", web.given());
    assert!(over_mqtt < 100_000, "{over_mqtt} bytes over MQTT");
    assert_eq!(stack.post("/v2/models/good/infer", INPUT).unwrap().0, 200);

    for (number, manner, most_over_mqtt) in [
        (1, Manner::NoRanges, 100_000),
        (2, Manner::Cut(500_000), 100_000),
        (3, Manner::Cut(5000), 2_500_000),
        (4, Manner::Spoiled, 2_500_000),
        (5, Manner::Status(500), 2_500_000),
        (6, Manner::Status(404), 2_500_000),
        (7, Manner::Elsewhere("http://127.0.0.1:1".to_owned()), 2_500_000),
        (8, Manner::Head("HTTP/1.1 206 x\r\nContent-Length: 3".to_owned()), 2_500_000),
    ] {
        let (name, size) = (format!("n{number}"), 2_000_000 + number * 4096);
        release(&stack, &web, &name, size);
        web.set(manner.clone());
        let (given, before) = (web.given(), wire.down());
        deploy(&stack, &name, 1);
        stack.wait_committed(&name, 1);
        let (given, over_mqtt) = (web.given() - given, wire.down() - before);
        println!("{manner:?}: {given} bytes over HTTP, {over_mqtt} bytes over MQTT");
        assert!(over_mqtt < most_over_mqtt, "{manner:?}: {over_mqtt} bytes over MQTT");
        if most_over_mqtt > 1_000_000 {
            assert!(over_mqtt > size as u64, "{manner:?}: it came over MQTT, {over_mqtt} bytes");
        }
        blobs_are_right(&stack);
        assert_eq!(stack.post(&format!("/v2/models/{name}/infer"), INPUT).unwrap().0, 200);
    }
    // A source that fails is reported, once in a row.
    let failures = std::fs::read_to_string(stack.dir.path().join("agent.log")).unwrap();
    assert!(failures.contains("a source fails: it answers 500"), "{failures}");
}

#[test]
fn a_package_comes_whole_while_the_broker_is_away() {
    let (mut stack, web, _wire) = stack();
    release(&stack, &web, "far", 12_000_000);
    web.set(Manner::Paced(Duration::from_millis(30)));
    deploy(&stack, "far", 1);
    wait::until("the first bytes", || if web.given() > 0 { Ok(()) } else { Err(()) });
    stack.broker = None;
    stack.registry = None;
    let then = web.given();
    stack.wait_ready("far", "1.0.0");
    assert!(web.given() > then + 1_000_000, "{then} of {} bytes had come before", web.given());
    blobs_are_right(&stack);
}

#[test]
fn a_source_that_comes_back_is_asked_again_without_the_broker() {
    let (mut stack, web, _wire) = stack();
    release(&stack, &web, "back", 3_000_000);
    web.set(Manner::Paced(Duration::from_millis(30)));
    deploy(&stack, "back", 1);
    wait::until("the first bytes", || if web.given() > 500_000 { Ok(()) } else { Err(()) });
    // Both ways are gone at once.
    stack.broker = None;
    stack.registry = None;
    web.set(Manner::Status(503));
    web.cut();
    let log = stack.dir.path().join("agent.log");
    wait::until("the source to fail", || {
        let text = std::fs::read_to_string(&log).unwrap();
        if text.contains("a source fails: it answers 503") { Ok(()) } else { Err(()) }
    });
    web.set(Manner::Good);
    stack.wait_ready("back", "1.0.0");
    assert!(web.given() > 3_000_000, "{} bytes: the rest came another way", web.given());
    assert!(web.given() < 3_400_000, "{} bytes: what had come was not fetched again", web.given());
    blobs_are_right(&stack);
}

#[test]
fn an_agent_that_is_killed_goes_on_where_it_was() {
    let (mut stack, web, _wire) = stack();
    release(&stack, &web, "kill", 6_000_000);
    web.set(Manner::Paced(Duration::from_millis(10)));
    deploy(&stack, "kill", 1);
    wait::until("some bytes", || if web.given() > 3_000_000 { Ok(()) } else { Err(()) });
    stack.agent().kill();
    stack.agent = None;
    stack.broker = None;
    web.set(Manner::Good);
    stack.start_agent();
    stack.wait_ready("kill", "1.0.0");
    // What the server had sent and nobody had taken yet was sent for nothing.
    assert!(web.given() < 6_000_000 + 3_000_000, "{} bytes", web.given());
    blobs_are_right(&stack);
}

#[test]
fn an_owner_who_wants_no_web_server_asked_has_all_over_mqtt() {
    let (stack, web, _wire) = stack_with("http-sources = 'never'");
    release(&stack, &web, "never", 300_000);
    deploy(&stack, "never", 1);
    stack.wait_committed("never", 1);
    assert_eq!((web.heads().len(), web.connections().0), (0, 0));
}

#[test]
fn a_data_budget_holds_over_http_too() {
    let (mut stack, web, _wire) = stack_with("data-budget-mib = 4");
    release(&stack, &web, "budget", 9_000_000);
    deploy(&stack, "budget", 1);
    wait::until("the budget to be used up", || {
        let status = stack.agent_status();
        if status.to_string().contains("are used up") { Ok(()) } else { Err(status) }
    });
    let given = web.given();
    println!("{given} bytes over HTTP of a budget of {}", 4 << 20);
    assert!((1_000_000..4 << 20).contains(&given), "{given} bytes over HTTP");
    // Without one it goes on where it was.
    stack.agent().kill();
    stack.agent = None;
    stack.agent_arguments = Vec::new();
    stack.start_agent();
    stack.wait_committed("budget", 1);
    assert!(web.given() < 9_000_000 + (4 << 20), "{} bytes", web.given());
    blobs_are_right(&stack);
}
