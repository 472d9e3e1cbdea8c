//! Waiting, being turned away, and running together, in front of fake packages.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::fake::{Behaviour, Fake, get, manifest, post};
use super::served::Served;
use super::{Serving, routes};
use crate::failure::PredictError;

/// A package `m` of pairs of numbers, with these parts of its module changed.
fn one(module: Value, behaviour: Behaviour) -> (Arc<Served>, Router) {
    let mut manifest = manifest("m", "1.0.0", 1, "FP32", &[-1, -1]);
    for (key, value) in module.as_object().unwrap() {
        manifest["module"][key] = value.clone();
    }
    let serving = Serving::new(64);
    let served = Served::new(Fake::package(manifest, behaviour), Default::default(), 0);
    serving.table.stage(Arc::clone(&served));
    serving.table.activate(&served.reference()).unwrap();
    serving.announce();
    (served, routes::router(serving))
}

fn request(rows: &[Value]) -> Value {
    let shape = [rows.len(), rows[0].as_array().unwrap().len()];
    json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": shape, "data": rows}]})
}

/// Asks beside the test; the status, and the data of the answer or its error.
fn ask(router: &Router, rows: &[Value], timeout: Option<u64>) -> JoinHandle<(u16, Value)> {
    let (router, mut request) = (router.clone(), request(rows));
    if let Some(micros) = timeout {
        request["parameters"] = json!({"timeout": micros});
    }
    tokio::spawn(async move {
        let (status, body) = post(&router, "/v2/models/m/infer", request).await;
        let told = if status == 200 { &body["outputs"][0]["data"] } else { &body["error"] };
        (status.as_u16(), told.clone())
    })
}

async fn waiting(served: &Served, count: u64) {
    while served.gate.waiting() < count {
        tokio::task::yield_now().await;
    }
}

fn batching(size: u32) -> Value {
    json!({"batching": {"max-size": size, "max-delay-ms": 60_000}})
}

#[tokio::test]
async fn requests_of_a_kind_run_together_and_each_gets_its_own_rows() {
    let (served, router) = one(batching(4), Behaviour::Echo);
    let asked = [
        ask(&router, &[json!([1, 2])], None),
        ask(&router, &[json!([3, 4]), json!([5, 6])], None),
        ask(&router, &[json!([7, 8])], None),
    ];
    let expected = [json!([1.0, 2.0]), json!([3.0, 4.0, 5.0, 6.0]), json!([7.0, 8.0])];
    for (asked, expected) in asked.into_iter().zip(expected) {
        assert_eq!(asked.await.unwrap(), (200, expected));
    }
    let counts = served.counts.snapshot();
    assert_eq!((counts.success, counts.executions(), counts.inferences()), (3, 1, 4));
    assert_eq!(counts.runs[&4].count, 1);
    // As large as a run may be: it does not wait for others.
    let rows = [json!([0]), json!([1]), json!([2]), json!([3]), json!([4])];
    assert_eq!(ask(&router, &rows, None).await.unwrap().0, 200);
    let (_, stats) = get(&router, "/v2/models/m/stats").await;
    let stats = &stats["model_stats"][0];
    assert_eq!((&stats["inference_count"], &stats["execution_count"]), (&json!(9), &json!(2)));
    assert_eq!(stats["inference_stats"]["success"]["count"], 4);
    assert_eq!(stats["batch_stats"][1]["batch_size"], 5);
    assert_eq!(get(&router, "/v2/models/stats").await.1["model_stats"][0]["name"], "m");
    let (_, config) = get(&router, "/v2/models/m/config").await;
    assert_eq!((&config["max_batch_size"], &config["input"][0]["dims"]), (&json!(4), &json!([-1])));
    assert_eq!(config["dynamic_batching"], json!({"max_queue_delay_microseconds": 60_000_000}));
}

#[tokio::test]
async fn other_shapes_go_with_their_own_kind() {
    let (served, router) = one(batching(2), Behaviour::Echo);
    let asked = [
        ask(&router, &[json!([1, 2])], None),
        ask(&router, &[json!([1, 2, 3])], None),
        ask(&router, &[json!([4, 5])], None),
        ask(&router, &[json!([4, 5, 6])], None),
    ];
    for (asked, expected) in asked.into_iter().zip([2, 3, 2, 3]) {
        let (status, data) = asked.await.unwrap();
        assert_eq!((status, data.as_array().unwrap().len()), (200, expected), "{data}");
    }
    assert_eq!(served.counts.snapshot().runs[&2].count, 2);
}

