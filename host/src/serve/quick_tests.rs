//! Packages that were quick so far are asked on threads that serve: those must not run out.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use axum::http::StatusCode;
use serde_json::json;

use super::fake::{self, Behaviour, Fake, get, post};
use super::reserve::{self, serving_threads};
use super::tests::{input, one};

#[test]
fn many_that_are_slow_for_the_first_time_keep_nobody_else_waiting() {
    let asked = 2 * serving_threads();
    let mut manifest = fake::manifest("m", "1.0.0", 1, "FP32", &[-1]);
    manifest["module"]["concurrency"] = asked.into();
    let (end, sent) = mpsc::channel();
    let begun = Arc::new(AtomicUsize::new(0));
    let surprise = Behaviour::Surprise(Arc::new(Mutex::new(sent)), Arc::clone(&begun));
    let (executor, _reserve) = reserve::threads().unwrap();
    executor.block_on(async {
        let (_, router) = one(Fake::package(manifest, surprise));
        let running: Vec<_> = (0..asked)
            .map(|_| {
                let router = router.clone();
                tokio::spawn(async move { post(&router, "/v2/models/m/infer", input(&json!([1]))).await.0 })
            })
            .collect();
        while begun.load(Ordering::Relaxed) < asked {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let other = tokio::spawn(async move { get(&router, "/v2/health/live").await.0 });
        let other = tokio::time::timeout(Duration::from_secs(30), other).await;
        for _ in 0..asked {
            end.send(()).unwrap();
        }
        assert_eq!(other.expect("answered meanwhile").unwrap(), StatusCode::OK);
        for answer in running {
            assert_eq!(answer.await.unwrap(), StatusCode::OK);
        }
    });
}
