//! Signed metadata, as it was signed. The files under `tuf/` are copies of these rows.

use std::collections::BTreeMap;

use selvedge_package::trust::bins;
use selvedge_package::{DeviceId, PackageName};

use super::{Change, Store, from_column, from_json, to_column, to_json};
use crate::error::Error;

/// Which repository a piece of metadata belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Repository {
    /// What exists.
    Image,
    /// The Director's root, shared by all devices.
    DirectorRoot,
    /// What one device shall run.
    Director(DeviceId),
}

impl Repository {
    /// The two columns that tell repositories apart.
    fn columns(&self) -> (&'static str, &str) {
        match self {
            Self::Image => ("image", ""),
            Self::DirectorRoot => ("director", ""),
            Self::Director(device) => ("director", device.as_str()),
        }
    }
}

/// A TUF role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// Names the keys of all.
    Root,
    /// Names what exists.
    Targets,
    /// A part of it, in the Image repository: `bin-3`.
    Bin(String),
    /// Names the version of targets.
    Snapshot,
    /// Names the version of snapshot.
    Timestamp,
}

impl Role {
    /// As file names write it.
    pub fn name(&self) -> &str {
        match self {
            Self::Root => "root",
            Self::Targets => "targets",
            Self::Bin(name) => name,
            Self::Snapshot => "snapshot",
            Self::Timestamp => "timestamp",
        }
    }

    /// A role of the Image repository that lists releases.
    pub fn of_image(name: &str) -> Option<Self> {
        match name {
            "targets" => Some(Self::Targets),
            _ => bins::prefix(name).map(|_| Self::Bin(name.to_owned())),
        }
    }
}

/// The newest file of every role of the Image repository that lists releases; none before the first.
pub type ImageRoles = BTreeMap<String, Signed>;

/// One signed file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signed {
    /// What it is.
    pub role: Role,
    /// Its version.
    pub version: u64,
    /// When it was signed, in milliseconds since 1970.
    pub signed_ms: i64,
    /// When it expires, in milliseconds since 1970.
    pub expires_ms: i64,
    /// Its exact text.
    pub body: String,
}

impl Signed {
    /// Whether more than half of its life is over.
    pub fn past_half(&self, now_ms: i64) -> bool {
        now_ms > self.signed_ms / 2 + self.expires_ms / 2
    }
}

/// What was last signed for a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directed {
    /// Grows with every change of what the device shall run.
    pub sequence: u64,
    /// JSON of the assignments.
    pub assignments: String,
    /// For each package the sequence since which its assignment is the same.
    pub since: BTreeMap<PackageName, u64>,
    /// The device's nonce that was echoed.
    pub nonce: Vec<u8>,
    /// The exact bytes of `<device>.json`.
    pub body: String,
    /// Milliseconds since 1970.
    pub signed_ms: i64,
    /// Milliseconds since 1970.
    pub expires_ms: i64,
}

impl Directed {
    /// Whether more than half of its life is over.
    pub fn past_half(&self, now_ms: i64) -> bool {
        now_ms > self.signed_ms / 2 + self.expires_ms / 2
    }
}

#[derive(sqlx::FromRow)]
struct Row {
    version: i64,
    signed_ms: i64,
    expires_ms: i64,
    body: String,
}

impl Row {
    fn signed(self, role: Role) -> Result<Signed, Error> {
        Ok(Signed {
            role,
            version: from_column(self.version)?,
            signed_ms: self.signed_ms,
            expires_ms: self.expires_ms,
            body: self.body,
        })
    }
}

#[derive(sqlx::FromRow)]
struct BinRow {
    role: String,
    version: i64,
    signed_ms: i64,
    expires_ms: i64,
    body: String,
}

#[derive(sqlx::FromRow)]
struct DirectedRow {
    sequence: i64,
    assignments: String,
    since: String,
    nonce: String,
    body: String,
    signed_ms: i64,
    expires_ms: i64,
}

impl Store {
    /// The newest file of every role of the Image repository that lists releases.
    pub async fn image_roles(&self) -> Result<ImageRoles, Error> {
        let rows: Vec<BinRow> = sqlx::query_as(
            "SELECT role, version, signed_ms, expires_ms, body FROM metadata \
             WHERE repository = 'image' AND device = '' AND role LIKE 'bin-%' ORDER BY role, version",
        )
        .fetch_all(&self.pool)
        .await
        .map_err(Error::database("read metadata"))?;
        let mut roles = ImageRoles::new();
        for BinRow { role, version, signed_ms, expires_ms, body } in rows {
            let signed = Row { version, signed_ms, expires_ms, body }.signed(Role::Bin(role.clone()))?;
            roles.insert(role, signed);
        }
        if let Some(targets) = self.newest(&Repository::Image, Role::Targets).await? {
            roles.insert("targets".to_owned(), targets);
        }
        Ok(roles)
    }

    /// The newest file of a role.
    pub async fn newest(&self, repository: &Repository, role: Role) -> Result<Option<Signed>, Error> {
        Ok(self.newest_few(repository, role, 1).await?.pop())
    }

