//! Packages that fail, block or are busy, and clients that do not wait.

use super::*;

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
