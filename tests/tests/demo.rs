//! The demo that a newcomer runs first: it ends well, and leaves no process behind, also when it is
//! interrupted in the middle.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use selvedge_tests::process::{Process, send};
use selvedge_tests::programs::program;
use selvedge_tests::wait;

#[test]
fn ends_well_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut demo = start(dir.path());
    let ended = || if demo.runs() { Err(last_line(&demo)) } else { Ok(()) };
    wait::within(Duration::from_secs(400), Duration::from_millis(100), "the demo to end", ended);
    let log = demo.log();
    assert!(log.contains("left nothing running"), "{log}");
    assert!(log.contains("report.pdf") && !log.contains("DIFFERS"), "{log}");
    // The second part: a swap that nobody noticed, a refused version, a quarantined one.
    for line in ["answered by 1.1.0, 0 failed", "acceptance case", "quarantined"] {
        assert!(log.contains(line), "no `{line}` in {log}");
    }
    assert_eq!(left_over(dir.path()), Vec::<String>::new());
}

#[test]
fn interrupted_it_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut demo = start(dir.path());
    wait::until("a package to be released", || {
        if demo.log().contains(" deploy ") { Ok(()) } else { Err(last_line(&demo)) }
    });
    assert!(!left_over(dir.path()).is_empty());
    send(demo.id(), Signal::INT);
    wait::until("the demo to end", || if demo.runs() { Err(last_line(&demo)) } else { Ok(()) });
    assert_eq!(left_over(dir.path()), Vec::<String>::new());
    assert!(!demo.log().contains("left nothing running"), "it was not interrupted");
}

fn start(dir: &Path) -> Process {
    let mut command = Command::new(program("xtask"));
    command.args(["demo", "--no-build", "--folder"]).arg(dir.join("demo"));
    Process::start("demo", &mut command, &dir.join("demo.log"))
}

fn last_line(demo: &Process) -> String {
    demo.log().lines().last().unwrap_or_default().to_owned()
}

/// Command lines of programs that name the demo's folder.
fn left_over(dir: &Path) -> Vec<String> {
    let folder = dir.join("demo").display().to_string();
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let lines = processes.filter_map(|process| std::fs::read_to_string(process.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(&folder) && !line.contains("--no-build")).collect()
}