    /// One version of a role.
    pub async fn version(
        &self,
        repository: &Repository,
        role: Role,
        version: u64,
    ) -> Result<Option<Signed>, Error> {
        let Ok(version) = i64::try_from(version) else {
            return Ok(None);
        };
        let (name, device) = repository.columns();
        let row: Option<Row> = sqlx::query_as(
            "SELECT version, signed_ms, expires_ms, body FROM metadata \
             WHERE repository = $1 AND device = $2 AND role = $3 AND version = $4",
        )
        .bind(name)
        .bind(device)
        .bind(role.name())
        .bind(version)
        .fetch_optional(&self.pool)
        .await
        .map_err(Error::database("read metadata"))?;
        row.map(|row| row.signed(role)).transpose()
    }

    /// Every stored version of a role, newest first.
    pub async fn versions(&self, repository: &Repository, role: Role) -> Result<Vec<Signed>, Error> {
        self.newest_few(repository, role, i64::MAX).await
    }

    /// The next roots after `version`, oldest first.
    pub async fn roots_after(
        &self,
        repository: &Repository,
        version: u64,
        most: usize,
    ) -> Result<Vec<Signed>, Error> {
        let mut roots = self.versions(repository, Role::Root).await?;
        roots.reverse();
        Ok(roots.into_iter().filter(|root| root.version > version).take(most).collect())
    }

    async fn newest_few(
        &self,
        repository: &Repository,
        role: Role,
        limit: i64,
    ) -> Result<Vec<Signed>, Error> {
        let (name, device) = repository.columns();
        let rows: Vec<Row> = sqlx::query_as(
            "SELECT version, signed_ms, expires_ms, body FROM metadata \
             WHERE repository = $1 AND device = $2 AND role = $3 ORDER BY version DESC LIMIT $4",
        )
        .bind(name)
        .bind(device)
        .bind(role.name())
        .bind(limit)
        .fetch_all(&self.pool)
        .await
        .map_err(Error::database("read metadata"))?;
        rows.into_iter().map(|row| row.signed(role.clone())).collect()
    }

    /// What was last signed for `device`.
    pub async fn directed(&self, device: &DeviceId) -> Result<Option<Directed>, Error> {
        let row: Option<DirectedRow> = sqlx::query_as(
            "SELECT sequence, assignments, since, nonce, body, signed_ms, expires_ms FROM directed WHERE device = $1",
        )
        .bind(device.as_str())
        .fetch_optional(&self.pool)
        .await
        .map_err(Error::database("read what was signed for a device"))?;
        row.map(|row| {
            Ok(Directed {
                sequence: from_column(row.sequence)?,
                assignments: row.assignments,
                since: from_json("sequence set", &row.since)?,
                nonce: hex::decode(&row.nonce)
                    .map_err(|error| Error::Corrupt { what: "nonce", why: error.to_string() })?,
                body: row.body,
                signed_ms: row.signed_ms,
                expires_ms: row.expires_ms,
            })
        })
        .transpose()
    }
}

impl Change {
    /// Keep a signed file.
    pub async fn keep_metadata(&mut self, repository: &Repository, signed: &Signed) -> Result<(), Error> {
        let (name, device) = repository.columns();
        sqlx::query(
            "INSERT INTO metadata (repository, device, role, version, expires_ms, signed_ms, body) \
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(name)
        .bind(device)
        .bind(signed.role.name())
        .bind(to_column(signed.version)?)
        .bind(signed.expires_ms)
        .bind(signed.signed_ms)
        .bind(&signed.body)
        .execute(&mut *self.transaction)
        .await
        .map_err(Error::database("keep metadata"))?;
        Ok(())
    }

    /// Forget versions of a role below `version`.
    pub async fn forget_metadata_below(
        &mut self,
        repository: &Repository,
        role: Role,
        version: u64,
    ) -> Result<(), Error> {
        let (name, device) = repository.columns();
        sqlx::query(
            "DELETE FROM metadata WHERE repository = $1 AND device = $2 AND role = $3 AND version < $4",
        )
        .bind(name)
        .bind(device)
        .bind(role.name())
        .bind(to_column(version)?)
        .execute(&mut *self.transaction)
        .await
        .map_err(Error::database("forget old metadata"))?;
        Ok(())
    }

    /// Let everything that was signed for devices count as due, so that it is signed again.
    pub async fn expire_directed(&mut self) -> Result<(), Error> {
        sqlx::query("UPDATE directed SET signed_ms = 0, expires_ms = 0")
            .execute(&mut *self.transaction)
            .await
            .map_err(Error::database("let signatures expire"))?;
        Ok(())
    }

    /// Keep what was signed for a device.
    pub async fn keep_directed(&mut self, device: &DeviceId, directed: &Directed) -> Result<(), Error> {
        sqlx::query(
            "INSERT INTO directed (device, sequence, assignments, nonce, body, signed_ms, expires_ms, since) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (device) DO UPDATE SET \
             sequence = excluded.sequence, assignments = excluded.assignments, nonce = excluded.nonce, \
             since = excluded.since, body = excluded.body, signed_ms = excluded.signed_ms, expires_ms = excluded.expires_ms",
        )
        .bind(device.as_str())
        .bind(to_column(directed.sequence)?)
        .bind(&directed.assignments)
        .bind(hex::encode(&directed.nonce))
        .bind(&directed.body)
        .bind(directed.signed_ms)
        .bind(directed.expires_ms)
        .bind(to_json("sequence set", &directed.since)?)
        .execute(&mut *self.transaction)
        .await
        .map_err(Error::database("keep what was signed for a device"))?;
        Ok(())
    }
}
