//! Deployments made, rolled back and removed.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use selvedge_package::limits::Limits;
use selvedge_package::rules::check_settings;
use serde::Deserialize;
use serde_json::{Value, json};

use super::plan::Plan;
use super::{expect, shown};
use crate::app::App;
use crate::clock;
use crate::error::Error;
use crate::refusal::Refusal;
use crate::resolve::{Assigned, Offer, Scope};
use crate::rest::input::{self, Asked, Params};
use crate::store::deployments::Deployment;
use crate::store::packages::Package;

/// Targets that an error names, at most.
const NAMED: usize = 5;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewDeployment {
    package: String,
    #[serde(default)]
    release: Option<u64>,
    #[serde(default)]
    target: Option<String>,
    #[serde(default)]
    selector: Option<String>,
    #[serde(default)]
    priority: i32,
    #[serde(default)]
    settings: BTreeMap<String, String>,
}

/// Query of a new deployment.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct How {
    /// Only say what would happen.
    #[serde(default)]
    plan: bool,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Back {
    #[serde(default)]
    release: Option<u64>,
}

/// POST: assign, or with `?plan=true` say what that would do.
pub async fn add(
    State(app): State<Arc<App>>,
    Params(workspace): Params<String>,
    Asked(how): Asked<How>,
    body: Body,
) -> Result<Response, Refusal> {
    app.store.expect_workspace(&workspace).await?;
    let new: NewDeployment = input::json(body, input::BODY).await?;
    let scope = scope(&app, &workspace, new.target.as_deref(), new.selector.as_deref()).await?;
    let name = input::package_name(&new.package)?;
    let package = app.store.expect_package(&workspace, &name, new.release).await?;
    for key in new.settings.keys() {
        known_setting(&package, key)?;
    }
    check_settings("settings", &new.settings, &Limits::PACKAGE)
        .map_err(|error| Refusal::because("settings", error))?;
    let deployment = deployment(&package, scope, new.priority, new.settings)?;
    let plan = Plan::with(&app, &workspace, offer(&package, &deployment)).await?;
    if how.plan {
        let (targets, summary) = plan.shown(&app, &workspace).await?;
        let mut row = shown(&deployment);
        row["id"] = Value::Null;
        row["created_at"] = Value::Null;
        return Ok(Json(json!({
            "plan": true,
            "deployment": row,
            "replaces": plan.replaces,
            "hints": plan.hints,
            "targets": targets,
            "summary": summary,
        }))
        .into_response());
    }
    if let Scope::Target(target) = &deployment.scope
        && let Some(place) = plan.places().iter().find(|place| place.verdict == "blocked")
    {
        let (target, package) = (target.clone(), deployment.package.clone());
        return Err(Refusal::Unfit { target, package, why: place.why.clone() });
    }
    let (audit, detail) = ("deploy", json!({"settings": deployment.settings}));
    let answer = make(&app, &workspace, &deployment, plan, (audit, detail)).await?;
    Ok((StatusCode::CREATED, Json(answer)).into_response())
}

/// POST: a new deployment with an earlier release, or any other, in place of this one.
pub async fn roll_back(
    State(app): State<Arc<App>>,
    Params((workspace, id)): Params<(String, String)>,
    body: Body,
) -> Result<Response, Refusal> {
    app.store.expect_workspace(&workspace).await?;
    let back: Back = input::json_or_nothing(body, input::BODY).await?;
    let old = expect(&app, &workspace, &id).await?;
    if old.ended.is_some() {
        return Err(Refusal::NoDeployment(old.id));
    }
    let floors = Floors::of(&app, &workspace, &old).await?;
    let release = match back.release {
        Some(release) if release == old.release => {
            return Err(Refusal::SameRelease { id: old.id, release });
        }
        Some(release) => release,
        None => {
            let in_force = app.store.in_force(&workspace).await?;
            let earlier: Vec<u64> = in_force.below(&old.package, old.release).collect();
            if earlier.is_empty() {
                return Err(Refusal::NoEarlier { package: old.package, release: old.release });
            }
            let allowed = earlier.into_iter().find(|release| *release >= floors.highest);
            allowed.ok_or_else(|| floors.refuse(&old, "an earlier release", floors.highest))?
        }
    };
    let package = app.store.expect_package(&workspace, &old.package, Some(release)).await?;
    if release < floors.highest {
        return Err(floors.refuse(&old, &format!("release {release}"), release + 1));
    }
    let (settings, dropped): (BTreeMap<_, _>, BTreeMap<_, _>) =
        old.settings.into_iter().partition(|(key, _)| package.manifest.settings.contains_key(key));
    let dropped: Vec<String> = dropped.into_keys().collect();
    let deployment = deployment(&package, old.scope, old.priority, settings)?;
    let plan = Plan::with(&app, &workspace, offer(&package, &deployment)).await?;
    let detail = json!({"from": {"id": old.id, "release": old.release}, "dropped_settings": dropped});
    let mut answer = make(&app, &workspace, &deployment, plan, ("rollback", detail)).await?;
    answer["dropped_settings"] = dropped.into();
    Ok((StatusCode::CREATED, Json(answer)).into_response())
}

