//! Packages that were quick so far are asked on threads that serve: those must not run out.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use axum::http::StatusCode;
use selvedge_package::{Digest, FilePath, Manifest, PackageName};
use serde_json::json;

use super::fake::{self, Behaviour, Fake, get, post};
use super::predictor::{self, Prediction, Predictor};
use super::reserve::{self, serving_threads};
use super::tests::{input, one};
use crate::clock;
use crate::deadline::Deadline;
use crate::failure::{OpenError, PredictError};
use crate::tensor::NamedTensor;
use crate::threads::{self, yielding::Way};

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

/// A package that fails; it answers with the name of the thread that it was asked on, as an error.
struct Failing(Arc<dyn Predictor>);

impl Predictor for Failing {
    fn manifest(&self) -> &Manifest {
        self.0.manifest()
    }

    fn digest(&self) -> Digest {
        self.0.digest()
    }

    fn models(&self) -> &[(PackageName, Digest)] {
        self.0.models()
    }

    fn read_file(&self, path: &FilePath) -> Result<Vec<u8>, OpenError> {
        self.0.read_file(path)
    }

    fn way(&self) -> Way {
        Way::All
    }

    fn predict(self: Arc<Self>, _: Vec<NamedTensor>, _: Deadline) -> Prediction {
        Box::pin(async {
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            Err(PredictError::Module(name))
        })
    }
}

#[tokio::test]
async fn a_package_that_fails_waits_a_little_and_gives_way_to_all() {
    let manifest = fake::manifest("m", "1.0.0", 1, "FP32", &[-1]);
    let failing: Arc<dyn Predictor> = Arc::new(Failing(Fake::package(manifest, Behaviour::Echo)));
    let began = clock::now();
    let answer = predictor::ask(Arc::clone(&failing), Vec::new(), Duration::from_secs(60), ()).await;
    assert!(clock::now() - began >= predictor::PAUSE);
    assert!(matches!(answer, Err(PredictError::Module(name)) if name == threads::NAMES[1]));
}
