//! The systemd units: they are what systemd reads, and the agent takes their configuration; and how the agent
//! ends when it cannot run, which decides whether systemd starts it again.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const AGENT: &str = env!("CARGO_BIN_EXE_selvedge-agent");

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("packaging")
}

/// Every unit with its text.
fn units() -> Vec<(String, String)> {
    let entries = std::fs::read_dir(packaging().join("systemd")).unwrap().map(Result::unwrap);
    let mut units: Vec<_> = entries
        .map(|entry| entry.file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".service") || name.ends_with(".socket"))
        .map(|name| (name.clone(), std::fs::read_to_string(packaging().join("systemd").join(&name)).unwrap()))
        .collect();
    units.sort();
    assert_eq!(units.len(), 4);
    units
}

#[test]
fn systemd_reads_the_units_without_a_word() {
    let place = tempfile::tempdir().unwrap();
    for (name, text) in units() {
        // Its programs are not installed here.
        let text = text.replace("/usr/bin/selvedge-agent", AGENT).replace("/usr/bin/selvedge-host", AGENT);
        std::fs::write(place.path().join(name), text).unwrap();
    }
    let mut command = Command::new("systemd-analyze");
    command
        .args(["verify", "--man=no", "--recursive-errors=yes"])
        .env("SYSTEMD_UNIT_PATH", format!("{}:", place.path().display()));
    command.args(units().iter().map(|(name, _)| place.path().join(name)));
    let said = command.output().expect("systemd-analyze is there: the set-up of the tests installs it");
    let words = String::from_utf8_lossy(&said.stderr);
    let ours: Vec<&str> = words.lines().filter(|line| line.contains("selvedge")).collect();
    assert!(said.status.success() && ours.is_empty(), "{words}");
}

#[test]
fn the_sockets_have_the_names_that_the_host_goes_by_and_the_agent_finds_them() {
    let text = |name: &str| units().into_iter().find(|unit| unit.0 == name).unwrap().1;
    let has = |name: &str, line: &str| assert!(text(name).lines().any(|l| l == line), "{name}: {line}");
    has("selvedge-host-http.socket", "FileDescriptorName=http");
    has("selvedge-host-control.socket", "FileDescriptorName=control");
    let configuration = std::fs::read_to_string(packaging().join("agent.toml")).unwrap();
    let choices = selvedge_agent::config::Choices::from_file(&packaging().join("agent.toml")).unwrap();
    let control = choices.host_control.expect("the agent is to steer the host's unit");
    has("selvedge-host-control.socket", &format!("ListenStream={}", control.display()));
    // What stands there as a comment is a key, too.
    let all: String = configuration
        .lines()
        .map(|l| l.strip_prefix("# ").filter(|l| l.contains(" = ")).unwrap_or(l))
        .fold(String::new(), |all, line| all + line + "\n");
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("agent.toml"), all).unwrap();
    selvedge_agent::config::Choices::from_file(&place.path().join("agent.toml")).unwrap();
}

fn run(arguments: &[&str], data: &Path) -> Output {
    let mut command = Command::new(AGENT);
    command.arg("run").args(arguments).arg("--data").arg(data).args(["--host-binary", "/bin/true"]);
    command.output().unwrap()
}

#[track_caller]
fn ends_with(code: i32, said: &Output, words: &str) {
    let error = String::from_utf8_lossy(&said.stderr);
    assert_eq!(said.status.code(), Some(code), "{error}");
    assert!(error.contains(words), "{error}");
}

#[test]
fn what_a_person_has_to_change_is_told_apart_from_what_passes() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    ends_with(2, &run(&["--nonsense"], &data), "--nonsense");
    ends_with(78, &run(&[], &data), "belongs to no device yet");
    let path = |name: &str, text: &str| {
        let path = place.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    ends_with(78, &run(&["--config", &path("a.toml", "heartbeet-seconds = 3")], &data), "heartbeat-seconds");
    ends_with(78, &run(&["--config", "/nowhere/agent.toml"], &data), "/nowhere");
    ends_with(78, &run(&["--enrolment", &path("e.json", "{}")], &data), "no enrolment file");
    let gone = path("gone.toml", "enrolment = '/nowhere/e.json'");
    ends_with(78, &run(&["--config", &gone], &data), "belongs to no device yet");
    let both = ["--host-control", "/run/h.sock", "--http", "127.0.0.1:0"];
    ends_with(78, &run(&both, &data), "neither `http`");
    let lock = selvedge_agent::lock::Lock::take(&data, std::time::Duration::ZERO).unwrap();
    ends_with(75, &run(&[], &data), "in use");
    drop(lock);
    std::fs::write(data.join("agent.redb"), "not a database").unwrap();
    ends_with(65, &run(&[], &data), "agent.redb");
}
