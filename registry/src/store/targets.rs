//! Compute targets: made by people, enrolled by devices.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use selvedge_package::{DeviceId, PackageName};
use selvedge_protocol::message::DeviceState;
use serde::{Deserialize, Serialize};

use super::{Change, Store, from_json, from_text, to_json};
use crate::error::Error;
use crate::refusal::Refusal;

/// What manages the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The machine that `selvedge up` runs on.
    Local,
    /// An enrolled edge box.
    Device,
}

impl Kind {
    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Device => "device",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for Kind {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        match text {
            "local" => Ok(Self::Local),
            "device" => Ok(Self::Device),
            other => Err(Refusal::Kind(other.chars().take(80).collect())),
        }
    }
}

/// A compute target.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    /// Its name, and the device's id.
    pub name: DeviceId,
    /// Where it belongs.
    pub workspace: String,
    /// What manages it.
    pub kind: Kind,
    /// Set by people.
    pub labels: BTreeMap<String, String>,
    /// Milliseconds since 1970.
    pub created_ms: i64,
    /// SHA-256 of the enrolment token, hexadecimal; empty once it is used up.
    pub token_hash: String,
    /// Whoever shows the token replaces the registered key.
    pub token_replaces: bool,
    /// When it was revoked; until it is enrolled again.
    pub revoked_ms: Option<i64>,
    /// Ed25519, once enrolled.
    pub public_key: Option<[u8; 32]>,
    /// When it was enrolled.
    pub enrolled_ms: Option<i64>,
    /// As the device reported them.
    pub facts: BTreeMap<String, String>,
    /// The newest state that it reported.
    pub reported: Option<DeviceState>,
    /// When that arrived.
    pub reported_ms: Option<i64>,
    /// For each package the release below which it never goes again, as its reports show.
    pub floors: BTreeMap<PackageName, u64>,
    /// The newest epoch that a signed report of facts or state carried; 0: none yet.
    pub proven_epoch: u64,
}

/// A row of the table.
#[derive(sqlx::FromRow)]
pub(super) struct Row {
    name: String,
    pub(super) workspace: String,
    kind: String,
    labels: String,
    created_ms: i64,
    token_hash: String,
    token_replaces: i64,
    revoked_ms: Option<i64>,
    public_key: Option<String>,
    enrolled_ms: Option<i64>,
    facts: String,
    reported: Option<String>,
    reported_ms: Option<i64>,
    facts_epoch: i64,
    reported_epoch: i64,
    floors: String,
}

const COLUMNS_OF_ONE: &str = "SELECT name, workspace, kind, labels, created_ms, token_hash, token_replaces, \
     revoked_ms, public_key, enrolled_ms, facts, reported, reported_ms, facts_epoch, reported_epoch, floors FROM targets \
     WHERE name = $1";

impl Row {
    pub(super) fn target(self) -> Result<Target, Error> {
        let public_key = match self.public_key {
            None => None,
            Some(text) => {
                let mut key = [0; 32];
                hex::decode_to_slice(&text, &mut key)
                    .map_err(|error| Error::Corrupt { what: "device key", why: error.to_string() })?;
                Some(key)
            }
        };
        Ok(Target {
            name: from_text("target name", &self.name)?,
            workspace: self.workspace,
            kind: from_text("target kind", &self.kind)?,
            labels: from_json("label set", &self.labels)?,
            created_ms: self.created_ms,
            token_hash: self.token_hash,
            token_replaces: self.token_replaces != 0,
            revoked_ms: self.revoked_ms,
            public_key,
            enrolled_ms: self.enrolled_ms,
            facts: from_json("fact set", &self.facts)?,
            reported: match &self.reported {
                None => None,
                Some(text) => Some(from_json("reported state", text)?),
            },
            reported_ms: self.reported_ms,
            floors: from_json("floor set", &self.floors)?,
            proven_epoch: u64::try_from(self.facts_epoch.max(self.reported_epoch)).unwrap_or(0),
        })
    }
}

