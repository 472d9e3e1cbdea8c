//! Sequences in front of fake packages: what is refused and how, and where they go on while releases change.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::fake::{Behaviour, Fake, get, manifest, post};
use super::served::Served;
use super::{Serving, routes};
use crate::clock;
use crate::failure::PredictError;
use crate::sequence::{Id, Part};

/// A package that keeps so many sequences.
fn stateful(release: u64, most: u32, behaviour: Behaviour) -> Arc<Served> {
    let sequences = json!({"most": most, "idle-seconds": 3600});
    made(release, json!({"component": "m.wasm", "concurrency": 2, "sequences": sequences}), behaviour)
}

fn made(release: u64, module: Value, behaviour: Behaviour) -> Arc<Served> {
    let mut manifest = manifest("m", &format!("{release}.0.0"), release, "FP32", &[-1]);
    manifest["module"] = module;
    Served::new(Fake::package(manifest, behaviour), Default::default(), 0)
}

/// Routes a package; those that drain from now on.
fn put(serving: &Serving, served: &Arc<Served>) -> Vec<Arc<Served>> {
    serving.table.stage(Arc::clone(served));
    serving.table.activate(&served.reference()).unwrap()
}

fn serving(served: &Arc<Served>) -> (Arc<Serving>, Router) {
    let serving = Serving::new(4);
    put(&serving, served);
    serving.announce();
    (Arc::clone(&serving), routes::router(serving))
}

fn request(parameters: Value) -> Value {
    let input = json!({"name": "x", "datatype": "FP32", "shape": [1], "data": [1.5]});
    json!({"inputs": [input], "parameters": parameters})
}

/// Status, and which release answered or what the error was.
async fn asked(router: &Router, path: &str, parameters: Value) -> (u16, String) {
    let (status, answer) = post(router, path, request(parameters)).await;
    let said = answer.get("error").unwrap_or(&answer["model_version"]);
    (status.as_u16(), said.as_str().unwrap().to_owned())
}

const PATH: &str = "/v2/models/m/infer";

#[tokio::test]
async fn a_sequence_begins_goes_on_and_ends() {
    let (_, router) = serving(&stateful(1, 2, Behaviour::Echo));
    let check = async |parameters: Value, status: u16, says: &str| {
        let (found, said) = asked(&router, PATH, parameters.clone()).await;
        assert!(found == status && said.contains(says), "{parameters}: {found} {said}");
    };
    check(json!({"sequence_id": 7}), 409, "no sequence `7`: no request began it here; begin it with").await;
    check(json!({"sequence_id": 7, "sequence_start": true}), 200, "1.0.0").await;
    check(json!({"sequence_id": 7, "sequence_start": false, "sequence_end": false}), 200, "1.0.0").await;
    check(json!({"sequence_id": "7"}), 409, "no sequence `7`").await;
    check(json!({"sequence_id": 7, "sequence_end": true}), 200, "1.0.0").await;
    check(json!({"sequence_id": 7}), 409, "ended it with `sequence_end`").await;
    // By itself.
    for alone in [json!({}), json!({"sequence_id": 0}), json!({"sequence_id": "", "sequence_start": false})] {
        check(alone, 200, "1.0.0").await;
    }
    check(json!({"sequence_start": true}), 400, "`sequence_start`: it needs a `sequence_id`").await;
    check(json!({"sequence_id": -7}), 400, "a whole number from 0").await;
    let large = json!({"sequence_id": u64::MAX, "sequence_start": true});
    check(large, 200, "1.0.0").await;
    check(json!({"sequence_id": u64::MAX - 1}), 409, "`18446744073709551614`").await;
}

#[tokio::test]
async fn one_too_many_is_told_to_try_again() {
    let served = stateful(1, 1, Behaviour::Echo);
    let (_, router) = serving(&served);
    assert_eq!(asked(&router, PATH, json!({"sequence_id": 1, "sequence_start": true})).await.0, 200);
    let start = request(json!({"sequence_id": 2, "sequence_start": true}));
    let start = Request::post(PATH).body(Body::from(start.to_string())).unwrap();
    let response = TowerToHyperService::new(router.clone()).call(start).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["retry-after"]),
        (429, &"1".parse().unwrap())
    );
    assert_eq!(asked(&router, PATH, json!({"sequence_id": 1})).await.0, 200);
    // Rejected, and no fault of the package.
    assert_eq!(served.counts.snapshot().failures, [1, 0, 0, 0]);
}

#[tokio::test]
async fn a_package_that_keeps_nothing_says_so() {
    let plain = Fake::package(manifest("m", "1.0.0", 1, "FP32", &[-1]), Behaviour::Echo);
    let (_, router) = serving(&Served::new(plain, Default::default(), 0));
    let (status, error) = asked(&router, PATH, json!({"sequence_id": 1, "sequence_start": true})).await;
    assert!(status == 400 && error.contains("no `module.sequences`"), "{status} {error}");
    assert_eq!(asked(&router, PATH, json!({"sequence_id": 0})).await.0, 200);
    assert_eq!(get(&router, "/v2/models/m/config").await.1["sequence_batching"], Value::Null);
}

