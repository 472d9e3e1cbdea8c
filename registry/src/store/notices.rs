//! What the registry itself noticed about a target. Kept apart from the device's events: those have
//! the device's numbers, which nobody else may use up.

use std::collections::BTreeMap;

use selvedge_package::DeviceId;

use super::{Change, Store};
use crate::error::Error;

/// Notices kept for each target; those noticed longest ago give way.
pub const KEPT_NOTICES: i64 = 20;

/// A notice.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct Notice {
    /// A word for programs.
    pub kind: String,
    /// For people.
    pub what: String,
    /// When it was noticed last, in milliseconds since 1970.
    pub at_ms: i64,
}

impl Change {
    /// Keep a notice; the same again only moves its time. Nothing is kept of a target that does not
    /// exist.
    pub async fn keep_notice(
        &mut self,
        device: &DeviceId,
        kind: &str,
        what: &str,
        now_ms: i64,
    ) -> Result<(), Error> {
        sqlx::query(
            "INSERT INTO notices (device, kind, what, at_ms) \
             SELECT name, $2, $3, $4 FROM targets WHERE name = $1 \
             ON CONFLICT (device, kind, what) DO UPDATE SET at_ms = excluded.at_ms",
        )
        .bind(device.as_str())
        .bind(kind)
        .bind(what)
        .bind(now_ms)
        .execute(&mut *self.transaction)
        .await
        .map_err(Error::database("keep a notice"))?;
        sqlx::query(
            "DELETE FROM notices WHERE device = $1 AND at_ms < \
             (SELECT MIN(at_ms) FROM (SELECT at_ms FROM notices WHERE device = $1 \
              ORDER BY at_ms DESC LIMIT $2) AS newest)",
        )
        .bind(device.as_str())
        .bind(KEPT_NOTICES)
        .execute(&mut *self.transaction)
        .await
        .map_err(Error::database("drop old notices"))?;
        Ok(())
    }
}

impl Store {
    /// When a notice of one kind was kept last about each target of a workspace.
    pub async fn noticed(&self, workspace: &str, kind: &str) -> Result<BTreeMap<String, i64>, Error> {
        let rows: Vec<(String, i64)> = sqlx::query_as(
            "SELECT n.device, MAX(n.at_ms) FROM notices n JOIN targets t ON t.name = n.device \
             WHERE t.workspace = $1 AND n.kind = $2 GROUP BY n.device",
        )
        .bind(workspace)
        .bind(kind)
        .fetch_all(&self.pool)
        .await
        .map_err(Error::database("read notices"))?;
        Ok(rows.into_iter().collect())
    }

    /// The notices about a device, newest first.
    pub async fn notices(&self, device: &DeviceId) -> Result<Vec<Notice>, Error> {
        sqlx::query_as(
            "SELECT kind, what, at_ms FROM notices WHERE device = $1 ORDER BY at_ms DESC, what LIMIT $2",
        )
        .bind(device.as_str())
        .bind(KEPT_NOTICES)
        .fetch_all(&self.pool)
        .await
        .map_err(Error::database("read notices"))
    }
}
