//! Targets: made and labelled by people, shown with what they should run and what they say.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use selvedge_package::{DeviceId, Digest};
use selvedge_protocol::message::PackageReport;
use serde::Deserialize;
use serde_json::{Value, json};

use super::input::{self, Params};
use super::token::random_token;
use crate::app::App;
use crate::clock;
use crate::error::Error;
use crate::health::{self, Health};
use crate::notices::ENROLMENT_REFUSED;
use crate::pki::reserved;
use crate::refusal::Refusal;
use crate::resolve::Assigned;
use crate::store::in_force::Standing;
use crate::store::notices::Notice;
use crate::store::presence::Presence;
use crate::store::reports::KeptEvent;
use crate::store::targets::{Kind, Target};

/// Events shown with one target.
const EVENTS: u32 = 50;
/// Labels of one target.
const LABELS: usize = 64;
/// Characters of a label's key and of its value.
const LABEL_KEY: usize = 63;
const LABEL_VALUE: usize = 255;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewTarget {
    name: String,
    #[serde(default = "device")]
    kind: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

fn device() -> String {
    Kind::Device.to_string()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Patch {
    labels: BTreeMap<String, String>,
}

/// POST: make a target and its enrolment file. The token in the file is shown this once.
pub async fn add(
    State(app): State<Arc<App>>,
    Params(workspace): Params<String>,
    body: Body,
) -> Result<Response, Refusal> {
    app.store.expect_workspace(&workspace).await?;
    let new: NewTarget = input::json(body, input::BODY).await?;
    let name = input::target_name(&new.name)?;
    let kind: Kind = new.kind.parse()?;
    check_labels(&new.labels)?;
    if reserved(name.as_str()) {
        let why = "it is what brokers call the registry itself; give the target another name";
        return Err(Refusal::because("name", why));
    }
    let (token, token_hash) = new_token()?;
    let roots = app.trust.roots(&app.store).await?;
    let now = clock::now();
    let now_ms = now.as_millisecond();
    let mut change = app.store.change().await?;
    change.add_target(&workspace, &name, kind, &new.labels, &token_hash, now_ms).await?;
    let parts = (token.as_str(), roots.image.as_str(), roots.director.as_str());
    let enrolment = app.credentials.enrolment(&mut change, &name, kind.word(), parts, now).await?;
    change
        .audit(now_ms, "token", "target-add", name.as_str(), json!({"kind": kind, "workspace": workspace}))
        .await?;
    change.commit().await?;
    // Whoever had that name before.
    app.presences.forget(&name);
    app.notices.forget(&name);
    let target = app.store.expect_target(&workspace, &name).await?;
    let shown = show_one(&app, target).await?;
    Ok((StatusCode::CREATED, Json(json!({"target": shown, "enrolment": enrolment}))).into_response())
}

/// GET: all targets of the workspace, without their events.
pub async fn list(
    State(app): State<Arc<App>>,
    Params(workspace): Params<String>,
) -> Result<Response, Refusal> {
    app.store.expect_workspace(&workspace).await?;
    let presences = app.presences.all(&app.store, &workspace).await?;
    let refused = app.store.noticed(&workspace, ENROLMENT_REFUSED).await?;
    let mut items = Vec::new();
    for standing in app.store.standings(&workspace).await? {
        let name = &standing.target.name;
        items.push(shown(&standing, presences.get(name), refused.get(name.as_str()).copied())?);
    }
    Ok(Json(json!({"items": items})).into_response())
}

/// GET: one target with its newest events.
pub async fn show(
    State(app): State<Arc<App>>,
    Params((workspace, name)): Params<(String, String)>,
) -> Result<Response, Refusal> {
    let target = input::target(&app, &workspace, &name).await?;
    Ok(Json(show_one(&app, target).await?).into_response())
}

/// PATCH: replace the labels.
pub async fn change(
    State(app): State<Arc<App>>,
    Params((workspace, name)): Params<(String, String)>,
    body: Body,
) -> Result<Response, Refusal> {
    app.store.expect_workspace(&workspace).await?;
    let name = input::target_name(&name)?;
    let patch: Patch = input::json(body, input::BODY).await?;
    check_labels(&patch.labels)?;
    app.store.expect_target(&workspace, &name).await?;
    let now_ms = clock::now().as_millisecond();
    let mut change = app.store.change().await?;
    change.set_labels(&name, &patch.labels).await?;
    change.audit(now_ms, "token", "target-label", name.as_str(), json!({"labels": patch.labels})).await?;
    change.commit().await?;
    // Selectors may match now that did not, and the other way round.
    app.changed.add(name.clone());
    let target = app.store.expect_target(&workspace, &name).await?;
    Ok(Json(show_one(&app, target).await?).into_response())
}

/// DELETE: the target and its reports go; its deployments end.
pub async fn remove(
    State(app): State<Arc<App>>,
    Params((workspace, name)): Params<(String, String)>,
) -> Result<Response, Refusal> {
    let name = input::target(&app, &workspace, &name).await?.name;
    let now_ms = clock::now().as_millisecond();
    let mut change = app.store.change().await?;
    change.remove_target(&workspace, &name, now_ms).await?;
    change.audit(now_ms, "token", "target-remove", name.as_str(), json!({})).await?;
    change.commit().await?;
    forget(&app, &name).await;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// POST: as DELETE, with what stays on the device.
pub async fn detach(
    State(app): State<Arc<App>>,
    Params((workspace, name)): Params<(String, String)>,
) -> Result<Response, Refusal> {
    let target = input::target(&app, &workspace, &name).await?;
    let name = target.name.clone();
    let committed = |package: PackageReport| {
        let committed = package.committed?;
        Some(json!({"package": package.name, "release": committed.release, "version": committed.version}))
    };
    let packages = target.reported.into_iter().flat_map(|state| state.packages);
    let keeps: Vec<Value> = packages.filter_map(committed).collect();
    let now_ms = clock::now().as_millisecond();
    let mut change = app.store.change().await?;
    change.remove_target(&workspace, &name, now_ms).await?;
    change.audit(now_ms, "token", "target-detach", name.as_str(), json!({"keeps": keeps})).await?;
    change.commit().await?;
    forget(&app, &name).await;
    Ok(Json(json!({"detached": name, "keeps": keeps})).into_response())
}

/// POST: another enrolment file, for a device that was wiped, whose certificate expired while it was
/// away, or that was revoked. The key of before counts until another one comes with the new token.
pub async fn enrol_again(
    State(app): State<Arc<App>>,
    Params((workspace, name)): Params<(String, String)>,
) -> Result<Response, Refusal> {
    let target = input::target(&app, &workspace, &name).await?;
    let name = target.name.clone();
    let (token, token_hash) = new_token()?;
    let roots = app.trust.roots(&app.store).await?;
    let now = clock::now();
    let mut change = app.store.change().await?;
    change.set_token(&name, &token_hash).await?;
    let parts = (token.as_str(), roots.image.as_str(), roots.director.as_str());
    let enrolment = app.credentials.enrolment(&mut change, &name, target.kind.word(), parts, now).await?;
    let detail = json!({"had_key": target.public_key.is_some()});
    change.audit(now.as_millisecond(), "token", "target-enrol-again", name.as_str(), detail).await?;
    change.commit().await?;
    // The file of before has lost its certificate.
    app.credentials.revoked(&app.store, now).await;
    let target = app.store.expect_target(&workspace, &name).await?;
    let shown = show_one(&app, target).await?;
    Ok((StatusCode::CREATED, Json(json!({"target": shown, "enrolment": enrolment}))).into_response())
}

/// POST: from now on the device is believed nothing and told nothing, until it is enrolled again.
pub async fn revoke(
    State(app): State<Arc<App>>,
    Params((workspace, name)): Params<(String, String)>,
) -> Result<Response, Refusal> {
    let target = input::target(&app, &workspace, &name).await?;
    let name = target.name.clone();
    let now_ms = clock::now().as_millisecond();
    let mut change = app.store.change().await?;
    change.revoke_certificates(&name, None, now_ms).await?;
    change.revoke_key(&name, now_ms).await?;
    change.mark_revoked(&name, now_ms).await?;
    let detail = json!({"public_key": target.public_key.map(hex::encode)});
    change.audit(now_ms, "token", "target-revoke", name.as_str(), detail).await?;
    change.commit().await?;
    forget(&app, &name).await;
    let target = app.store.expect_target(&workspace, &name).await?;
    Ok(Json(show_one(&app, target).await?).into_response())
}

/// What is in memory of a target that was removed or revoked, and its certificates.
async fn forget(app: &App, name: &DeviceId) {
    app.presences.forget(name);
    app.notices.forget(name);
    app.credentials.revoked(&app.store, clock::now()).await;
}

/// A token, and its hash.
fn new_token() -> Result<(String, String), Refusal> {
    let token = random_token()?;
    let hash = Digest::of(token.as_bytes()).hex();
    Ok((token, hash))
}

async fn show_one(app: &App, target: Target) -> Result<Value, Refusal> {
    let name = &target.name;
    let events = app.store.events(name, EVENTS).await?;
    let Some(standing) = app.store.standing(name).await? else {
        return Err(Refusal::NoTarget(name.to_string()));
    };
    let presence = app.presences.get(&app.store, name).await?;
    let notices = app.store.notices(name).await?;
    let refused = notices.iter().find(|notice| notice.kind == ENROLMENT_REFUSED).map(|notice| notice.at_ms);
    let mut value = shown(&standing, presence.as_ref(), refused)?;
    let certificate = app.store.certificate(name).await?.map(|certificate| {
        json!({"serial": certificate.serial, "expires_at": clock::text(certificate.not_after_ms)})
    });
    if let Value::Object(fields) = &mut value {
        fields.insert("certificate".to_owned(), certificate.into());
        fields.insert("events".to_owned(), merged(&events, &notices).into());
    }
    Ok(value)
}

/// A target; `refused_ms` is when a device with another key was refused last.
fn shown(standing: &Standing, presence: Option<&Presence>, refused_ms: Option<i64>) -> Result<Value, Error> {
    let now_ms = clock::now().as_millisecond();
    let target = &standing.target;
    let desired = standing.assigned();
    let sequence = standing.sequence_of(desired.clone())?;
    let refused = refused_ms.is_some_and(|ms| health::enrolment_refused(ms, target.reported_ms, now_ms));
    let online = presence.is_some_and(|presence| presence.online(now_ms));
    let health = if refused { Health::EnrolmentRefused } else { health(target, presence, online, &desired) };
    Ok(json!({
        "name": target.name,
        "workspace": target.workspace,
        "kind": target.kind,
        "labels": target.labels,
        "facts": target.facts,
        "desired": desired.iter().map(shown_assigned).collect::<Vec<_>>(),
        "desired_sequence": sequence,
        "reported": target.reported,
        "reported_at": target.reported_ms.and_then(clock::text),
        "last_heard": presence.and_then(|presence| clock::text(presence.last_heard_ms)),
        "online": online,
        "health": health.to_string(),
        "enrolled": target.public_key.is_some(),
        "public_key": target.public_key.map(hex::encode),
        "revoked_at": target.revoked_ms.and_then(clock::text),
        "created_at": clock::text(target.created_ms),
    }))
}

fn shown_assigned(assigned: &Assigned) -> Value {
    json!({
        "package": assigned.package,
        "version": assigned.version,
        "release": assigned.release,
        "digest": assigned.digest,
        "settings": assigned.settings,
    })
}

fn shown_event(event: &KeptEvent) -> Value {
    json!({
        "at": clock::text(event.at_ms),
        "received_at": clock::text(event.received_ms),
        "clock": event.clock,
        "epoch": event.epoch,
        "sequence": event.sequence,
        "kind": event.kind,
        "package": event.package,
        "what": event.what,
    })
}

/// Events of the device in their order, with what the registry noticed where it belongs by the
/// registry's clock.
fn merged(events: &[KeptEvent], notices: &[Notice]) -> Vec<Value> {
    let mut all = Vec::with_capacity(events.len() + notices.len());
    let mut notices = notices.iter().peekable();
    for event in events {
        while let Some(notice) = notices.next_if(|notice| notice.at_ms >= event.received_ms) {
            all.push(shown_notice(notice));
        }
        all.push(shown_event(event));
    }
    all.extend(notices.map(shown_notice));
    all.truncate(EVENTS as usize);
    all
}

fn shown_notice(notice: &Notice) -> Value {
    let at = clock::text(notice.at_ms);
    json!({
        "at": at,
        "received_at": at,
        "clock": "registry",
        "epoch": null,
        "sequence": null,
        "kind": notice.kind,
        "package": null,
        "what": notice.what,
    })
}

fn health(target: &Target, presence: Option<&Presence>, online: bool, desired: &[Assigned]) -> Health {
    match (&target.public_key, presence, &target.reported) {
        (None, _, _) if target.revoked_ms.is_some() => Health::Revoked,
        (None, _, _) => Health::WaitingForEnrolment,
        (Some(_), None, _) => Health::NeverHeard,
        (Some(_), Some(_), _) if !online => Health::Silent,
        (Some(_), Some(_), None) => Health::NothingReported,
        (Some(_), Some(_), Some(reported)) => health::of(desired, reported),
    }
}

fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), Refusal> {
    let refuse = |why: String| Err(Refusal::Malformed { what: "labels", why });
    if labels.len() > LABELS {
        return refuse(format!("there are {} of them, {LABELS} are the most", labels.len()));
    }
    for (key, value) in labels {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_.-/".contains(c);
        if key.is_empty() || key.len() > LABEL_KEY || !key.chars().all(plain) {
            let key: String = key.chars().take(80).collect();
            return refuse(format!(
                "`{key}` is not a key: 1 to {LABEL_KEY} of A-Z, a-z, 0-9, `_`, `.`, `-`, `/`"
            ));
        }
        if value.chars().count() > LABEL_VALUE || value.chars().any(char::is_control) {
            return refuse(format!(
                "the value of `{key}` has control characters or more than {LABEL_VALUE} others"
            ));
        }
    }
    Ok(())
}
