//! Binary data, raw bodies and compressed bodies through the protocol's paths, in front of a fake package.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use http_body_util::BodyExt;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use std::io::{Read, Write};

use super::fake::{Behaviour, Fake, manifest};
use super::served::Served;
use super::{Serving, routes};

const JSON_LENGTH: &str = "inference-header-content-length";

fn router(datatype: &str, shape: &[i64]) -> Router {
    router_within(8, datatype, shape)
}

/// The same where all requests may hold so many MiB.
fn router_within(budget_mib: u32, datatype: &str, shape: &[i64]) -> Router {
    let serving = Serving::new(budget_mib);
    let package = Fake::package(manifest("m", "1.0.0", 1, datatype, shape), Behaviour::Echo);
    let served = Served::new(package, Default::default(), 0);
    serving.table.stage(Arc::clone(&served));
    serving.table.activate(&served.reference()).unwrap();
    serving.announce();
    routes::router(serving)
}

/// Status, head and body of the answer to a request with these headers.
async fn ask(
    router: &Router,
    path: &str,
    headers: &[(&str, &str)],
    body: Vec<u8>,
) -> (StatusCode, HeaderMap, Vec<u8>) {
    let mut request = Request::post(format!("/v2/models/m/{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::from(body)).unwrap();
    let response = TowerToHyperService::new(router.clone()).call(request).await.unwrap();
    let (parts, body) = response.into_parts();
    (parts.status, parts.headers, body.collect().await.unwrap().to_bytes().to_vec())
}

/// Asks with JSON and what follows it.
async fn binary(router: &Router, json: &Value, after: &[u8]) -> (StatusCode, HeaderMap, Vec<u8>) {
    let json = json.to_string();
    let body = [json.as_bytes(), after].concat();
    ask(router, "infer", &[(JSON_LENGTH, &json.len().to_string())], body).await
}

/// The JSON of a binary answer, and what follows it.
fn split(headers: &HeaderMap, body: &[u8]) -> (Value, Vec<u8>) {
    assert_eq!(headers["content-type"], "application/octet-stream");
    let length: usize = headers[JSON_LENGTH].to_str().unwrap().parse().unwrap();
    (serde_json::from_slice(&body[..length]).unwrap(), body[length..].to_vec())
}

fn floats(count: u16) -> Vec<u8> {
    (0..count).flat_map(|n| (f32::from(n) + 0.5).to_le_bytes()).collect()
}

fn input(count: usize, size: usize) -> Value {
    json!({"name": "x", "datatype": "FP32", "shape": [count], "parameters": {"binary_data_size": size}})
}

#[tokio::test]
async fn tensors_go_both_ways_as_they_are() {
    let router = router("FP32", &[-1]);
    // A few bytes are copied, many are not; NaN has no other way.
    for count in [0, 1, 3, 5000] {
        let mut data = floats(count);
        if let Some(first) = data.get_mut(..4) {
            first.copy_from_slice(&[1, 0, 0xc0, 0xff]);
        }
        let request = json!({"id": "b", "inputs": [input(count.into(), data.len())],
            "outputs": [{"name": "y", "parameters": {"binary_data": true}}]});
        let (status, headers, body) = binary(&router, &request, &data).await;
        assert_eq!(status, StatusCode::OK, "{}", String::from_utf8_lossy(&body));
        let (answer, after) = split(&headers, &body);
        assert_eq!(answer["id"], "b");
        let output = json!({"name": "y", "datatype": "FP32", "shape": [count],
            "parameters": {"binary_data_size": data.len()}});
        assert_eq!(answer["outputs"], json!([output]));
        assert_eq!(after, data);
    }
}

#[tokio::test]
async fn each_side_is_binary_where_it_is_asked_to_be() {
    let router = router("FP32", &[-1]);
    let check = async |request: Value, after: &[u8], is_binary: bool| {
        let (status, headers, body) = binary(&router, &request, after).await;
        assert_eq!(status, StatusCode::OK, "{}", String::from_utf8_lossy(&body));
        if is_binary {
            assert_eq!(split(&headers, &body).1, 1.5_f32.to_le_bytes());
        } else {
            assert_eq!(headers["content-type"], "application/json");
            assert!(!headers.contains_key(JSON_LENGTH));
            let answer: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(answer["outputs"][0]["data"], json!([1.5]));
        }
    };
    let sent = 1.5_f32.to_le_bytes();
    let told = json!({"name": "x", "datatype": "FP32", "shape": [1], "data": [1.5]});
    for (input, after) in [(input(1, 4), &sent[..]), (told, &[])] {
        let all = json!({"binary_data_output": true});
        let output = |asked: bool| json!([{"name": "y", "parameters": {"binary_data": asked}}]);
        let inputs = json!([input]);
        check(json!({"inputs": inputs}), after, false).await;
        check(json!({"inputs": inputs, "parameters": all}), after, true).await;
        check(json!({"inputs": inputs, "outputs": [{"name": "y"}]}), after, false).await;
        check(json!({"inputs": inputs, "outputs": [{"name": "y"}], "parameters": all}), after, true).await;
        check(json!({"inputs": inputs, "outputs": output(false), "parameters": all}), after, false).await;
        check(json!({"inputs": inputs, "outputs": output(true)}), after, true).await;
    }
    // Without the header, too.
    let request = json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.5]}],
        "parameters": {"binary_data_output": true}});
    let (_, headers, body) = ask(&router, "infer", &[], request.to_string().into_bytes()).await;
    assert_eq!(split(&headers, &body).1, sent);
}