impl Store {
    /// The target of that name, in whatever workspace.
    pub async fn target(&self, name: &DeviceId) -> Result<Option<Target>, Error> {
        let row: Option<Row> = sqlx::query_as(COLUMNS_OF_ONE)
            .bind(name.as_str())
            .fetch_optional(&self.pool)
            .await
            .map_err(Error::database("read a target"))?;
        row.map(Row::target).transpose()
    }

    /// The target of that name in that workspace.
    pub async fn expect_target(&self, workspace: &str, name: &DeviceId) -> Result<Target, Refusal> {
        match self.target(name).await? {
            Some(target) if target.workspace == workspace => Ok(target),
            _ => Err(Refusal::NoTarget(name.to_string())),
        }
    }

    /// The names of all enrolled targets, of every workspace.
    pub async fn enrolled(&self) -> Result<Vec<DeviceId>, Error> {
        let rows: Vec<(String,)> =
            sqlx::query_as("SELECT name FROM targets WHERE public_key IS NOT NULL ORDER BY name")
                .fetch_all(&self.pool)
                .await
                .map_err(Error::database("list enrolled targets"))?;
        rows.into_iter().map(|(name,)| from_text("target name", &name)).collect()
    }
}

impl Change {
    /// Add a target.
    pub async fn add_target(
        &mut self,
        workspace: &str,
        name: &DeviceId,
        kind: Kind,
        labels: &BTreeMap<String, String>,
        token_hash: &str,
        now_ms: i64,
    ) -> Result<(), Refusal> {
        let added = sqlx::query(
            "INSERT INTO targets (name, workspace, kind, labels, created_ms, token_hash, facts, \
             facts_epoch, facts_sequence, reported_epoch, reported_sequence) \
             VALUES ($1, $2, $3, $4, $5, $6, '{}', -1, -1, -1, -1) ON CONFLICT (name) DO NOTHING",
        )
        .bind(name.as_str())
        .bind(workspace)
        .bind(kind.to_string())
        .bind(to_json("label set", labels)?)
        .bind(now_ms)
        .bind(token_hash)
        .execute(&mut *self.transaction)
        .await
        .map_err(Error::database("add a target"))?;
        if added.rows_affected() == 0 {
            return Err(Refusal::TargetExists(name.clone()));
        }
        // What an earlier target of this name was told is nothing to this one; the sequence goes on.
        sqlx::query("UPDATE directed SET assignments = '', signed_ms = 0, expires_ms = 0 WHERE device = $1")
            .bind(name.as_str())
            .execute(&mut *self.transaction)
            .await
            .map_err(Error::database("forget what was signed for an earlier target"))?;
        Ok(())
    }

    /// Replace a target's floors.
    pub async fn set_floors(
        &mut self,
        name: &DeviceId,
        floors: &BTreeMap<PackageName, u64>,
    ) -> Result<(), Error> {
        sqlx::query("UPDATE targets SET floors = $2 WHERE name = $1")
            .bind(name.as_str())
            .bind(to_json("floor set", floors)?)
            .execute(&mut *self.transaction)
            .await
            .map_err(Error::database("change floors"))?;
        Ok(())
    }

    /// Replace a target's labels.
    pub async fn set_labels(
        &mut self,
        name: &DeviceId,
        labels: &BTreeMap<String, String>,
    ) -> Result<(), Error> {
        sqlx::query("UPDATE targets SET labels = $2 WHERE name = $1")
            .bind(name.as_str())
            .bind(to_json("label set", labels)?)
            .execute(&mut *self.transaction)
            .await
            .map_err(Error::database("change labels"))?;
        Ok(())
    }

    /// Remove a target with its reports and presence. Its deployments end; their history stays.
    pub async fn remove_target(
        &mut self,
        workspace: &str,
        name: &DeviceId,
        now_ms: i64,
    ) -> Result<(), Error> {
        self.revise(workspace).await?;
        self.revoke_certificates(name, None, now_ms).await?;
        self.revoke_key(name, now_ms).await?;
        sqlx::query(
            "UPDATE deployments SET ended_ms = $2, ended = 'target-removed' \
             WHERE target = $1 AND ended_ms IS NULL",
        )
        .bind(name.as_str())
        .bind(now_ms)
        .execute(&mut *self.transaction)
        .await
        .map_err(Error::database("end deployments"))?;
        sqlx::query("DELETE FROM targets WHERE name = $1")
            .bind(name.as_str())
            .execute(&mut *self.transaction)
            .await
            .map_err(Error::database("remove a target"))?;
        Ok(())
    }

