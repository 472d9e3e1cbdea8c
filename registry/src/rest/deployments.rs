//! Deployments: a release of a package assigned to one target by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use selvedge_package::limits::{Limits, MetadataLimits};
use selvedge_package::rules::check_settings;
use serde::Deserialize;
use serde_json::{Value, json};

use super::input::{self, Asked, Params};
use super::targets::subject;
use crate::app::App;
use crate::clock;
use crate::error::Error;
use crate::refusal::Refusal;
use crate::store::deployments::Deployment;
use crate::store::packages::Package;
use crate::store::targets::Target;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewDeployment {
    package: String,
    #[serde(default)]
    release: Option<u64>,
    target: String,
    #[serde(default)]
    settings: BTreeMap<String, String>,
}

/// Query of the list.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Which {
    /// Those that ended too.
    #[serde(default)]
    ended: bool,
}

/// POST: assign; replaces what was assigned of that package to that target.
pub async fn add(
    State(app): State<Arc<App>>,
    Params(workspace): Params<String>,
    body: Body,
) -> Result<Response, Refusal> {
    app.store.expect_workspace(&workspace).await?;
    let new: NewDeployment = input::json(body, input::BODY).await?;
    let target = app.store.expect_target(&workspace, &input::target_name(&new.target)?).await?;
    let name = input::package_name(&new.package)?;
    let package = app.store.expect_package(&workspace, &name, new.release).await?;
    check(&app, &target, &package, &new.settings).await?;
    let mut id = [0; 8];
    aws_lc_rs::rand::fill(&mut id).map_err(|_| Error::Random)?;
    let now_ms = clock::now().as_millisecond();
    let deployment = Deployment {
        id: hex::encode(id),
        package: name,
        release: package.manifest.release,
        version: package.manifest.version.to_string(),
        digest: package.digest,
        target: target.name,
        settings: new.settings,
        created_ms: now_ms,
        ended: None,
    };
    let mut change = app.store.change().await?;
    // The target may have been removed since it was read.
    if !change.has_target(&workspace, &deployment.target).await? {
        return Err(Refusal::NoTarget(deployment.target.to_string()));
    }
    change.add_deployment(&workspace, &deployment).await?;
    if change.assigned(&deployment.target).await?.len() > MetadataLimits::DEVICE.assignments {
        let why = format!("it has {} packages already", MetadataLimits::DEVICE.assignments);
        return Err(Refusal::Unfit { target: deployment.target, package: deployment.package, why });
    }
    let detail = json!({"id": deployment.id, "release": deployment.release, "settings": deployment.settings});
    change
        .audit(now_ms, "token", "deploy", &subject(&deployment.package, &deployment.target), detail)
        .await?;
    change.commit().await?;
    app.changed.add(deployment.target.clone());
    Ok((StatusCode::CREATED, Json(shown(&deployment))).into_response())
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

/// DELETE: end one; the target uninstalls the package.
pub async fn remove(
    State(app): State<Arc<App>>,
    Params((workspace, id)): Params<(String, String)>,
) -> Result<Response, Refusal> {
    app.store.expect_workspace(&workspace).await?;
    let now_ms = clock::now().as_millisecond();
    let mut change = app.store.change().await?;
    let Some(target) = change.end_deployment(&workspace, &id, now_ms).await? else {
        return Err(Refusal::NoDeployment(id.chars().take(80).collect()));
    };
    change.audit(now_ms, "token", "undeploy", &id, json!({"target": target})).await?;
    change.commit().await?;
    app.changed.add(target);
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Whether the target may get the package with these settings, as far as the registry can know.
async fn check(
    app: &App,
    target: &Target,
    package: &Package,
    settings: &BTreeMap<String, String>,
) -> Result<(), Refusal> {
    let manifest = &package.manifest;
    for key in settings.keys() {
        if !manifest.settings.contains_key(key) {
            let known: Vec<&str> = manifest.settings.keys().map(String::as_str).collect();
            let why = match known.as_slice() {
                [] => "the package has no settings".to_owned(),
                known => format!("the package has {}", known.join(", ")),
            };
            return Err(Refusal::Setting { key: key.chars().take(80).collect(), why });
        }
    }
    check_settings("settings", settings, &Limits::PACKAGE)
        .map_err(|error| Refusal::because("settings", error))?;
    let unfit = |why: String| {
        Err(Refusal::Unfit { target: target.name.clone(), package: manifest.name.clone(), why })
    };
    let wanted = &manifest.requires.architectures;
    if let Some(has) = target.facts.get("architecture")
        && !wanted.is_empty()
        && !wanted.contains(has)
    {
        return unfit(format!("it is {has}, and the package runs on {}", wanted.join(", ")));
    }
    for (key, value) in &manifest.requires.labels {
        if target.labels.get(key) != Some(value) {
            return unfit(format!("it lacks the label {key}={value}"));
        }
    }
    let committed = target.reported.iter().flat_map(|reported| &reported.packages);
    for report in committed.filter(|report| report.name == manifest.name) {
        let Some(committed) = &report.committed else {
            continue;
        };
        let running =
            app.store.expect_package(&target.workspace, &manifest.name, Some(committed.release)).await;
        let floor = match running {
            Ok(running) => running.manifest.min_release,
            Err(Refusal::NoPackage { .. }) => continue,
            Err(error) => return Err(error),
        };
        if manifest.release < floor {
            return unfit(format!(
                "it committed release {}, which allows no release below {floor} afterwards",
                committed.release
            ));
        }
    }
    Ok(())
}

fn shown(deployment: &Deployment) -> Value {
    let (ended_at, ended) = match &deployment.ended {
        Some((ms, why)) => (clock::text(*ms), Some(why)),
        None => (None, None),
    };
    json!({
        "id": deployment.id,
        "package": deployment.package,
        "version": deployment.version,
        "release": deployment.release,
        "digest": deployment.digest,
        "target": deployment.target,
        "settings": deployment.settings,
        "created_at": clock::text(deployment.created_ms),
        "ended_at": ended_at,
        "ended": ended,
    })
}
