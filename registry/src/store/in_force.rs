//! What is in force in a workspace, and how each target stands to it.
//!
//! Deployments and releases of a workspace are read once for each of its revisions and kept; a target
//! costs one short query then, and all targets together cost one as well.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use selvedge_package::manifest::Requires;
use selvedge_package::trust::AssignedPackage;
use selvedge_package::{DeviceId, Manifest, PackageName};
use sqlx::SqliteConnection;

use super::deployments::scope;
use super::targets::{self, Target};
use super::{Change, Store, from_column, from_json, from_text, to_json};
use crate::error::Error;
use crate::resolve::{Assigned, Decision, Offer, Offers, Resolution, Subject, resolve};
use crate::selector::Attributes;

/// A release, as far as decisions go by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// Version for people.
    pub version: String,
    /// The floor that it sets when it is committed.
    pub min_release: u64,
}

/// What is in force in a workspace at one of its revisions.
#[derive(Debug, Clone, Default)]
pub struct InForce {
    revision: i64,
    /// Every deployment in force.
    pub offers: Offers,
    releases: BTreeMap<PackageName, BTreeMap<u64, Known>>,
}

impl InForce {
    /// A release of the workspace.
    pub fn release(&self, package: &PackageName, release: u64) -> Option<&Known> {
        self.releases.get(package)?.get(&release)
    }

    /// Releases of a package below `release`, newest first.
    pub fn below(&self, package: &PackageName, release: u64) -> impl Iterator<Item = u64> {
        let releases = self.releases.get(package).into_iter();
        releases.flat_map(move |releases| releases.range(..release).rev().map(|(release, _)| *release))
    }

    /// The floor that a device has which committed this release.
    pub fn floor(&self, package: &PackageName, release: u64) -> Option<u64> {
        // As the device has it: a release does not shut itself out.
        self.release(package, release).map(|known| known.min_release.min(release))
    }

    /// Version of a release for people; empty where it is not known.
    pub fn version(&self, package: &PackageName, release: u64) -> &str {
        self.release(package, release).map_or("", |known| known.version.as_str())
    }

    /// The same with one deployment more, as it would be; gives the one that it replaces too.
    pub fn with(&self, offer: Offer) -> (Self, Option<Arc<Offer>>) {
        let (offers, replaced) = self.offers.with(offer);
        (Self { revision: -1, offers, releases: self.releases.clone() }, replaced)
    }
}

/// A target and what decides what it shall run.
#[derive(Debug, Clone)]
pub struct Standing {
    /// The target.
    pub target: Target,
    /// Sequence of what was last signed for it; `None`: nothing was.
    pub told_sequence: Option<u64>,
    /// What that was, as it was written.
    pub told_text: String,
    told: Vec<AssignedPackage>,
    since: BTreeMap<PackageName, u64>,
    /// What is in force in its workspace.
    pub in_force: Arc<InForce>,
}

