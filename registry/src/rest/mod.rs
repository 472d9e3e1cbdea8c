//! The HTTP interface: JSON over axum, one bearer token, every error in one shape.
//!
//! `docs/registry-api.md` lists routes, bodies and reason codes. Bodies are limited before they are
//! read and must arrive in time; anything unknown in a JSON body is refused.

mod answer;
mod blobs;
mod deployments;
mod explain;
mod input;
mod packages;
mod remote;
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
use axum::routing::{get, post};
use serde_json::json;

use crate::app::App;
use crate::refusal::Refusal;

/// All routes.
pub fn router(app: Arc<App>) -> Router {
    let guarded = Router::new()
        .route("/v1/trust", get(trust::state))
        .route("/v1/trust/roots", get(trust::roots).post(trust::publish))
        .route("/v1/trust/image", get(trust::image).post(trust::renew))
        .route("/v1/trust/image/{file}", get(trust::image_file))
        .route("/v1/pki/ca", get(trust::ca))
        .route("/v1/pki/crl", get(trust::crl))
        .route("/v1/blobs/{digest}", get(blobs::get).put(blobs::put).head(blobs::head))
        .route("/v1/workspaces/{workspace}/releases", post(packages::release))
        .route("/v1/workspaces/{workspace}/packages", get(packages::list))
        .route("/v1/workspaces/{workspace}/targets", get(targets::list).post(targets::add))
        .route(
            "/v1/workspaces/{workspace}/targets/{name}",
            get(targets::show).patch(targets::change).delete(targets::remove),
        )
        .route("/v1/workspaces/{workspace}/deployments", get(deployments::list).post(deployments::add))
        .route(
            "/v1/workspaces/{workspace}/deployments/{id}",
            get(deployments::show).delete(deployments::remove),
        )
        .route("/v1/workspaces/{workspace}/deployments/{id}/rollback", post(deployments::roll_back))
        .nest("/v1/workspaces/{workspace}/targets/{name}", target())
        .fallback(async || Refusal::NoRoute)
        .method_not_allowed_fallback(async || Refusal::Method)
        .layer(middleware::from_fn_with_state(Arc::clone(&app), guard))
        .with_state(Arc::clone(&app));
    Router::new().route("/v1/health", get(health)).merge(guarded)
}

/// What can be asked about one target, and of it.
fn target() -> Router<Arc<App>> {
    let model = |at: &str, router: Router<Arc<App>>| {
        router
            .route(at, get(remote::metadata))
            .route(&format!("{at}/ready"), get(remote::model_ready))
            .route(&format!("{at}/infer"), post(remote::infer))
            .route(&format!("{at}/raw"), post(remote::raw))
    };
    let router = Router::new()
        .route("/enrolment", post(targets::enrol_again))
        .route("/revoke", post(targets::revoke))
        .route("/detach", post(targets::detach))
        .route("/bundle", get(trust::bundle))
        .route("/explain", get(explain::explain))
        .route("/logs", get(remote::logs))
        .route("/v2", get(remote::server))
        .route("/v2/health/live", get(remote::live))
        .route("/v2/health/ready", get(remote::ready));
    let router = model("/v2/models/{model}", router);
    model("/v2/models/{model}/versions/{version}", router)
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
