//! `selvedge up` ends everything that it started: on SIGTERM while it starts, and when a child
//! dies. The programs here are mocks, shell scripts that only listen on paper; the story with the
//! real ones is in `tests/`.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use selvedge_cli::supervisor::place::Place;
use selvedge_cli::supervisor::process::Process;
use selvedge_cli::supervisor::record::Record;

/// A mock of `selvedge-registry`: its broker says an address and sleeps; its registry does `serve`.
fn programs(dir: &Path, serve: &str) {
    let script = format!(
        "#!/bin/sh\n\
         if [ \"$1\" = broker ]; then\n\
         while [ $# -gt 1 ]; do [ \"$1\" = --address-file ] && echo 127.0.0.1:9 > \"$2\"; shift; done\n\
         exec sleep 600\nfi\n{serve}\n"
    );
    for (name, text) in [
        ("selvedge-registry", script.as_str()),
        ("selvedge-agent", "#!/bin/sh\nexec sleep 600\n"),
        ("selvedge-host", "#!/bin/sh\nexec sleep 600\n"),
    ] {
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
}

fn up(dir: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_selvedge"))
        .args(["up", "--programs"])
        .arg(dir)
        .arg("--data")
        .arg(dir.join("up"))
        .env("HOME", dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits until the record names `child`.
fn started(dir: &Path, child: &str) -> Process {
    for _ in 0..3000 {
        if let Ok(Some(record)) = Record::read(&dir.join("up"))
            && let Some(process) = record.pids.get(child)
        {
            return *process;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{child} did not start");
}

#[test]
fn a_death_ends_the_others_and_shows_the_log() {
    let dir = tempfile::tempdir().unwrap();
    // It ends when the test has seen the others.
    let go = dir.path().join("go");
    let wait = format!("while [ ! -e '{}' ]; do sleep 0.05; done", go.display());
    programs(dir.path(), &format!("echo the disk is made of cheese >&2; {wait}; exit 7"));
    let child = up(dir.path());
    let broker = started(dir.path(), "broker");
    std::fs::write(go, "").unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(6), "{said}");
    assert!(said.contains("registry ended") && said.contains("made of cheese"), "{said}");
    assert!(!broker.is_alive());
    assert!(Record::read(&dir.path().join("up")).unwrap().unwrap().pids.is_empty());
    assert!(Place::take(&dir.path().join("up")).is_ok(), "the lock is still held");
}

#[test]
fn sigterm_while_starting_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    programs(dir.path(), "exec sleep 600");
    let child = up(dir.path());
    let (broker, registry) = (started(dir.path(), "broker"), started(dir.path(), "registry"));
    Process::of(child.id()).unwrap().signal(rustix::process::Signal::TERM);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!broker.is_alive() && !registry.is_alive());
}

#[test]
fn a_second_start_names_the_first_and_a_killed_one_is_cleared_away() {
    let dir = tempfile::tempdir().unwrap();
    programs(dir.path(), "exec sleep 600");
    let mut first = up(dir.path());
    let left = [started(dir.path(), "broker"), started(dir.path(), "registry")];
    let second = up(dir.path()).wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(5), "{said}");
    assert!(said.contains(&first.id().to_string()), "{said}");

    first.kill().unwrap();
    first.wait().unwrap();
    assert!(left.iter().all(Process::is_alive));
    let third = up(dir.path());
    for _ in 0..3000 {
        if !left.iter().any(Process::is_alive) {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!left.iter().any(Process::is_alive), "what the killed start left still runs");
    Process::of(third.id()).unwrap().signal(rustix::process::Signal::TERM);
    assert_eq!(third.wait_with_output().unwrap().status.code(), Some(130));
}
