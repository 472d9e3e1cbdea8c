//! `selvedge ask --via mqtt`: the way through the registry, and what may come back on it.

use serde_json::json;

use crate::mock::Mock;

const MODEL: &str = "/targets/edge-1/v2/models/file-type";

#[test]
fn a_request_goes_through_the_registry_with_its_deadline() {
    let mock = Mock::start();
    let answer = json!({"model_name": "file-type", "model_version": "1.0.0",
        "outputs": [{"name": "label", "datatype": "BYTES", "shape": [1], "data": ["pdf"]}]});
    mock.says("POST", &format!("{MODEL}/raw"), answer.clone());
    mock.says("POST", &format!("{MODEL}/versions/1.0.0/infer"), answer);
    let far = ["--target", "edge-1", "--via", "mqtt", "--timeout", "5"];
    let said =
        mock.check(&[&["ask", "file-type", "--file", "/dev/null"], &far[..]].concat(), 0, &["label = pdf"]);
    assert!(said.contains("answered by file-type 1.0.0"), "{said}");
    let asked = mock.asked("POST", MODEL);
    assert!(asked[0].line.ends_with("/raw?deadline_ms=5000"), "{asked:?}");
    assert_eq!(asked[0].headers["content-type"], "application/octet-stream");
    let input = r#"{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}"#;
    mock.check(&[&["ask", "file-type@1.0.0", "--input", input], &far[..]].concat(), 0, &["label = pdf"]);
    assert!(mock.asked("POST", MODEL)[1].line.ends_with("/versions/1.0.0/infer?deadline_ms=5000"));
}

#[test]
fn what_comes_back_has_its_code() {
    for (status, body, code, says) in [
        (404, json!({"error": "no model file-typ"}), 3, "did you mean `file-type`"),
        (413, json!({"error": "at most 65536 bytes", "reason": "too-large"}), 4, "at most 65536 bytes"),
        (413, json!({"error": "the tensors are too large"}), 4, "the model would not answer"),
        (503, json!({"error": "edge-1 is not heard", "reason": "offline"}), 6, "connects again by itself"),
        (504, json!({"error": "no answer", "reason": "deadline"}), 7, "--timeout"),
        (429, json!({"error": "8 wait", "reason": "too-many"}), 6, "ask again"),
        (422, json!({"error": "its agent cannot", "reason": "unsupported"}), 4, "update the agent"),
        (400, json!({"error": "input `x` is missing"}), 4, "input `x` is missing"),
    ] {
        let mock = Mock::start();
        mock.answers("POST", "/targets/edge-1/v2/models/file-typ/infer", status, body);
        let line = ["ask", "file-typ", "--input", r#"{"inputs": []}"#, "--target", "edge-1", "--via", "mqtt"];
        mock.check(&line, code, &[says]);
    }
}

#[test]
fn what_cannot_be_asked_is_told_before() {
    let mock = Mock::start();
    for (line, code, says) in [
        (&["--via", "mqtt"][..], 2, "--via mqtt needs a target"),
        (&["--via", "mqtt", "--target", "edge-9"], 3, "did you mean `edge-"),
        (&["--via", "mqtt", "--target", "edge-1", "--timeout", "601"], 2, "--timeout 600"),
        (&["--via", "pigeon", "--target", "edge-1"], 2, "mqtt"),
        (&["--target", "edge-1"], 3, "say --via mqtt"),
    ] {
        mock.check(&[&["ask", "file-type", "--input", "{}"], line].concat(), code, &[says]);
    }
    assert!(mock.asked("POST", "").is_empty());
}
