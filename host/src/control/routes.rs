//! The control socket's paths, as `selvedge_control::path` has them.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, Uri};
use axum::response::Response;
use axum::routing::{get, post};
use selvedge_control::{HostStatus, ListenersTo, Load, PackageRef, Reason, path};
use serde::de::DeserializeOwned;

use super::Control;
use super::load::load;
use super::refused::Refused;
use crate::serve::failure::json;

/// Longest request body, in bytes.
const MAX_BODY: usize = 1 << 20;

/// Longest wait for an event.
const EVENT_PATIENCE: Duration = Duration::from_secs(30);

/// What is told of a package that another one has replaced, when it is idle and out of memory.
const GONE: &str = "drained and dropped";

type Answer = Result<Response, Refused>;

/// All paths over `control`.
pub fn router(control: Arc<Control>) -> Router {
    Router::new()
        .route(path::STATUS, get(status))
        .route(path::EVENTS, get(events))
        .route(path::LOAD, post(load_package))
        .route(path::ACTIVATE, post(activate))
        .route(path::UNLOAD, post(unload))
        .route(path::READY, post(ready))
        .route(path::LISTENERS, post(listeners))
        .route(path::SHUTDOWN, post(shutdown))
        .fallback(async |uri: Uri| Refused::new(Reason::BadRequest, format!("no path `{}`", uri.path())))
        .method_not_allowed_fallback(async |method: Method| {
            Refused::new(Reason::BadRequest, format!("this path does not take {method}"))
        })
        .with_state(control)
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
    let table = Arc::clone(&control.serving.table);
    let Some(drained) = table.activate(&package) else {
        let error = format!("`{}` {} is not loaded: load it first", package.name, package.digest);
        return Err(Refused::new(Reason::NotLoaded, error));
    };
    tracing::info!(package = %package.name, digest = %package.digest, "activated");
    for old in drained {
        let table = Arc::clone(&table);
        let journal = Arc::clone(&control.journal);
        tokio::spawn(async move {
            let package = old.reference();
            if table.drain(old).await {
                journal.add(package, GONE.to_owned(), false);
            }
        });
    }
    Ok(json(StatusCode::OK, &host_status(&control)))
}

async fn unload(State(control): State<Arc<Control>>, request: Request) -> Answer {
    let package: PackageRef = message(request).await?;
    let table = Arc::clone(&control.serving.table);
    for old in table.retire(&package) {
        let table = Arc::clone(&table);
        // Its memory is free when this answers, unless a request outlived its deadline.
        drop(tokio::spawn(async move { table.drain(old).await }).await);
    }
    tracing::info!(package = %package.name, digest = %package.digest, "unloaded");
    Ok(json(StatusCode::OK, &host_status(&control)))
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