#[tokio::test]
async fn binary_data_that_does_not_fit_is_refused_with_its_tensor() {
    let router = router("FP32", &[-1]);
    let check = async |input: Value, after: &[u8], says: &str| {
        let (status, _, body) = binary(&router, &json!({"inputs": [input]}), after).await;
        let text = String::from_utf8(body).unwrap();
        assert!(status == 400 && text.contains(says), "{status} {text}, not {says}");
    };
    check(input(2, 8), &[0; 7], "input 0 (`x`): `binary_data_size` is 8, and 7 bytes are left").await;
    check(input(2, 8), &[0; 9], "1 bytes after the inputs' binary data belong to no input").await;
    check(input(2, 4), &[0; 4], "input 0 (`x`): shape [2] of FP32 takes 8 bytes, and 4 came").await;
    check(input(1 << 40, 4), &[0; 4], "larger than the package's limit").await;
    let mut both = input(1, 4);
    both["data"] = json!([1]);
    check(both, &[0; 4], "both `data` and `binary_data_size`").await;
    let mut odd = input(1, 4);
    odd["parameters"]["binary_data_size"] = json!("4");
    check(odd.clone(), &[0; 4], "a whole number from 0 up").await;
    odd["parameters"]["binary_data_size"] = json!(-4);
    check(odd, &[0; 4], "a whole number from 0 up").await;
    check(json!({"name": "x", "datatype": "FP32", "shape": [1]}), &[0; 4], "`data` is missing").await;
    let (status, _, _) = binary(&router, &json!({"inputs": [input(1, 4)]}), &vec![0; 3 << 20]).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn bytes_have_their_length_in_front_both_ways() {
    let router = router("BYTES", &[-1]);
    let data = b"\x02\0\0\0\xff\0\0\0\0\0\x01\0\0\0a";
    let request = json!({"inputs": [{"name": "x", "datatype": "BYTES", "shape": [3],
        "parameters": {"binary_data_size": data.len()}}], "parameters": {"binary_data_output": true}});
    let (status, headers, body) = binary(&router, &request, data).await;
    assert_eq!(status, StatusCode::OK, "{}", String::from_utf8_lossy(&body));
    assert_eq!(split(&headers, &body).1, data);
}

#[tokio::test]
async fn a_length_of_zero_says_that_the_body_is_the_input() {
    let bytes = router("BYTES", &[1]);
    let (status, headers, body) = ask(&bytes, "infer", &[(JSON_LENGTH, "0")], b"\x89PNG".to_vec()).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(split(&headers, &body).1, b"\x04\0\0\0\x89PNG");
    let numbers = router("FP32", &[-1, 2]);
    let (status, headers, body) = ask(&numbers, "infer", &[(JSON_LENGTH, "0")], floats(6)).await;
    assert_eq!(status, StatusCode::OK, "{}", String::from_utf8_lossy(&body));
    let (answer, after) = split(&headers, &body);
    assert_eq!((&answer["outputs"][0]["shape"], after), (&json!([3, 2]), floats(6)));
    // The path of our own answers in JSON.
    let (_, headers, body) = ask(&numbers, "raw", &[], floats(2)).await;
    assert_eq!(headers["content-type"], "application/json");
    let answer: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(answer["outputs"][0]["data"], json!([0.5, 1.5]));
}

#[tokio::test]
async fn compressed_bodies_go_both_ways() {
    let router = router("FP32", &[-1]);
    let data = floats(4000);
    let request = json!({"inputs": [input(4000, data.len())], "parameters": {"binary_data_output": true}});
    let json = request.to_string();
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(json.as_bytes()).unwrap();
    encoder.write_all(&data).unwrap();
    let packed = encoder.finish().unwrap();
    let length = json.len().to_string();
    let head = [(JSON_LENGTH, &*length), ("content-encoding", "gzip"), ("accept-encoding", "gzip, deflate")];
    let (status, headers, body) = ask(&router, "infer", &head, packed.clone()).await;
    assert_eq!(status, StatusCode::OK, "{}", String::from_utf8_lossy(&body));
    assert_eq!(headers["content-encoding"], "gzip");
    assert_eq!(headers["vary"], "accept-encoding");
    let mut whole = Vec::new();
    GzDecoder::new(&body[..]).read_to_end(&mut whole).unwrap();
    assert_eq!(split(&headers, &whole).1, data);
    // One that does not ask gets it as it is.
    let (_, headers, body) = ask(&router, "infer", &head[..2], packed).await;
    assert!(!headers.contains_key("content-encoding"));
    assert_eq!(split(&headers, &body).1, data);
    // What is refused when it comes as it is, is refused packed.
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&vec![b' '; 2 << 20]).unwrap();
    let (status, _, _) =
        ask(&router, "infer", &[("content-encoding", "gzip")], encoder.finish().unwrap()).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn tensors_that_are_larger_than_their_json_are_charged_too() {
    // A number of two bytes makes an element of eight.
    let router = router_within(1, "FP64", &[-1]);
    for (elements, status) in [(70_000, StatusCode::OK), (120_000, StatusCode::SERVICE_UNAVAILABLE)] {
        let data = vec!["0"; elements].join(",");
        let body = format!(
            r#"{{"inputs": [{{"name": "x", "datatype": "FP64", "shape": [{elements}], "data": [{data}]}}]}}"#
        );
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(body.as_bytes()).unwrap();
        let headers = [("content-encoding", "gzip")];
        let packed = ask(&router, "infer", &headers, packed.finish().unwrap()).await;
        let plain = ask(&router, "infer", &[], body.into_bytes()).await;
        assert_eq!((plain.0, packed.0), (status, status), "{}", String::from_utf8_lossy(&plain.2));
    }
}

#[tokio::test]
async fn the_raw_path_takes_no_json_in_front() {
    let router = router("BYTES", &[1]);
    for (length, status) in [("0", StatusCode::OK), ("2", StatusCode::BAD_REQUEST)] {
        let answer = ask(&router, "raw", &[(JSON_LENGTH, length)], b"{}abc".to_vec()).await;
        assert_eq!(answer.0, status, "{}", String::from_utf8_lossy(&answer.2));
    }
}
