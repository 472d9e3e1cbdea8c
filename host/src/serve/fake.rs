//! A package for tests of serving: echoes its input, waits when told to, fails when told to.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use selvedge_package::{Digest, FilePath, Manifest, PackageName};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::predictor::{Opener, Prediction, Predictor};
use crate::clock;
use crate::deadline::Deadline;
use crate::failure::{OpenError, PredictError};
use crate::sequence::{Sequences, Turn};
use crate::tensor::NamedTensor;

/// What a fake does with a request.
#[derive(Clone)]
pub enum Behaviour {
    /// Gives `x` back as `y`.
    Echo,
    /// As `Echo`, once a permit can be had.
    Wait(Arc<Semaphore>),
    /// As `Echo`, after blocking its thread until something is sent.
    Block(Arc<Mutex<mpsc::Receiver<()>>>),
    /// As `Block`, though it was quick so far. Counts those that began.
    Surprise(Arc<Mutex<mpsc::Receiver<()>>>, Arc<AtomicUsize>),
    /// As `Echo`, after these times, one for each request; the rest at once.
    Times(Arc<Mutex<Vec<Duration>>>),
    /// Fails.
    Fail(PredictError),
    /// Fails where one of the numbers is this.
    Refuse(f32),
    /// Fails where there are two rows or more.
    OneRow,
    /// Takes all the time that it has where there are two rows or more.
    SlowRows,
    /// Gives nothing back.
    Nothing,
    /// Panics.
    Panic,
}

/// A fake package.
pub struct Fake {
    manifest: Manifest,
    digest: Digest,
    models: Vec<(PackageName, Digest)>,
    behaviour: Behaviour,
    files: BTreeMap<String, Vec<u8>>,
    sequences: Option<Sequences>,
}

/// The manifest of package `name` with one input `x` and one output `y` alike.
pub fn manifest(name: &str, version: &str, release: u64, datatype: &str, shape: &[i64]) -> Value {
    json!({
        "format": 1, "name": name, "version": version, "release": release,
        "module": {"concurrency": 1, "deadline-ms": 60_000, "tensor-mib": 1},
        "models": [{"name": "net", "file": "net.onnx"}],
        "inputs": [{"name": "x", "datatype": datatype, "shape": shape}],
        "outputs": [{"name": "y", "datatype": datatype, "shape": shape}],
        "acceptance": {"cases": ["cases/a.json"]}
    })
}

impl Fake {
    /// A package; its digest is that of its manifest.
    pub fn package(manifest: Value, behaviour: Behaviour) -> Arc<dyn Predictor> {
        let case = json!({"name": "a",
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.5]}],
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [1], "data": [1.5]}]});
        Self::with_case(manifest, behaviour, case)
    }

    /// A package with another acceptance case.
    pub fn with_case(manifest: Value, behaviour: Behaviour, case: Value) -> Arc<dyn Predictor> {
        let digest = Digest::of(manifest.to_string().as_bytes());
        let manifest: Manifest = serde_json::from_value(manifest).unwrap();
        Arc::new(Self {
            sequences: manifest.module.sequences.as_ref().map(Sequences::new),
            digest,
            manifest,
            models: vec![("net".parse().unwrap(), Digest::of(b"net"))],
            behaviour,
            files: [("cases/a.json".to_owned(), case.to_string().into_bytes())].into(),
        })
    }
}

impl Predictor for Fake {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn digest(&self) -> Digest {
        self.digest
    }

    fn models(&self) -> &[(PackageName, Digest)] {
        &self.models
    }

    fn read_file(&self, path: &FilePath) -> Result<Vec<u8>, OpenError> {
        self.files
            .get(path.as_str())
            .cloned()
            .ok_or_else(|| OpenError::Corrupt { file: path.to_string(), why: "no such file".to_owned() })
    }

    fn is_quick(&self) -> bool {
        !matches!(self.behaviour, Behaviour::Block(_))
    }

