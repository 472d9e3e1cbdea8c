//! The launcher: what a child finds when `selvedge-agent launch` has set it up.
#![allow(clippy::unwrap_used)]

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};

use selvedge_agent::supervise::{CANNOT, Launch};

fn launch(script: &str) -> Launch {
    Launch { command: vec!["/bin/sh".into(), "-c".into(), script.into()], ..Launch::default() }
}

fn by_agent(launch: &Launch) -> Command {
    launch.by(Path::new(env!("CARGO_BIN_EXE_selvedge-agent")))
}

#[test]
fn listeners_arrive_where_the_variables_say() {
    let place = tempfile::tempdir().unwrap();
    let http = TcpListener::bind("127.0.0.1:0").unwrap();
    let control = UnixListener::bind(place.path().join("s")).unwrap();
    let log = place.path().join("log");
    // Which descriptor is which is told by what /proc says of it.
    let script = r#"
        echo "pid $LISTEN_PID is $$" >&2
        fd=3
        for name in $(echo "$LISTEN_FDNAMES" | tr : ' '); do
            echo "$name $(readlink /proc/$$/fd/$fd)" >&2
            fd=$((fd + 1))
        done
        echo "count $LISTEN_FDS is $((fd - 3))" >&2
        echo "stdin $(readlink /proc/$$/fd/0)" >&2
    "#;
    let mut launch = launch(script);
    launch.listeners = true;
    launch.session = true;
    let inode = |fd: &dyn std::os::fd::AsRawFd| {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
        link.to_string_lossy().into_owned()
    };
    let (http_inode, control_inode) = (inode(&http), inode(&control));
    let status = by_agent(&launch)
        .stdin(OwnedFd::from(http.try_clone().unwrap()))
        .stdout(OwnedFd::from(control.try_clone().unwrap()))
        .stderr(std::fs::File::create(&log).unwrap())
        .status()
        .unwrap();
    let told = std::fs::read_to_string(&log).unwrap();
    assert!(status.success(), "{told}");
    for line in
        [format!("http {http_inode}\n"), format!("control {control_inode}\n"), "stdin /dev/null\n".to_owned()]
    {
        assert!(told.contains(&line), "{line} is missing from:\n{told}");
    }
    for line in told.lines().filter(|line| line.starts_with("pid") || line.starts_with("count")) {
        let words: Vec<_> = line.split(' ').collect();
        assert_eq!(words[1], words[3], "{told}");
    }
}

#[test]
fn limits_hold_in_the_child() {
    let mut launch = launch("ulimit -d; ulimit -t; cat /proc/self/oom_score_adj");
    launch.data_limit = Some(512 << 20);
    launch.cpu_limit = Some(7);
    launch.die_with = Some(std::process::id());
    let output = by_agent(&launch).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().take(2).collect::<Vec<_>>(), ["524288", "7"], "{text}");
}

#[test]
fn the_process_is_written_down_before_its_program_starts() {
    let place = tempfile::tempdir().unwrap();
    let trace = place.path().join("host.json");
    let mut launch = launch(&format!("cat {}; echo; echo $$", trace.display()));
    launch.trace = Some(trace);
    let output = by_agent(&launch).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (written, pid) = text.trim_end().split_once('\n').unwrap();
    assert!(written.starts_with(&format!("{{\"pid\":{pid},\"start\":")), "{text}");

    // On a full disk it serves all the same.
    launch.trace = Some("/nowhere/host.json".into());
    let output = by_agent(&launch).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success() && String::from_utf8_lossy(&output.stderr).contains("/nowhere"));
}

#[test]
fn a_child_whose_agent_is_gone_does_not_start() {
    let mut launch = launch("echo started");
    launch.die_with = Some(1);
    let output = by_agent(&launch).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(CANNOT));
    assert!(output.stdout.is_empty());
}

#[test]
fn a_program_that_is_not_there_is_told_apart() {
    let launch = Launch { command: vec!["/nowhere/host".into()], ..Launch::default() };
    let output = by_agent(&launch).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(CANNOT));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nowhere/host"));
}
