//! The protocol's paths in front of fake packages: every status code, every refusal in JSON, and a
//! swap without a failed request.

mod failures;
mod requests;
mod swaps;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::fake::{Behaviour, Fake, ask, get, manifest, post};
use super::predictor::Predictor;
use super::served::Served;
use super::{Serving, routes};
use crate::failure::PredictError;

fn fp32(version: &str, release: u64) -> Value {
    manifest("m", version, release, "FP32", &[-1])
}

/// Stages and routes a package.
fn put(serving: &Serving, predictor: Arc<dyn Predictor>) -> Vec<Arc<Served>> {
    let served = Served::new(predictor, Default::default(), 0);
    serving.table.stage(Arc::clone(&served));
    serving.table.activate(&served.reference()).unwrap()
}

/// A server of one package.
pub(super) fn one(predictor: Arc<dyn Predictor>) -> (Arc<Serving>, Router) {
    let serving = Serving::new(4);
    put(&serving, predictor);
    serving.announce();
    (Arc::clone(&serving), routes::router(serving))
}

/// A request with these elements.
pub(super) fn input(data: &Value) -> Value {
    let shape = [data.as_array().map_or(1, Vec::len)];
    json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": shape, "data": data}]})
}
