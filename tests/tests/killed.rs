//! SIGKILL of agent and host at any stage of a first install: it converges; after the commit the
//! version answers again by itself.

#![allow(clippy::unwrap_used)]

use selvedge_tests::packages::push_identity;
use selvedge_tests::stack::{Stack, reported};
use selvedge_tests::wait;
use serde_json::Value;

const INPUT: &str = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2,3],"data":[1,2,3,4,5,6]}]}"#;

/// A moment of an install, told from the agent's own status.
struct Moment {
    name: &'static str,
    is: fn(&Package) -> bool,
}

/// What the agent says of the package.
#[derive(Debug)]
struct Package {
    stage: String,
    bytes: u64,
    total: u64,
    committed: bool,
}

/// Size of the model: large enough for the transfer to be seen at every moment.
const MODEL: usize = 12_000_000;

const MOMENTS: [Moment; 7] = [
    Moment { name: "assigned", is: |package| package.stage == "fetching" },
    Moment { name: "first bytes", is: |package| package.stage == "fetching" && package.bytes > 0 },
    Moment {
        name: "a quarter",
        is: |package| package.stage == "fetching" && package.bytes * 4 > package.total,
    },
    Moment { name: "half", is: |package| package.stage == "fetching" && package.bytes * 2 > package.total },
    Moment {
        name: "most",
        is: |package| package.stage == "fetching" && package.bytes * 10 > package.total * 9,
    },
    Moment { name: "trial", is: |package| package.stage == "trial" },
    Moment { name: "committed", is: |package| package.committed },
];

#[test]
fn agent_killed_at_any_stage() {
    for moment in &MOMENTS {
        let mut stack = reach(moment);
        stack.agent().kill();
        stack.start_agent();
        converges(&stack, &format!("agent killed at: {}", moment.name));
    }
}

#[test]
fn host_killed_at_any_stage() {
    for moment in &MOMENTS {
        let stack = reach(moment);
        stack.kill_host();
        converges(&stack, &format!("host killed at: {}", moment.name));
    }
}

#[test]
fn both_killed_at_one_stage_after_the_other() {
    let mut stack = Stack::start();
    push_identity(&stack, MODEL);
    for moment in &MOMENTS {
        until_or_later(&stack, moment);
        stack.agent().kill();
        stack.kill_host();
        stack.start_agent();
    }
    converges(&stack, "agent and host killed at every moment of one install");
}

/// A fresh stack whose install is at `moment`. One that went by unseen is tried again: a kill at
/// another moment would prove nothing about this one.
fn reach(moment: &Moment) -> Stack {
    for _ in 0..10 {
        let stack = Stack::start();
        wait::until("the host to start", || stack.host_id().ok_or("no host yet"));
        push_identity(&stack, MODEL);
        if until_or_later(&stack, moment) {
            return stack;
        }
    }
    panic!("`{}` was never seen in 10 installs", moment.name)
}

/// Polls the agent until the moment is there (true) or the release is committed (false).
fn until_or_later(stack: &Stack, moment: &Moment) -> bool {
    wait::until(moment.name, || match package(&stack.agent_status()) {
        Some(package) if (moment.is)(&package) => Ok(true),
        Some(package) if package.committed => Ok(false),
        other => Err(other),
    })
}

fn package(status: &Value) -> Option<Package> {
    let packages = status["state"]["packages"].as_array()?;
    let package = packages.iter().find(|package| package["name"] == "identity")?;
    Some(Package {
        stage: package["pending"]["stage"].as_str().unwrap_or_default().to_owned(),
        bytes: package["pending"]["bytes"].as_u64().unwrap_or(0),
        total: package["pending"]["total"].as_u64().unwrap_or(u64::MAX),
        committed: package["committed"].is_object(),
    })
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
