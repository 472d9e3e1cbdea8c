//! The two paths that ask a model: `infer` with tensors in JSON, `raw` with a body that is the input.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;

use super::Serving;
use super::body;
use super::failure::{self, Failure};
use super::gate::Pass;
use super::predictor;
use super::served::{Held, Served};
use crate::clock;
use crate::oip::answer::{AnsweredOutput, InferAnswer};
use crate::oip::request::{InferRequest, Parameter, RequestedOutput};
use crate::oip::{answer_json, check, request_json};
use crate::tensor::NamedTensor;

/// Longest time that a body may take to come.
const BODY_TIME: Duration = Duration::from_secs(30);

/// Bodies above this are parsed on a thread that may block.
const PARSED_ASIDE: usize = 1 << 20;

/// `POST …/infer`.
pub async fn infer(
    State(serving): State<Arc<Serving>>,
    model: Held,
    request: Request,
) -> Result<Response, Failure> {
    let (parts, body) = request.into_parts();
    if let Err(failure) = admit(&serving, &model).and_then(|()| check_headers(&parts.headers)) {
        return refuse(body, failure).await;
    }
    let limit = model.json_limit;
    let (text, reserved) = body::read(&parts.headers, body, limit, &serving.budget, BODY_TIME).await?;
    // The client's time begins when its request is here, not while it is sent.
    let start = clock::now();
    let limits = model.limits;
    let request = if text.len() > PARSED_ASIDE {
        let parsed = tokio::task::spawn_blocking(move || request_json::parse(&text, &limits)).await;
        parsed.map_err(|_| Failure::Panic)??
    } else {
        request_json::parse(&text, &limits)?
    };
    let text = answer(&model, request, start).await?;
    Ok(failure::json_text(StatusCode::OK, reserved.hold(&serving.budget, text)?))
}

/// `POST …/raw`: the body is the only element of the only input.
pub async fn raw(
    State(serving): State<Arc<Serving>>,
    model: Held,
    request: Request,
) -> Result<Response, Failure> {
    let (parts, body) = request.into_parts();
    let admitted = admit(&serving, &model)
        .and_then(|()| check_encoding(&parts.headers))
        .and_then(|()| Ok(check::raw(&model.manifest().inputs, b"").map(drop)?));
    if let Err(failure) = admitted {
        return refuse(body, failure).await;
    }
    let limit = model.limits.tensor_bytes;
    let (bytes, reserved) = body::read(&parts.headers, body, limit, &serving.budget, BODY_TIME).await?;
    let start = clock::now();
    let inputs = check::raw(&model.manifest().inputs, bytes)?;
    let text = answer(&model, InferRequest { inputs, ..InferRequest::default() }, start).await?;
    Ok(failure::json_text(StatusCode::OK, reserved.hold(&serving.budget, text)?))
}

/// What refuses a request before its body is read.
fn admit(serving: &Serving, model: &Served) -> Result<(), Failure> {
    match () {
        () if serving.draining() => Err(Failure::Ending),
        () if model.gate.full() => Err(Failure::Full),
        () => Ok(()),
    }
}

async fn refuse(body: Body, failure: Failure) -> Result<Response, Failure> {
    body::swallow(&mut body.into_data_stream()).await;
    Err(failure)
}

fn check_headers(headers: &HeaderMap) -> Result<(), Failure> {
    check_encoding(headers)?;
    if headers.contains_key("inference-header-content-length") {
        return Err(Failure::Header(
            "the binary tensor data extension is not offered by this server (it is not among the \
             `extensions` of /v2); send JSON, or use the path `raw`"
                .to_owned(),
        ));
    }
    let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let text = value.to_str().unwrap_or_default();
    let kind = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_json = kind == "application/json" || kind.starts_with("application/") && kind.ends_with("+json");
    if is_json {
        Ok(())
    } else {
        Err(Failure::MediaType(format!(
            "the body has to be JSON and its Content-Type is `{kind}`: send `application/json` \
             (curl: --json), or use the path `raw`"
        )))
    }
}

fn check_encoding(headers: &HeaderMap) -> Result<(), Failure> {
    match headers.get(header::CONTENT_ENCODING) {
        Some(encoding) if encoding != "identity" => Err(Failure::MediaType(
            "compressed bodies are not taken by this server: send the body without Content-Encoding"
                .to_owned(),
        )),
        _ => Ok(()),
    }
}

/// Asks the model and writes its answer, whatever the request was written in.
async fn answer(model: &Held, request: InferRequest, start: Instant) -> Result<Vec<u8>, Failure> {
    let manifest = model.manifest();
    check::inputs(&manifest.inputs, &request.inputs)?;
    check::outputs(&manifest.outputs, &request.outputs)?;
    let deadline = deadline(model.deadline(), &request);
    let left = || deadline.saturating_sub(clock::now().duration_since(start));
    let pass = model.gate.enter(left()).await?;
    let began = clock::now();
    let outputs = predict(model, request.inputs, &request.outputs, left(), pass).await;
    match &outputs {
        Err(failure) if failure.is_the_packages() => {
            tracing::warn!(package = %manifest.name, version = %model.version, %failure, "no answer");
            model.failed();
        }
        Err(_) => {}
        Ok(_) => model.answered(clock::now().duration_since(began)),
    }
    let answer = InferAnswer {
        model_name: manifest.name.to_string(),
        model_version: model.version.clone(),
        id: request.id,
        parameters: model.provenance.clone(),
        outputs: outputs?,
    };
    Ok(answer_json::write(&answer))
}

async fn predict(
    model: &Held,
    inputs: Vec<NamedTensor>,
    requested: &[RequestedOutput],
    left: Duration,
    pass: Pass,
) -> Result<Vec<AnsweredOutput>, Failure> {
    if left.is_zero() {
        return Err(Failure::Busy);
    }
    let held = (pass, model.again());
    let outputs = predictor::ask(Arc::clone(&model.predictor), inputs, left, held).await?;
    let selected = check::select(&model.manifest().outputs, requested, outputs);
    let selected = selected.map_err(Failure::NoOutput)?;
    Ok(selected.into_iter().map(|(tensor, encoding)| AnsweredOutput { tensor, encoding }).collect())
}

/// The package's deadline, or the client's `timeout` (microseconds, as Triton has it) if shorter.
fn deadline(packages: Duration, request: &InferRequest) -> Duration {
    match request.parameters.get("timeout") {
        Some(Parameter::Integer(micros)) if *micros > 0 => {
            packages.min(Duration::from_micros(micros.unsigned_abs()))
        }
        _ => packages,
    }
}