#[tokio::test]
async fn a_bad_request_costs_the_others_nothing() {
    let (served, router) = one(batching(3), Behaviour::Refuse(13.0));
    for _ in 0..5 {
        let asked = [1, 13, 3].map(|number| ask(&router, &[json!([number])], None));
        let [one, bad, three] = asked.map(|asked| async move { asked.await.unwrap() });
        assert_eq!((one.await, three.await), ((200, json!([1.0])), (200, json!([3.0]))));
        let (status, error) = bad.await;
        assert!(status == 500 && error.as_str().unwrap().contains("no 13"), "{status} {error}");
    }
    let counts = served.counts.snapshot();
    assert_eq!((counts.success, counts.failures, counts.runs[&1].count), (10, [0, 0, 5, 0], 10));
}

#[tokio::test]
async fn a_package_that_cannot_be_asked_so_is_asked_one_by_one() {
    // Fails for two rows, and for one does not.
    let (served, router) = one(batching(2), Behaviour::OneRow);
    for round in 0..4 {
        let asked = [1, 2].map(|number| ask(&router, &[json!([number])], None));
        for asked in asked {
            // The last round would wait for a minute if it were put together still.
            let answer = tokio::time::timeout(Duration::from_secs(30), asked).await;
            assert_eq!(answer.expect("asked at once").unwrap().0, 200, "{round}");
        }
    }
    assert_eq!(served.counts.snapshot().executions(), 8);
    // Once more, by one alone: nobody waits for a second.
    let alone = tokio::time::timeout(Duration::from_secs(30), ask(&router, &[json!([1])], None)).await;
    assert_eq!(alone.expect("asked at once").unwrap().0, 200);
}

#[tokio::test]
async fn what_takes_too_long_together_is_answered_alone_and_nobody_is_blamed() {
    let mut module = batching(2);
    module["deadline-ms"] = json!(3000);
    let (served, router) = one(module, Behaviour::SlowRows);
    let asked = [1, 2].map(|number| ask(&router, &[json!([number])], None));
    for (asked, expected) in asked.into_iter().zip([json!([1.0]), json!([2.0])]) {
        assert_eq!(asked.await.unwrap(), (200, expected));
    }
    assert_eq!(served.status(selvedge_control::PackageState::Serving, 0).failures, 0);
    // It counts as a mistake: nobody waits for a second any more.
    let alone = tokio::time::timeout(Duration::from_secs(30), ask(&router, &[json!([1])], None)).await;
    assert_eq!(alone.expect("asked at once").unwrap().0, 200);
    assert_eq!(served.counts.snapshot().executions(), 3);
}

#[tokio::test]
async fn good_runs_make_groups_as_large_again() {
    let (served, router) = one(batching(2), Behaviour::OneRow);
    let pair = || [1, 2].map(|number| ask(&router, &[json!([number])], None));
    for asked in pair() {
        assert_eq!(asked.await.unwrap().0, 200);
    }
    for _ in 0..64 {
        assert_eq!(ask(&router, &[json!([1])], None).await.unwrap().0, 200);
    }
    // Waits for a second.
    let one = ask(&router, &[json!([1])], None);
    waiting(&served, 1).await;
    assert_eq!(ask(&router, &[json!([2])], None).await.unwrap().0, 200);
    assert_eq!(one.await.unwrap().0, 200);
}

#[tokio::test]
async fn full_memory_is_no_reason_to_put_less_together() {
    let (served, router) = one(batching(2), Behaviour::Fail(PredictError::Limit("memory".to_owned())));
    for _ in 0..2 {
        let one = ask(&router, &[json!([1])], None);
        waiting(&served, 1).await;
        assert!(ask(&router, &[json!([2])], None).await.unwrap().0 >= 500);
        assert!(one.await.unwrap().0 >= 500);
    }
}

#[tokio::test]
async fn who_goes_away_takes_its_place_in_its_group_with_it() {
    let (served, router) = one(batching(3), Behaviour::Echo);
    let gone = ask(&router, &[json!([0]), json!([1])], None);
    waiting(&served, 1).await;
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    // At once, and not when the group's turn has come.
    assert_eq!(served.gate.waiting(), 0);
    let one = ask(&router, &[json!([2]), json!([3])], None);
    waiting(&served, 1).await;
    let gone = ask(&router, &[json!([4])], Some(20_000_000)).await.unwrap();
    assert_eq!(gone.0, 200, "that was full");
    assert_eq!(one.await.unwrap(), (200, json!([2.0, 3.0])));
    assert_eq!(served.counts.snapshot().runs[&3].count, 1);
}

