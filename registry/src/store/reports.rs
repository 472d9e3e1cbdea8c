//! What devices report: facts and state replace what was known, events are kept.
//!
//! Each is guarded by compare-and-set on (epoch, sequence): a second copy, or one that comes late,
//! is harmless. Facts and state have a mark each, since a late row of the one must not be lost to
//! a newer row of the other.

use selvedge_package::DeviceId;
use selvedge_protocol::message::{Clock, DeviceEvent, Report, ReportBody};

use super::{Change, Store, to_column, to_json};
use crate::error::Error;

/// Events kept for each target; older ones give way.
pub const KEPT_EVENTS: i64 = 10_000;

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// It is stored.
    New,
    /// It was stored before, or something newer was.
    Old,
}

/// An event as it was stored.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct KeptEvent {
    /// Milliseconds since 1970 by the device's clock.
    pub at_ms: i64,
    /// Milliseconds since 1970 by the registry's clock.
    pub received_ms: i64,
    /// `synchronised` or `free`.
    pub clock: String,
    /// Epoch of the report.
    pub epoch: i64,
    /// Sequence of the report.
    pub sequence: i64,
    /// A word for programs.
    pub kind: String,
    /// The package, where it is about one.
    pub package: Option<String>,
    /// For people.
    pub what: String,
}

impl Change {
    /// Keep one report. The target must exist.
    pub async fn keep_report(
        &mut self,
        device: &DeviceId,
        report: &Report,
        now_ms: i64,
    ) -> Result<Kept, Error> {
        let epoch = to_column(report.epoch)?;
        let sequence = to_column(report.sequence)?;
        let changed =
            match &report.body {
                ReportBody::Facts(facts) => sqlx::query(
                    "UPDATE targets SET facts = $4, facts_epoch = $2, facts_sequence = $3 WHERE name = $1 \
                     AND (facts_epoch < $2 OR (facts_epoch = $2 AND facts_sequence < $3))",
                )
                .bind(device.as_str())
                .bind(epoch)
                .bind(sequence)
                .bind(to_json("fact set", facts)?)
                .execute(&mut *self.transaction)
                .await,
                ReportBody::State(state) => {
                    sqlx::query(
                        "UPDATE targets SET reported = $4, reported_ms = $5, reported_epoch = $2, \
                     reported_sequence = $3 WHERE name = $1 \
                     AND (reported_epoch < $2 OR (reported_epoch = $2 AND reported_sequence < $3))",
                    )
                    .bind(device.as_str())
                    .bind(epoch)
                    .bind(sequence)
                    .bind(to_json("reported state", state)?)
                    .bind(now_ms)
                    .execute(&mut *self.transaction)
                    .await
                }
                ReportBody::Event(event) => {
                    return self.keep_event(device, report, event, (epoch, sequence), now_ms).await;
                }
            }
            .map_err(Error::database("keep a report"))?;
        Ok(if changed.rows_affected() == 0 { Kept::Old } else { Kept::New })
    }

    async fn keep_event(
        &mut self,
        device: &DeviceId,
        report: &Report,
        event: &DeviceEvent,
        (epoch, sequence): (i64, i64),
        now_ms: i64,
    ) -> Result<Kept, Error> {
        let clock = match report.clock {
            Clock::Synchronised => "synchronised",
            Clock::Free => "free",
        };
        let added = sqlx::query(
            "INSERT INTO events (device, life, epoch, sequence, at_ms, received_ms, clock, kind, package, what) \
             SELECT name, life, $2, $3, $4, $5, $6, $7, $8, $9 FROM targets WHERE name = $1 \
             ON CONFLICT (device, life, epoch, sequence) DO NOTHING",
        )
        .bind(device.as_str())
        .bind(epoch)
        .bind(sequence)
        .bind(report.at_ms)
        .bind(now_ms)
        .bind(clock)
        .bind(event.kind.chars().take(64).collect::<String>())
        .bind(event.package.as_ref().map(ToString::to_string))
        .bind(event.what.chars().take(4096).collect::<String>())
        .execute(&mut *self.transaction)
        .await
        .map_err(Error::database("keep an event"))?;
        if added.rows_affected() == 0 {
            return Ok(Kept::Old);
        }
        // Rows older than the newest KEPT_EVENTS; the offset is found on the primary key.
        sqlx::query(
            "DELETE FROM events WHERE device = $1 AND EXISTS (SELECT 1 FROM \
             (SELECT life AS l, epoch AS e, sequence AS s FROM events WHERE device = $1 \
              ORDER BY life DESC, epoch DESC, sequence DESC LIMIT 1 OFFSET $2) AS oldest \
             WHERE events.life < oldest.l OR (events.life = oldest.l AND (events.epoch < oldest.e \
             OR (events.epoch = oldest.e AND events.sequence <= oldest.s))))",
        )
        .bind(device.as_str())
        .bind(KEPT_EVENTS)
        .execute(&mut *self.transaction)
        .await
        .map_err(Error::database("drop old events"))?;
        Ok(Kept::New)
    }
}

impl Store {
    /// The newest events of a device, newest first.
    pub async fn events(&self, device: &DeviceId, limit: u32) -> Result<Vec<KeptEvent>, Error> {
        sqlx::query_as(
            "SELECT at_ms, received_ms, clock, epoch, sequence, kind, package, what FROM events \
             WHERE device = $1 ORDER BY life DESC, epoch DESC, sequence DESC LIMIT $2",
        )
        .bind(device.as_str())
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .map_err(Error::database("read events"))
    }
}
