//! Transfers that are interrupted for longer: nothing that came is fetched again, over another broker
//! neither, nor for another package.

#![allow(clippy::unwrap_used)]

use selvedge_tests::broker::Broker;
use selvedge_tests::packages::{deploy, identity, keys, package, push_identity};
use selvedge_tests::stack::Stack;
use selvedge_tests::wait;
use serde_json::Value;

/// Bytes of the model, and of a chunk.
const MODEL: usize = 12_000_000;
const CHUNK: u64 = 65_536;

/// Bytes of the package that are there, while it is fetched.
fn came(status: &Value) -> Option<u64> {
    let package = status["state"]["packages"].as_array()?.first()?;
    package["pending"]["bytes"].as_u64()
}

/// Chunks that came since the agent's start.
fn chunks(stack: &Stack) -> u64 {
    wait::until("the agent to answer", || stack.agent_status()["chunks"].as_u64().ok_or("no answer"))
}

#[test]
fn a_transfer_goes_on_after_a_reboot_and_over_another_broker() {
    let mut stack = Stack::without_agent_over(Broker::Embedded);
    // Slow enough for half of it to be seen.
    stack.registry_arguments = ["--device-rate", "3000000"].map(str::to_owned).to_vec();
    stack.registry = None;
    stack.start_registry();
    stack.start_agent();
    push_identity(&stack, MODEL);
    let half = |stack: &Stack| {
        wait::until("half of the package", || {
            let status = stack.agent_status();
            came(&status).filter(|bytes| *bytes > MODEL as u64 / 2).ok_or(status)
        })
    };
    let came_before = half(&stack);
    let first = chunks(&stack);
    assert!(first * CHUNK >= MODEL as u64 / 2, "{first} chunks");
    // A reboot takes all processes without a goodbye.
    stack.agent().kill();
    stack.kill_host();
    stack.move_broker();
    stack.start_agent();
    stack.wait_committed("identity", 1);
    let second = chunks(&stack);
    let all = (MODEL as u64).div_ceil(CHUNK);
    assert!(
        first + second <= all + 12,
        "{first} chunks ({came_before} bytes) before, {second} after; the model has {all}"
    );
    assert!(second > 0, "it was whole before the reboot");

    // Another package with the same model: only what differs comes.
    let model = identity(&stack, MODEL);
    let other = package(&stack, &model, "other", "1.0.0", 1);
    stack.selvedge().run(&["release", &other, "--keys", &keys(&stack)]);
    deploy(&stack, "other", 1);
    stack.wait_committed("other", 1);
    let third = chunks(&stack) - second;
    assert!(third <= 8, "{third} chunks for a package whose model is there");
}
