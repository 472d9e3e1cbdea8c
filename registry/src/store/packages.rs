//! Releases of packages, and the blobs that belong to each.

use std::collections::BTreeMap;

use selvedge_package::trust::{ImageCustom, ReleasedTarget};
use selvedge_package::{DeviceId, Digest, Manifest, PackageName};

use super::{Change, Store, from_column, from_json, from_text, to_column, to_json};
use crate::error::Error;
use crate::refusal::Refusal;
use crate::resolve::Decision;

/// A released package.
#[derive(Debug, Clone, PartialEq)]
pub struct Package {
    /// Where it belongs.
    pub workspace: String,
    /// Its manifest.
    pub manifest: Manifest,
    /// Digest of the OCI manifest.
    pub digest: Digest,
    /// Length of the OCI manifest in bytes, as signed.
    pub length: u64,
    /// All blobs together, in bytes.
    pub size: u64,
    /// Name of the signed target.
    pub target: String,
    /// Milliseconds since 1970.
    pub released_ms: i64,
}

#[derive(sqlx::FromRow)]
struct Row {
    workspace: String,
    digest: String,
    length: i64,
    size: i64,
    target: String,
    manifest: String,
    released_ms: i64,
}

impl Row {
    fn package(self) -> Result<Package, Error> {
        Ok(Package {
            workspace: self.workspace,
            manifest: from_json("package manifest", &self.manifest)?,
            digest: from_text("digest", &self.digest)?,
            length: from_column(self.length)?,
            size: from_column(self.size)?,
            target: self.target,
            released_ms: self.released_ms,
        })
    }
}

impl Store {
    /// All releases of a workspace, by name, newest first.
    pub async fn packages(&self, workspace: &str) -> Result<Vec<Package>, Error> {
        let rows: Vec<Row> = sqlx::query_as(
            "SELECT workspace, digest, length, size, target, manifest, released_ms FROM packages \
             WHERE workspace = $1 ORDER BY name, release DESC",
        )
        .bind(workspace)
        .fetch_all(&self.pool)
        .await
        .map_err(Error::database("list packages"))?;
        rows.into_iter().map(Row::package).collect()
    }

    /// Every release of every workspace as the Image repository lists it, by target name.
    pub async fn released(&self) -> Result<BTreeMap<String, ReleasedTarget>, Error> {
        let rows: Vec<Row> = sqlx::query_as(
            "SELECT workspace, digest, length, size, target, manifest, released_ms FROM packages",
        )
        .fetch_all(&self.pool)
        .await
        .map_err(Error::database("list releases"))?;
        let listed = rows.into_iter().map(|row| {
            let Package { manifest, digest, length, target, .. } = row.package()?;
            let custom = ImageCustom {
                package: manifest.name,
                version: manifest.version,
                release: manifest.release,
                min_release: manifest.min_release,
                architectures: manifest.requires.architectures,
            };
            Ok((target.clone(), ReleasedTarget { target, digest, length, custom }))
        });
        listed.collect()
    }

    /// One release, or the newest.
    pub async fn expect_package(
        &self,
        workspace: &str,
        name: &PackageName,
        release: Option<u64>,
    ) -> Result<Package, Refusal> {
        // No counter reaches the column's end, so "at most this, the newest" serves both.
        let (at_least, at_most) = match release {
            Some(release) => match i64::try_from(release) {
                Ok(release) => (release, release),
                Err(_) => (i64::MAX, i64::MIN),
            },
            None => (i64::MIN, i64::MAX),
        };
        let row: Option<Row> = sqlx::query_as(
            "SELECT workspace, digest, length, size, target, manifest, released_ms FROM packages \
             WHERE workspace = $1 AND name = $2 AND release >= $3 AND release <= $4 \
             ORDER BY release DESC LIMIT 1",
        )
        .bind(workspace)
        .bind(name.as_str())
        .bind(at_least)
        .bind(at_most)
        .fetch_optional(&self.pool)
        .await
        .map_err(Error::database("read a package"))?;
        match row {
            Some(row) => Ok(row.package()?),
            None => Err(Refusal::NoPackage {
                what: match release {
                    Some(release) => format!("release {release} of the package `{name}`"),
                    None => format!("package `{name}`"),
                },
            }),
        }
    }

