//! What clients send, right and wrong.

use selvedge_tests::onnx_writer::{self, Element, Extent};
use serde_json::{Value, json};

use crate::host::{Host, Package, tensor};

fn ones() -> Value {
    json!({"inputs": [tensor(("x", "FP32"), &[2, 3], json!([1, 2, 3, 4, 5, 6]))]})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_model_answers_by_name_version_and_release() {
    let host = Host::start().await;
    host.put(&Package::identity("identity", 3).write()).await;
    let (status, metadata) = host.get("/v2/models/identity").await;
    assert_eq!((status, &metadata["versions"]), (200, &json!(["3.0.0"])));
    for path in ["", "/versions/3.0.0", "/versions/3"] {
        let mut request = ones();
        request["id"] = json!("a");
        let (status, answer) = host.post(&format!("/v2/models/identity{path}/infer"), &request).await;
        assert_eq!(status, 200, "{answer}");
        assert_eq!((&answer["id"], &answer["model_version"]), (&json!("a"), &json!("3.0.0")));
        let expected = tensor(("y", "FP32"), &[2, 3], json!([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
        assert_eq!(answer["outputs"], json!([expected]));
        assert_eq!(answer["parameters"]["selvedge_package"], metadata["parameters"]["selvedge_package"]);
    }
    assert_eq!(host.get("/v2/models/identity/versions/2").await.0, 404);
    assert_eq!(host.get("/v2/nothing").await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_request_is_refused_with_what_is_wrong_and_nothing_else_happens() {
    let host = Host::start().await;
    host.put(&Package::identity("identity", 1).write()).await;
    let check = async |body: String, status: u16, says: &str| {
        let (actual, answer) = host.post("/v2/models/identity/infer", &body).await;
        let error = answer["error"].as_str().unwrap_or_default();
        let start: String = body.chars().take(200).collect();
        assert!(actual == status && error.contains(says), "{start}: {actual} {answer}, not {status} {says}");
    };
    let with = |from: &str, to: &str| {
        let body = ones().to_string().replace(from, to);
        assert_ne!(body, ones().to_string(), "{from}");
        body
    };
    check(with("\"x\"", "\"X\""), 400, "no input `X`; it takes `x` (FP32 [2, 3])").await;
    check(with("FP32", "FP64"), 400, "`x` is FP64 and has to be FP32").await;
    check(with("FP32", "FLOAT"), 400, "`FLOAT` is no datatype").await;
    check(with("[2,3]", "[3,2]"), 400, "shape [3, 2] and has to have [2, 3]").await;
    check(with("[2,3]", "[2,-3]"), 400, "a whole number from 0 up").await;
    check(with("[1,2,3,4,5,6]", "[1,2,3,4,5]"), 400, "5 values where the shape says 6").await;
    check(with("[1,2,3,4,5,6]", "[1,2,3,4,5,6,7]"), 400, "more than the 6 values").await;
    check(with("[1,2,3,4,5,6]", "[[1,2],[3,4],[5,6]]"), 400, "2 values where the shape says 3").await;
    check(with("[1,2,3,4,5,6]", "[1,2,3,4,5,1e40]"), 400, "1e40 does not fit FP32").await;
    check(with("[1,2,3,4,5,6]", "[1,2,3,4,5,\"6\"]"), 400, "a string is no number").await;
    check(with("]}]}", "]}"), 400, "expected `,` or `]`").await;
    check(String::new(), 400, "found the end").await;
    check(json!({"inputs": []}).to_string(), 400, "input `x` is missing").await;
    let twice = json!({"inputs": [ones()["inputs"][0], ones()["inputs"][0]]});
    check(twice.to_string(), 400, "input `x` comes twice").await;
    let mut output = ones();
    output["outputs"] = json!([{"name": "z"}]);
    check(output.to_string(), 400, "no output `z`; it gives `y`").await;
    // The shape is fixed, so that a body of this model has at most 64 KiB and 6 elements.
    let deep = "[".repeat(60_000);
    check(deep.clone(), 400, "expected an object").await;
    check(with("[1,2,3,4,5,6]", &deep), 400, "nested deeper than 72").await;
    check(with("{\"inputs\"", &format!("{{\"unknown\":{deep},\"inputs\"")), 400, "nested deeper than 72")
        .await;
    check("[".repeat(200_000), 413, "larger than the 65920 bytes").await;
    let (status, _) = host.post_bytes("/v2/models/identity/raw", b"x".to_vec()).await;
    assert_eq!(status, 400);
    let (status, answer) = host.post("/v2/models/identity/infer", ones()).await;
    assert_eq!(status, 200, "{answer}");
    let packages = host.status().await.packages;
    assert_eq!((packages[0].requests, packages[0].failures), (1, 0));
}

/// `y = x · scale`, where `scale` is 2 unless a request brings another.
fn scaled() -> Vec<u8> {
    let of = |name| onnx_writer::value(name, Element::Float, &[]);
    let two = onnx_writer::initializer("scale", Element::Float, &[], &2_f32.to_le_bytes());
    let product = onnx_writer::node("Mul", &["x", "scale"], &["y"]);
    onnx_writer::model(onnx_writer::graph([product], [two], [of("x"), of("scale")], [of("y")]))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_optional_input_is_said_to_be_one_and_may_be_left_out() {
    let host = Host::start().await;
    let one = |name, value: f64| tensor((name, "FP32"), &[], json!([value]));
    let case = json!({"name": "twice", "inputs": [one("x", 3.0)], "outputs": [one("y", 6.0)]});
    let inputs: [(&str, &str, &[i64]); 2] = [("x", "FP32", &[]), ("scale", "FP32", &[])];
    let package = Package::new("scaled", 1, scaled(), (&inputs, &[("y", "FP32", &[])]), case);
    host.put(&package.optional("inputs", 1).write()).await;
    let (_, metadata) = host.get("/v2/models/scaled").await;
    let optional = |list: &Value| [list[0]["optional"].clone(), list[1]["optional"].clone()];
    assert_eq!(optional(&metadata["inputs"]), [Value::Null, json!(true)], "{metadata}");
    let (_, config) = host.get("/v2/models/scaled/config").await;
    assert_eq!(optional(&config["input"]), [Value::Null, json!(true)], "{config}");
    for (inputs, expected) in [
        (vec![one("x", 3.0)], json!([6.0])),
        (vec![one("scale", 5.0), one("x", 3.0)], json!([15.0])),
        (vec![one("x", 4.0)], json!([8.0])),
    ] {
        let (status, answer) = host.post("/v2/models/scaled/infer", json!({"inputs": inputs})).await;
        assert_eq!((status, &answer["outputs"][0]["data"]), (200, &expected), "{answer}");
    }
    let (status, answer) = host.post_bytes("/v2/models/scaled/raw", 3_f32.to_le_bytes().into()).await;
    assert_eq!((status, &answer["outputs"][0]["data"]), (200, &json!([6.0])), "{answer}");
    let (status, answer) = host.post("/v2/models/scaled/infer", json!({"inputs": [one("scale", 5.0)]})).await;
    assert_eq!(status, 400);
    assert!(answer["error"].as_str().unwrap().contains("input `x` is missing"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_thousand_brackets_are_refused_where_they_fit() {
    let host = Host::start().await;
    let data = |name| tensor((name, "FP32"), &[1], json!([1]));
    let case = json!({"name": "same", "inputs": [data("x")], "outputs": [data("y")]});
    let model = onnx_writer::identity_of(Element::Float, &[Extent::Named("N")]);
    host.put(&Package::new("m", 1, model, (&[("x", "FP32", &[-1])], &[("y", "FP32", &[-1])]), case).write())
        .await;
    let deep = "[".repeat(200_000);
    for body in [
        deep.clone(),
        format!(r#"{{"inputs":{deep}"#),
        format!(r#"{{"a":{deep}"#),
        format!(r#"{{"inputs":[{{"data":{deep}"#),
        format!(r#"{{"inputs":[{{"name":"x","datatype":"FP32","shape":[1],"data":{deep}"#),
    ] {
        let (status, answer) = host.post("/v2/models/m/infer", body).await;
        assert_eq!(status, 400, "{answer}");
    }
    assert_eq!(host.get("/v2/health/ready").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_raw_body_reaches_the_model() {
    let host = Host::start().await;
    let text = |name| tensor((name, "BYTES"), &[1], json!(["same"]));
    let case = json!({"name": "same", "inputs": [text("x")], "outputs": [text("y")]});
    let model = onnx_writer::identity_of(Element::String, &[1.into()]);
    host.put(&Package::new("m", 1, model, (&[("x", "BYTES", &[1])], &[("y", "BYTES", &[1])]), case).write())
        .await;
    let (status, answer) = host.post_bytes("/v2/models/m/raw", "any text".into()).await;
    assert_eq!((status, &answer["outputs"][0]["data"]), (200, &json!(["any text"])), "{answer}");
    // `direct` hands it to ONNX Runtime, whose strings are UTF-8: a typed error, and no crash.
    let (status, answer) = host.post_bytes("/v2/models/m/raw", vec![0xff, 0]).await;
    assert_eq!(status, 400, "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_reads_what_became_of_requests() {
    let host = Host::start().await;
    host.put(&Package::identity("identity", 1).write()).await;
    for _ in 0..3 {
        assert_eq!(host.post("/v2/models/identity/infer", ones()).await.0, 200);
    }
    assert_eq!(host.post("/v2/models/identity/infer", "{}").await.0, 400);
    let answer = reqwest::get(format!("{}/metrics", host.url)).await.unwrap();
    assert!(answer.headers()["content-type"].to_str().unwrap().starts_with("text/plain; version=0.0.4"));
    let text = answer.text().await.unwrap();
    let value = |name: &str, more: &str| -> f64 {
        let start = format!("{name}{{model=\"identity\",version=\"1.0.0\"{more}}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap_or_else(|| panic!("no {start} in\n{text}")).parse().unwrap()
    };
    assert!((value("nv_inference_request_success", "") - 3.0).abs() < 1e-9);
    assert!((value("nv_inference_request_failure", ",reason=\"OTHER\"") - 1.0).abs() < 1e-9);
    let infer = value("nv_inference_compute_infer_duration_us", "");
    let all = value("nv_inference_request_duration_us", "");
    assert!(infer > 0.0 && all >= infer, "{infer} of {all}");
    assert!((value("selvedge_request_duration_seconds_bucket", ",le=\"+Inf\"") - 3.0).abs() < 1e-9);
    assert!(value("selvedge_package_memory_bytes", "") > 0.0);
}
