//! `selvedge watch`: lines, JSON, the end, a registry that goes away, Ctrl-C, a closed pipe.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::mock::{Mock, check, detail, place, row};

const ID: &str = "aaaa000000000001";

fn mock(places: &[&[Value]]) -> Mock {
    let mock = Mock::start();
    let row = row(ID, None, Some("site = oslo"));
    mock.says("GET", "/deployments", json!({"items": [row]}));
    for places in places {
        mock.answers("GET", &format!("/deployments/{ID}"), 200, detail(&row, places));
    }
    mock
}

fn interrupt(child: &Child) {
    let id = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(id, Signal::INT).unwrap();
}

#[test]
fn every_change_is_a_line_until_all_serve() {
    let steps = [
        [place("edge-1", "waiting", 0), place("edge-2", "fetching", 10)],
        [place("edge-1", "fetching", 500), place("edge-2", "fetching", 20)],
        [place("edge-1", "trial", 0), place("edge-2", "serving", 0)],
        [place("edge-1", "serving", 0), place("edge-2", "serving", 0)],
    ];
    let steps: Vec<&[Value]> = steps.iter().map(|step| &step[..]).collect();
    for what in [&["watch"][..], &["watch", "file-type"], &["watch", "aaaa"]] {
        let said = mock(&steps).check(what, 0, &["file-type 1.1.0 (r2) to `site = oslo`: 2 of 2 serving"]);
        let of = |name: &str| -> Vec<String> {
            let lines = said.lines().filter(|line| line.starts_with(name));
            lines.map(|line| line.rsplit("): ").next().unwrap().to_owned()).collect()
        };
        assert_eq!(of("edge-1"), ["waiting", "fetching, 500 B of 1000 B", "trial", "serving"]);
        assert_eq!(of("edge-2"), ["fetching, 10 B of 1000 B", "serving"]);
    }
}

#[test]
fn programs_get_a_line_of_json_for_each_change() {
    let steps = [
        vec![place("edge-1", "fetching", 10)],
        vec![place("edge-1", "fetching", 500)],
        vec![place("edge-1", "failed", 0)],
    ];
    let steps: Vec<&[Value]> = steps.iter().map(Vec::as_slice).collect();
    let output = mock(&steps).selvedge(&["watch", "--json"]).output().unwrap();
    check(&output, 4, &[]);
    let lines: Vec<Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert_eq!(
        (&lines[0]["target"], &lines[0]["state"], &lines[0]["deployment"]),
        (&json!("edge-1"), &json!("fetching"), &json!(ID))
    );
    assert_eq!(lines[2]["failure"]["what"], "case `pdf`: expected pdf, got png");
    assert_eq!(lines[3]["done"], true);
    let error: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!((&error["reason"], &error["exit"]), (&json!("refused"), &json!(4)));
}

#[test]
fn a_registry_that_goes_away_is_waited_for_and_told_once() {
    let mut mock = mock(&[&[place("edge-1", "fetching", 10)]]);
    let mut child = mock.begin(&["watch", "file-type"]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("fetching"));
    mock.stop();
    let mut notes = BufReader::new(child.stderr.take().unwrap()).lines();
    let note = notes.next().unwrap().unwrap();
    assert!(note.contains("does not answer") && note.contains("asking again"), "{note}");
    mock.says(
        "GET",
        &format!("/deployments/{ID}"),
        detail(&row(ID, None, Some("site = oslo")), &[place("edge-1", "serving", 0)]),
    );
    mock.start_again();
    assert!(notes.next().unwrap().unwrap().contains("answers again"));
    assert!(lines.next().unwrap().unwrap().contains("serving"));
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(notes.count(), 0);
}

#[test]
fn ctrl_c_ends_it_quietly() {
    let mock = mock(&[&[place("edge-1", "waiting", 0)]]);
    let mut child = mock.begin(&["watch"]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("waiting"));
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "");
}