    /// The size of a blob of any release, as recorded when that was released.
    pub async fn blob_size(&self, digest: &Digest) -> Result<Option<u64>, Error> {
        let row: Option<(i64,)> = sqlx::query_as("SELECT size FROM package_blobs WHERE digest = $1 LIMIT 1")
            .bind(digest.to_string())
            .fetch_optional(&self.pool)
            .await
            .map_err(Error::database("look a blob's size up"))?;
        row.map(|(size,)| from_column(size)).transpose()
    }

    /// The size of a blob, if it belongs to a package that is assigned to this enrolled device.
    pub async fn blob_for(&self, device: &DeviceId, digest: &Digest) -> Result<Option<u64>, Error> {
        let Some(standing) = self.standing(device).await? else {
            return Ok(None);
        };
        if standing.target.public_key.is_none() {
            return Ok(None);
        }
        let rows: Vec<(String, i64, i64)> = sqlx::query_as(
            "SELECT name, release, size FROM package_blobs WHERE digest = $1 AND workspace = $2",
        )
        .bind(digest.to_string())
        .bind(&standing.target.workspace)
        .fetch_all(&self.pool)
        .await
        .map_err(Error::database("look a blob up"))?;
        if rows.is_empty() {
            return Ok(None);
        }
        let resolution = standing.resolve();
        let mut chosen = resolution.packages.values().filter_map(Decision::chosen);
        let size = chosen.find_map(|(package, _, release)| {
            let mine = |row: &&(String, i64, i64)| row.0 == package.as_str() && row.1 == release as i64;
            rows.iter().find(mine).map(|(_, _, size)| *size)
        });
        size.map(from_column).transpose()
    }
}

impl Change {
    /// The last release counter of a package; 0 if there is none.
    pub async fn last_release(&mut self, workspace: &str, name: &PackageName) -> Result<u64, Error> {
        let last: (Option<i64>,) =
            sqlx::query_as("SELECT MAX(release) FROM packages WHERE workspace = $1 AND name = $2")
                .bind(workspace)
                .bind(name.as_str())
                .fetch_one(&mut *self.transaction)
                .await
                .map_err(Error::database("read the last release"))?;
        from_column(last.0.unwrap_or(0))
    }

    /// Whether a signed target of that name was released before, in whatever workspace.
    pub async fn target_released(&mut self, target: &str) -> Result<bool, Error> {
        let found: Option<(String,)> = sqlx::query_as("SELECT target FROM packages WHERE target = $1")
            .bind(target)
            .fetch_optional(&mut *self.transaction)
            .await
            .map_err(Error::database("look a release up"))?;
        Ok(found.is_some())
    }

    /// Add a release with its blobs (digest and size; the OCI manifest among them).
    pub async fn add_package(&mut self, package: &Package, blobs: &[(Digest, u64)]) -> Result<(), Error> {
        let manifest = &package.manifest;
        let release = to_column(manifest.release)?;
        sqlx::query(
            "INSERT INTO packages (workspace, name, release, version, digest, length, size, min_release, \
             target, manifest, released_ms) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        )
        .bind(&package.workspace)
        .bind(manifest.name.as_str())
        .bind(release)
        .bind(manifest.version.to_string())
        .bind(package.digest.to_string())
        .bind(to_column(package.length)?)
        .bind(to_column(package.size)?)
        .bind(to_column(manifest.min_release)?)
        .bind(&package.target)
        .bind(to_json("package manifest", manifest)?)
        .bind(package.released_ms)
        .execute(&mut *self.transaction)
        .await
        .map_err(Error::database("add a release"))?;
        for (digest, size) in blobs {
            sqlx::query(
                "INSERT INTO package_blobs (workspace, name, release, digest, size) \
                 VALUES ($1, $2, $3, $4, $5) ON CONFLICT (workspace, name, release, digest) DO NOTHING",
            )
            .bind(&package.workspace)
            .bind(manifest.name.as_str())
            .bind(release)
            .bind(digest.to_string())
            .bind(to_column(*size)?)
            .execute(&mut *self.transaction)
            .await
            .map_err(Error::database("add the blobs of a release"))?;
        }
        self.revise(&package.workspace).await?;
        Ok(())
    }
}