impl Standing {
    /// What decisions go by.
    pub fn subject(&self) -> Subject<'_> {
        Subject { attributes: attributes(&self.target), floors: &self.target.floors, told: &self.told }
    }

    /// What it shall run, and why.
    pub fn resolve(&self) -> Resolution<'_> {
        resolve(&self.subject(), &self.in_force.offers)
    }

    /// What it shall run, by package name.
    pub fn assigned(&self) -> Vec<Assigned> {
        self.resolve().packages.values().filter_map(|decision| self.chosen(decision)).collect()
    }

    /// What one decision assigns.
    pub fn chosen(&self, decision: &Decision<'_>) -> Option<Assigned> {
        match (decision.winner, decision.kept) {
            (Some(winner), _) => Some(winner.assigned.clone()),
            (None, Some(kept)) => Some(Assigned {
                package: kept.package.clone(),
                target: kept.target.clone(),
                digest: kept.digest,
                length: kept.length,
                release: kept.release,
                version: self.in_force.version(&kept.package, kept.release).to_owned(),
                settings: kept.settings.clone(),
            }),
            (None, None) => None,
        }
    }

    /// What it was last told, by package.
    pub fn told(&self) -> &[AssignedPackage] {
        &self.told
    }

    /// The sequence since which it was told exactly this about a package; `None`: it was not.
    pub fn since(&self, assigned: &AssignedPackage) -> Option<u64> {
        self.told.iter().find(|told| *told == assigned)?;
        // What an earlier version signed has no such number.
        self.since.get(&assigned.package).copied().or(self.told_sequence)
    }

    /// The sequence that it must have accepted for what one decision assigns.
    pub fn needs(&self, decision: &Decision<'_>) -> u64 {
        let assigned = signed_form(self.chosen(decision).into_iter().collect());
        let since = assigned.first().and_then(|assigned| self.since(assigned));
        since.unwrap_or_else(|| self.told_sequence.map_or(1, |sequence| sequence.saturating_add(1)))
    }

    /// The sequence of what it shall run now, signed or not yet; 0: there never was anything to run.
    pub fn sequence(&self) -> Result<u64, Error> {
        self.sequence_of(self.assigned())
    }

    /// The same, where `assigned` is known to be what it shall run.
    pub fn sequence_of(&self, assigned: Vec<Assigned>) -> Result<u64, Error> {
        let assigned = signed_form(assigned);
        Ok(match self.told_sequence {
            None if assigned.is_empty() => 0,
            None => 1,
            Some(sequence) if written(&assigned)? == self.told_text => sequence,
            Some(sequence) => sequence.saturating_add(1),
        })
    }

    /// Whether what was signed is not what it shall run, or is newer than `accepted`.
    pub fn behind(&self, accepted: u64) -> Result<bool, Error> {
        let Some(sequence) = self.told_sequence else {
            return Ok(true);
        };
        Ok(accepted < sequence || written(&signed_form(self.assigned()))? != self.told_text)
    }
}

/// What selectors see of a target.
pub fn attributes(target: &Target) -> Attributes<'_> {
    Attributes {
        name: target.name.as_str(),
        kind: target.kind.word(),
        labels: &target.labels,
        facts: &target.facts,
    }
}

/// Assignments as they are signed.
pub fn signed_form(assigned: Vec<Assigned>) -> Vec<AssignedPackage> {
    let signed = assigned.into_iter().map(|assigned| AssignedPackage {
        package: assigned.package,
        target: assigned.target,
        digest: assigned.digest,
        length: assigned.length,
        release: assigned.release,
        settings: assigned.settings,
    });
    signed.collect()
}

/// Assignments as they are kept to be compared.
pub fn written(assigned: &[AssignedPackage]) -> Result<String, Error> {
    to_json("assignment list", &assigned)
}

/// What was read last, for each workspace.
#[derive(Debug, Clone, Default)]
pub(super) struct Cache(Arc<Mutex<BTreeMap<String, Arc<InForce>>>>);

impl Cache {
    fn get(&self, workspace: &str, revision: i64) -> Option<Arc<InForce>> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.get(workspace).filter(|in_force| in_force.revision == revision).cloned()
    }

    fn set(&self, workspace: &str, in_force: &Arc<InForce>) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.insert(workspace.to_owned(), Arc::clone(in_force));
    }
}

#[derive(sqlx::FromRow)]
struct ReleaseRow {
    name: String,
    release: i64,
    version: String,
    min_release: i64,
}

#[derive(sqlx::FromRow)]
struct OfferRow {
    id: String,
    number: i64,
    target: Option<String>,
    selector: Option<String>,
    priority: i64,
    package: String,
    release: i64,
    settings: String,
    created_ms: i64,
    version: String,
    digest: String,
    length: i64,
    signed: String,
}

async fn revision(connection: &mut SqliteConnection, workspace: &str) -> Result<i64, Error> {
    let row: Option<(i64,)> = sqlx::query_as("SELECT revision FROM workspaces WHERE name = $1")
        .bind(workspace)
        .fetch_optional(connection)
        .await
        .map_err(Error::database("read a workspace's revision"))?;
    Ok(row.map_or(0, |(revision,)| revision))
}

