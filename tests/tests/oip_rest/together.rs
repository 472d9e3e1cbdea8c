//! Requests that run together, several sessions of a model, and a client that gives little time, with real models.

use std::sync::Arc;

use selvedge_tests::onnx_writer::{self, Element, Extent};
use serde_json::{Value, json};

use crate::host::{Host, Package, Spec, tensor};
use crate::running::{ask_without_end, counting, slow_operator};

/// `y = table[x]` for a table of four numbers: an index that it does not have fails the whole run.
fn table() -> Package {
    let rows = || [Extent::Named("rows")];
    let numbers = [0_f32, 10.0, 20.0, 30.0].map(f32::to_le_bytes).concat();
    let model = onnx_writer::model(onnx_writer::graph(
        [onnx_writer::node("Gather", &["table", "x"], &["y"])],
        [onnx_writer::initializer("table", Element::Float, &[4], &numbers)],
        [onnx_writer::value("x", Element::Int64, &rows())],
        [onnx_writer::value("y", Element::Float, &rows())],
    ));
    let case = json!({"name": "two", "inputs": [tensor(("x", "INT64"), &[2], json!([1, 2]))],
        "outputs": [tensor(("y", "FP32"), &[2], json!([10, 20]))]});
    let specs: (&[Spec], &[Spec]) = (&[("x", "INT64", &[-1])], &[("y", "FP32", &[-1])]);
    Package::new("table", 1, model, specs, case)
        .module("concurrency", json!(1))
        .module("batching", json!({"max-size": 4, "max-delay-ms": 60_000}))
}

/// Asks for these at once, each for itself.
async fn ask(host: &Arc<Host>, indices: &[Vec<i64>]) -> Vec<(u16, Value)> {
    let asked: Vec<_> = indices
        .iter()
        .map(|row| {
            let body = json!({"inputs": [tensor(("x", "INT64"), &[row.len() as u64], json!(row))]});
            let host = Arc::clone(host);
            tokio::spawn(async move { host.post("/v2/models/table/infer", body).await })
        })
        .collect();
    let mut answers = Vec::new();
    for one in asked {
        answers.push(one.await.unwrap());
    }
    answers
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_run_together_are_answered_each_for_itself() {
    let host = Arc::new(Host::start().await);
    host.put(&table().write()).await;
    let data = |answer: &(u16, Value)| {
        assert_eq!(answer.0, 200, "{}", answer.1);
        answer.1["outputs"][0]["data"].clone()
    };
    let answers = ask(&host, &[vec![0], vec![1, 2], vec![3]]).await;
    assert_eq!(
        answers.iter().map(data).collect::<Vec<_>>(),
        [json!([0.0]), json!([10.0, 20.0]), json!([30.0])]
    );
    let answers = ask(&host, &[vec![0], vec![7], vec![2], vec![3]]).await;
    let (bad, good): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.0 != 200);
    assert_eq!(good.into_iter().map(data).collect::<Vec<_>>(), [json!([0.0]), json!([20.0]), json!([30.0])]);
    assert!(bad.len() == 1 && bad[0].1["error"].as_str().unwrap().contains("idx=7"), "{bad:?}");
    let (_, stats) = host.get("/v2/models/table/stats").await;
    let stats = &stats["model_stats"][0];
    // One of three requests, one that failed, its better half, and of the other half one alone.
    assert_eq!((&stats["inference_count"], &stats["execution_count"]), (&json!(7), &json!(3)), "{stats}");
    assert_eq!(stats["inference_stats"]["fail"]["count"], 1);
    assert_eq!(host.get("/v2/models/table/config").await.1["max_batch_size"], 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_with_two_sessions_answers_while_one_of_them_runs() {
    let host = Host::start().await;
    host.put(&counting(60_000).sessions(2).write()).await;
    let _first = ask_without_end(&host);
    let body = json!({"inputs": [tensor(("trips", "INT64"), &[], json!([3]))], "parameters": {"timeout": 30_000_000}});
    let (status, answer) = host.post("/v2/models/count/infer", body).await;
    assert_eq!((status, &answer["outputs"][0]["data"]), (200, &json!([3])), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_gives_little_time_does_not_end_the_host() {
    let host = Host::start().await;
    let small = |name| tensor((name, "INT64"), &[2], json!([4, 4]));
    let case = json!({"name": "small", "inputs": [small("x")], "outputs": [small("y")]});
    let specs: (&[Spec], &[Spec]) = (&[("x", "INT64", &[2])], &[("y", "INT64", &[2])]);
    let written = Package::new("slow", 1, slow_operator(), specs, case).module("concurrency", json!(1));
    // What it waits for takes as long as the machine needs.
    let written = written.module("deadline-ms", json!(300_000)).write();
    host.put(&written).await;
    let ask = async |size: u64, parameters: Value| {
        let input = tensor(("x", "INT64"), &[2], json!([size, size]));
        host.post("/v2/models/slow/infer", json!({"inputs": [input], "parameters": parameters})).await
    };
    // Seconds of work that nothing stops: told to, and a second of grace later, it runs on.
    let (status, answer) = ask(6000, json!({"timeout": 300_000})).await;
    assert!(status == 504 && answer["error"].as_str().unwrap().contains("`timeout`"), "{answer}");
    // Answered by the same process, once that is over.
    let (status, answer) = ask(4, json!({})).await;
    assert_eq!((status, &answer["outputs"][0]["data"]), (200, &json!([4, 4])), "{answer}");
    let packages = host.status().await.packages;
    assert_eq!((packages[0].requests, packages[0].failures), (1, 0), "nobody is blamed");
}
