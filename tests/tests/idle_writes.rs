//! An idle agent spares its memory card: once everything is committed and acknowledged, its heartbeats and
//! timers write nothing at all, however long that goes on.

#![allow(clippy::unwrap_used)]

use selvedge_agent::config::Choices;
use selvedge_tests::failing::{Agent, FailingDisk};
use selvedge_tests::packages::push_identity;
use selvedge_tests::stack::Stack;
use selvedge_tests::wait;

/// Heartbeats that are waited for: by default a device has as many in this many minutes.
const HEARTBEATS: usize = 10;

#[test]
fn an_idle_agent_writes_nothing() {
    let stack = Stack::without_agent();
    let disk = FailingDisk::default();
    let heartbeat_seconds = Some(1);
    let _agent = Agent::of(&stack, &disk, Choices { heartbeat_seconds, ..Choices::default() });
    push_identity(&stack, 100_000);
    stack.wait_committed("identity", 1);
    let installed = disk.changes();
    wait::until("every acknowledgement", || {
        let status = stack.agent_status();
        let quiet = status["reports_waiting"] == 0 && status["trouble"].as_array().is_some_and(Vec::is_empty);
        if quiet { Ok(()) } else { Err(status) }
    });
    // What was about to be written down may come after the last word of it.
    let mut before = disk.changes();
    let mut seen = stack.target()["last_heard"].clone();
    let mut heartbeats = 0;
    let mut settled = false;
    while heartbeats < HEARTBEATS {
        seen = wait::until("a heartbeat", || {
            let now = stack.target()["last_heard"].clone();
            if now == seen { Err(now) } else { Ok(now) }
        });
        heartbeats += 1;
        if !settled && heartbeats == 2 {
            (settled, heartbeats, before) = (true, 0, disk.changes());
        }
    }
    let written = disk.changes() - before;
    println!(
        "changes of the disk: {installed} for enrolment and a first install, {written} in {HEARTBEATS} heartbeats"
    );
    assert_eq!(written, 0, "an idle agent writes");
}
