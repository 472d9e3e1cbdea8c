//! What is answered, and what is refused.

use super::*;

#[tokio::test]
async fn answers_what_clients_look_for_first() {
    let (_, router) = one(Fake::package(fp32("1.2.3", 4), Behaviour::Echo));
    for path in ["/v2", "/v2/"] {
        let (status, body) = get(&router, path).await;
        assert_eq!((status.as_u16(), &body["name"]), (200, &json!("selvedge-host")));
        assert!(body["extensions"].is_array() && body["version"].is_string());
    }
    assert_eq!(get(&router, "/v2/health/live").await, (StatusCode::OK, json!({"live": true})));
    assert_eq!(get(&router, "/v2/health/ready").await, (StatusCode::OK, json!({"ready": true})));
    for path in ["/v2/models/m", "/v2/models/m/versions/1.2.3", "/v2/models/m/versions/4"] {
        let (status, body) = get(&router, path).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(body["versions"], json!(["1.2.3"]));
        assert_eq!(body["inputs"], json!([{"name": "x", "datatype": "FP32", "shape": [-1]}]));
        assert!(body["parameters"]["selvedge_package"].as_str().unwrap().starts_with("sha256:"));
        let ready = get(&router, &format!("{path}/ready")).await;
        assert_eq!(ready, (StatusCode::OK, json!({"name": "m", "ready": true})));
        let (status, config) = get(&router, &format!("{path}/config")).await;
        assert_eq!((status.as_u16(), &config["max_batch_size"]), (200, &json!(0)));
        assert_eq!(config["input"], json!([{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}]));
    }
}

#[tokio::test]
async fn answers_with_who_answered() {
    let (serving, router) = one(Fake::package(fp32("1.2.3", 4), Behaviour::Echo));
    let mut request = input(&json!([1.5, -0.0]));
    request["id"] = json!("seven");
    let (status, body) = post(&router, "/v2/models/m/versions/4/infer", &request).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    assert_eq!((&body["model_name"], &body["model_version"]), (&json!("m"), &json!("1.2.3")));
    assert_eq!(body["id"], "seven");
    assert_eq!(
        body["outputs"],
        json!([{"name": "y", "datatype": "FP32", "shape": [2], "data": [1.5, -0.0]}])
    );
    assert_eq!(body["parameters"]["selvedge_release"], 4);
    assert!(body["parameters"]["selvedge_model_net"].as_str().unwrap().starts_with("sha256:"));
    assert_eq!(serving.table.status()[0].requests, 1);
}

