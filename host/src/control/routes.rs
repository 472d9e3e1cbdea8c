//! The control socket's paths, as `selvedge_control::path` has them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use selvedge_control::{HostStatus, ListenersTo, Load, PackageRef, Reason, path};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::load::load;
use super::refused::Refused;
use super::{Control, repository, route};
use crate::serve::failure::json;
use crate::{confine, grpc, serve};

/// Longest request body, in bytes.
const MAX_BODY: usize = 1 << 20;

/// Longest wait for an event.
const EVENT_PATIENCE: Duration = Duration::from_secs(30);

type Answer = Result<Response, Refused>;

/// All paths over `control`.
pub fn router(control: Arc<Control>) -> Router {
    let mut inference = serve::routes::protocol(Arc::clone(&control.serving));
    for service in [grpc::SERVICE, grpc::HEALTH] {
        let control = Arc::clone(&control);
        let call = async move |request: Request| {
            grpc::call(Arc::clone(&control.serving), Some(control), request).await
        };
        inference = inference.route(service, post(call));
    }
    Router::new()
        .route(path::STATUS, get(status))
        .route(path::EVENTS, get(events))
        .route(path::LOAD, post(load_package))
        .route(path::ACTIVATE, post(activate))
        .route(path::UNLOAD, post(unload))
        .route(path::READY, post(ready))
        .route(path::LISTENERS, post(listeners))
        .route(path::SHUTDOWN, post(shutdown))
        .route("/v2/repository/index", post(index))
        .route("/v2/repository/models/{model}/load", post(load_model))
        .route("/v2/repository/models/{model}/unload", post(unload_model))
        .with_state(control)
        .merge(inference)
        .fallback(nothing)
        .method_not_allowed_fallback(async |method: Method| {
            Refused::new(Reason::BadRequest, format!("this path does not take {method}"))
        })
}

async fn nothing(request: Request) -> Response {
    match grpc::is_call(&request) {
        true => grpc::unknown(),
        false => {
            Refused::new(Reason::BadRequest, format!("no path `{}`", request.uri().path())).into_response()
        }
    }
}

async fn message<T: DeserializeOwned>(request: Request) -> Result<T, Refused> {
    let wrong = |error: String| Refused::new(Reason::BadRequest, error);
    let body = axum::body::to_bytes(request.into_body(), MAX_BODY).await;
    let body = body.map_err(|error| wrong(format!("the body is refused: {error}")))?;
    serde_json::from_slice(&body).map_err(|error| wrong(format!("the body is refused: {error}")))
}

fn host_status(control: &Control) -> HostStatus {
    HostStatus {
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        onnxruntime: control.opener.onnxruntime_version(),
        http: control.http.clone(),
        ready: control.serving.announced(),
        packages: control.serving.table.status(),
        confinement: Some(confine::state().into()),
    }
}

async fn status(State(control): State<Arc<Control>>) -> Answer {
    Ok(json(StatusCode::OK, &host_status(&control)))
}

async fn events(State(control): State<Arc<Control>>, request: Request) -> Answer {
    let query = request.uri().query().unwrap_or_default();
    let since = match query.split('&').find_map(|pair| pair.strip_prefix("since=")) {
        None => 0,
        Some(since) => since
            .parse()
            .map_err(|_| Refused::new(Reason::BadRequest, "`since` has to be the number of an event"))?,
    };
    Ok(json(StatusCode::OK, &control.journal.since(since, EVENT_PATIENCE).await))
}

async fn load_package(State(control): State<Arc<Control>>, request: Request) -> Answer {
    let message: Load = message(request).await?;
    // A task of its own: it ends whether the one who asked still waits or not.
    let loading = tokio::spawn(load(control, message));
    let loaded = loading.await.map_err(|_| Refused::new(Reason::Internal, "loading panicked"))??;
    Ok(json(StatusCode::OK, &loaded))
}

async fn activate(State(control): State<Arc<Control>>, request: Request) -> Answer {
    let package: PackageRef = message(request).await?;
    route::activate(&control, &package)?;
    Ok(json(StatusCode::OK, &host_status(&control)))
}

async fn unload(State(control): State<Arc<Control>>, request: Request) -> Answer {
    let package: PackageRef = message(request).await?;
    route::unload(&control, &package).await;
    Ok(json(StatusCode::OK, &host_status(&control)))
}

/// What a request to the model repository may say.
#[derive(Debug, Default, Deserialize)]
struct Asked {
    #[serde(default)]
    ready: bool,
    #[serde(default)]
    parameters: BTreeMap<String, serde_json::Value>,
}

impl Asked {
    /// Its body, which may be left out.
    async fn of(request: Request) -> Result<Self, Refused> {
        let wrong = |error: String| Refused::new(Reason::BadRequest, format!("the body is refused: {error}"));
        let body = axum::body::to_bytes(request.into_body(), MAX_BODY).await;
        let body = body.map_err(|error| wrong(error.to_string()))?;
        if body.is_empty() {
            return Ok(Self::default());
        }
        serde_json::from_slice(&body).map_err(|error| wrong(error.to_string()))
    }
}

async fn index(State(control): State<Arc<Control>>, request: Request) -> Answer {
    let asked = Asked::of(request).await?;
    Ok(json(StatusCode::OK, &repository::index(&control, asked.ready).await?))
}

/// The model that a path names.
type Named = Result<Path<String>, PathRejection>;

fn name(named: Named) -> Result<String, Refused> {
    let Path(model) = named.map_err(|error| Refused::new(Reason::BadRequest, error.body_text()))?;
    Ok(model)
}

async fn load_model(State(control): State<Arc<Control>>, model: Named, request: Request) -> Answer {
    let model = name(model)?;
    let asked = Asked::of(request).await?;
    if let Some(name) = asked.parameters.keys().next() {
        return Err(repository::no_parameters(name));
    }
    repository::load_model(control, model).await?;
    Ok(json(StatusCode::OK, &serde_json::json!({})))
}

async fn unload_model(State(control): State<Arc<Control>>, model: Named) -> Answer {
    repository::unload_model(&control, &name(model)?).await?;
    Ok(json(StatusCode::OK, &serde_json::json!({})))
}

async fn ready(State(control): State<Arc<Control>>) -> Answer {
    if !control.serving.announced() {
        control.serving.announce();
        tracing::info!(packages = control.serving.table.len(), "everything that is to be served is");
    }
    Ok(json(StatusCode::OK, &host_status(&control)))
}

async fn listeners(State(control): State<Arc<Control>>, request: Request) -> Answer {
    let to: ListenersTo = message(request).await?;
    control.listeners.send(&to).await?;
    Ok(json(StatusCode::ACCEPTED, &host_status(&control)))
}

async fn shutdown(State(control): State<Arc<Control>>) -> Answer {
    control.serving.drain();
    control.stop.send_replace(true);
    Ok(json(StatusCode::ACCEPTED, &host_status(&control)))
}