async fn read(connection: &mut SqliteConnection, workspace: &str) -> Result<InForce, Error> {
    // The revision first: what is read afterwards is at least as new.
    let revision = revision(connection, workspace).await?;
    let rows: Vec<ReleaseRow> =
        sqlx::query_as("SELECT name, release, version, min_release FROM packages WHERE workspace = $1")
            .bind(workspace)
            .fetch_all(&mut *connection)
            .await
            .map_err(Error::database("list releases"))?;
    let mut releases: BTreeMap<PackageName, BTreeMap<u64, Known>> = BTreeMap::new();
    for row in rows {
        let known = Known { version: row.version, min_release: from_column(row.min_release)? };
        let package = releases.entry(from_text("package name", &row.name)?).or_default();
        package.insert(from_column(row.release)?, known);
    }
    let manifests: Vec<(String,)> = sqlx::query_as(
        "SELECT manifest FROM packages p WHERE workspace = $1 AND EXISTS (SELECT 1 FROM deployments d \
         WHERE d.workspace = p.workspace AND d.package = p.name AND d.release = p.release \
         AND d.ended_ms IS NULL)",
    )
    .bind(workspace)
    .fetch_all(&mut *connection)
    .await
    .map_err(Error::database("read the manifests of what is deployed"))?;
    let mut requires: BTreeMap<(PackageName, u64), Arc<Requires>> = BTreeMap::new();
    for (text,) in manifests {
        let manifest: Manifest = from_json("package manifest", &text)?;
        requires.insert((manifest.name, manifest.release), Arc::new(manifest.requires));
    }
    let rows: Vec<OfferRow> = sqlx::query_as(
        "SELECT d.id, d.number, d.target, d.selector, d.priority, d.package, d.release, d.settings, \
         d.created_ms, p.version, p.digest, p.length, p.target AS signed \
         FROM deployments d JOIN packages p ON p.workspace = d.workspace AND p.name = d.package \
              AND p.release = d.release \
         WHERE d.workspace = $1 AND d.ended_ms IS NULL",
    )
    .bind(workspace)
    .fetch_all(&mut *connection)
    .await
    .map_err(Error::database("read what is deployed"))?;
    let offers: Result<Vec<_>, Error> = rows.into_iter().map(|row| row.offer(&requires)).collect();
    Ok(InForce { revision, offers: Offers::new(offers?), releases })
}

impl OfferRow {
    fn offer(self, requires: &BTreeMap<(PackageName, u64), Arc<Requires>>) -> Result<Arc<Offer>, Error> {
        let package: PackageName = from_text("package name", &self.package)?;
        let release = from_column(self.release)?;
        let requires = requires.get(&(package.clone(), release)).cloned().unwrap_or_default();
        Ok(Arc::new(Offer {
            id: self.id,
            number: self.number,
            scope: scope(self.target.as_deref(), self.selector.as_deref())?,
            priority: i32::try_from(self.priority).unwrap_or(0),
            created_ms: self.created_ms,
            assigned: Assigned {
                package,
                target: self.signed,
                digest: from_text("digest", &self.digest)?,
                length: from_column(self.length)?,
                release,
                version: self.version,
                settings: from_json("setting set", &self.settings)?,
            },
            requires,
        }))
    }
}

/// A target with what was last signed for it, and the revision of its workspace: one reading.
#[derive(sqlx::FromRow)]
struct StandingRow {
    #[sqlx(flatten)]
    target: targets::Row,
    revision: i64,
    sequence: Option<i64>,
    assignments: Option<String>,
    since: Option<String>,
}

impl StandingRow {
    fn standing(self, in_force: Arc<InForce>) -> Result<Standing, Error> {
        let told_text = self.assignments.unwrap_or_default();
        Ok(Standing {
            target: self.target.target()?,
            told_sequence: self.sequence.map(from_column).transpose()?,
            // Empty: it was signed for an earlier target of this name, which is nothing to this one.
            told: match told_text.as_str() {
                "" => Vec::new(),
                text => from_json("assignment list", text)?,
            },
            told_text,
            since: match &self.since {
                Some(text) => from_json("sequence set", text)?,
                None => BTreeMap::new(),
            },
            in_force,
        })
    }
}