#[tokio::test]
async fn every_refusal_is_json_with_its_status() {
    let (_, router) = one(Fake::package(fp32("1.0.0", 1), Behaviour::Echo));
    let check = async |request: Request<Body>, status: u16, says: &str| {
        let (actual, text) = ask(&router, request).await;
        let body: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("no JSON: {text}"));
        let error = body["error"].as_str().unwrap_or_default();
        assert!(actual == status && error.contains(says), "{actual} {error}, not {status} {says}");
    };
    let get = |path: &str| Request::get(path).body(Body::empty()).unwrap();
    let infer = |body: &str| {
        let request = Request::post("/v2/models/m/infer");
        request.header("content-type", "application/json").body(Body::from(body.to_owned())).unwrap()
    };
    for path in ["/", "/v2/models", "/v2/models/m/", "/nothing", "/v2/models/m/%ff"] {
        check(get(path), 404, "nothing at this path").await;
    }
    check(get("/v2/models/other"), 404, "no model `other`").await;
    check(get("/v2/models/%2e%2e"), 404, "no model `..`").await;
    check(get("/v2/models/m/versions/2.0.0/ready"), 404, "not its version `2.0.0`; there is 1.0.0").await;
    check(get("/v2/models/m/infer"), 405, "method GET").await;
    check(Request::delete("/v2/models/m").body(Body::empty()).unwrap(), 405, "method DELETE").await;
    check(Request::post("/v2").body(Body::empty()).unwrap(), 405, "method POST").await;
    check(infer(""), 400, "expected an object").await;
    check(infer(&"[".repeat(60_000)), 400, "expected an object").await;
    check(infer(&"[".repeat(2 << 20)), 413, "larger than the 1048576 bytes").await;
    check(infer("{\"inputs\":[]}"), 400, "input `x` is missing; the package takes `x` (FP32 [-1])").await;
    let wrong = |from: &str, to: &str| infer(&input(&json!([1])).to_string().replace(from, to));
    check(wrong("\"x\"", "\"z\""), 400, "no input `z`").await;
    check(wrong("FP32", "INT8"), 400, "`x` is INT8 and has to be FP32").await;
    check(wrong("\"shape\":[1]", "\"shape\":[1,1]"), 400, "has the shape [1, 1]").await;
    check(wrong("\"data\":[1]", "\"data\":[1,2]"), 400, "more than the 1 values").await;
    check(wrong("\"data\":[1]", "\"data\":[]"), 400, "0 values where the shape says 1").await;
    check(wrong("\"data\":[1]", "\"data\":[1e99]"), 400, "does not fit FP32").await;
    check(wrong("\"inputs\"", "\"outputs\":[{\"name\":\"q\"}],\"inputs\""), 400, "no output `q`").await;
    let form =
        Request::post("/v2/models/m/infer").header("content-type", "application/x-www-form-urlencoded");
    check(form.body(Body::from("{}")).unwrap(), 415, "send `application/json`").await;
    let coded = |coding: &str| {
        let request = Request::post("/v2/models/m/infer").header("content-encoding", coding);
        request.body(Body::from("{}")).unwrap()
    };
    check(coded("br"), 415, "send it with `gzip`").await;
    check(coded("gzip"), 400, "the body is not the gzip").await;
    let binary = |length: &str| {
        let request = Request::post("/v2/models/m/infer").header("inference-header-content-length", length);
        request.body(Body::from(r#"{"inputs":[]}"#)).unwrap()
    };
    check(binary("x"), 400, "has to be one number").await;
    check(binary("14"), 400, "is 14, and the body has 13 bytes").await;
    check(binary("13"), 400, "input `x` is missing").await;
    check(binary("12"), 400, "expected `,` or `}`, found the end").await;
    check(binary("1048577"), 413, "larger than the 1048576 bytes").await;
    check(binary("0"), 400, "has 13 bytes, and input `x` (FP32 [-1]) takes a multiple of 4").await;
    let raw = Request::post("/v2/models/m/raw").body(Body::from("x")).unwrap();
    check(raw, 400, "the raw body has 1 bytes").await;
    let two = Request::post("/v2/models/m/infer").header("inference-header-content-length", "13");
    let two = two.header("inference-header-content-length", "13");
    check(two.body(Body::empty()).unwrap(), 400, "has to be one number").await;
}

#[tokio::test]
async fn a_request_without_a_content_type_is_json() {
    let (_, router) = one(Fake::package(fp32("1.0.0", 1), Behaviour::Echo));
    for kind in [None, Some("application/json; charset=utf-8"), Some("application/vnd.x+json")] {
        let mut request = Request::post("/v2/models/m/infer");
        if let Some(kind) = kind {
            request = request.header("content-type", kind);
        }
        let request = request.body(Body::from(input(&json!([1])).to_string())).unwrap();
        assert_eq!(ask(&router, request).await.0, StatusCode::OK, "{kind:?}");
    }
}

#[tokio::test]
async fn a_raw_body_of_any_kind_is_the_input() {
    let (_, router) = one(Fake::package(manifest("m", "1.0.0", 1, "BYTES", &[1]), Behaviour::Echo));
    let request = Request::post("/v2/models/m/versions/1.0.0/raw").header("content-type", "image/png");
    let (status, text) = ask(&router, request.body(Body::from(&b"\x89PNG"[..])).unwrap()).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    let body: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(body["outputs"][0]["data"], json!(["iVBORw=="]));
    assert_eq!(body["outputs"][0]["parameters"], json!({"encoding": "base64"}));
    let empty = Request::post("/v2/models/m/raw").body(Body::empty()).unwrap();
    assert_eq!(ask(&router, empty).await.0, StatusCode::OK);
    let long = Request::post("/v2/models/m/raw").body(Body::from(vec![0; (1 << 20) + 1])).unwrap();
    assert_eq!(ask(&router, long).await.0, StatusCode::PAYLOAD_TOO_LARGE);
}

#[test]
fn a_body_is_bounded_by_what_the_shapes_can_use() {
    let check = |datatype: &str, shape: &[i64], limit: usize| {
        let fake = Fake::package(manifest("m", "1.0.0", 1, datatype, shape), Behaviour::Echo);
        assert_eq!(Served::new(fake, Default::default(), 0).json_limit, limit);
    };
    check("FP32", &[-1], 1 << 20);
    check("BYTES", &[1], 1 << 20);
    check("FP32", &[1, 16], (64 << 10) + 16 * 64);
    check("FP32", &[], (64 << 10) + 64);
    check("FP32", &[1 << 40], 1 << 20);
    check("FP32", &[i64::MAX, i64::MAX], 1 << 20);
}

#[tokio::test]
async fn metrics_tell_what_became_of_requests() {
    let (serving, router) = one(Fake::package(fp32("1.2.3", 4), Behaviour::Echo));
    for _ in 0..2 {
        assert_eq!(post(&router, "/v2/models/m/infer", input(&json!([1]))).await.0, StatusCode::OK);
    }
    assert_eq!(post(&router, "/v2/models/m/infer", "{}").await.0, StatusCode::BAD_REQUEST);
    // One whose client goes away.
    let waiting =
        Fake::package(manifest("n", "1.0.0", 1, "FP32", &[-1]), Behaviour::Wait(Arc::new(Semaphore::new(0))));
    put(&serving, waiting);
    let asked = tokio::spawn({
        let router = router.clone();
        async move { post(&router, "/v2/models/n/infer", input(&json!([1]))).await.0 }
    });
    tokio::task::yield_now().await;
    asked.abort();
    drop(asked.await);
    let request = Request::get("/metrics").body(Body::empty()).unwrap();
    let (status, text) = ask(&router, request).await;
    assert_eq!(status, StatusCode::OK);
    for line in [
        r#"nv_inference_request_success{model="m",version="1.2.3"} 2"#,
        r#"nv_inference_count{model="m",version="1.2.3"} 2"#,
        r#"nv_inference_request_failure{model="m",version="1.2.3",reason="OTHER"} 1"#,
        r#"nv_inference_request_failure{model="n",version="1.0.0",reason="CANCELED"} 1"#,
        r#"selvedge_request_duration_seconds_count{model="m",version="1.2.3"} 2"#,
        r#"selvedge_package_loaded{model="n",version="1.0.0"} 1"#,
    ] {
        assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
    }
}
