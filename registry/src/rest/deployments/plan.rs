//! What a deployment does, or would do, on each target in its scope.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use selvedge_package::nearest::nearest;
use selvedge_package::{DeviceId, PackageName};
use selvedge_protocol::message::PackageReport;
use serde_json::{Value, json};

use crate::app::App;
use crate::clock;
use crate::error::Error;
use crate::progress::{Progress, State};
use crate::resolve::{Offer, Scope, Verdict};
use crate::store::deployments::Deployment;
use crate::store::in_force::{Standing, attributes};
use crate::store::targets::Target;

/// A deployment and how every target of its workspace stands to it.
pub struct Plan {
    id: String,
    package: PackageName,
    release: u64,
    created_ms: i64,
    /// The targets that it may concern.
    standings: Vec<Standing>,
    /// The deployment that it replaces, where it is not in force yet.
    pub replaces: Option<String>,
    /// Sentences for people.
    pub hints: Vec<String>,
}

/// One target in the scope.
pub struct Place<'a> {
    /// How it stands.
    pub standing: &'a Standing,
    /// `wins`, `lost` or `blocked`.
    pub verdict: &'static str,
    /// A sentence.
    pub why: String,
    /// The desired state that the target must have accepted for what it shall run of the package.
    pub needs: u64,
}

impl Plan {
    /// Of a deployment in force; nothing is in the scope of one that ended.
    pub async fn of(app: &App, workspace: &str, deployment: &Deployment) -> Result<Self, Error> {
        let standings = match deployment.ended {
            Some(_) => Vec::new(),
            None => concerned(app, workspace, &deployment.scope).await?,
        };
        Ok(Self {
            id: deployment.id.clone(),
            package: deployment.package.clone(),
            release: deployment.release,
            created_ms: deployment.created_ms,
            standings,
            replaces: None,
            hints: Vec::new(),
        })
    }

    /// Of a deployment that is not in force yet, as if it were the newest.
    pub async fn with(app: &App, workspace: &str, offer: Offer) -> Result<Self, Error> {
        let mut standings = concerned(app, workspace, &offer.scope).await?;
        let hints = hints(&offer.scope, &standings);
        let (id, assigned, created_ms) = (offer.id.clone(), offer.assigned.clone(), offer.created_ms);
        let (in_force, replaced) = app.store.in_force(workspace).await?.with(offer);
        let in_force = Arc::new(in_force);
        for standing in &mut standings {
            standing.in_force = Arc::clone(&in_force);
        }
        Ok(Self {
            id,
            package: assigned.package,
            release: assigned.release,
            created_ms,
            standings,
            replaces: replaced.map(|offer| offer.id.clone()),
            hints,
        })
    }