#[tokio::test]
async fn a_sequence_goes_on_where_it_began_until_it_ends() {
    let first = stateful(1, 2, Behaviour::Echo);
    let (serving, router) = serving(&first);
    let goes_on = json!({"sequence_id": 1});
    assert_eq!(asked(&router, PATH, json!({"sequence_id": 1, "sequence_start": true})).await.0, 200);
    let drained = put(&serving, &stateful(2, 2, Behaviour::Echo));
    assert!(Arc::ptr_eq(&drained[0], &first));
    let draining = tokio::spawn({
        let table = Arc::clone(&serving.table);
        async move { table.drain(first).await }
    });
    drop(drained);
    let on = |release: &str| (200, release.to_owned());
    assert_eq!(asked(&router, PATH, goes_on.clone()).await, on("1.0.0"));
    assert_eq!(asked(&router, PATH, json!({"sequence_id": 2, "sequence_start": true})).await, on("2.0.0"));
    assert_eq!(asked(&router, PATH, json!({"sequence_id": 2})).await, on("2.0.0"));
    assert_eq!(asked(&router, PATH, json!({})).await, on("2.0.0"));
    // Who names a version means it.
    assert_eq!(asked(&router, "/v2/models/m/versions/2/infer", goes_on.clone()).await.0, 409);
    assert_eq!(asked(&router, "/v2/models/m/versions/1/infer", goes_on.clone()).await, on("1.0.0"));
    // A third release: both go on where they are.
    put(&serving, &stateful(3, 2, Behaviour::Echo));
    assert_eq!(asked(&router, PATH, goes_on.clone()).await, on("1.0.0"));
    assert_eq!(asked(&router, PATH, json!({"sequence_id": 2})).await, on("2.0.0"));
    assert!(!draining.is_finished());
    assert_eq!(asked(&router, PATH, json!({"sequence_id": 1, "sequence_end": true})).await, on("1.0.0"));
    assert!(draining.await.unwrap());
    assert_eq!(asked(&router, PATH, goes_on).await.0, 409);
}

#[tokio::test]
async fn a_sequence_that_began_anew_does_not_go_on_with_what_it_was() {
    let first = stateful(1, 2, Behaviour::Echo);
    let (serving, router) = serving(&first);
    let (start, goes_on) = (json!({"sequence_id": 1, "sequence_start": true}), json!({"sequence_id": 1}));
    let end = json!({"sequence_id": 1, "sequence_end": true});
    assert_eq!(asked(&router, PATH, start.clone()).await, (200, "1.0.0".to_owned()));
    put(&serving, &stateful(2, 2, Behaviour::Echo));
    assert_eq!(asked(&router, PATH, start).await, (200, "2.0.0".to_owned()));
    assert_eq!(first.sequences(), 0);
    assert_eq!(asked(&router, PATH, end).await, (200, "2.0.0".to_owned()));
    let (status, said) = asked(&router, PATH, goes_on.clone()).await;
    assert!(status == 409 && said.contains("ended it with `sequence_end`"), "{status} {said}");
    let (status, said) = asked(&router, "/v2/models/m/versions/1/infer", goes_on).await;
    assert!(status == 409 && said.contains("began anew on the release that took over"), "{status} {said}");
}

#[tokio::test]
async fn a_sequence_without_end_holds_no_release_for_ever() {
    let first = made(
        1,
        json!({"component": "m.wasm", "deadline-ms": 1, "sequences": {"idle-seconds": 1}}),
        Behaviour::Echo,
    );
    let (serving, router) = serving(&first);
    let part = Part { id: Id::Number(1), first: true, last: false };
    let deadline = clock::now() + std::time::Duration::from_secs(60);
    // A request that never ends keeps it from being idle.
    let turn = first.predictor.sequences().unwrap().enter(part, deadline).await.unwrap();
    drop(put(&serving, &stateful(2, 2, Behaviour::Echo)));
    assert!(serving.table.drain(Arc::clone(&first)).await);
    assert_eq!(asked(&router, "/v2/models/m/versions/1/infer", json!({})).await.0, 404);
    turn.keep(Box::new(()));
    assert_eq!(first.sequences(), 0);
    assert_eq!(asked(&router, PATH, json!({"sequence_id": 1})).await.0, 409);
}

#[tokio::test]
async fn unloading_waits_for_no_sequence() {
    let first = stateful(1, 2, Behaviour::Echo);
    let (serving, router) = serving(&first);
    assert_eq!(asked(&router, PATH, json!({"sequence_id": 1, "sequence_start": true})).await.0, 200);
    let retired = serving.table.retire(&first.reference());
    assert_eq!((retired.len(), first.sequences()), (1, 0));
    assert!(serving.table.drain(Arc::clone(&first)).await);
    assert_eq!(asked(&router, PATH, json!({"sequence_id": 1})).await.0, 404);
}