#[test]
fn it_ends_when_nobody_reads_any_more() {
    let mock = mock(&[&[place("edge-1", "waiting", 0)]]);
    let mut child = mock.begin(&["watch"]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    drop(lines);
    // Nothing more happens that could be written, and it ends all the same.
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn what_replaces_a_deployment_of_a_package_is_followed() {
    let begin = || {
        let mock = mock(&[&[place("edge-1", "waiting", 0)]]);
        let (mut old, new) =
            (row(ID, None, Some("site = oslo")), row("cccc000000000002", None, Some("site = oslo")));
        old["ended"] = "replaced".into();
        mock.answers("GET", &format!("/deployments/{ID}"), 200, detail(&old, &[]));
        mock.answers("GET", "/deployments", 200, json!({"items": [new]}));
        mock.says("GET", "/deployments/cccc000000000002", detail(&new, &[place("edge-1", "serving", 0)]));
        mock
    };
    begin().check(&["watch", "file-type"], 0, &["is replaced by", "1 of 1 serving"]);
    begin().check(
        &["watch", ID],
        5,
        &["was replaced by cccc000000000002", "selvedge watch cccc000000000002"],
    );
}

#[test]
fn nothing_to_watch_is_no_failure() {
    let mock = mock(&[&[]]);
    mock.check(&["watch", "file-type"], 0, &["no target matches"]);
    mock.says("GET", "/deployments", json!({"items": []}));
    mock.check(&["watch"], 0, &["nothing is deployed"]);
    mock.check(&["watch", "file-type"], 3, &["no deployment file-type"]);
    mock.check(&["watch", "--target", "edge-1"], 2, &["say the package too"]);
}

#[test]
fn a_limit_ends_it_with_its_code() {
    let mut away = place("edge-1", "waiting", 0);
    away["online"] = false.into();
    let mock = mock(&[&[away]]);
    mock.check(
        &["watch", "--timeout", "3"],
        7,
        &["edge-1 (waiting; the device is offline)", "may still happen"],
    );
    // A registry that is not there at the beginning is not waited for.
    let mut mock = mock;
    mock.stop();
    mock.check(&["watch"], 6, &["does not answer"]);
}

/// Standard output and standard error on a terminal (that of `script`), with the exit code.
fn on_a_terminal(mock: &Mock, line: &str, environment: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = mock.selvedge(&[]);
    let variables: Vec<(OsString, OsString)> =
        command.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))).collect();
    command = Command::new("script");
    let program = env!("CARGO_BIN_EXE_selvedge");
    command.args(["-qec", &format!("{program} {line}"), "/dev/null"]).env_clear().envs(variables);
    command.env("SHELL", "/bin/sh").envs(environment.iter().copied()).stdin(Stdio::null());
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn on_a_terminal_there_are_bars_and_colour_for_who_wants_it() {
    let begin = || {
        mock(&[
            &[place("edge-1", "fetching", 500), place("edge-2", "waiting", 0)],
            &[place("edge-1", "serving", 0), place("edge-2", "failed", 0)],
        ])
    };
    let (code, said) = on_a_terminal(&begin(), "watch", &[("TERM", "xterm")]);
    assert_eq!(code, Some(4), "{said:?}");
    for text in [
        "[==========>         ]  50 %  fetching",
        "\u{1b}[3A",
        "\u{1b}[32mserving\u{1b}[0m",
        "\u{1b}[31merror:",
    ] {
        assert!(said.contains(text), "`{text}` is not in {said:?}");
    }
    let (_, said) = on_a_terminal(&begin(), "watch", &[("TERM", "xterm"), ("NO_COLOR", "1")]);
    assert!(
        said.contains("50 %") && !said.contains("\u{1b}[32m") && !said.contains("\u{1b}[31m"),
        "{said:?}"
    );
    for (line, term) in [("watch", "dumb"), ("watch | cat", "xterm"), ("watch --json", "xterm")] {
        let (_, said) = on_a_terminal(&begin(), line, &[("TERM", term), ("NO_COLOR", "1")]);
        assert!(said.contains("edge-1") && !said.contains('\u{1b}'), "{line}, {term}: {said:?}");
    }
}
