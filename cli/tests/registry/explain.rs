//! `selvedge explain` and `facts`: why something runs, and what selectors can go by.

use serde_json::{Value, json};

use crate::mock::Mock;

fn explanation() -> Value {
    json!({"target": "edge-1", "online": true, "desired_sequence": 4, "packages": [
        {"package": "file-type", "runs": {"release": 1, "version": "1.0.0", "serving": true},
         "assigned": {"deployment": null, "release": 1, "version": "1.0.0", "settings": {}}, "kept": true,
         "why": "every deployment in scope is blocked", "pending": null,
         "failure": {"release": 2, "reason": "acceptance", "what": "expected \u{1b}[31mpdf"},
         "deployments": [
            {"id": "aaaa000000000001", "scope": "target edge-1", "priority": 5, "release": 2, "version": "1.1.0",
             "created_at": "2026-01-01T00:00:00Z", "verdict": "blocked", "why": "it is x86_64"},
            {"id": "aaaa000000000002", "scope": "site = oslo", "priority": 0, "release": 1, "version": "1.0.0",
             "created_at": "2026-01-01T00:00:00Z", "verdict": "lost", "why": "to aaaa000000000001: priority"}]}]})
}

#[test]
fn what_runs_why_and_what_lost() {
    let mock = Mock::start();
    mock.says("GET", "/targets/edge-1/explain", explanation());
    let says = [
        "file-type: serves 1.0.0 (r1)",
        "kept: what it was told last",
        "every deployment in scope is blocked",
        "failed: r2, acceptance",
        "blocked  it is x86_64",
        "lost     to aaaa000000000001: priority",
    ];
    mock.check(&["explain", "edge-1"], 0, &says);
    assert_eq!(mock.json(&["explain", "edge-1"]), explanation());
    mock.check(&["explain", "edge-1", "file-type"], 0, &says);
    assert!(mock.asked("GET", "/targets/edge-1/explain?package=file-type").len() == 1);
}

#[test]
fn a_package_that_there_is_not_is_named() {
    let mock = Mock::start();
    let empty = json!({"package": "file-tipe", "runs": null, "assigned": null, "kept": false, "why": "", "deployments": []});
    mock.says(
        "GET",
        "/targets/edge-1/explain",
        json!({"target": "edge-1", "online": true, "packages": [empty]}),
    );
    mock.check(&["explain", "edge-1", "file-tipe"], 3, &["did you mean `file-type`"]);
    mock.says("GET", "/targets/edge-1/explain", json!({"target": "edge-1", "online": false, "packages": []}));
    mock.check(&["explain", "edge-1"], 0, &["edge-1 is offline", "nothing is assigned to it"]);
    mock.check(&["explain", "edge-1", "scale"], 0, &[]);
}

#[test]
fn facts_and_labels_are_keys_of_selectors() {
    let mock = Mock::start();
    let says = ["architecture (arch)", "memory-mib (ram)", "site", "label", "fact"];
    mock.check(&["facts", "edge-1"], 0, &says);
    let facts = mock.json(&["facts", "edge-1"]);
    assert_eq!(facts["facts"]["architecture"], "aarch64");
    assert_eq!(facts["labels"], json!({"site": "oslo"}));
}