    fn predict(self: Arc<Self>, inputs: Vec<NamedTensor>, deadline: Deadline) -> Prediction {
        let allowed = deadline.answer.saturating_duration_since(clock::now());
        Box::pin(async move {
            let permit = match &self.behaviour {
                Behaviour::Wait(permits) => {
                    let waiting = tokio::time::timeout(allowed, Arc::clone(permits).acquire_owned()).await;
                    Some(waiting.map_err(|_| PredictError::Deadline(allowed))?)
                }
                Behaviour::Surprise(sent, begun) => {
                    begun.fetch_add(1, Ordering::Relaxed);
                    let _ = sent.lock().unwrap().recv();
                    None
                }
                Behaviour::Block(sent) => {
                    let _ = sent.lock().unwrap().recv();
                    None
                }
                Behaviour::Times(times) => {
                    let time = times.lock().unwrap().pop();
                    tokio::time::sleep(time.unwrap_or_default()).await;
                    None
                }
                Behaviour::Fail(error) => return Err(error.clone()),
                Behaviour::Refuse(number) => {
                    let bytes = inputs[0].tensor.as_fixed().unwrap_or_default();
                    if bytes.chunks(4).any(|each| each == number.to_le_bytes()) {
                        return Err(PredictError::Model(format!("no {number}")));
                    }
                    None
                }
                Behaviour::OneRow if inputs[0].tensor.shape()[0] > 1 => {
                    return Err(PredictError::Model("one row".to_owned()));
                }
                Behaviour::SlowRows if inputs[0].tensor.shape()[0] > 1 => {
                    tokio::time::sleep(allowed).await;
                    return Err(PredictError::Deadline(allowed));
                }
                Behaviour::OneRow | Behaviour::SlowRows => None,
                Behaviour::Nothing => return Ok(Vec::new()),
                Behaviour::Panic => panic!("asked for"),
                Behaviour::Echo => None,
            };
            drop(permit);
            Ok(inputs.into_iter().map(|input| NamedTensor::new("y", input.tensor)).collect())
        })
    }

    fn sequences(&self) -> Option<&Sequences> {
        self.sequences.as_ref()
    }

    fn proceed(self: Arc<Self>, mut turn: Turn, inputs: Vec<NamedTensor>, deadline: Deadline) -> Prediction {
        Box::pin(async move {
            let before = turn.take();
            assert_eq!(before.is_none(), turn.part().first);
            let answer = self.predict(inputs, deadline).await;
            if answer.is_ok() {
                turn.keep(Box::new(()));
            }
            answer
        })
    }
}

/// Opens fakes by their digest.
#[derive(Default)]
pub struct FakeOpener {
    /// What there is.
    pub packages: Mutex<Vec<Arc<dyn Predictor>>>,
    /// Packages opened so far.
    pub opened: Mutex<usize>,
}

impl Opener for FakeOpener {
    fn open(
        &self,
        _: &Path,
        digest: Digest,
        _: &BTreeMap<String, String>,
    ) -> Result<Arc<dyn Predictor>, OpenError> {
        *self.opened.lock().unwrap() += 1;
        let packages = self.packages.lock().unwrap();
        packages.iter().find(|package| package.digest() == digest).cloned().ok_or_else(|| {
            OpenError::Corrupt { file: "package.json".to_owned(), why: "not there".to_owned() }
        })
    }

    fn onnxruntime_version(&self) -> String {
        "0.0".to_owned()
    }
}

/// Asks a router, as a connection would.
pub async fn ask(router: &axum::Router, request: Request<Body>) -> (StatusCode, String) {
    let response = TowerToHyperService::new(router.clone()).call(request).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// `GET path`.
pub async fn get(router: &axum::Router, path: &str) -> (StatusCode, Value) {
    let (status, text) = ask(router, Request::get(path).body(Body::empty()).unwrap()).await;
    (status, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {text}: {error}")))
}

/// `POST path` with a JSON body.
pub async fn post(router: &axum::Router, path: &str, body: impl ToString) -> (StatusCode, Value) {
    let request = Request::post(path).header("content-type", "application/json");
    let (status, text) = ask(router, request.body(Body::from(body.to_string())).unwrap()).await;
    (status, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {text}: {error}")))
}
