//! `selvedge up` with the real programs: the main job by hand, a stop and a start that keep what was
//! there, and an end of everything whichever process dies.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use selvedge_tests::command::Selvedge;
use selvedge_tests::onnx_writer;
use selvedge_tests::process::{Process, runs, send};
use selvedge_tests::programs::program;
use selvedge_tests::wait;
use serde_json::Value;
use tempfile::TempDir;

#[test]
fn the_main_job_and_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut up = start(&dir);
    let model = dir.path().join("identity.onnx");
    std::fs::write(&model, onnx_writer::identity_padded(100_000)).unwrap();
    let package = path(&dir, "identity.pkg");
    Selvedge::new().run(&["package", model.to_str().unwrap(), "--release", "1", "--out", &package]);
    run(&dir, &["release", &package, "--keys", &path(&dir, "up/keys")]);
    run(&dir, &["deploy", "identity", "--target", "edge-1", "--wait", "--timeout", "100"]);
    assert!(ask(&dir).contains("1.0, 2.0, 3.0"), "{}", ask(&dir));

    let (before, host) = (record(&dir), child(&dir, "host"));
    let (code, said) = Selvedge::new().refused(&["up", "--data", &path(&dir, "up")]);
    assert!(code == 5 && said.contains(&up.id().to_string()), "{code}: {said}");
    assert!(runs(host), "the refused start has ended the host of the first");
    let status = up.stop();
    assert_eq!(status.code(), Some(0), "{}", up.log());
    assert_eq!(left_over(dir.path()), Vec::<String>::new());
    let (code, said) = Selvedge::new().refused(&["status", "--data", &path(&dir, "up")]);
    assert!(code == 6 && said.contains("selvedge up"), "{code}: {said}");

    let mut up = start(&dir);
    // Whoever noted the addresses finds everything where it was, and answering at once.
    let after = record(&dir);
    for name in ["registry", "broker", "inference"] {
        assert_eq!(before[name], after[name], "{name}");
    }
    assert!(ask(&dir).contains("1.0, 2.0, 3.0"));
    assert_eq!(up.stop().code(), Some(0), "{}", up.log());
}

#[test]
fn stopped_in_the_middle_of_a_transfer_it_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut up = start(&dir);
    let model = dir.path().join("identity.onnx");
    std::fs::write(&model, onnx_writer::identity_padded(60_000_000)).unwrap();
    let package = path(&dir, "identity.pkg");
    Selvedge::new().run(&["package", model.to_str().unwrap(), "--release", "1", "--out", &package]);
    run(&dir, &["release", &package, "--keys", &path(&dir, "up/keys")]);
    run(&dir, &["deploy", "identity", "--target", "edge-1"]);
    let partial = dir.path().join("up/agent/partial");
    let begun = || std::fs::read_dir(&partial).is_ok_and(|mut files| files.next().is_some());
    wait::until("chunks to arrive", || if begun() { Ok(()) } else { Err(()) });
    assert_eq!(up.stop().code(), Some(0), "{}", up.log());
    assert!(begun(), "the transfer was over before it could be stopped");
    let mut up = start(&dir);
    run(&dir, &["status", "--wait-for", "identity@r1", "--timeout", "100"]);
    assert!(ask(&dir).contains("1.0, 2.0, 3.0"), "{}", ask(&dir));
    assert_eq!(up.stop().code(), Some(0), "{}", up.log());
}

#[test]
fn a_host_comes_back_and_an_agent_ends_all() {
    let dir = tempfile::tempdir().unwrap();
    let mut up = start(&dir);
    let host = child(&dir, "host");
    send(host, Signal::KILL);
    let noted = dir.path().join("up/agent/run/host.json");
    let second = wait::until("another host", || {
        let text = std::fs::read_to_string(&noted).unwrap_or_default();
        let id = serde_json::from_str::<Value>(&text).ok().and_then(|value| value["pid"].as_u64());
        id.and_then(|id| u32::try_from(id).ok()).filter(|id| *id != host && runs(*id)).ok_or(text)
    });
    assert!(up.runs(), "{}", up.log());

    send(child(&dir, "agent"), Signal::KILL);
    wait::until("everything to end", || if up.runs() { Err(up.log()) } else { Ok(()) });
    assert!(up.log().contains("agent ended"), "{}", up.log());
    assert!(!runs(second), "the host has outlived `selvedge up`");
    assert_eq!(left_over(dir.path()), Vec::<String>::new());
}

#[test]
fn what_a_killed_up_has_left_is_cleared_away() {
    let dir = tempfile::tempdir().unwrap();
    let mut up = start(&dir);
    let left: Vec<u32> =
        ["broker", "registry", "agent", "host"].iter().map(|name| child(&dir, name)).collect();
    up.kill();
    assert!(left.iter().all(|id| runs(*id)));
    let mut up = start(&dir);
    assert!(!left.iter().any(|id| runs(*id)));
    assert_eq!(up.stop().code(), Some(0), "{}", up.log());
    assert_eq!(left_over(dir.path()), Vec::<String>::new());
}

fn start(dir: &TempDir) -> Process {
    let mut command = Command::new(program("selvedge"));
    command.args(["up", "--data", &path(dir, "up"), "--timeout", "100"]);
    let log = dir.path().join("up.log");
    let _ = std::fs::remove_file(&log);
    let mut up = Process::start("up", &mut command, &log);
    wait::until("everything to be ready", || {
        assert!(up.runs(), "{}", up.log());
        if up.log().contains("everything is ready") { Ok(()) } else { Err(up.log()) }
    });
    up
}

fn run(dir: &TempDir, arguments: &[&str]) -> String {
    let data = path(dir, "up");
    Selvedge::new().run(&[arguments, &["--data", &data]].concat())
}

fn ask(dir: &TempDir) -> String {
    run(dir, &["ask", "identity", "--input", r#"{"x": [[1, 2, 3], [4, 5, 6]]}"#])
}

fn record(dir: &TempDir) -> Value {
    serde_json::from_str(&std::fs::read_to_string(dir.path().join("up/up.json")).unwrap()).unwrap()
}

fn child(dir: &TempDir, name: &str) -> u32 {
    let id = record(dir)["pids"][name]["pid"].as_u64();
    id.and_then(|id| u32::try_from(id).ok()).unwrap_or_else(|| panic!("no {name} in {}", record(dir)))
}

fn path(dir: &TempDir, name: &str) -> String {
    dir.path().join(name).display().to_string()
}

/// Command lines of programs that name the folder.
fn left_over(dir: &Path) -> Vec<String> {
    let folder = dir.display().to_string();
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let lines = processes.filter_map(|process| std::fs::read_to_string(process.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(&folder)).map(|line| line.replace('\0', " ")).collect()
}
