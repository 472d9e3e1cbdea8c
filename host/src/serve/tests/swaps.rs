//! One release instead of another, and servers that begin and end.

use super::*;

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
