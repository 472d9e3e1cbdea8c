//! Packages: released with metadata that a person signed, and listed.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use selvedge_package::Digest;
use selvedge_package::limits::MetadataLimits;
use serde::Deserialize;
use serde_json::{Value, json};

use super::input::{self, Params};
use crate::app::App;
use crate::clock;
use crate::refusal::Refusal;
use crate::store::packages::Package;

/// The changed roles as JSON text inside JSON: quotes double them at worst.
const BODY: usize = 2 * CHANGED * MetadataLimits::DEVICE.image_targets_bytes + input::BODY;
/// A list that is split is at most that much: sixteen parts, and what delegates to them.
const CHANGED: usize = 4;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewRelease {
    package: Digest,
    roles: BTreeMap<String, String>,
}

/// POST: release an uploaded package.
pub async fn release(
    State(app): State<Arc<App>>,
    Params(workspace): Params<String>,
    body: Body,
) -> Result<Response, Refusal> {
    app.store.expect_workspace(&workspace).await?;
    let new: NewRelease = input::json(body, BODY).await?;
    let package =
        app.trust.release(&app.store, &app.blobs, &workspace, new.package, &new.roles, clock::now()).await?;
    Ok((StatusCode::CREATED, Json(shown(&package))).into_response())
}

/// GET: every release, by name, newest first.
pub async fn list(
    State(app): State<Arc<App>>,
    Params(workspace): Params<String>,
) -> Result<Response, Refusal> {
    app.store.expect_workspace(&workspace).await?;
    let packages = app.store.packages(&workspace).await?;
    let items: Vec<Value> = packages.iter().map(shown).collect();
    Ok(Json(json!({"items": items})).into_response())
}

fn shown(package: &Package) -> Value {
    let manifest = &package.manifest;
    json!({
        "name": manifest.name,
        "version": manifest.version,
        "release": manifest.release,
        "min_release": manifest.min_release,
        "digest": package.digest,
        "size": package.size,
        "target": package.target,
        "architectures": manifest.requires.architectures,
        "description": manifest.description,
        "license": manifest.license,
        "settings": manifest.settings,
        "released_at": clock::text(package.released_ms),
    })
}