/// DELETE: end one; where nothing takes its place, targets uninstall the package.
pub async fn remove(
    State(app): State<Arc<App>>,
    Params((workspace, id)): Params<(String, String)>,
) -> Result<Response, Refusal> {
    app.store.expect_workspace(&workspace).await?;
    let deployment = expect(&app, &workspace, &id).await?;
    let plan = Plan::of(&app, &workspace, &deployment).await?;
    let now_ms = clock::now().as_millisecond();
    let mut change = app.store.change().await?;
    let Some(scope) = change.end_deployment(&workspace, &id, now_ms).await? else {
        return Err(Refusal::NoDeployment(deployment.id));
    };
    let detail = json!({"package": deployment.package, "scope": scope.to_string()});
    change.audit(now_ms, "token", "undeploy", &id, detail).await?;
    change.commit().await?;
    app.changed.add_all(plan.enrolled());
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Put a deployment in force, tell those whom it may concern, and say what it does.
async fn make(
    app: &App,
    workspace: &str,
    deployment: &Deployment,
    plan: Plan,
    (action, mut detail): (&str, Value),
) -> Result<Value, Refusal> {
    let mut change = app.store.change().await?;
    // The target may have been removed since it was read.
    if let Scope::Target(name) = &deployment.scope
        && !change.has_target(workspace, name).await?
    {
        return Err(Refusal::NoTarget(name.to_string()));
    }
    let replaces = change.add_deployment(workspace, deployment).await?;
    detail["id"] = json!(deployment.id);
    detail["release"] = json!(deployment.release);
    detail["priority"] = json!(deployment.priority);
    let subject = format!("{} on {}", deployment.package, deployment.scope);
    change.audit(deployment.created_ms, "token", action, &subject, detail).await?;
    change.commit().await?;
    app.changed.add_all(plan.enrolled());
    let (_, summary) = plan.shown(app, workspace).await?;
    let mut answer = shown(deployment);
    answer["replaces"] = json!(replaces);
    answer["hints"] = json!(plan.hints);
    answer["summary"] = summary;
    Ok(answer)
}

async fn scope(
    app: &App,
    workspace: &str,
    target: Option<&str>,
    selector: Option<&str>,
) -> Result<Scope, Refusal> {
    match (target, selector) {
        (Some(name), None) => {
            let target = app.store.expect_target(workspace, &input::target_name(name)?).await?;
            Ok(Scope::Target(target.name))
        }
        (None, Some(text)) => Ok(Scope::Selector(text.parse().map_err(Refusal::Selector)?)),
        _ => Err(Refusal::because("body", "give either `target` or `selector`")),
    }
}

fn known_setting(package: &Package, key: &str) -> Result<(), Refusal> {
    let settings = &package.manifest.settings;
    if settings.contains_key(key) {
        return Ok(());
    }
    let known: Vec<&str> = settings.keys().map(String::as_str).collect();
    let why = match known.as_slice() {
        [] => "the package has no settings".to_owned(),
        known => format!("the package has {}", known.join(", ")),
    };
    Err(Refusal::Setting { key: key.chars().take(80).collect(), why })
}

fn deployment(
    package: &Package,
    scope: Scope,
    priority: i32,
    settings: BTreeMap<String, String>,
) -> Result<Deployment, Error> {
    let mut id = [0; 8];
    aws_lc_rs::rand::fill(&mut id).map_err(|_| Error::Random)?;
    Ok(Deployment {
        id: hex::encode(id),
        package: package.manifest.name.clone(),
        release: package.manifest.release,
        version: package.manifest.version.to_string(),
        digest: package.digest,
        scope,
        priority,
        settings,
        created_ms: clock::now().as_millisecond(),
        ended: None,
    })
}

/// The deployment as it will be in force.
fn offer(package: &Package, deployment: &Deployment) -> Offer {
    Offer {
        id: deployment.id.clone(),
        // The newest of all.
        number: i64::MAX,
        scope: deployment.scope.clone(),
        priority: deployment.priority,
        created_ms: deployment.created_ms,
        assigned: Assigned {
            package: deployment.package.clone(),
            target: package.target.clone(),
            digest: package.digest,
            length: package.length,
            release: deployment.release,
            version: deployment.version.clone(),
            settings: deployment.settings.clone(),
        },
        requires: Arc::new(package.manifest.requires.clone()),
    }
}

/// Floors of the targets in a deployment's scope.
struct Floors {
    /// Name and floor, where there is one.
    floors: Vec<(String, u64)>,
    highest: u64,
}

impl Floors {
    async fn of(app: &App, workspace: &str, deployment: &Deployment) -> Result<Self, Error> {
        let plan = Plan::of(app, workspace, deployment).await?;
        let floors: Vec<(String, u64)> = plan
            .places()
            .iter()
            .map(|place| &place.standing.target)
            .filter_map(|target| {
                target.floors.get(&deployment.package).map(|floor| (target.name.to_string(), *floor))
            })
            .collect();
        let highest = floors.iter().map(|(_, floor)| *floor).max().unwrap_or(0);
        Ok(Self { floors, highest })
    }

    /// The refusal that names those whose floor is at least `from`.
    fn refuse(&self, deployment: &Deployment, wanted: &str, from: u64) -> Refusal {
        let against: Vec<_> = self.floors.iter().filter(|(_, floor)| *floor >= from).collect();
        let named: Vec<String> = against
            .iter()
            .take(NAMED)
            .map(|(name, floor)| format!("{name} takes nothing below release {floor}"))
            .collect();
        let more = against.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(", and {more} more") } else { String::new() };
        Refusal::Floor {
            package: deployment.package.clone(),
            wanted: wanted.to_owned(),
            why: format!("{}{more}", named.join(", ")),
        }
    }
}