    /// Register a device's key on a target that has none: it is no longer revoked, and its token replaces
    /// nothing from then on. The numbers of its reports begin anew. Says whether there was none, and the token
    /// still is the one that was proved: it may have been replaced, or the target revoked, in between.
    pub async fn register_key(
        &mut self,
        name: &DeviceId,
        key: &[u8; 32],
        token_hash: &str,
        now_ms: i64,
    ) -> Result<bool, Error> {
        let done = sqlx::query(
            "UPDATE targets SET public_key = $2, enrolled_ms = $3, revoked_ms = NULL, token_replaces = 0, \
             life = life + 1, facts_epoch = -1, facts_sequence = -1, reported_epoch = -1, \
             reported_sequence = -1 WHERE name = $1 AND public_key IS NULL AND token_hash = $4",
        )
        .bind(name.as_str())
        .bind(hex::encode(key))
        .bind(now_ms)
        .bind(token_hash)
        .execute(&mut *self.transaction)
        .await
        .map_err(Error::database("register a device key"))?;
        Ok(done.rows_affected() == 1)
    }

    /// Whether this is the registered key of a target.
    pub async fn has_key(&mut self, name: &DeviceId, key: &[u8; 32]) -> Result<bool, Error> {
        let found: Option<(String,)> =
            sqlx::query_as("SELECT name FROM targets WHERE name = $1 AND public_key = $2")
                .bind(name.as_str())
                .bind(hex::encode(key))
                .fetch_optional(&mut *self.transaction)
                .await
                .map_err(Error::database("read a device key"))?;
        Ok(found.is_some())
    }

    /// Give a target another enrolment token, which replaces its key if it has one.
    pub async fn set_token(&mut self, name: &DeviceId, token_hash: &str) -> Result<(), Error> {
        sqlx::query(
            "UPDATE targets SET token_hash = $2, \
             token_replaces = CASE WHEN public_key IS NULL THEN 0 ELSE 1 END WHERE name = $1",
        )
        .bind(name.as_str())
        .bind(token_hash)
        .execute(&mut *self.transaction)
        .await
        .map_err(Error::database("change an enrolment token"))?;
        Ok(())
    }

    /// The device that has the registered key has shown the newest token: it replaces nothing.
    pub async fn keep_key(&mut self, name: &DeviceId) -> Result<(), Error> {
        sqlx::query("UPDATE targets SET token_replaces = 0 WHERE name = $1")
            .bind(name.as_str())
            .execute(&mut *self.transaction)
            .await
            .map_err(Error::database("change an enrolment token"))?;
        Ok(())
    }

    /// The token has done what it was for: no key is registered by it any more.
    pub async fn use_up_token(&mut self, name: &DeviceId) -> Result<(), Error> {
        sqlx::query("UPDATE targets SET token_hash = '' WHERE name = $1 AND token_replaces = 0")
            .bind(name.as_str())
            .execute(&mut *self.transaction)
            .await
            .map_err(Error::database("use an enrolment token up"))?;
        Ok(())
    }

    /// Mark a target as revoked. What it reported stays; its presence goes.
    pub async fn mark_revoked(&mut self, name: &DeviceId, now_ms: i64) -> Result<(), Error> {
        sqlx::query(
            "UPDATE targets SET revoked_ms = $2, token_hash = '', token_replaces = 0 WHERE name = $1",
        )
        .bind(name.as_str())
        .bind(now_ms)
        .execute(&mut *self.transaction)
        .await
        .map_err(Error::database("mark a target as revoked"))?;
        sqlx::query("DELETE FROM presence WHERE device = $1")
            .bind(name.as_str())
            .execute(&mut *self.transaction)
            .await
            .map_err(Error::database("forget presence"))?;
        Ok(())
    }
}