async fn one(connection: &mut SqliteConnection, device: &DeviceId) -> Result<Option<StandingRow>, Error> {
    sqlx::query_as(
        "SELECT t.name, t.workspace, t.kind, t.labels, t.created_ms, t.token_hash, t.token_replaces, \
         t.revoked_ms, t.public_key, t.enrolled_ms, t.facts, t.reported, t.reported_ms, t.facts_epoch, t.reported_epoch, t.floors, \
         w.revision, d.sequence, d.assignments, d.since FROM targets t \
         JOIN workspaces w ON w.name = t.workspace LEFT JOIN directed d ON d.device = t.name \
         WHERE t.name = $1",
    )
    .bind(device.as_str())
    .fetch_optional(connection)
    .await
    .map_err(Error::database("read how a target stands"))
}

async fn all(connection: &mut SqliteConnection, workspace: &str) -> Result<Vec<StandingRow>, Error> {
    sqlx::query_as(
        "SELECT t.name, t.workspace, t.kind, t.labels, t.created_ms, t.token_hash, t.token_replaces, \
         t.revoked_ms, t.public_key, t.enrolled_ms, t.facts, t.reported, t.reported_ms, t.facts_epoch, t.reported_epoch, t.floors, \
         w.revision, d.sequence, d.assignments, d.since FROM targets t \
         JOIN workspaces w ON w.name = t.workspace LEFT JOIN directed d ON d.device = t.name \
         WHERE t.workspace = $1 ORDER BY t.name",
    )
    .bind(workspace)
    .fetch_all(connection)
    .await
    .map_err(Error::database("read how targets stand"))
}

impl Store {
    /// What is in force in a workspace.
    pub async fn in_force(&self, workspace: &str) -> Result<Arc<InForce>, Error> {
        let mut connection = self.pool.acquire().await.map_err(Error::database("be reached"))?;
        let now = revision(&mut connection, workspace).await?;
        self.in_force_at(&mut connection, workspace, now).await
    }

    /// What is in force at a revision that was just read, or at a newer one.
    async fn in_force_at(
        &self,
        connection: &mut SqliteConnection,
        workspace: &str,
        revision: i64,
    ) -> Result<Arc<InForce>, Error> {
        if let Some(in_force) = self.cache.get(workspace, revision) {
            return Ok(in_force);
        }
        let in_force = Arc::new(read(connection, workspace).await?);
        self.cache.set(workspace, &in_force);
        Ok(in_force)
    }

    /// How one target stands, in whatever workspace; `None`: there is none.
    pub async fn standing(&self, device: &DeviceId) -> Result<Option<Standing>, Error> {
        let mut connection = self.pool.acquire().await.map_err(Error::database("be reached"))?;
        let Some(row) = one(&mut connection, device).await? else {
            return Ok(None);
        };
        let in_force = self.in_force_at(&mut connection, &row.target.workspace, row.revision).await?;
        row.standing(in_force).map(Some)
    }

    /// How all targets of a workspace stand, by name.
    pub async fn standings(&self, workspace: &str) -> Result<Vec<Standing>, Error> {
        let mut connection = self.pool.acquire().await.map_err(Error::database("be reached"))?;
        let rows = all(&mut connection, workspace).await?;
        let Some(first) = rows.first() else {
            return Ok(Vec::new());
        };
        let in_force = self.in_force_at(&mut connection, workspace, first.revision).await?;
        drop(connection);
        rows.into_iter().map(|row| row.standing(Arc::clone(&in_force))).collect()
    }
}

impl Change {
    /// How one target stands, with what this change has done so far.
    pub async fn standing(&mut self, device: &DeviceId) -> Result<Option<Standing>, Error> {
        let Some(row) = one(&mut self.transaction, device).await? else {
            return Ok(None);
        };
        // What this change has written is kept for nobody else: it may come to nothing.
        let workspace = &row.target.workspace;
        let in_force = match self.cache.get(workspace, row.revision) {
            Some(in_force) => in_force,
            None => Arc::new(read(&mut self.transaction, workspace).await?),
        };
        row.standing(in_force).map(Some)
    }

    /// Let everybody read anew what is in force in a workspace.
    pub(super) async fn revise(&mut self, workspace: &str) -> Result<(), Error> {
        sqlx::query("UPDATE workspaces SET revision = revision + 1 WHERE name = $1")
            .bind(workspace)
            .execute(&mut *self.transaction)
            .await
            .map_err(Error::database("count a change"))?;
        Ok(())
    }
}
