//! The protocol's paths, and `/metrics` beside them. Every other answer is JSON, the 404 of a path that is none of them too.

use std::sync::Arc;

use axum::Router;
use axum::extract::{FromRequestParts, RawPathParams, Request, State};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, any, get, post};
use serde_json::json;

use super::Serving;
use super::failure::{self, Failure};
use super::infer;
use super::metrics;
use super::openapi;
use super::served::Held;
use super::statistics;
use crate::grpc;
use crate::oip::metadata::{self, ModelConfig, ModelMetadata};

/// Paths of the protocol's extensions that its clients know and that are not here.
const ELSEWHERE: [(&str, &str); 3] = [
    ("/v2/systemsharedmemory/{*rest}", SHARED_MEMORY),
    ("/v2/cudasharedmemory/{*rest}", SHARED_MEMORY),
    ("/v2/repository/{*rest}", REPOSITORY),
];

/// What is said of the model repository where it is not offered.
pub const REPOSITORY: &str = "the model repository is not offered at this address: packages are loaded and listed on the host's private \
     control socket (`selvedge-agent status` shows them)";

/// What is said of shared memory.
pub const SHARED_MEMORY: &str =
    "shared memory is not offered by this server: send tensors in the request (binary data costs one copy)";

/// Paths about the server.
pub const SERVER_PATHS: [&str; 7] = [
    "/v2",
    "/v2/",
    "/metrics",
    "/v2/health/live",
    "/v2/health/ready",
    "/v2/models/stats",
    "/v2/openapi.json",
];

/// Paths of a model, after its name or its version.
pub const MODEL_PATHS: [&str; 6] = ["", "/ready", "/config", "/stats", "/infer", "/raw"];

/// All paths of the inference endpoint over `serving`.
pub fn router(serving: Arc<Serving>) -> Router {
    let mut elsewhere = Router::new();
    for (paths, extension) in ELSEWHERE {
        elsewhere = elsewhere.route(paths, any(async move || Failure::NotOffered(extension)));
    }
    for service in [grpc::SERVICE, grpc::HEALTH] {
        let serving = Arc::clone(&serving);
        let call = async move |request: Request| grpc::call(serving, None, request).await;
        elsewhere = elsewhere.route(service, post(call));
    }
    protocol(serving)
        .merge(elsewhere)
        .fallback(nothing)
        .method_not_allowed_fallback(async |method: Method| Failure::Method(method.to_string()))
}

/// The protocol's paths alone.
pub fn protocol(serving: Arc<Serving>) -> Router {
    let mut router = Router::new();
    for path in SERVER_PATHS {
        router = router.route(
            path,
            match path {
                "/metrics" => get(metrics::metrics),
                "/v2/health/live" => get(live),
                "/v2/health/ready" => get(ready),
                "/v2/models/stats" => get(statistics::all),
                "/v2/openapi.json" => get(openapi::document),
                _ => get(server),
            },
        );
    }
    for model in ["/v2/models/{model}", "/v2/models/{model}/versions/{version}"] {
        for path in MODEL_PATHS {
            let method: MethodRouter<Arc<Serving>> = match path {
                "/ready" => get(model_ready),
                "/config" => get(config),
                "/stats" => get(statistics::one),
                "/infer" => post(infer::infer),
                "/raw" => post(infer::raw),
                _ => get(metadata),
            };
            router = router.route(&format!("{model}{path}"), method);
        }
    }
    router.with_state(serving)
}

/// There is nothing at this path; a client of gRPC is told so in its own words.
pub async fn nothing(request: Request) -> Response {
    if grpc::is_call(&request) { grpc::unknown() } else { Failure::Path.into_response() }
}

/// The package that the path names, held until the request is done.
impl FromRequestParts<Arc<Serving>> for Held {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, serving: &Arc<Serving>) -> Result<Self, Failure> {
        let params = RawPathParams::from_request_parts(parts, serving).await.map_err(|_| Failure::Path)?;
        let find = |name| params.iter().find(|(key, _)| *key == name).map(|(_, value)| value);
        let model = find("model").ok_or(Failure::Path)?;
        serving.find(model, find("version"))
    }
}

async fn server() -> Response {
    failure::json(StatusCode::OK, &metadata::server())
}

async fn live() -> Response {
    failure::json(StatusCode::OK, &json!({ "live": true }))
}

async fn ready(State(serving): State<Arc<Serving>>) -> Response {
    let ready = serving.ready();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    failure::json(status, &json!({ "ready": ready }))
}

async fn metadata(State(serving): State<Arc<Serving>>, model: Held) -> Response {
    let manifest = model.manifest();
    let versions = serving.table.versions(manifest.name.as_str());
    failure::json(StatusCode::OK, &ModelMetadata::new(manifest, versions, &model.answerer.provenance))
}

async fn model_ready(model: Held) -> Response {
    failure::json(StatusCode::OK, &json!({ "name": model.manifest().name, "ready": true }))
}

async fn config(model: Held) -> Response {
    failure::json(StatusCode::OK, &ModelConfig::new(model.manifest()))
}
