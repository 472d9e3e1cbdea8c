//! `peer-http LIBRARY NAME=MODEL…`: answers `POST /v2/models/NAME/infer` on a free port, which it prints, for
//! models with float32 tensors: JSON or binary, both ways. No queue, no limit, no deadline, no sandbox, no
//! check of shapes: ONNX Runtime behind axum, with the host's session options, one session a model.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, Response, StatusCode};
use axum::routing::post;
use ort::environment::Environment;
use ort::session::Session;
use ort::session::builder::GraphOptimizationLevel;
use ort::value::TensorRef;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

const LENGTH: &str = "inference-header-content-length";

type Models = Arc<BTreeMap<String, Mutex<Session>>>;

#[derive(Deserialize)]
struct Request {
    inputs: Vec<Input>,
    #[serde(default)]
    parameters: Parameters,
}

#[derive(Deserialize)]
struct Input {
    name: String,
    shape: Vec<i64>,
    data: Option<Vec<f32>>,
    #[serde(default)]
    parameters: Parameters,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Parameters {
    binary_data_size: usize,
    binary_data_output: bool,
}

#[derive(Serialize)]
struct Answer<'a> {
    model_name: &'a str,
    outputs: Vec<Output<'a>>,
}

#[derive(Serialize)]
struct Output<'a> {
    name: &'a str,
    datatype: &'static str,
    shape: &'a [i64],
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a [f32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<BTreeMap<&'static str, usize>>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut words = std::env::args().skip(1);
    let library = words.next().context("usage: peer-http LIBRARY NAME=MODEL…")?;
    let environment = ort::init_from(&library)?.with_telemetry(false).build()?;
    let mut models = BTreeMap::new();
    for word in words {
        let (name, file) = word.split_once('=').context("a model is given as NAME=MODEL")?;
        models.insert(name.to_owned(), Mutex::new(open(&environment, file)?));
    }
    let router = Router::new()
        .route("/v2/models/{model}/infer", post(infer))
        .layer(DefaultBodyLimit::disable())
        .with_state(Models::new(models));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    axum::serve(axum::serve::ListenerExt::tap_io(listener, |stream| drop(stream.set_nodelay(true))), router)
        .await?;
    Ok(())
}

/// With the options of `host/src/session`.
fn open(environment: &Environment, file: &str) -> ort::Result<Session> {
    Session::builder(environment)?
        .with_optimization_level(GraphOptimizationLevel::All)?
        .with_intra_threads(1)?
        .with_inter_threads(1)?
        .with_intra_op_spinning(false)?
        .commit_from_file(file)
}

async fn infer(
    State(models): State<Models>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response<Body>, (StatusCode, String)> {
    let wrong = |why: String| (StatusCode::BAD_REQUEST, why);
    let model = models.get(&name).ok_or((StatusCode::NOT_FOUND, name.clone()))?;
    let length = headers.get(LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let (json, mut binary) =
        body.split_at_checked(length.unwrap_or(body.len())).ok_or(wrong("too short".into()))?;
    let request: Request = serde_json::from_slice(json).map_err(|error| wrong(error.to_string()))?;
    let mut inputs = Vec::new();
    for input in request.inputs {
        let data = match input.data {
            Some(data) => data,
            None => {
                let size = input.parameters.binary_data_size;
                let (own, rest) = binary.split_at_checked(size).ok_or(wrong("too short".into()))?;
                binary = rest;
                own.chunks_exact(4)
                    .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
                    .collect()
            }
        };
        inputs.push((input.name, input.shape, data));
    }
    let failed = |error: ort::Error| (StatusCode::BAD_REQUEST, error.to_string());
    let mut session = model.lock().await;
    let mut values = Vec::new();
    for (name, shape, data) in &inputs {
        values.push((name.as_str(), TensorRef::from_array_view((&shape[..], &data[..])).map_err(failed)?));
    }
    let outputs = session.run(values).map_err(failed)?;
    let (mut told, mut tail) = (Vec::new(), Vec::new());
    let answered: Vec<_> = outputs.iter().collect();
    for (name, value) in &answered {
        let (shape, data) = value.try_extract_tensor::<f32>().map_err(failed)?;
        let (mut output, binary) =
            (Output { name, datatype: "FP32", shape, data: None, parameters: None }, data);
        if request.parameters.binary_data_output {
            output.parameters = Some(BTreeMap::from([("binary_data_size", binary.len() * 4)]));
            tail.extend(binary.iter().flat_map(|number| number.to_le_bytes()));
        } else {
            output.data = Some(data);
        }
        told.push(output);
    }
    let answer = Answer { model_name: &name, outputs: told };
    let mut body = serde_json::to_vec(&answer).map_err(|error| wrong(error.to_string()))?;
    let length = body.len();
    body.append(&mut tail);
    let response = Response::builder().header("content-type", "application/json").header(LENGTH, length);
    response.body(body.into()).map_err(|error| wrong(error.to_string()))
}
