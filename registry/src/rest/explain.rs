//! What a target runs, why, and what lost.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use selvedge_package::PackageName;
use serde::Deserialize;
use serde_json::{Value, json};

use super::deployments::plan::{reported, running};
use super::input::{self, Asked, Params};
use crate::app::App;
use crate::clock;
use crate::refusal::Refusal;
use crate::resolve::{Decision, Subject, Verdict};
use crate::store::in_force::Standing;

/// Query.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Which {
    /// This package alone.
    #[serde(default)]
    package: Option<String>,
}

/// GET: every package that has to do with the target, or the one that is asked for.
pub async fn explain(
    State(app): State<Arc<App>>,
    Params((workspace, name)): Params<(String, String)>,
    Asked(which): Asked<Which>,
) -> Result<Response, Refusal> {
    app.store.expect_workspace(&workspace).await?;
    let name = input::target_name(&name)?;
    let standing = app.store.standing(&name).await?;
    let Some(standing) = standing.filter(|standing| standing.target.workspace == workspace) else {
        return Err(Refusal::NoTarget(name.to_string()));
    };
    let presence = app.presences.get(&app.store, &name).await?;
    let online = presence.is_some_and(|presence| presence.online(clock::now().as_millisecond()));
    let resolution = standing.resolve();
    let names: BTreeSet<&PackageName> = match &which.package {
        Some(text) => {
            let asked = input::package_name(text)?;
            // It may have ended everywhere, and be none at all.
            app.store.expect_package(&workspace, &asked, None).await?;
            let packages = about(&standing, resolution.packages.keys().copied(), &asked);
            if packages.is_empty() {
                return Ok(Json(shown(&standing, online, vec![nothing(&asked)])?).into_response());
            }
            packages
        }
        None => {
            let scoped = resolution.packages.iter().filter(|(_, decision)| decision.in_scope());
            let mut names: BTreeSet<&PackageName> = scoped.map(|(name, _)| *name).collect();
            names.extend(standing.told().iter().map(|told| &told.package));
            let reported = standing.target.reported.iter().flat_map(|reported| &reported.packages);
            names.extend(reported.map(|report| &report.name));
            names
        }
    };
    let nothing = Decision::default();
    let packages = names
        .into_iter()
        .map(|name| package(&standing, name, resolution.packages.get(name).unwrap_or(&nothing)))
        .collect();
    Ok(Json(shown(&standing, online, packages)?).into_response())
}

fn about<'a>(
    standing: &'a Standing,
    resolved: impl Iterator<Item = &'a PackageName>,
    asked: &PackageName,
) -> BTreeSet<&'a PackageName> {
    let reported = standing.target.reported.iter().flat_map(|reported| &reported.packages);
    let names = resolved.chain(reported.map(|report| &report.name));
    let names = names.chain(standing.told().iter().map(|told| &told.package));
    names.filter(|name| *name == asked).collect()
}

fn shown(standing: &Standing, online: bool, packages: Vec<Value>) -> Result<Value, Refusal> {
    Ok(json!({
        "target": standing.target.name,
        "online": online,
        "desired_sequence": standing.sequence()?,
        "packages": packages,
    }))
}

/// A package that no deployment is about.
fn nothing(name: &PackageName) -> Value {
    json!({
        "package": name, "runs": null, "assigned": null, "kept": false, "why": "no deployment is in force for it",
        "pending": null, "failure": null, "deployments": [],
    })
}

fn package(standing: &Standing, name: &PackageName, decision: &Decision<'_>) -> Value {
    let report = reported(&standing.target, name);
    let subject = standing.subject();
    let assigned = standing.chosen(decision).map(|assigned| {
        json!({
            "deployment": decision.winner.map(|winner| &winner.id),
            "release": assigned.release,
            "version": assigned.version,
            "settings": assigned.settings,
        })
    });
    let pending = report.and_then(|report| report.pending.as_ref()).map(|pending| {
        json!({
            "release": pending.release.release,
            "version": pending.release.version,
            "stage": pending.stage,
            "bytes": pending.bytes,
            "total": pending.total,
        })
    });
    json!({
        "package": name,
        "runs": report.and_then(running),
        "assigned": assigned,
        "kept": decision.kept.is_some(),
        "why": why(decision, &subject, report.is_some_and(|report| report.committed.is_some())),
        "pending": pending,
        "failure": report.and_then(|report| report.failure.as_ref()),
        "deployments": deployments(decision, &subject),
    })
}

fn deployments(decision: &Decision<'_>, subject: &Subject<'_>) -> Vec<Value> {
    let shown = decision.verdicts.iter().map(|(offer, verdict)| {
        json!({
            "id": offer.id,
            "scope": offer.scope.to_string(),
            "priority": offer.priority,
            "release": offer.assigned.release,
            "version": offer.assigned.version,
            "created_at": clock::text(offer.created_ms),
            "verdict": verdict.word(),
            "why": verdict.why(offer, subject),
        })
    });
    shown.collect()
}

/// One sentence about a package.
fn why(decision: &Decision<'_>, subject: &Subject<'_>, installed: bool) -> String {
    let uninstalled = if installed { "; it is uninstalled" } else { "" };
    let wins = decision.verdicts.iter().position(|(_, verdict)| *verdict == Verdict::Wins);
    if let Some((at, (winner, verdict))) = wins.and_then(|at| Some((at, decision.verdicts.get(at)?))) {
        let skipped = decision.verdicts.iter().take(at).filter(|(_, verdict)| verdict.in_scope()).count();
        return match skipped {
            0 => format!("deployment {} wins: {}", winner.id, verdict.why(winner, subject)),
            _ => format!("deployment {} wins: what has a better claim is blocked ({skipped})", winner.id),
        };
    }
    if let Some(kept) = decision.kept {
        return format!(
            "every deployment in scope is blocked: it keeps release {}, which it was told before",
            kept.release
        );
    }
    match decision.in_scope() {
        true => format!("every deployment in scope is blocked{uninstalled}"),
        false if decision.verdicts.is_empty() => format!("no deployment is in force for it{uninstalled}"),
        false => format!("no deployment matches this target{uninstalled}"),
    }
}
