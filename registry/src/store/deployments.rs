//! Deployments: a release of a package for a target by name or for those that a selector matches.
//!
//! A new deployment replaces the one of the same package, scope and priority; others compete, which
//! [`crate::resolve`] decides. Rows are never removed.

use std::collections::BTreeMap;

use selvedge_package::{DeviceId, Digest, PackageName};

use super::{Change, Store, from_column, from_json, from_text, to_column, to_json};
use crate::error::Error;
use crate::refusal::Refusal;
use crate::resolve::Scope;

/// Rows of a list.
const LISTED: i64 = 10_000;
/// Deployments in force in one workspace: what every decision about any target looks through.
pub const IN_FORCE: i64 = LISTED;
/// Those by selector among them, which every target is matched with.
pub const SELECTORS: i64 = 1_000;

/// A deployment in force, or one that ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Deployment {
    /// Sixteen hexadecimal digits.
    pub id: String,
    /// The package.
    pub package: PackageName,
    /// Its release.
    pub release: u64,
    /// Its version.
    pub version: String,
    /// Digest of its OCI manifest.
    pub digest: Digest,
    /// For whom.
    pub scope: Scope,
    /// The larger one wins.
    pub priority: i32,
    /// Overridden settings.
    pub settings: BTreeMap<String, String>,
    /// Milliseconds since 1970.
    pub created_ms: i64,
    /// When it ended, and why: `replaced`, `removed` or `target-removed`.
    pub ended: Option<(i64, String)>,
}

#[derive(sqlx::FromRow)]
struct Row {
    id: String,
    package: String,
    release: i64,
    version: String,
    digest: String,
    target: Option<String>,
    selector: Option<String>,
    priority: i64,
    settings: String,
    created_ms: i64,
    ended_ms: Option<i64>,
    ended: Option<String>,
}

impl Row {
    fn deployment(self) -> Result<Deployment, Error> {
        Ok(Deployment {
            id: self.id,
            package: from_text("package name", &self.package)?,
            release: from_column(self.release)?,
            version: self.version,
            digest: from_text("digest", &self.digest)?,
            scope: scope(self.target.as_deref(), self.selector.as_deref())?,
            priority: i32::try_from(self.priority).unwrap_or(0),
            settings: from_json("setting set", &self.settings)?,
            created_ms: self.created_ms,
            ended: self.ended_ms.zip(self.ended),
        })
    }
}

/// The scope from its two columns.
pub(super) fn scope(target: Option<&str>, selector: Option<&str>) -> Result<Scope, Error> {
    match (target, selector) {
        (Some(name), _) => Ok(Scope::Target(from_text("target name", name)?)),
        (None, Some(text)) => Ok(Scope::Selector(from_text("selector", text)?)),
        (None, None) => Err(Error::Corrupt { what: "deployment", why: "it is for nobody".to_owned() }),
    }
}

/// The two columns of a scope: at most one holds something.
fn columns(scope: &Scope) -> (Option<String>, Option<String>) {
    match scope {
        Scope::Target(name) => (Some(name.to_string()), None),
        Scope::Selector(selector) => (None, Some(selector.to_string())),
    }
}

impl Store {
    /// Deployments of a workspace, newest first; those that ended only on request.
    pub async fn deployments(&self, workspace: &str, ended_too: bool) -> Result<Vec<Deployment>, Error> {
        let rows: Vec<Row> = sqlx::query_as(
            "SELECT d.id, d.package, d.release, p.version, p.digest, d.target, d.selector, d.priority, \
             d.settings, d.created_ms, d.ended_ms, d.ended FROM deployments d \
             JOIN packages p ON p.workspace = d.workspace AND p.name = d.package AND p.release = d.release \
             WHERE d.workspace = $1 AND (d.ended_ms IS NULL OR $2 = 1) ORDER BY d.number DESC LIMIT $3",
        )
        .bind(workspace)
        .bind(i64::from(ended_too))
        .bind(LISTED)
        .fetch_all(&self.pool)
        .await
        .map_err(Error::database("list deployments"))?;
        rows.into_iter().map(Row::deployment).collect()
    }

    /// One deployment, in force or ended.
    pub async fn deployment(&self, workspace: &str, id: &str) -> Result<Option<Deployment>, Error> {
        let row: Option<Row> = sqlx::query_as(
            "SELECT d.id, d.package, d.release, p.version, p.digest, d.target, d.selector, d.priority, \
             d.settings, d.created_ms, d.ended_ms, d.ended FROM deployments d \
             JOIN packages p ON p.workspace = d.workspace AND p.name = d.package AND p.release = d.release \
             WHERE d.workspace = $1 AND d.id = $2",
        )
        .bind(workspace)
        .bind(id)
        .fetch_optional(&self.pool)
        .await
        .map_err(Error::database("read a deployment"))?;
        row.map(Row::deployment).transpose()
    }
}

