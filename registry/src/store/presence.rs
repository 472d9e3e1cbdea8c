//! What a device's last birth said, and when anything was heard from it.

use std::collections::BTreeMap;

use selvedge_package::DeviceId;
use selvedge_protocol::message::{Accepted, Birth};

use super::{Store, from_column, from_json, from_text, to_column, to_json};
use crate::error::Error;

/// Milliseconds of silence after which a target is no longer online: two and a half of the
/// longest heartbeat intervals.
pub const ALLOWED_SILENCE_MS: i64 = 750_000;

/// Presence of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Presence {
    /// Epoch of the last birth.
    pub epoch: u64,
    /// What it said; `desired` and `generation` follow the heartbeats.
    pub birth: Birth,
    /// Milliseconds since 1970.
    pub last_heard_ms: i64,
    /// Its connection was lost, and nothing was heard since.
    pub gone: bool,
}

impl Presence {
    /// Whether the device counts as connected at `now_ms`.
    pub fn online(&self, now_ms: i64) -> bool {
        !self.gone && now_ms.saturating_sub(self.last_heard_ms) <= ALLOWED_SILENCE_MS
    }
}

#[derive(sqlx::FromRow)]
struct Row {
    device: String,
    epoch: i64,
    agent: String,
    capabilities: String,
    largest_block: i64,
    generation: i64,
    desired: i64,
    image_root: i64,
    director_root: i64,
    nonce: String,
    accepted: String,
    last_heard_ms: i64,
    gone: i64,
}

impl Row {
    fn presence(self) -> Result<Presence, Error> {
        Ok(Presence {
            epoch: from_column(self.epoch)?,
            birth: Birth {
                agent: self.agent,
                capabilities: from_json("capability list", &self.capabilities)?,
                largest_block: u32::try_from(self.largest_block).unwrap_or(u32::MAX),
                generation: from_column(self.generation)?,
                desired: from_column(self.desired)?,
                image_root: from_column(self.image_root)?,
                director_root: from_column(self.director_root)?,
                nonce: hex::decode(&self.nonce)
                    .map_err(|error| Error::Corrupt { what: "nonce", why: error.to_string() })?,
                accepted: from_json::<Accepted>("version set", &self.accepted)?,
            },
            last_heard_ms: self.last_heard_ms,
            gone: self.gone != 0,
        })
    }
}

impl Store {
    /// Presence of every device of a workspace, as the database knows it.
    pub async fn presences(&self, workspace: &str) -> Result<BTreeMap<DeviceId, Presence>, Error> {
        let rows: Vec<Row> = sqlx::query_as(
            "SELECT p.device, p.epoch, p.agent, p.capabilities, p.largest_block, p.generation, p.desired, \
             p.image_root, p.director_root, p.nonce, p.accepted, p.last_heard_ms, p.gone FROM presence p \
             JOIN targets t ON t.name = p.device WHERE t.workspace = $1",
        )
        .bind(workspace)
        .fetch_all(&self.pool)
        .await
        .map_err(Error::database("read presence"))?;
        rows.into_iter().map(|row| Ok((from_text("target name", &row.device)?, row.presence()?))).collect()
    }

    /// Presence as the database knows it.
    pub async fn presence(&self, device: &DeviceId) -> Result<Option<Presence>, Error> {
        let row: Option<Row> = sqlx::query_as(
            "SELECT device, epoch, agent, capabilities, largest_block, generation, desired, image_root, \
             director_root, nonce, accepted, last_heard_ms, gone FROM presence WHERE device = $1",
        )
        .bind(device.as_str())
        .fetch_optional(&self.pool)
        .await
        .map_err(Error::database("read presence"))?;
        row.map(Row::presence).transpose()
    }

    /// Keep presence. Nothing is kept of a target that does not exist.
    pub async fn keep_presence(&self, device: &DeviceId, presence: &Presence) -> Result<(), Error> {
        let birth = &presence.birth;
        let mut change = self.change().await?;
        sqlx::query(
            "INSERT INTO presence (device, epoch, agent, capabilities, largest_block, generation, \
             desired, image_root, director_root, nonce, last_heard_ms, gone, accepted) \
             SELECT name, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13 FROM targets WHERE name = $1 \
             ON CONFLICT (device) DO UPDATE SET epoch = excluded.epoch, agent = excluded.agent, \
             capabilities = excluded.capabilities, largest_block = excluded.largest_block, \
             generation = excluded.generation, desired = excluded.desired, \
             image_root = excluded.image_root, director_root = excluded.director_root, \
             nonce = excluded.nonce, last_heard_ms = excluded.last_heard_ms, gone = excluded.gone, \
             accepted = excluded.accepted",
        )
        .bind(device.as_str())
        .bind(to_column(presence.epoch)?)
        .bind(&birth.agent)
        .bind(to_json("capability list", &birth.capabilities)?)
        .bind(i64::from(birth.largest_block))
        .bind(to_column(birth.generation)?)
        .bind(to_column(birth.desired)?)
        .bind(to_column(birth.image_root)?)
        .bind(to_column(birth.director_root)?)
        .bind(hex::encode(&birth.nonce))
        .bind(presence.last_heard_ms)
        .bind(i64::from(presence.gone))
        .bind(to_json("version set", &birth.accepted)?)
        .execute(&mut *change.transaction)
        .await
        .map_err(Error::database("keep presence"))?;
        change.commit().await
    }
}
