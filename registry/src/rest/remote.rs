//! Asking devices: log lines, and inference as any client of the Open Inference Protocol asks for it.
//!
//! Nothing here looks into a body: what the device answers is handed on as it is, if HTTP can carry it.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, HeaderName};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use selvedge_package::DeviceId;
use selvedge_protocol::message::{COMMANDS, INFER};
use selvedge_protocol::remote::{Ask, Endpoint, InferAnswer, InferRequest, LONGEST_WAIT_MS, Outcome};
use selvedge_protocol::topic::Kind;
use serde::Deserialize;
use serde_json::json;

use super::input::{self, Asked, Params};
use crate::app::App;
use crate::clock;
use crate::refusal::Refusal;
use crate::remote::Seal;
use crate::store::presence::Presence;

/// How long log lines may take.
const LOGS: Duration = Duration::from_secs(30);
/// Most log lines, and how many without saying.
const MOST_LINES: u32 = 1000;
const LINES: u32 = 100;
/// How long inference may take without saying, in milliseconds.
const DEADLINE_MS: u32 = 10_000;
/// Longest version that is asked for.
const VERSION: usize = 128;
/// Longest `Content-Type`.
const LONGEST_TYPE: usize = 256;
const HEADER_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");

/// Query of the log.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lines {
    #[serde(default)]
    lines: Option<u32>,
    #[serde(default)]
    after: Option<u64>,
}

/// Query of inference.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wait {
    #[serde(default)]
    deadline_ms: Option<u32>,
}

impl Wait {
    fn duration(&self) -> Result<Duration, Refusal> {
        let deadline = self.deadline_ms.unwrap_or(DEADLINE_MS);
        if !(1..=LONGEST_WAIT_MS).contains(&deadline) {
            let why = format!("`deadline_ms` is from 1 to {LONGEST_WAIT_MS}");
            return Err(Refusal::because("query", why));
        }
        Ok(Duration::from_millis(deadline.into()))
    }
}

/// GET: the newest log lines of the device.
pub async fn logs(
    State(app): State<Arc<App>>,
    Params((workspace, name)): Params<(String, String)>,
    Asked(query): Asked<Lines>,
) -> Result<Response, Refusal> {
    let lines = query.lines.unwrap_or(LINES);
    if !(1..=MOST_LINES).contains(&lines) {
        return Err(Refusal::because("query", format!("`lines` is from 1 to {MOST_LINES}")));
    }
    let (device, presence) = reachable(&app, &workspace, &name, COMMANDS, "commands").await?;
    let place = app.remote.place(&device, Kind::Command)?;
    let seal = Seal { trust: &app.trust, nonce: presence.birth.nonce };
    match place.command(seal, Ask::Logs { after: query.after, lines }, LOGS).await? {
        Outcome::Logs(lines) => Ok(Json(lines).into_response()),
        Outcome::Refused { reason, what } => Err(Refusal::Declined {
            reason: reason.chars().take(64).collect(),
            what: what.chars().take(1000).collect(),
        }),
    }
}

/// GET: what an inference server says about itself.
pub async fn server(
    State(app): State<Arc<App>>,
    Params((workspace, name)): Params<(String, String)>,
) -> Result<Response, Refusal> {
    input::target(&app, &workspace, &name).await?;
    let version = env!("CARGO_PKG_VERSION");
    Ok(Json(json!({"name": "selvedge", "version": version, "extensions": []})).into_response())
}

/// GET: the registry is there.
pub async fn live(
    State(app): State<Arc<App>>,
    Params((workspace, name)): Params<(String, String)>,
) -> Result<Response, Refusal> {
    input::target(&app, &workspace, &name).await?;
    Ok(Json(json!({"live": true})).into_response())
}

/// GET: 200 when the device is online.
pub async fn ready(
    State(app): State<Arc<App>>,
    Params((workspace, name)): Params<(String, String)>,
) -> Result<Response, Refusal> {
    reachable(&app, &workspace, &name, INFER, "remote inference").await?;
    Ok(Json(json!({"ready": true})).into_response())
}

/// Which model of which target, by whatever version.
#[derive(Deserialize)]
pub struct Model {
    workspace: String,
    name: String,
    model: String,
    #[serde(default)]
    version: Option<String>,
}

/// POST: inference.
pub async fn infer(
    State(app): State<Arc<App>>,
    Params(model): Params<Model>,
    Asked(wait): Asked<Wait>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    ask(&app, model, Endpoint::Infer, &wait, &headers, body).await.map(handed_on)?
}

/// POST: inference with the body as the one input.
pub async fn raw(
    State(app): State<Arc<App>>,
    Params(model): Params<Model>,
    Asked(wait): Asked<Wait>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    ask(&app, model, Endpoint::Raw, &wait, &headers, body).await.map(handed_on)?
}

