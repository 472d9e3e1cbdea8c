//! `selvedge rollback`: which deployment, to which release, and what stands in the way.

use serde_json::{Value, json};

use crate::mock::{Mock, detail, place, row};

const ID: &str = "aaaa000000000001";
const NEW: &str = "cccc000000000009";

fn mock() -> Mock {
    let mock = Mock::start();
    let items = json!([row(ID, Some("edge-1"), None), row("bbbb000000000002", None, Some("site = oslo"))]);
    mock.says("GET", "/deployments", json!({"items": items}));
    mock
}

fn path() -> String {
    format!("/deployments/{ID}/rollback")
}

fn older() -> Value {
    let mut made = row(NEW, Some("edge-1"), None);
    made["release"] = 1.into();
    made["version"] = "1.0.0".into();
    made["summary"] = json!({"targets": 1, "wins": 1, "lost": 0, "blocked": 0});
    made["dropped_settings"] = json!(["threshold"]);
    made
}

#[test]
fn the_deployment_and_the_release_are_found() {
    for (line, release) in [
        (&["--target", "edge-1"][..], Value::Null),
        (&["--deployment", "aaaa"], Value::Null),
        (&["--target", "edge-1", "--to", "1.0.0"], json!(1)),
        (&["--target", "edge-1", "--to", "r1"], json!(1)),
    ] {
        let mock = mock();
        mock.answers("POST", &path(), 201, older());
        let says = ["makes way for 1.0.0 (r1)", "does not know these settings", "threshold", NEW];
        mock.check(&[&["rollback", "file-type"], line].concat(), 0, &says);
        assert_eq!(mock.sent("POST", &path()), json!({"release": release}), "{line:?}");
    }
}

#[test]
fn waiting_ends_when_the_older_one_serves_again() {
    let mock = mock();
    mock.answers("POST", &path(), 201, older());
    mock.says("GET", &format!("/deployments/{NEW}"), detail(&older(), &[place("edge-1", "trial", 0)]));
    mock.answers(
        "GET",
        &format!("/deployments/{NEW}"),
        200,
        detail(&older(), &[place("edge-1", "serving", 0)]),
    );
    mock.check(&["rollback", "file-type", "--target", "edge-1", "--wait"], 0, &["trial", "1 of 1 serving"]);
}

#[test]
fn what_stands_in_the_way_is_clear() {
    let line = ["rollback", "file-type", "--deployment", ID];
    for (status, reason, error, code, says) in [
        (404, "no-package", "file-type has no release below r2", 3, "nothing to roll file-type back to"),
        (409, "same-release", "it deploys r2 already", 5, "is deployed to edge-1 already"),
        (
            422,
            "unfit",
            "edge-1 committed release 2, which allows no release below 2",
            4,
            "allows no release below 2",
        ),
    ] {
        let mock = mock();
        mock.refuses("POST", &path(), status, reason, error);
        mock.check(&line, code, &[says, "help: "]);
    }
    let mock = mock();
    for (line, code, says) in [
        (&["file-type"][..], 2, &["2 deployments", ID, "site = oslo"][..]),
        (&["file-type", "--target", "egde-1"], 3, &["did you mean `edge-1`"]),
        (&["file-tipe"], 3, &["did you mean `file-type`"]),
        (&["scale"], 3, &["scale is not deployed"]),
        (&["scale", "--deployment", "aaaa"], 2, &["is of file-type, not of scale"]),
        (&["file-type", "--deployment", "aaaa", "--to", "r7"], 3, &["r7 is not released", "1.0.0 (r1)"]),
        (&["file-type", "--to", "newest"], 2, &["neither a version"]),
    ] {
        mock.check(&[&["rollback"], line].concat(), code, says);
    }
    assert!(mock.asked("POST", "").is_empty());
    // A target that has it by a selector only cannot go back alone.
    mock.says("GET", "/targets/edge-2", crate::mock::target("edge-2"));
    mock.check(&["rollback", "file-type", "--target", "edge-2"], 3, &["for edge-2 alone", "--deployment ID"]);
}

#[test]
fn forward_is_no_way_back() {
    let mock = Mock::start();
    let mut first = row(ID, Some("edge-1"), None);
    first["release"] = 1.into();
    mock.says("GET", "/deployments", json!({"items": [first]}));
    let line = ["rollback", "file-type", "--target", "edge-1", "--to", "r2"];
    mock.check(&line, 2, &["r2 is later than r1", "selvedge deploy file-type@r2"]);
    assert!(mock.asked("POST", "/").is_empty(), "something was changed");
}
