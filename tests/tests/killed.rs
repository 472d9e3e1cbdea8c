//! SIGKILL of agent and host at any stage of a first install: it converges; after the commit the
//! version answers again by itself.

use std::time::Duration;

use selvedge_tests::packages::push_identity;
use selvedge_tests::stack::{Stack, reported};
use selvedge_tests::wait;

const INPUT: &str = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2,3],"data":[1,2,3,4,5,6]}]}"#;

/// Kill points are spread over the install by delay after the deployment: a first install of this
/// size takes between one and three of these steps on a slow machine, so the sweep covers fetching,
/// staging, the probe, loading, activation and what follows the commit.
const STEP: Duration = Duration::from_millis(120);
const POINTS: u32 = 12;

#[test]
fn agent_killed_at_any_stage() {
    for point in 0..POINTS {
        let mut stack = Stack::start();
        push_identity(&stack, 900_000);
        std::thread::sleep(STEP * point);
        let stage = stage(&stack);
        stack.agent().kill();
        stack.start_agent();
        converges(&stack, &format!("agent killed at {stage}"));
    }
}

#[test]
fn host_killed_at_any_stage() {
    for point in 0..POINTS {
        let stack = Stack::start();
        wait::until("the host to start", || stack.host_id().ok_or("no host yet"));
        push_identity(&stack, 900_000);
        std::thread::sleep(STEP * point);
        let stage = stage(&stack);
        stack.kill_host();
        converges(&stack, &format!("host killed at {stage}"));
    }
}

#[test]
fn both_killed_again_and_again() {
    let mut stack = Stack::start();
    push_identity(&stack, 900_000);
    for point in 0..4 {
        std::thread::sleep(STEP * point);
        stack.agent().kill();
        stack.kill_host();
        stack.start_agent();
    }
    converges(&stack, "agent and host killed four times");
}

#[test]
fn after_the_commit_the_version_answers_again_by_itself() {
    let mut stack = Stack::start();
    push_identity(&stack, 10_000);
    converges(&stack, "nothing killed");
    let before = stack.host_id();
    stack.kill_host();
    wait::until("another host", || if stack.host_id() == before { Err(before) } else { Ok(()) });
    converges(&stack, "host killed after the commit");

    // An agent that dies leaves its host answering, and its successor adopts it.
    let host = stack.host_id();
    stack.agent().kill();
    assert_eq!(stack.post("/v2/models/identity/infer", INPUT).unwrap().0, 200);
    stack.start_agent();
    converges(&stack, "agent killed after the commit");
    assert_eq!(stack.host_id(), host, "the host was started anew instead of adopted");
}

fn stage(stack: &Stack) -> String {
    reported(&stack.target(), "identity")
        .map_or_else(|| "nothing reported".to_owned(), |report| report["pending"]["stage"].to_string())
}

fn converges(stack: &Stack, what: &str) {
    wait::until(&format!("an answer after {what}"), || {
        match stack.post("/v2/models/identity/infer", INPUT) {
            Ok((200, answer)) => Ok(answer),
            other => Err(other),
        }
    });
    stack.wait_committed("identity", 1);
    let target = stack.target();
    let report = reported(&target, "identity").unwrap();
    assert!(report["failure"].is_null() && report["pending"].is_null(), "{what}: {report}");
}
