//! Sequences in a real host: over JSON, binary data and raw bodies, while releases change, and when a package goes.

use std::time::Duration;

use selvedge_control::PackageState;
use selvedge_tests::onnx_writer;
use selvedge_tests::programs::set_up;
use serde_json::{Value, json};

use crate::host::{Host, LONG, Package, Written, tensor};

/// A package whose guest counts the requests of each sequence.
fn counting(release: u64, idle_seconds: u32) -> Written {
    let guest = std::fs::read(set_up("modules/hostile/keeper.wasm")).unwrap();
    let x = |text: &str| tensor(("x", "UINT8"), &[text.len() as u64], json!(text.as_bytes()));
    let case = json!({"name": "one", "inputs": [x("count")], "outputs": [x("1")]});
    let of: &[(&str, &str, &[i64])] = &[("x", "UINT8", &[-1])];
    Package::new("count", release, onnx_writer::identity(), (of, of), case)
        .module("component", json!("keeper.wasm"))
        .module("sequences", json!({"most": 3, "idle-seconds": idle_seconds}))
        .file("keeper.wasm", guest)
        .write()
}

/// What the guest says to a word, and which release it is; or the status.
async fn say(host: &Host, word: &str, parameters: Value) -> Result<(String, String), u16> {
    let x = tensor(("x", "UINT8"), &[word.len() as u64], json!(word.as_bytes()));
    let request = json!({"inputs": [x], "parameters": parameters});
    let (status, answer) = host.post("/v2/models/count/infer", request).await;
    if status != 200 {
        return Err(status);
    }
    let bytes: Vec<u8> = serde_json::from_value(answer["outputs"][0]["data"].clone()).unwrap();
    Ok((String::from_utf8(bytes).unwrap(), answer["model_version"].as_str().unwrap().to_owned()))
}

fn said(word: &str, version: &str) -> Result<(String, String), u16> {
    Ok((word.to_owned(), version.to_owned()))
}

#[tokio::test(flavor = "multi_thread")]
async fn one_sequence_over_every_kind_of_request() {
    let host = Host::start().await;
    host.put(&counting(1, 600)).await;
    let start = json!({"sequence_id": 5, "sequence_start": true});
    assert_eq!(say(&host, "count", start).await, said("1", "1.0.0"));
    let input =
        json!({"name": "x", "datatype": "UINT8", "shape": [5], "parameters": {"binary_data_size": 5}});
    let binary = json!({"inputs": [input], "parameters": {"sequence_id": 5, "binary_data_output": true}});
    let (status, answer, bytes) =
        host.post_binary("/v2/models/count/infer", binary.to_string(), b"count").await;
    assert_eq!((status, &bytes[..]), (200, &b"2"[..]), "{answer}");
    let (status, answer) =
        host.post_bytes("/v2/models/count/raw?sequence_id=5&sequence_end=true", b"count".to_vec()).await;
    assert_eq!((status, &answer["outputs"][0]["data"]), (200, &json!(b"3")), "{answer}");
    assert_eq!(say(&host, "count", json!({"sequence_id": 5})).await, Err(409));
    assert_eq!(say(&host, "count", json!({})).await, said("1", "1.0.0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn sequences_go_on_on_the_release_that_has_them_until_they_end() {
    let host = Host::start().await;
    host.put(&counting(1, 600)).await;
    let goes_on = || json!({"sequence_id": "s"});
    let starts = || json!({"sequence_id": "s", "sequence_start": true});
    assert_eq!(say(&host, "count", starts()).await, said("1", "1.0.0"));
    host.put(&counting(2, 600)).await;
    assert_eq!(say(&host, "count", goes_on()).await, said("2", "1.0.0"));
    assert_eq!(say(&host, "count", json!({})).await, said("1", "2.0.0"));
    let states: Vec<_> = host.status().await.packages.iter().map(|package| package.state).collect();
    assert!(states.contains(&PackageState::Draining), "{states:?}");
    // A trap on the old one is its end there, and it begins on the new one.
    assert_eq!(say(&host, "trap", goes_on()).await, Err(500));
    assert_eq!(say(&host, "count", goes_on()).await, Err(409));
    assert_eq!(say(&host, "count", starts()).await, said("1", "2.0.0"));
    // Nothing keeps the old one now.
    while host.status().await.packages.len() > 1 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_sequences_end_and_make_room_and_unloading_ends_all() {
    let host = Host::start().await;
    let package = counting(1, 1);
    host.put(&package).await;
    for id in 1..4 {
        let start = json!({"sequence_id": id, "sequence_start": true});
        assert_eq!(say(&host, "count", start).await, said("1", "1.0.0"));
    }
    // All are used; each is waited for to have been idle for a second.
    let start = json!({"sequence_id": 4, "sequence_start": true});
    let mut begun = say(&host, "count", start.clone()).await;
    while begun == Err(429) {
        tokio::time::sleep(Duration::from_millis(50)).await;
        begun = say(&host, "count", start.clone()).await;
    }
    assert_eq!(begun, said("1", "1.0.0"));
    let (status, answer) = host.post_bytes("/v2/models/count/raw?sequence_id=1", b"count".to_vec()).await;
    let error = answer["error"].as_str().unwrap_or_default();
    assert!(status == 409 && error.contains("after 1 s without a request"), "{status} {answer}");
    host.control.unload(&package.package, LONG).await.unwrap();
    assert_eq!(say(&host, "count", json!({"sequence_id": 4})).await, Err(404));
    assert!(host.status().await.packages.is_empty());
}
