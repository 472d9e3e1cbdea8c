//! `selvedge undeploy` and `deployments`: which are meant, and that nothing else is ended.

use serde_json::{Value, json};

use crate::mock::{Mock, WORKSPACE, detail, place, row};

const IDS: [&str; 3] = ["aaaa000000000001", "aaaa000000000002", "bbbb000000000003"];

fn mock() -> Mock {
    let mock = Mock::start();
    let mut scale = row(IDS[2], Some("edge-1"), None);
    scale["package"] = "scale".into();
    let items =
        json!([row(IDS[0], Some("edge-1"), None), row(IDS[1], None, Some("site in (bergen, oslo)")), scale]);
    mock.says("GET", "/deployments", json!({"items": items}));
    for id in IDS {
        mock.answers("DELETE", &format!("/deployments/{id}"), 204, Value::Null);
    }
    mock
}

fn ended(mock: &Mock) -> Vec<String> {
    let prefix = format!("DELETE {WORKSPACE}/deployments/");
    mock.asked("DELETE", "").iter().map(|asked| asked.line[prefix.len()..].to_owned()).collect()
}

#[test]
fn only_what_is_meant_ends() {
    for (line, expected) in [
        (&["scale"][..], &IDS[2..]),
        (&["bbbb"], &IDS[2..]),
        (&[IDS[0]], &IDS[..1]),
        (&["file-type", "--target", "edge-1"], &IDS[..1]),
        (&["file-type", "--selector", "site in (oslo,bergen)"], &IDS[1..2]),
        (&["file-type", "--all"], &IDS[..2]),
    ] {
        let mock = mock();
        mock.check(&[&["undeploy"], line].concat(), 0, &["is no longer assigned to"]);
        assert_eq!(ended(&mock), expected, "{line:?}");
    }
}

#[test]
fn what_is_not_clear_ends_nothing() {
    let mock = mock();
    for (line, code, says) in [
        (&["file-type"][..], 2, &["2 deployments", IDS[0], IDS[1], "--all"][..]),
        (&["aaaa"], 2, &["begin with aaaa", IDS[0], IDS[1]]),
        (&["file-typ"], 3, &["did you mean `file-type`"]),
        (&["file-type", "--target", "edge-9"], 3, &["edge-9 alone", IDS[0]]),
        (&["cccc"], 3, &["no deployment cccc", "selvedge deployments"]),
    ] {
        mock.check(&[&["undeploy"], line].concat(), code, says);
    }
    assert!(ended(&mock).is_empty());
}

#[test]
fn what_somebody_else_ended_meanwhile_is_ended() {
    let mock = mock();
    mock.says("DELETE", &format!("/deployments/{}", IDS[0]), Value::Null);
    let gone = format!("/deployments/{}", IDS[1]);
    mock.says("DELETE", &gone, Value::Null);
    mock.refuses("DELETE", &gone, 404, "no-deployment", "it is not in force");
    mock.check(&["undeploy", "file-type", "--all"], 0, &["is no longer assigned to edge-1"]);
    mock.check(&["undeploy", "file-type", "--all"], 0, &["is no longer assigned to `site in"]);
    assert_eq!(ended(&mock).len(), 4);
}

#[test]
fn the_list_and_one_with_its_targets() {
    let mock = mock();
    let said = mock.check(&["deployments"], 0, &[IDS[0], "site in (bergen, oslo)", "PRIORITY"]);
    assert_eq!(said.lines().count(), 4, "{said}");
    assert_eq!(mock.json(&["deployments", "scale"])["items"].as_array().unwrap().len(), 1);
    mock.says(
        "GET",
        &format!("/deployments/{}", IDS[1]),
        detail(
            &row(IDS[1], None, Some("site = oslo")),
            &[place("edge-1", "failed", 0), place("edge-2", "serving", 0)],
        ),
    );
    mock.check(&["deployments", "aaaa000000000002"], 0, &["1 of 2 serving, 1 failed", "case `pdf`"]);
    mock.check(&["deployments", "scal"], 3, &["did you mean `scale`"]);
    mock.says("GET", "/deployments", json!({"items": []}));
    mock.check(&["deployments"], 0, &["nothing is deployed yet"]);
    assert_eq!(mock.json(&["deployments"]), json!({"items": []}));
}
