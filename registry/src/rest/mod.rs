//! The HTTP interface: JSON over axum, one bearer token, every error in one shape.
//!
//! `docs/registry-api.md` lists routes, bodies and reason codes. Bodies are limited before they are
//! read and must arrive in time; anything unknown in a JSON body is refused.

mod answer;
mod blobs;
mod deployments;
mod input;
mod packages;
pub mod server;
mod targets;
pub mod token;
mod trust;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::Request;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, put};
use serde_json::json;

use crate::app::App;
use crate::refusal::Refusal;

/// All routes.
pub fn router(app: Arc<App>) -> Router {
    let guarded = Router::new()
        .route("/v1/trust/image", get(trust::image))
        .route("/v1/trust/image/{file}", get(trust::image_file))
        .route("/v1/blobs/{digest}", put(blobs::put).head(blobs::head))
        .route("/v1/workspaces/{workspace}/releases", axum::routing::post(packages::release))
        .route("/v1/workspaces/{workspace}/packages", get(packages::list))
        .route("/v1/workspaces/{workspace}/targets", get(targets::list).post(targets::add))
        .route(
            "/v1/workspaces/{workspace}/targets/{name}",
            get(targets::show).patch(targets::change).delete(targets::remove),
        )
        .route("/v1/workspaces/{workspace}/deployments", get(deployments::list).post(deployments::add))
        .route("/v1/workspaces/{workspace}/deployments/{id}", delete(deployments::remove))
        .fallback(async || Refusal::NoRoute)
        .method_not_allowed_fallback(async || Refusal::Method)
        .layer(middleware::from_fn_with_state(Arc::clone(&app), guard))
        .with_state(Arc::clone(&app));
    Router::new().route("/v1/health", get(health)).merge(guarded)
}

async fn health() -> Response {
    axum::Json(json!({"status": "ok", "version": env!("CARGO_PKG_VERSION")})).into_response()
}

/// Nothing behind this without the token, not even the answer that a path does not exist.
async fn guard(State(app): State<Arc<App>>, request: Request<axum::body::Body>, next: Next) -> Response {
    match app.token.check(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => {
            // A stranger's body is not worth as much as a user's.
            input::discard(request.into_body(), input::BODY as u64).await;
            refusal.into_response()
        }
    }
}