#[tokio::test]
async fn a_run_that_its_package_does_not_end_in_time_is_its_failure() {
    let (end, sent) = std::sync::mpsc::channel();
    let blocking = Behaviour::Block(Arc::new(std::sync::Mutex::new(sent)));
    let module = json!({"deadline-ms": 2000, "batching": {"max-size": 2}});
    let (served, router) = one(module, blocking);
    let asked = tokio::time::timeout(Duration::from_secs(30), ask(&router, &[json!([0])], None));
    let (status, error) = asked.await.expect("answered while it runs").unwrap();
    assert!(
        status == 504 && error.as_str().unwrap().contains("no answer within 2000 ms"),
        "{status} {error}"
    );
    assert_eq!(served.status(selvedge_control::PackageState::Serving, 0).failures, 1);
    end.send(()).unwrap();
    served.idle().await;
}

#[tokio::test]
async fn what_waits_for_its_turn_together_is_one_run_and_who_went_away_is_not_in_it() {
    let permits = Arc::new(Semaphore::new(0));
    let module = json!({"batching": {"max-size": 8}});
    let (served, router) = one(module, Behaviour::Wait(Arc::clone(&permits)));
    let first = ask(&router, &[json!([0])], None);
    while served.is_idle() || served.gate.waiting() > 0 {
        tokio::task::yield_now().await;
    }
    let others = [1, 2, 3].map(|number| ask(&router, &[json!([number])], None));
    waiting(&served, 3).await;
    let [one, gone, three] = others;
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    // Its deadline passes before its turn.
    let (status, error) = ask(&router, &[json!([4])], Some(20_000)).await.unwrap();
    assert!(status == 504 && error.as_str().unwrap().contains("no turn within 20 ms"), "{status} {error}");
    permits.add_permits(1);
    assert_eq!(first.await.unwrap(), (200, json!([0.0])));
    assert_eq!(one.await.unwrap(), (200, json!([1.0])));
    assert_eq!(three.await.unwrap(), (200, json!([3.0])));
    let runs = served.counts.snapshot().runs;
    assert_eq!((runs.len(), runs[&1].count, runs[&2].count), (2, 1, 1));
    assert_eq!(served.gate.waiting(), 0);
}

#[tokio::test]
async fn a_deadline_that_passes_in_the_queue_is_504_and_costs_no_run() {
    let permits = Arc::new(Semaphore::new(0));
    let (served, router) = one(json!({"queue": 1}), Behaviour::Wait(Arc::clone(&permits)));
    let first = ask(&router, &[json!([0])], None);
    while served.is_idle() || served.gate.waiting() > 0 {
        tokio::task::yield_now().await;
    }
    let second = ask(&router, &[json!([1])], Some(3_000_000));
    waiting(&served, 1).await;
    let (status, error) = ask(&router, &[json!([2])], None).await.unwrap();
    assert!(status == 429 && error.as_str().unwrap().contains("try again in 1 s"), "{status} {error}");
    assert_eq!(second.await.unwrap().0, 504);
    permits.add_permits(1);
    assert_eq!(first.await.unwrap().0, 200);
    let counts = served.counts.snapshot();
    assert_eq!((counts.executions(), counts.failures), (1, [1, 0, 0, 1]));
    assert_eq!(served.status(selvedge_control::PackageState::Serving, 0).failures, 0);
}

#[tokio::test]
async fn a_client_that_gives_little_time_is_not_kept_waiting_and_nobody_is_blamed() {
    let (end, sent) = std::sync::mpsc::channel();
    let blocking = Behaviour::Block(Arc::new(std::sync::Mutex::new(sent)));
    let (served, router) = one(json!({}), blocking);
    let asked = tokio::time::timeout(Duration::from_secs(30), ask(&router, &[json!([0])], Some(1_000_000)));
    let (status, error) = asked.await.expect("answered while it runs").unwrap();
    assert!(status == 504 && error.as_str().unwrap().contains("`timeout` of 1000 ms"), "{status} {error}");
    assert_eq!(served.status(selvedge_control::PackageState::Serving, 0).failures, 0);
    assert!(!served.is_idle(), "its run is held until it has ended");
    end.send(()).unwrap();
    served.idle().await;
}