#[tokio::test]
async fn unloading_waits_for_no_sequence_whose_request_gives_its_turn_back() {
    let first = stateful(1, 2, Behaviour::Echo);
    let (serving, router) = serving(&first);
    assert_eq!(asked(&router, PATH, json!({"sequence_id": 1, "sequence_start": true})).await.0, 200);
    let (part, deadline) =
        (|first| Part { id: Id::Number(1), first, last: false }, clock::now() + first.deadline());
    let sequences = first.predictor.sequences().unwrap();
    let turn = sequences.enter(part(false), deadline).await.unwrap();
    assert_eq!(serving.table.retire(&first.reference()).len(), 1);
    assert_eq!(first.sequence_time(), std::time::Duration::ZERO);
    drop(turn);
    assert_eq!(first.sequences(), 0);
    assert!(sequences.enter(part(true), deadline).await.is_err(), "one begins while it goes");
    // Wanted back before it is gone.
    serving.table.activate(&first.reference()).unwrap();
    assert!(!serving.table.drain(Arc::clone(&first)).await);
    assert_eq!(asked(&router, PATH, json!({"sequence_id": 1, "sequence_start": true})).await.0, 200);
    assert_eq!(asked(&router, PATH, json!({"sequence_id": 1})).await.0, 200);
}

#[tokio::test]
async fn who_waits_in_a_sequence_takes_no_place_of_those_that_run() {
    let permits = Arc::new(Semaphore::new(0));
    let served = stateful(1, 2, Behaviour::Wait(Arc::clone(&permits)));
    let (_, router) = serving(&served);
    let both = json!({"sequence_id": 1, "sequence_start": true, "sequence_end": true});
    let ask = |parameters: Value| {
        let router = router.clone();
        tokio::spawn(async move { asked(&router, PATH, parameters).await.0 })
    };
    // As many as may run and more, all of one sequence.
    let asking: Vec<_> = (0..5).map(|_| ask(both.clone())).collect();
    let alone = ask(json!({}));
    // One of the sequence and the one that belongs to none; the others wait in front.
    let sequences = served.predictor.sequences().unwrap();
    while served.gate.running() < 2 || !sequences.has(&Id::Number(1)) {
        tokio::task::yield_now().await;
    }
    assert_eq!(served.gate.waiting(), 0);
    permits.add_permits(6);
    for one in asking {
        assert_eq!(one.await.unwrap(), 200);
    }
    assert_eq!(alone.await.unwrap(), 200);
    assert_eq!(served.sequences(), 0);
}

#[tokio::test]
async fn a_request_that_failed_ends_its_sequence_with_the_packages_fault() {
    let served = stateful(1, 2, Behaviour::Fail(PredictError::Trap("asked for".to_owned())));
    let (_, router) = serving(&served);
    assert_eq!(asked(&router, PATH, json!({"sequence_id": 1, "sequence_start": true})).await.0, 500);
    let (status, error) = asked(&router, PATH, json!({"sequence_id": 1})).await;
    assert!(status == 409 && error.contains("a request of it failed"), "{status} {error}");
    assert_eq!(served.counts.snapshot().failures, [0, 0, 1, 1]);
}

#[tokio::test]
async fn what_a_model_keeps_is_told() {
    let served = stateful(1, 5, Behaviour::Echo);
    let (_, router) = serving(&served);
    let (_, config) = get(&router, "/v2/models/m/config").await;
    let expected = json!({"max_sequence_idle_microseconds": 3_600_000_000_u64, "oldest": {"max_candidate_sequences": 5}});
    assert_eq!(config["sequence_batching"], expected);
    assert!(get(&router, "/v2").await.1["extensions"].as_array().unwrap().contains(&json!("sequence")));
    for id in 1..3 {
        assert_eq!(asked(&router, PATH, json!({"sequence_id": id, "sequence_start": true})).await.0, 200);
    }
    assert_eq!(asked(&router, PATH, json!({"sequence_id": 1, "sequence_end": true})).await.0, 200);
    let request = Request::get("/metrics").body(Body::empty()).unwrap();
    let (_, text) = super::fake::ask(&router, request).await;
    for line in [
        "selvedge_sequences{model=\"m\",version=\"1.0.0\"} 1",
        "selvedge_sequences_begun{model=\"m\",version=\"1.0.0\"} 2",
    ] {
        assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
    }
}

#[tokio::test]
async fn a_turn_that_is_given_back_changes_nothing() {
    let served = stateful(1, 2, Behaviour::Echo);
    let (_, router) = serving(&served);
    assert_eq!(asked(&router, PATH, json!({"sequence_id": 1, "sequence_start": true})).await.0, 200);
    let part = Part { id: Id::Number(1), first: false, last: true };
    let deadline = clock::now() + served.deadline();
    drop(served.predictor.sequences().unwrap().enter(part, deadline).await.unwrap());
    assert_eq!(asked(&router, PATH, json!({"sequence_id": 1})).await.0, 200);
}
