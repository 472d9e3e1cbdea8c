//! The protocol's paths in front of fake packages: every status code, every refusal in JSON, and a
//! swap without a failed request.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::fake::{Behaviour, Fake, ask, get, manifest, post};
use super::predictor::Predictor;
use super::served::Served;
use super::{Serving, routes};
use crate::failure::PredictError;

fn fp32(version: &str, release: u64) -> Value {
    manifest("m", version, release, "FP32", &[-1])
}

/// Stages and routes a package.
fn put(serving: &Serving, predictor: Arc<dyn Predictor>) -> Vec<Arc<Served>> {
    let served = Served::new(predictor, Default::default(), 0);
    serving.table.stage(Arc::clone(&served));
    serving.table.activate(&served.reference()).unwrap()
}

/// A server of one package.
pub(super) fn one(predictor: Arc<dyn Predictor>) -> (Arc<Serving>, Router) {
    let serving = Serving::new(4);
    put(&serving, predictor);
    serving.announce();
    (Arc::clone(&serving), routes::router(serving))
}

/// A request with these elements.
pub(super) fn input(data: &Value) -> Value {
    let shape = [data.as_array().map_or(1, Vec::len)];
    json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": shape, "data": data}]})
}

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

#[tokio::test]
async fn a_package_that_fails_is_told_from_one_that_is_asked_wrongly() {
    let check = async |behaviour, status: u16, failures: u64| {
        let (serving, router) = one(Fake::package(fp32("1.0.0", 1), behaviour));
        let (actual, body) = post(&router, "/v2/models/m/infer", input(&json!([1]))).await;
        assert_eq!((actual.as_u16(), serving.table.status()[0].failures), (status, failures), "{body}");
        assert_eq!(serving.table.status()[0].requests, 0);
    };
    check(Behaviour::Fail(PredictError::InvalidInput("no".to_owned())), 400, 0).await;
    check(Behaviour::Fail(PredictError::Trap("unreachable".to_owned())), 500, 1).await;
    check(Behaviour::Fail(PredictError::Deadline(std::time::Duration::ZERO)), 504, 1).await;
    check(Behaviour::Fail(PredictError::Busy(std::time::Duration::ZERO)), 503, 0).await;
    check(Behaviour::Nothing, 500, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_model_that_blocks_its_thread_keeps_nobody_else_waiting() {
    let (end, sent) = std::sync::mpsc::channel();
    let blocking = Behaviour::Block(Arc::new(std::sync::Mutex::new(sent)));
    let (serving, router) = one(Fake::package(fp32("1.0.0", 1), blocking));
    let first = serving.table.loaded(&serving.table.status()[0].package, &Default::default()).unwrap();
    let asked = tokio::spawn({
        let router = router.clone();
        async move { post(&router, "/v2/models/m/infer", input(&json!([1]))).await.0 }
    });
    while first.is_idle() {
        tokio::task::yield_now().await;
    }
    // On the only thread that serves.
    let other = tokio::spawn(async move { get(&router, "/v2/health/live").await.0 });
    let other = tokio::time::timeout(std::time::Duration::from_secs(30), other).await;
    end.send(()).unwrap();
    assert_eq!(other.expect("answered meanwhile").unwrap(), StatusCode::OK);
    assert_eq!(asked.await.unwrap(), StatusCode::OK);
}

#[tokio::test]
async fn a_package_whose_client_went_away_is_held_until_it_has_ended() {
    let (end, sent) = std::sync::mpsc::channel();
    let blocking = Behaviour::Block(Arc::new(std::sync::Mutex::new(sent)));
    let (serving, router) = one(Fake::package(fp32("1.0.0", 1), blocking));
    let served = serving.table.loaded(&serving.table.status()[0].package, &Default::default()).unwrap();
    let asked = tokio::spawn(async move { post(&router, "/v2/models/m/infer", input(&json!([1]))).await.0 });
    while served.is_idle() {
        tokio::task::yield_now().await;
    }
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    asked.abort();
    assert!(asked.await.unwrap_err().is_cancelled());
    assert!(!served.is_idle());
    end.send(()).unwrap();
    served.idle().await;
}

#[tokio::test]
async fn a_client_may_shorten_the_deadline() {
    let (_, router) = one(Fake::package(fp32("1.0.0", 1), Behaviour::Wait(Arc::new(Semaphore::new(0)))));
    let mut request = input(&json!([1]));
    request["parameters"] = json!({"timeout": 20_000});
    let (status, body) = post(&router, "/v2/models/m/infer", &request).await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT, "{body}");
}

#[tokio::test]
async fn busy_is_429_when_nobody_may_wait_and_504_when_waiting_was_in_vain() {
    let permits = Arc::new(Semaphore::new(0));
    let (_, router) = one(Fake::package(fp32("1.0.0", 1), Behaviour::Wait(Arc::clone(&permits))));
    let ask = |timeout: u64| {
        let router = router.clone();
        let mut request = input(&json!([1]));
        request["parameters"] = json!({"timeout": timeout});
        tokio::spawn(async move { post(&router, "/v2/models/m/infer", request).await.0.as_u16() })
    };
    // One runs, 128 wait, and what comes beside them finds no place.
    let requests: Vec<_> = (0..136).map(|_| ask(50_000_000)).collect();
    let mut found = Vec::new();
    for request in requests {
        found.push(request);
    }
    while found.iter().filter(|request| request.is_finished()).count() < 7 {
        tokio::task::yield_now().await;
    }
    permits.add_permits(1);
    let mut codes = Vec::new();
    for request in found {
        codes.push(request.await.unwrap());
    }
    codes.sort_unstable();
    assert_eq!((&codes[..129], &codes[129..]), (&[200; 129][..], &[429; 7][..]));
    permits.forget_permits(1);
    let first = ask(50_000_000);
    while permits.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    tokio::task::yield_now().await;
    let second = ask(20_000);
    assert_eq!(second.await.unwrap(), 504);
    permits.add_permits(1);
    assert_eq!(first.await.unwrap(), 200);
}

#[tokio::test]
async fn a_swap_fails_no_request_and_drops_the_old_one_when_it_is_idle() {
    let permits = Arc::new(Semaphore::new(0));
    let (serving, router) = one(Fake::package(fp32("1.0.0", 1), Behaviour::Wait(Arc::clone(&permits))));
    let old = tokio::spawn({
        let router = router.clone();
        async move { post(&router, "/v2/models/m/infer", input(&json!([1]))).await }
    });
    let first = serving.table.loaded(&serving.table.status()[0].package, &Default::default()).unwrap();
    while first.is_idle() {
        tokio::task::yield_now().await;
    }
    let drained = put(&serving, Fake::package(fp32("2.0.0", 2), Behaviour::Echo));
    assert_eq!(drained.len(), 1);
    let draining = tokio::spawn({
        let table = Arc::clone(&serving.table);
        async move { table.drain(drained.into_iter().next().unwrap()).await }
    });
    let (status, body) = post(&router, "/v2/models/m/infer", input(&json!([1]))).await;
    assert_eq!((status, &body["model_version"]), (StatusCode::OK, &json!("2.0.0")));
    let (_, metadata) = get(&router, "/v2/models/m").await;
    assert_eq!(metadata["versions"], json!(["2.0.0", "1.0.0"]));
    permits.add_permits(10);
    let (status, body) = old.await.unwrap();
    assert_eq!((status, &body["model_version"]), (StatusCode::OK, &json!("1.0.0")));
    draining.await.unwrap();
    assert_eq!(serving.table.len(), 1);
    assert_eq!(get(&router, "/v2/models/m/versions/1.0.0").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn swaps_under_load_fail_no_request() {
    let (serving, router) = one(Fake::package(fp32("1.0.0", 1), Behaviour::Echo));
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let asking = tokio::spawn({
        let (router, done) = (router.clone(), Arc::clone(&done));
        async move {
            let mut answered = 0;
            while !done.load(std::sync::atomic::Ordering::Relaxed) || answered == 0 {
                let (status, body) = post(&router, "/v2/models/m/infer", input(&json!([1]))).await;
                assert_eq!(status, StatusCode::OK, "{body}");
                answered += 1;
                tokio::task::yield_now().await;
            }
        }
    });
    for release in 2..100 {
        for old in put(&serving, Fake::package(fp32(&format!("{release}.0.0"), release), Behaviour::Echo)) {
            serving.table.drain(old).await;
        }
    }
    done.store(true, std::sync::atomic::Ordering::Relaxed);
    asking.await.unwrap();
    assert_eq!(serving.table.len(), 1);
}

#[tokio::test]
async fn what_is_staged_does_not_answer_and_a_draining_one_can_come_back() {
    let serving = Serving::new(4);
    serving.announce();
    let router = routes::router(Arc::clone(&serving));
    let first = Served::new(Fake::package(fp32("1.0.0", 1), Behaviour::Echo), Default::default(), 0);
    serving.table.stage(Arc::clone(&first));
    assert_eq!(get(&router, "/v2/models/m").await.0, StatusCode::NOT_FOUND);
    assert_eq!(get(&router, "/v2/models/m/versions/1").await.0, StatusCode::NOT_FOUND);
    serving.table.activate(&first.reference()).unwrap();
    let drained = put(&serving, Fake::package(fp32("2.0.0", 2), Behaviour::Echo));
    assert!(Arc::ptr_eq(&drained[0], &first));
    serving.table.activate(&first.reference()).unwrap();
    // Draining ends at once: it is routed again.
    serving.table.drain(Arc::clone(&first)).await;
    let (_, body) = get(&router, "/v2/models/m").await;
    assert_eq!(body["versions"], json!(["1.0.0", "2.0.0"]));
}

#[tokio::test]
async fn until_everything_is_loaded_what_is_not_here_may_still_come() {
    let serving = Serving::new(4);
    let router = routes::router(Arc::clone(&serving));
    put(&serving, Fake::package(fp32("1.0.0", 1), Behaviour::Echo));
    let not_ready = (StatusCode::SERVICE_UNAVAILABLE, json!({"ready": false}));
    assert_eq!(get(&router, "/v2/health/ready").await, not_ready);
    assert_eq!(get(&router, "/v2/health/live").await.0, StatusCode::OK);
    for path in ["", "/ready", "/config", "/versions/1", "/versions/1/ready"] {
        let (status, body) = get(&router, &format!("/v2/models/other{path}")).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{body}");
        assert!(body["error"].as_str().unwrap().contains("`other`"), "{body}");
    }
    let (status, _) = post(&router, "/v2/models/other/infer", input(&json!([1]))).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    // What is here answers, and another version of it will not come by waiting.
    let (status, body) = post(&router, "/v2/models/m/infer", input(&json!([1]))).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    assert_eq!(get(&router, "/v2/models/m/versions/2").await.0, StatusCode::NOT_FOUND);
    assert_eq!(get(&router, "/v2/nothing").await.0, StatusCode::NOT_FOUND);
    serving.announce();
    assert_eq!(get(&router, "/v2/health/ready").await, (StatusCode::OK, json!({"ready": true})));
    assert_eq!(get(&router, "/v2/models/other").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_server_that_ends_says_so() {
    let (serving, router) = one(Fake::package(fp32("1.0.0", 1), Behaviour::Echo));
    serving.drain();
    assert_eq!(
        get(&router, "/v2/health/ready").await,
        (StatusCode::SERVICE_UNAVAILABLE, json!({"ready": false}))
    );
    assert_eq!(get(&router, "/v2/health/live").await.0, StatusCode::OK);
    let (status, _) = post(&router, "/v2/models/m/infer", input(&json!([1]))).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
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
