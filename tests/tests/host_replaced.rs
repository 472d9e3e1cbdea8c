//! A host that an earlier agent left: adopted where it is the one that is to run, replaced where it is
//! not, and never left beside another one; and one that hangs.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use selvedge_control::PackageState;
use selvedge_tests::packages::push_identity;
use selvedge_tests::ports::free_address;
use selvedge_tests::process::{Process, runs, send};
use selvedge_tests::programs::program;
use selvedge_tests::stack::Stack;
use selvedge_tests::wait;

#[test]
fn another_address_or_program_is_what_runs_after_the_agent_is_started_with_it() {
    let mut stack = Stack::start();
    push_identity(&stack, 0);
    stack.wait_committed("identity", 1);
    let first = stack.host_id().unwrap();

    // The same again: it is adopted.
    stack.agent().stop();
    stack.start_agent();
    serving(&stack, &stack.inference().replace("http://", ""));
    assert_eq!(stack.host_id(), Some(first));

    let address = free_address();
    let own = stack.dir.path().join("host");
    copy_host(&own);
    let second = restart(&mut stack, &address, &program("selvedge-host"), first);
    let third = restart(&mut stack, &address, &own, second);
    // A newer program under the same name.
    copy_host(&own);
    let fourth = restart(&mut stack, &address, &own, third);
    stack.agent().kill();
    start(&mut stack, &address, &own);
    let agent = stack.agent().id();
    wait::until("the agent to answer", || match stack.agent_status() {
        status if status["agent"] == agent && !status["host"].is_null() => Ok(()),
        other => Err(other),
    });
    assert_eq!(stack.host_id(), Some(fourth), "nothing has changed");
}

#[test]
fn an_agent_killed_while_its_host_starts_leaves_no_second_one() {
    let mut stack = Stack::without_agent();
    let mut earlier = None;
    for _ in 0..4 {
        stack.start_agent();
        // As early as can be: the host has just been started, or not even its program.
        earlier = Some(wait::until("a host", || {
            stack.host_id().filter(|id| earlier.is_none() || hosts(&stack).contains(id)).ok_or("none")
        }));
        stack.agent().kill();
    }
    stack.start_agent();
    wait::until("the host to answer", || stack.host_status());
    let running = hosts(&stack);
    assert_eq!(running, [stack.host_id().unwrap()], "one host: the first was {earlier:?}");
    send(running[0], Signal::TERM);
}

/// Starts the agent so, and waits for the host that is to run; it is not the one before.
fn restart(stack: &mut Stack, address: &str, host: &Path, before: u32) -> u32 {
    stack.agent().stop();
    start(stack, address, host);
    let other = || stack.host_id().filter(|now| *now != before).ok_or("still the one before");
    let now = wait::until("another host", other);
    serving(stack, address);
    assert_eq!(hosts(stack), [now]);
    now
}

fn start(stack: &mut Stack, address: &str, host: &Path) {
    let mut command = Command::new(program("selvedge-agent"));
    command.args(["run", "--data", &stack.path("agent"), "--http", address, "--host-binary"]).arg(host);
    stack.agent = Some(Process::start("agent", &mut command, &stack.dir.path().join("agent.log")));
}

/// Waits until the package is served at this address, and the host knows that this is all.
fn serving(stack: &Stack, address: &str) {
    wait::until("the package to be served", || match stack.host_status() {
        Ok(status)
            if status.http == address
                && status.ready
                && status.packages.iter().any(|package| package.state == PackageState::Serving) =>
        {
            Ok(())
        }
        other => Err(format!("{other:?}")),
    });
}

/// Another file with the same program.
fn copy_host(to: &Path) {
    let new = to.with_extension("new");
    std::fs::copy(program("selvedge-host"), &new).unwrap();
    std::fs::rename(&new, to).unwrap();
}

/// Processes that serve this stack's data, as hosts.
fn hosts(stack: &Stack) -> Vec<u32> {
    let data = stack.path("agent/host");
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let serves = |process: &u32| {
        let line = std::fs::read(PathBuf::from("/proc").join(process.to_string()).join("cmdline"));
        let line = line.unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        words.get(1) == Some(&b"serve".as_slice()) && words.contains(&data.as_bytes())
    };
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(serves).collect()
}

#[test]
fn a_host_that_hangs_is_killed_and_another_answers() {
    let stack = Stack::start();
    let first = wait::until("a host", || stack.host_id().filter(|id| runs(*id)).ok_or("none"));
    wait::until("it to be ready", || match stack.get("/v2/health/ready") {
        Ok((200, _)) => Ok(()),
        other => Err(other),
    });
    send(first, Signal::STOP);
    wait::until("another host", || match stack.host_id() {
        Some(id) if id != first && runs(id) && !runs(first) => Ok(()),
        other => Err(other),
    });
    wait::until("it to be told", || {
        let events = stack.target()["events"].to_string();
        if events.contains("did not answer any more") { Ok(()) } else { Err(events) }
    });
}
