//! `selvedge deploy`: what is sent, what is said, and what is refused before anything is sent.

use serde_json::{Value, json};

use crate::mock::{Mock, detail, place, row};

const ID: &str = "3f9a000000000001";
const SELECTOR: &str = "arch = aarch64, site in (bergen, oslo)";

fn made(summary: Value, hints: &[&str]) -> Value {
    let mut made = row(ID, None, Some(SELECTOR));
    made["summary"] = summary;
    made["hints"] = hints.into();
    made["replaces"] = Value::Null;
    made
}

#[test]
fn a_selector_a_priority_and_settings_are_sent() {
    let mock = Mock::start();
    let summary = json!({"targets": 3, "wins": 2, "lost": 0, "blocked": 1});
    mock.answers("POST", "/deployments", 201, made(summary, &[]));
    let said = mock.check(
        &["deploy", "file-type@r2", "--selector", SELECTOR, "--priority", "-3", "--set", "threshold=0.9"],
        0,
        &["assigned to 2 targets", "1 of 3 targets cannot run it", &format!("selvedge watch {ID}")],
    );
    assert!(said.contains(SELECTOR), "{said}");
    assert_eq!(
        mock.sent("POST", "/deployments"),
        json!({"package": "file-type", "release": 2, "selector": SELECTOR, "priority": -3,
            "settings": {"threshold": "0.9"}})
    );
}

#[test]
fn a_selector_that_matches_nothing_warns_and_does_not_fail() {
    let mock = Mock::start();
    let none = json!({"targets": 0, "wins": 0, "lost": 0, "blocked": 0});
    let hint = "no target has the key `sitee`; did you mean `site`?";
    mock.answers("POST", "/deployments", 201, made(none, &[hint]));
    mock.says("GET", &format!("/deployments/{ID}"), detail(&row(ID, None, Some(SELECTOR)), &[]));
    let says = ["warning: no target matches", "stays in force", "hint: ", hint];
    mock.check(&["deploy", "file-type", "--selector", SELECTOR], 0, &says);
    mock.check(&["deploy", "file-type", "--selector", SELECTOR, "--wait"], 0, &says);
}

#[test]
fn a_plan_changes_nothing_and_says_what_would_be() {
    let mock = Mock::start();
    let mut planned = row(ID, None, Some(SELECTOR));
    planned["id"] = Value::Null;
    planned["created_at"] = Value::Null;
    let mut changes = place("edge-1", "waiting", 0);
    changes["running"] = json!({"release": 1, "version": "1.0.0", "serving": true});
    let blocked = json!({"name": "edge-2", "online": false, "verdict": "blocked", "state": null,
        "why": "it is x86_64, and the package runs on aarch64", "running": null});
    let plan = json!({"plan": true, "deployment": planned, "replaces": "aaaa000000000009", "hints": [],
        "targets": [changes, blocked, place("edge-3", "waiting", 0)], "summary": {}});
    mock.says("POST", "/deployments", plan.clone());
    let line = ["deploy", "file-type", "--selector", SELECTOR, "--plan"];
    let said = mock.check(&line, 0, &["nothing is changed", "replace deployment aaaa000000000009"]);
    let rows: Vec<Vec<&str>> = said.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(rows.iter().any(|row| row.starts_with(&["edge-1", "changes", "1.0.0", "r1", "yes"])), "{said}");
    assert!(rows.iter().any(|row| row.starts_with(&["edge-2", "blocked", "-", "no", "it", "is"])), "{said}");
    assert!(rows.iter().any(|row| row.starts_with(&["edge-3", "new", "-"])), "{said}");
    assert_eq!(mock.json(&line), plan);
    assert!(mock.asked("POST", "").iter().all(|asked| asked.line.ends_with("/deployments?plan=true")));
}

#[test]
fn names_that_are_not_there_name_the_nearest_and_nothing_is_sent() {
    let mock = Mock::start();
    for (line, code, says) in [
        (&["deploy", "file-tpye", "--target", "edge-1"][..], 3, "did you mean `file-type`"),
        (&["deploy", "file-type", "--target", "egde-1"], 3, "did you mean `edge-1`"),
        (&["deploy", "file-type@1.2.0", "--target", "edge-1"], 3, "1.1.0 (r2)"),
        (
            &["deploy", "file-type", "--target", "edge-1", "--set", "treshold=1"],
            4,
            "did you mean `threshold`",
        ),
        (&["packages", "scael"], 3, "did you mean `scale`"),
        (&["facts", "edge-11"], 3, "did you mean `edge-1`"),
        (&["logs", "edg-1"], 3, "did you mean `edge-1`"),
        (&["explain", "edge1"], 3, "did you mean `edge-1`"),
        (&["status", "edge-1", "--wait-for", "scal"], 3, "did you mean `scale`"),
        (&["deploy", "file-type"], 2, "--selector"),
        (&["deploy", "file-type", "--target", "edge-1", "--selector", "a"], 2, "cannot be used with"),
        (&["deploy", "file-type", "--target", "edge-1", "--plan", "--wait"], 2, "cannot be used with"),
    ] {
        mock.check(line, code, &[says]);
    }
    assert!(mock.asked("POST", "").is_empty());
}

#[test]
fn a_selector_that_cannot_be_read_says_where() {
    let mock = Mock::start();
    mock.refuses("POST", "/deployments", 400, "selector", "at character 8: expected a value");
    let line = ["deploy", "file-type", "--selector", "arch = "];
    mock.check(&line, 4, &["character 8", "expected a value", "selvedge deploy -h"]);
}

#[test]
fn waiting_for_a_selector_ends_with_what_came_of_every_target() {
    let mock = Mock::start();
    let base = row(ID, None, Some(SELECTOR));
    let path = format!("/deployments/{ID}");
    let begin = |mock: &Mock| {
        mock.says(
            "POST",
            "/deployments",
            made(json!({"targets": 2, "wins": 2, "lost": 0, "blocked": 0}), &[]),
        );
        let both = [place("edge-1", "fetching", 500), place("edge-2", "waiting", 0)];
        mock.says("GET", &path, detail(&base, &both));
    };
    let line = ["deploy", "file-type", "--selector", SELECTOR, "--wait"];
    begin(&mock);
    let served = [place("edge-1", "serving", 0), place("edge-2", "serving", 0)];
    mock.answers("GET", &path, 200, detail(&base, &served));
    mock.check(&line, 0, &["edge-1: file-type 1.1.0 (r2): fetching, 500 B of 1000 B", "2 of 2 serving"]);
    begin(&mock);
    let half = [place("edge-1", "serving", 0), place("edge-2", "failed", 0)];
    mock.answers("GET", &path, 200, detail(&base, &half));
    mock.check(&line, 4, &["edge-2 did not keep", "case `pdf`: expected pdf, got png", "what ran before"]);
    begin(&mock);
    let late = [&line[..], &["--timeout", "3"]].concat();
    mock.check(&late, 7, &["edge-2 (waiting)", "may still happen", &format!("selvedge watch {ID}")]);
    let blocked = json!({"name": "edge-1", "online": true, "verdict": "blocked", "state": null, "why": "too little memory"});
    mock.says("GET", &path, detail(&base, &[blocked]));
    mock.check(&line, 4, &["none of 1 targets can run it", "too little memory"]);
    let lost = json!({"name": "edge-1", "online": true, "verdict": "lost", "state": null, "why": "to aaaa: priority"});
    mock.says("GET", &path, detail(&base, &[lost]));
    mock.check(&line, 5, &["goes before on each of 1 targets", "--priority"]);
}