    /// Every target in the scope, by name.
    pub fn places(&self) -> Vec<Place<'_>> {
        self.standings.iter().filter_map(|standing| self.place(standing)).collect()
    }

    fn place<'a>(&self, standing: &'a Standing) -> Option<Place<'a>> {
        let resolution = standing.resolve();
        let decision = resolution.packages.get(&self.package)?;
        let (offer, verdict) = decision.verdicts.iter().find(|(offer, _)| offer.id == self.id)?;
        if !verdict.in_scope() {
            return None;
        }
        let mut why = verdict.why(offer, &standing.subject());
        if let (Verdict::Blocked(_), Some(kept)) = (verdict, decision.kept) {
            why.push_str(&format!("; it keeps release {}", kept.release));
        }
        Some(Place { standing, verdict: verdict.word(), why, needs: standing.needs(decision) })
    }

    /// Names of the enrolled targets in the scope.
    pub fn enrolled(&self) -> impl Iterator<Item = DeviceId> {
        let enrolled = |place: &Place<'_>| place.standing.target.public_key.is_some();
        self.places().into_iter().filter(enrolled).map(|place| place.standing.target.name.clone())
    }

    /// The targets in the scope as they are shown, and how many are how far.
    pub async fn shown(&self, app: &App, workspace: &str) -> Result<(Vec<Value>, Value), Error> {
        let presences = match self.standings.as_slice() {
            [one] => {
                let name = &one.target.name;
                let presence = app.presences.get(&app.store, name).await?;
                presence.into_iter().map(|presence| (name.clone(), presence)).collect()
            }
            _ => app.presences.all(&app.store, workspace).await?,
        };
        let now_ms = clock::now().as_millisecond();
        let mut counts: BTreeMap<&str, u64> = ["targets", "wins", "lost", "blocked"]
            .into_iter()
            .chain(State::ALL.map(State::word))
            .map(|word| (word, 0))
            .collect();
        let mut count = |word| *counts.entry(word).or_default() += 1;
        let mut targets = Vec::new();
        for place in self.places() {
            let target = &place.standing.target;
            let package = reported(target, &self.package);
            let progress = match place.verdict {
                "wins" => {
                    let heard = target.reported.as_ref().filter(|_| target.public_key.is_some());
                    let newer = target.reported_ms.is_some_and(|reported| reported >= self.created_ms);
                    Some(Progress::of(self.release, place.needs, newer, heard, package))
                }
                _ => None,
            };
            count("targets");
            count(place.verdict);
            if let Some(progress) = &progress {
                count(progress.state.word());
            }
            let bytes = progress.as_ref().and_then(|progress| progress.bytes);
            targets.push(json!({
                "name": target.name,
                "online": presences.get(&target.name).is_some_and(|presence| presence.online(now_ms)),
                "verdict": place.verdict,
                "why": place.why,
                "state": progress.as_ref().map(|progress| progress.state.word()),
                "running": package.and_then(running),
                "bytes": bytes.map(|(bytes, _)| bytes),
                "total": bytes.map(|(_, total)| total),
                "failure": progress.as_ref().and_then(|progress| progress.failure.as_ref()),
                "settled": progress.as_ref().is_none_or(|progress| progress.state.settled()),
            }));
        }
        Ok((targets, json!(counts)))
    }
}

/// What a target reported of a package.
pub fn reported<'a>(target: &'a Target, package: &PackageName) -> Option<&'a PackageReport> {
    target.reported.as_ref()?.packages.iter().find(|report| report.name == *package)
}

/// What it has committed of it, as it is shown.
pub fn running(report: &PackageReport) -> Option<Value> {
    let committed = report.committed.as_ref()?;
    let (release, version) = (committed.release, &committed.version);
    Some(json!({"release": release, "version": version, "serving": report.serving}))
}

/// Targets that a scope may concern: one, or all of the workspace.
async fn concerned(app: &App, workspace: &str, scope: &Scope) -> Result<Vec<Standing>, Error> {
    match scope {
        Scope::Target(name) => {
            let standing = app.store.standing(name).await?;
            Ok(standing.into_iter().filter(|standing| standing.target.workspace == workspace).collect())
        }
        Scope::Selector(_) => app.store.standings(workspace).await,
    }
}

/// What people should know about a selector: keys that no target has.
fn hints(scope: &Scope, standings: &[Standing]) -> Vec<String> {
    let Scope::Selector(selector) = scope else { return Vec::new() };
    let targets: Vec<_> = standings.iter().map(|standing| attributes(&standing.target)).collect();
    if targets.is_empty() {
        return vec!["this workspace has no targets yet".to_owned()];
    }
    let unknown = selector.keys().filter(|key| !targets.iter().any(|target| target.has(key)));
    unknown
        .map(|key| {
            let known: BTreeSet<&str> = targets.iter().flat_map(|target| target.keys()).collect();
            let meant = nearest(key, known).map(|known| format!("; did you mean `{known}`?"));
            format!("no target has `{key}`{}", meant.unwrap_or_default())
        })
        .collect()
}
