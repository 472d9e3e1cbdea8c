//! `selvedge target enrol|revoke|detach`: files that are never lost or overwritten, and what is told.

use std::os::unix::fs::PermissionsExt as _;

use selvedge_package::Digest;
use serde_json::{Value, json};

use crate::mock::{Mock, target};

fn enrolment() -> Value {
    json!({"format": 2, "device": "edge-1", "token": "s3cret-token", "image_root": "one", "director_root": "two"})
}

fn answer() -> Value {
    json!({"target": target("edge-1"), "enrolment": enrolment()})
}

#[test]
fn an_enrolment_is_written_for_its_owner_and_its_fingerprints_are_told() {
    for (again, route) in [(false, "/targets"), (true, "/targets/edge-1/enrolment")] {
        let mock = Mock::start();
        mock.answers("POST", route, 201, answer());
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("edge-1.json");
        let mut line = vec!["target", "enrol", "edge-1", "--out", file.to_str().unwrap()];
        if again {
            line.push("--again");
        }
        let (one, two) = (Digest::of(b"one").to_string(), Digest::of(b"two").to_string());
        let said = mock.check(&line, 0, &[&one, &two, "a secret"]);
        assert!(!said.contains("s3cret-token"), "{said}");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let written: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        assert_eq!(written, enrolment());
        assert_eq!(mock.sent("POST", route).get("name").is_some(), !again);
        // Never overwritten, and then nobody is asked.
        mock.check(&line, 5, &["exists already"]);
        assert_eq!(mock.asked("POST", route).len(), 1);
    }
    let mock = Mock::start();
    mock.check(&["target", "enrol", "edge-1", "--again", "--label", "a=b", "--out", "x"], 2, &["--again"]);
}

#[test]
fn a_file_that_cannot_be_written_takes_back_only_what_is_new() {
    for (again, route, removed) in [(false, "/targets", 1), (true, "/targets/edge-1/enrolment", 0)] {
        let mock = Mock::start();
        mock.answers("POST", route, 201, answer());
        mock.answers("DELETE", "/targets/edge-1", 204, Value::Null);
        let mut line = vec!["target", "enrol", "edge-1", "--out", "/nowhere/at/all.json"];
        if again {
            line.push("--again");
        }
        let output = mock.selvedge(&line).output().unwrap();
        assert!(!output.status.success());
        assert_eq!(mock.asked("DELETE", "/targets/edge-1").len(), removed, "{again}");
    }
}

#[test]
fn revoking_and_detaching_say_what_follows() {
    let mock = Mock::start();
    mock.answers("POST", "/targets/edge-1/revoke", 200, target("edge-1"));
    mock.check(&["target", "revoke", "edge-1"], 0, &["is revoked", "selvedge target enrol edge-1 --again"]);
    let keeps = json!([{"package": "file-type", "version": "1.2.0", "release": 3}]);
    mock.answers("POST", "/targets/edge-1/detach", 200, json!({"detached": "edge-1", "keeps": keeps}));
    mock.check(&["target", "detach", "edge-1"], 0, &["it keeps running file-type 1.2.0 r3"]);
    for what in ["revoke", "detach"] {
        mock.refuses(
            "POST",
            &format!("/targets/edge-9/{what}"),
            404,
            "no-target",
            "there is no target `edge-9`",
        );
        mock.check(&["target", what, "edge-9"], 3, &["edge-9"]);
    }
}

#[test]
fn one_target_shows_its_certificate_and_whether_it_is_revoked_or_fresh() {
    let mock = Mock::start();
    let mut shown = target("edge-1");
    shown["certificate"] = json!({"serial": "0a", "expires_at": "2031-05-06T07:08:09Z"});
    shown["reported"]["fresh"] = json!(false);
    mock.says("GET", "/targets/edge-1", shown.clone());
    mock.check(&["targets", "edge-1"], 0, &["certificate: until 2031-05-06", "without proof of freshness"]);
    shown["revoked_at"] = json!("2031-05-06T07:08:09Z");
    mock.says("GET", "/targets/edge-1", shown);
    mock.check(&["targets", "edge-1"], 0, &["revoked 2031-05-06"]);
}
