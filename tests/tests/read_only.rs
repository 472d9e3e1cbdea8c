//! A disk that takes no writes for a while, read-only or with I/O errors: what is committed answers all
//! the time, through a restart of the host, too; nothing new is accepted, and it is said why. When the disk
//! works again everything goes on, without a restart of the agent.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use selvedge_agent::config::Choices;
use selvedge_tests::asking::Asking;
use selvedge_tests::failing::{Agent, FailingDisk};
use selvedge_tests::packages::{deploy, release_folder};
use selvedge_tests::stack::Stack;
use selvedge_tests::{versions, wait};

const INPUT: &str = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2,3],"data":[1,2,3,4,5,6]}]}"#;
const EROFS: i32 = 30;
const EIO: i32 = 5;

fn release(stack: &Stack, release: u64) {
    let folder = stack.dir.path().join(format!("identity-{release}"));
    versions::identity(&folder, "identity", &format!("{release}.0.0"), 100_000 * release as usize, 6.0, "");
    release_folder(stack, &folder, release);
}

fn trouble(stack: &Stack) -> String {
    stack.agent_status()["trouble"].to_string()
}

fn said(stack: &Stack, kind: &str) {
    wait::until(kind, || {
        let target = stack.target();
        let said = target["events"].as_array().is_some_and(|events| events.iter().any(|e| e["kind"] == kind));
        if said { Ok(()) } else { Err(target["events"].clone()) }
    });
}

fn goes_through(errno: i32, word: &str) {
    let stack = Stack::without_agent();
    let disk = FailingDisk::default();
    let agent = Agent::of(&stack, &disk, Choices::default());
    release(&stack, 1);
    release(&stack, 2);
    deploy(&stack, "identity", 1);
    stack.wait_committed("identity", 1);

    // It fails while the next release is assigned.
    disk.fail(errno);
    let url = format!("{}/v2/models/identity/infer", stack.inference());
    let asking = Asking::start(url, INPUT, Duration::from_millis(20));
    deploy(&stack, "identity", 2);
    wait::until("word of it", || {
        let trouble = trouble(&stack);
        if trouble.contains("the disk fails") && trouble.contains(word) { Ok(()) } else { Err(trouble) }
    });
    assert!(trouble(&stack).contains("nothing is accepted"), "{}", trouble(&stack));
    let failed: Vec<_> = asking.stop().into_iter().filter(|asked| asked.answer.is_err()).collect();
    assert!(failed.is_empty(), "{failed:?}");

    // A host that ends is started again and serves what is committed, though nothing can be written down.
    let before = stack.host_id();
    stack.kill_host();
    wait::until("another host", || if stack.host_id() == before { Err(before) } else { Ok(()) });
    wait::until("an answer of it", || match stack.post("/v2/models/identity/infer", INPUT) {
        Ok((200, answer)) if answer["model_version"] == "1.0.0" => Ok(()),
        other => Err(other),
    });
    assert!(!agent.has_ended() && trouble(&stack).contains("the disk fails"));
    assert!(disk.refused() > 0);

    disk.work();
    stack.wait_committed("identity", 2);
    said(&stack, "disk-failed");
    said(&stack, "disk-recovered");
    said(&stack, "host-died");
    let trouble = trouble(&stack);
    assert!(!trouble.contains("disk") && !trouble.contains("accepted"), "{trouble}");
}

#[test]
fn a_disk_that_becomes_read_only() {
    goes_through(EROFS, "Read-only file system");
}

#[test]
fn a_disk_with_errors() {
    goes_through(EIO, "Input/output error");
}
