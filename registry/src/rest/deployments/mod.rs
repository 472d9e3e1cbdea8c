//! Deployments: a release of a package assigned to a target, or to those that a selector matches.

mod change;
pub(super) mod plan;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use super::input::{Asked, Params};
use crate::app::App;
use crate::clock;
use crate::refusal::Refusal;
use crate::resolve::Scope;
use crate::store::deployments::Deployment;

pub use change::{add, remove, roll_back};
use plan::Plan;

/// Query of the list.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Which {
    /// Those that ended too.
    #[serde(default)]
    ended: bool,
}

/// GET: deployments in force, newest first; `?ended=true` shows those that ended too.
pub async fn list(
    State(app): State<Arc<App>>,
    Params(workspace): Params<String>,
    Asked(which): Asked<Which>,
) -> Result<Response, Refusal> {
    app.store.expect_workspace(&workspace).await?;
    let deployments = app.store.deployments(&workspace, which.ended).await?;
    let items: Vec<Value> = deployments.iter().map(shown).collect();
    Ok(Json(json!({"items": items})).into_response())
}

/// GET: one deployment, with every target in its scope and how far it is.
pub async fn show(
    State(app): State<Arc<App>>,
    Params((workspace, id)): Params<(String, String)>,
) -> Result<Response, Refusal> {
    app.store.expect_workspace(&workspace).await?;
    let deployment = expect(&app, &workspace, &id).await?;
    let plan = Plan::of(&app, &workspace, &deployment).await?;
    let (targets, summary) = plan.shown(&app, &workspace).await?;
    let mut value = shown(&deployment);
    if let Value::Object(fields) = &mut value {
        fields.insert("targets".to_owned(), targets.into());
        fields.insert("summary".to_owned(), summary);
    }
    Ok(Json(value).into_response())
}

async fn expect(app: &App, workspace: &str, id: &str) -> Result<Deployment, Refusal> {
    let found = app.store.deployment(workspace, id).await?;
    found.ok_or_else(|| Refusal::NoDeployment(id.chars().take(80).collect()))
}

fn shown(deployment: &Deployment) -> Value {
    let (ended_at, ended) = match &deployment.ended {
        Some((ms, why)) => (clock::text(*ms), Some(why)),
        None => (None, None),
    };
    let (target, selector) = match &deployment.scope {
        Scope::Target(name) => (Some(name), None),
        Scope::Selector(selector) => (None, Some(selector.to_string())),
    };
    json!({
        "id": deployment.id,
        "package": deployment.package,
        "version": deployment.version,
        "release": deployment.release,
        "digest": deployment.digest,
        "target": target,
        "selector": selector,
        "priority": deployment.priority,
        "settings": deployment.settings,
        "created_at": clock::text(deployment.created_ms),
        "ended_at": ended_at,
        "ended": ended,
    })
}
