//! A byte changed in a blob, in flight and on disk: found, never run, fetched again.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use selvedge_tests::broker::Broker;
use selvedge_tests::packages::push_identity;
use selvedge_tests::stack::{Stack, reported};
use selvedge_tests::tampering::Tampering;
use selvedge_tests::wait;

#[test]
fn in_flight_it_is_refused_and_asked_for_again() {
    const SPOILED: u32 = 5;
    let mut stack = Stack::without_agent_over(Broker::Mosquitto(""));
    let wire = Tampering::of_blocks(stack.broker_address(), SPOILED);
    stack.agents_broker = wire.address.clone();
    stack.start_agent();
    push_identity(&stack, 600_000);
    stack.wait_committed("identity", 1);
    let (spoiled, seen) = wire.counts(SPOILED);
    assert_eq!(spoiled, SPOILED, "the wire saw only {seen} blocks");
    for (path, bytes) in blobs(&stack) {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        assert_eq!(selvedge_package::Digest::of(&bytes).hex(), name, "a stored blob is not what it says");
    }
}

#[test]
fn on_disk_it_is_found_before_use_and_repaired() {
    let mut stack = Stack::start();
    push_identity(&stack, 300_000);
    stack.wait_committed("identity", 1);
    stack.agent().kill();
    stack.kill_host();

    let (path, mut bytes) = blobs(&stack).into_iter().max_by_key(|(_, bytes)| bytes.len()).unwrap();
    let sound = bytes.clone();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    overwrite(&path, &bytes);

    stack.start_agent();
    wait::until("the blob to be sound again", || match std::fs::read(&path) {
        Ok(now) if now == sound => Ok(()),
        other => Err(other.map(|bytes| bytes.len())),
    });
    stack.wait_ready("identity", "1.0.0");
    wait::until("the repair to be reported", || {
        let target = stack.target();
        let told = target["events"].as_array().is_some_and(|events| {
            events
                .iter()
                .any(|event| event.to_string().contains("corrupt") || event.to_string().contains("repair"))
        });
        let serving = reported(&target, "identity").is_some_and(|report| report["serving"] == true);
        if told && serving { Ok(()) } else { Err(target.to_string()) }
    });
}

fn blobs(stack: &Stack) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = stack.dir.path().join("agent/blobs/sha256");
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        (path, bytes)
    };
    std::fs::read_dir(folder).unwrap().map(read).collect()
}

/// Changes the file in place: hard links to it change with it, as they do on a failing card.
fn overwrite(path: &std::path::Path, bytes: &[u8]) {
    let mut permissions = std::fs::metadata(path).unwrap().permissions();
    #[allow(clippy::permissions_set_readonly_false)]
    permissions.set_readonly(false);
    std::fs::set_permissions(path, permissions).unwrap();
    std::fs::write(path, bytes).unwrap();
}