/// GET: the model's metadata.
pub async fn metadata(
    State(app): State<Arc<App>>,
    Params(model): Params<Model>,
    Asked(wait): Asked<Wait>,
) -> Result<Response, Refusal> {
    let headers = HeaderMap::new();
    ask(&app, model, Endpoint::Metadata, &wait, &headers, Body::empty()).await.map(handed_on)?
}

/// GET: whether the model answers.
pub async fn model_ready(
    State(app): State<Arc<App>>,
    Params(model): Params<Model>,
    Asked(wait): Asked<Wait>,
) -> Result<Response, Refusal> {
    let name = model.model.clone();
    let headers = HeaderMap::new();
    let answer = ask(&app, model, Endpoint::Metadata, &wait, &headers, Body::empty()).await?;
    match answer.status {
        200 => Ok(Json(json!({"name": name, "ready": true})).into_response()),
        _ => handed_on(answer),
    }
}

async fn ask(
    app: &App,
    model: Model,
    endpoint: Endpoint,
    wait: &Wait,
    headers: &HeaderMap,
    body: Body,
) -> Result<InferAnswer, Refusal> {
    let within = wait.duration()?;
    let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let content_type = text(&CONTENT_TYPE).map(str::to_owned);
    if content_type.as_ref().is_some_and(|value| value.len() > LONGEST_TYPE) {
        let why = format!("`Content-Type` is longer than {LONGEST_TYPE} bytes");
        return Err(Refusal::because("header", why));
    }
    let header_length = match headers.get(&HEADER_LENGTH).map(|value| value.to_str()) {
        None => None,
        Some(value) => {
            let length = value.ok().and_then(|value| value.parse().ok());
            Some(length.ok_or_else(|| {
                Refusal::because("header", "`Inference-Header-Content-Length` is no number")
            })?)
        }
    };
    let name = input::package_name(&model.model)?;
    let version = model.version.map(checked_version).transpose()?;
    let (device, presence) = reachable(app, &model.workspace, &model.name, INFER, "remote inference").await?;
    // The place first: what is read is bounded by the places.
    let place = app.remote.place(&device, Kind::InferRequest)?;
    let body = input::bytes(body, app.remote.room(&presence.birth.capabilities)).await?;
    let request = InferRequest {
        nonce: Vec::new(),
        id: String::new(),
        within_ms: 0,
        model: name.to_string(),
        version,
        endpoint,
        content_type,
        header_length,
        body,
    };
    let seal = Seal { trust: &app.trust, nonce: presence.birth.nonce };
    place.infer(seal, request, within).await
}

/// What a device answered, if HTTP can carry it.
fn handed_on(answer: InferAnswer) -> Result<Response, Refusal> {
    let bad = |why: &str| Refusal::BadAnswer { why: why.to_owned() };
    let status =
        StatusCode::from_u16(answer.status).ok().filter(|status| (200..600).contains(&status.as_u16()));
    let status = status.ok_or_else(|| bad("its status is none of HTTP"))?;
    let mut response = Response::new(Body::from(answer.body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    if let Some(text) = answer.content_type {
        let fits = HeaderValue::from_str(&text).ok().filter(|value| value.len() <= LONGEST_TYPE);
        headers.insert(CONTENT_TYPE, fits.ok_or_else(|| bad("its content type cannot be sent"))?);
    }
    if let Some(length) = answer.header_length {
        headers.insert(HEADER_LENGTH, length.into());
    }
    Ok(response)
}

fn checked_version(version: String) -> Result<String, Refusal> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-+".contains(&byte);
    match (1..=VERSION).contains(&version.len()) && version.bytes().all(plain) {
        true => Ok(version),
        false => Err(Refusal::because("version", "it is none such as `1.2.0`")),
    }
}

/// The target, if it can be asked for what `capability` stands for, and what its birth said.
async fn reachable(
    app: &App,
    workspace: &str,
    name: &str,
    capability: &str,
    what: &'static str,
) -> Result<(DeviceId, Presence), Refusal> {
    let target = input::target(app, workspace, name).await?;
    let presence = app.presences.get(&app.store, &target.name).await?;
    // A device without a key is nobody yet: whoever answers under its name is not believed.
    let presence = presence
        .filter(|presence| target.public_key.is_some() && presence.online(clock::now().as_millisecond()));
    let Some(presence) = presence else {
        return Err(Refusal::Offline { target: target.name });
    };
    if !presence.birth.capabilities.iter().any(|known| known == capability) {
        return Err(Refusal::Unsupported { target: target.name, what });
    }
    Ok((target.name, presence))
}