impl Change {
    /// Whether the target is still there, in that workspace.
    pub async fn has_target(&mut self, workspace: &str, name: &DeviceId) -> Result<bool, Error> {
        let found: Option<(String,)> =
            sqlx::query_as("SELECT name FROM targets WHERE name = $1 AND workspace = $2")
                .bind(name.as_str())
                .bind(workspace)
                .fetch_optional(&mut *self.transaction)
                .await
                .map_err(Error::database("read a target"))?;
        Ok(found.is_some())
    }

    /// Add a deployment; that of the same package, scope and priority ends as `replaced`, and its id
    /// is given.
    pub async fn add_deployment(
        &mut self,
        workspace: &str,
        deployment: &Deployment,
    ) -> Result<Option<String>, Refusal> {
        let (target, selector) = columns(&deployment.scope);
        let replaced: Option<(String,)> = sqlx::query_as(
            "SELECT id FROM deployments WHERE workspace = $1 AND package = $2 AND priority = $3 \
             AND COALESCE(target, '') = $4 AND COALESCE(selector, '') = $5 AND ended_ms IS NULL",
        )
        .bind(workspace)
        .bind(deployment.package.as_str())
        .bind(i64::from(deployment.priority))
        .bind(target.as_deref().unwrap_or(""))
        .bind(selector.as_deref().unwrap_or(""))
        .fetch_optional(&mut *self.transaction)
        .await
        .map_err(Error::database("look for a deployment to replace"))?;
        let replaced = replaced.map(|(id,)| id);
        if let Some(id) = &replaced {
            self.end(id, deployment.created_ms, "replaced").await?;
        }
        sqlx::query(
            "INSERT INTO deployments (id, number, workspace, target, selector, priority, package, release, \
             settings, created_ms) \
             SELECT $1, COALESCE(MAX(number), 0) + 1, $2, $3, $4, $5, $6, $7, $8, $9 FROM deployments",
        )
        .bind(&deployment.id)
        .bind(workspace)
        .bind(target)
        .bind(selector)
        .bind(i64::from(deployment.priority))
        .bind(deployment.package.as_str())
        .bind(to_column(deployment.release)?)
        .bind(to_json("setting set", &deployment.settings)?)
        .bind(deployment.created_ms)
        .execute(&mut *self.transaction)
        .await
        .map_err(Error::database("add a deployment"))?;
        self.revise(workspace).await?;
        let (all, selectors): (i64, i64) = sqlx::query_as(
            "SELECT COUNT(*), COUNT(selector) FROM deployments WHERE workspace = $1 AND ended_ms IS NULL",
        )
        .bind(workspace)
        .fetch_one(&mut *self.transaction)
        .await
        .map_err(Error::database("count deployments"))?;
        if all > IN_FORCE || selectors > SELECTORS {
            return Err(Refusal::TooManyDeployments);
        }
        Ok(replaced)
    }

    /// End a deployment. Gives its scope; `None` if none of that id is in force.
    pub async fn end_deployment(
        &mut self,
        workspace: &str,
        id: &str,
        now_ms: i64,
    ) -> Result<Option<Scope>, Error> {
        let found: Option<(Option<String>, Option<String>)> = sqlx::query_as(
            "SELECT target, selector FROM deployments WHERE id = $1 AND workspace = $2 AND ended_ms IS NULL",
        )
        .bind(id)
        .bind(workspace)
        .fetch_optional(&mut *self.transaction)
        .await
        .map_err(Error::database("read a deployment"))?;
        let Some((target, selector)) = found else {
            return Ok(None);
        };
        self.end(id, now_ms, "removed").await?;
        self.revise(workspace).await?;
        scope(target.as_deref(), selector.as_deref()).map(Some)
    }

    async fn end(&mut self, id: &str, now_ms: i64, why: &str) -> Result<(), Error> {
        sqlx::query("UPDATE deployments SET ended_ms = $2, ended = $3 WHERE id = $1")
            .bind(id)
            .bind(now_ms)
            .bind(why)
            .execute(&mut *self.transaction)
            .await
            .map_err(Error::database("end a deployment"))?;
        Ok(())
    }
}
