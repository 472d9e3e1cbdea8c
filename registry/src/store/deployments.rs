//! Deployments: a release of a package assigned to a target, with settings.
//!
//! A new deployment of a package to a target replaces the one before it. Rows are never removed.

use std::collections::BTreeMap;

use selvedge_package::{DeviceId, Digest, PackageName};
use serde::{Deserialize, Serialize};
use sqlx::{Executor, Sqlite};

use super::{Change, Store, from_column, from_json, from_text, to_column, to_json};
use crate::error::Error;

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
    /// The target.
    pub target: DeviceId,
    /// Overridden settings.
    pub settings: BTreeMap<String, String>,
    /// Milliseconds since 1970.
    pub created_ms: i64,
    /// When it ended, and why: `replaced`, `removed` or `target-removed`.
    pub ended: Option<(i64, String)>,
}

/// What a device shall run, as far as its assignments go: one package of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assigned {
    /// The package.
    pub package: PackageName,
    /// Name of the signed target.
    pub target: String,
    /// Digest of the OCI manifest.
    pub digest: Digest,
    /// Its length in bytes.
    pub length: u64,
    /// Release counter.
    pub release: u64,
    /// Version for people.
    pub version: String,
    /// Settings: the overridden ones.
    pub settings: BTreeMap<String, String>,
}

#[derive(sqlx::FromRow)]
struct Row {
    id: String,
    package: String,
    release: i64,
    version: String,
    digest: String,
    target: String,
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
            target: from_text("target name", &self.target)?,
            settings: from_json("setting set", &self.settings)?,
            created_ms: self.created_ms,
            ended: self.ended_ms.zip(self.ended),
        })
    }
}

#[derive(sqlx::FromRow)]
struct AssignedRow {
    package: String,
    release: i64,
    version: String,
    digest: String,
    length: i64,
    signed: String,
    settings: String,
}

/// What `device` shall run, by package name.
async fn assigned<'e>(
    executor: impl Executor<'e, Database = Sqlite>,
    device: &DeviceId,
) -> Result<Vec<Assigned>, Error> {
    let rows: Vec<AssignedRow> = sqlx::query_as(
        "SELECT d.package, d.release, p.version, p.digest, p.length, p.target AS signed, d.settings \
         FROM deployments d JOIN packages p ON p.workspace = d.workspace AND p.name = d.package \
              AND p.release = d.release \
         JOIN targets t ON t.name = d.target AND t.workspace = d.workspace \
         WHERE d.target = $1 AND d.ended_ms IS NULL ORDER BY d.package",
    )
    .bind(device.as_str())
    .fetch_all(executor)
    .await
    .map_err(Error::database("read assignments"))?;
    rows.into_iter()
        .map(|row| {
            Ok(Assigned {
                package: from_text("package name", &row.package)?,
                target: row.signed,
                digest: from_text("digest", &row.digest)?,
                length: from_column(row.length)?,
                release: from_column(row.release)?,
                version: row.version,
                settings: from_json("setting set", &row.settings)?,
            })
        })
        .collect()
}

impl Store {
    /// Deployments of a workspace, newest first; those that ended only on request.
    pub async fn deployments(&self, workspace: &str, ended_too: bool) -> Result<Vec<Deployment>, Error> {
        let rows: Vec<Row> = sqlx::query_as(
            "SELECT d.id, d.package, d.release, p.version, p.digest, d.target, d.settings, d.created_ms, \
             d.ended_ms, d.ended FROM deployments d JOIN packages p ON p.workspace = d.workspace \
                  AND p.name = d.package AND p.release = d.release \
             WHERE d.workspace = $1 AND (d.ended_ms IS NULL OR $2 = 1) ORDER BY d.number DESC LIMIT 10000",
        )
        .bind(workspace)
        .bind(i64::from(ended_too))
        .fetch_all(&self.pool)
        .await
        .map_err(Error::database("list deployments"))?;
        rows.into_iter().map(Row::deployment).collect()
    }

    /// What `device` shall run, by package name.
    pub async fn assigned(&self, device: &DeviceId) -> Result<Vec<Assigned>, Error> {
        assigned(&self.pool, device).await
    }
}

impl Change {
    /// What `device` shall run, by package name.
    pub async fn assigned(&mut self, device: &DeviceId) -> Result<Vec<Assigned>, Error> {
        assigned(&mut *self.transaction, device).await
    }

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

    /// Add a deployment; the one of the same package to the same target ends as `replaced`.
    pub async fn add_deployment(&mut self, workspace: &str, deployment: &Deployment) -> Result<(), Error> {
        sqlx::query(
            "UPDATE deployments SET ended_ms = $4, ended = 'replaced' \
             WHERE workspace = $1 AND target = $2 AND package = $3 AND ended_ms IS NULL",
        )
        .bind(workspace)
        .bind(deployment.target.as_str())
        .bind(deployment.package.as_str())
        .bind(deployment.created_ms)
        .execute(&mut *self.transaction)
        .await
        .map_err(Error::database("replace a deployment"))?;
        sqlx::query(
            "INSERT INTO deployments (id, number, workspace, target, package, release, settings, created_ms) \
             SELECT $1, COALESCE(MAX(number), 0) + 1, $2, $3, $4, $5, $6, $7 FROM deployments",
        )
        .bind(&deployment.id)
        .bind(workspace)
        .bind(deployment.target.as_str())
        .bind(deployment.package.as_str())
        .bind(to_column(deployment.release)?)
        .bind(to_json("setting set", &deployment.settings)?)
        .bind(deployment.created_ms)
        .execute(&mut *self.transaction)
        .await
        .map_err(Error::database("add a deployment"))?;
        Ok(())
    }

    /// End a deployment. Gives its target; `None` if none of that id is in force.
    pub async fn end_deployment(
        &mut self,
        workspace: &str,
        id: &str,
        now_ms: i64,
    ) -> Result<Option<DeviceId>, Error> {
        let target: Option<(String,)> = sqlx::query_as(
            "SELECT target FROM deployments WHERE id = $1 AND workspace = $2 AND ended_ms IS NULL",
        )
        .bind(id)
        .bind(workspace)
        .fetch_optional(&mut *self.transaction)
        .await
        .map_err(Error::database("read a deployment"))?;
        let Some((target,)) = target else {
            return Ok(None);
        };
        sqlx::query("UPDATE deployments SET ended_ms = $2, ended = 'removed' WHERE id = $1")
            .bind(id)
            .bind(now_ms)
            .execute(&mut *self.transaction)
            .await
            .map_err(Error::database("end a deployment"))?;
        Ok(Some(from_text("target name", &target)?))
    }
}
