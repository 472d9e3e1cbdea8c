//! The audit log: who changed what and when, append-only and chained by hashes.
//!
//! Each entry's hash covers its fields, length-prefixed, and the hash of the entry before it, so
//! that changing, dropping or reordering entries shows. It does not hide that the newest entries
//! were cut off: that needs a copy of the last hash elsewhere.

use selvedge_package::Digest;

use super::{Change, Store};
use crate::error::Error;

/// The hash before the first entry.
const BEGINNING: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// An entry.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct Entry {
    /// 1, 2, 3, …
    pub number: i64,
    /// Milliseconds since 1970.
    pub at_ms: i64,
    /// `token` for the bearer of the token, `device:<id>`, or `registry`.
    pub actor: String,
    /// `release`, `deploy`, …
    pub action: String,
    /// What it was done to.
    pub subject: String,
    /// JSON.
    pub detail: String,
    /// Hash of the entry before.
    pub previous: String,
    /// Hash of this entry.
    pub hash: String,
}

impl Entry {
    fn expected_hash(&self) -> String {
        let mut text = Vec::new();
        for field in [
            &self.number.to_string(),
            &self.at_ms.to_string(),
            &self.actor,
            &self.action,
            &self.subject,
            &self.detail,
            &self.previous,
        ] {
            text.extend_from_slice(&(field.len() as u64).to_le_bytes());
            text.extend_from_slice(field.as_bytes());
        }
        Digest::of(&text).hex()
    }
}

impl Change {
    /// Append an entry to the audit log, in this transaction.
    pub async fn audit(
        &mut self,
        at_ms: i64,
        actor: &str,
        action: &str,
        subject: &str,
        detail: serde_json::Value,
    ) -> Result<(), Error> {
        let last: Option<(i64, String)> =
            sqlx::query_as("SELECT number, hash FROM audit ORDER BY number DESC LIMIT 1")
                .fetch_optional(&mut *self.transaction)
                .await
                .map_err(Error::database("read the audit log"))?;
        let (number, previous) = last.unwrap_or((0, BEGINNING.to_owned()));
        let mut entry = Entry {
            number: number + 1,
            at_ms,
            actor: actor.to_owned(),
            action: action.to_owned(),
            subject: subject.to_owned(),
            detail: detail.to_string(),
            previous,
            hash: String::new(),
        };
        entry.hash = entry.expected_hash();
        sqlx::query(
            "INSERT INTO audit (number, at_ms, actor, action, subject, detail, previous, hash) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        )
        .bind(entry.number)
        .bind(entry.at_ms)
        .bind(&entry.actor)
        .bind(&entry.action)
        .bind(&entry.subject)
        .bind(&entry.detail)
        .bind(&entry.previous)
        .bind(&entry.hash)
        .execute(&mut *self.transaction)
        .await
        .map_err(Error::database("append to the audit log"))?;
        Ok(())
    }
}

impl Store {
    /// The newest entries, newest first.
    pub async fn audit_entries(&self, limit: u32) -> Result<Vec<Entry>, Error> {
        sqlx::query_as(
            "SELECT number, at_ms, actor, action, subject, detail, previous, hash FROM audit \
             ORDER BY number DESC LIMIT $1",
        )
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .map_err(Error::database("read the audit log"))
    }

    /// Check the whole chain, in pages; gives the number of entries.
    pub async fn verify_audit(&self) -> Result<u64, Error> {
        let (mut number, mut previous) = (0_i64, BEGINNING.to_owned());
        loop {
            let page: Vec<Entry> = sqlx::query_as(
                "SELECT number, at_ms, actor, action, subject, detail, previous, hash FROM audit \
                 WHERE number > $1 ORDER BY number LIMIT 500",
            )
            .bind(number)
            .fetch_all(&self.pool)
            .await
            .map_err(Error::database("read the audit log"))?;
            if page.is_empty() {
                return super::from_column(number);
            }
            for entry in page {
                let follows = entry.number == number + 1 && entry.previous == previous;
                if !follows || entry.hash != entry.expected_hash() {
                    return Err(Error::AuditBroken { number: entry.number });
                }
                number = entry.number;
                previous = entry.hash;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    async fn three_entries() -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("db")).await.unwrap();
        for number in 0..3 {
            let mut change = store.change().await.unwrap();
            let detail = json!({"number": number});
            change.audit(1000 + number, "token", "test", "thing", detail).await.unwrap();
            change.commit().await.unwrap();
        }
        (folder, store)
    }

    #[tokio::test]
    async fn a_change_without_commit_leaves_no_entry() {
        let (_folder, store) = three_entries().await;
        let mut change = store.change().await.unwrap();
        change.audit(1, "token", "test", "thing", json!({})).await.unwrap();
        drop(change);
        assert_eq!(store.verify_audit().await.unwrap(), 3);
        let newest = store.audit_entries(2).await.unwrap();
        assert_eq!(newest.iter().map(|entry| entry.number).collect::<Vec<_>>(), [3, 2]);
    }

    #[tokio::test]
    async fn tampering_shows() {
        for tamper in [
            "UPDATE audit SET actor = 'nobody' WHERE number = 2",
            "UPDATE audit SET detail = '{}', hash = previous WHERE number = 2",
            "DELETE FROM audit WHERE number = 2",
            "UPDATE audit SET action = 'te', subject = 'stthing' WHERE number = 2",
            "UPDATE audit SET at_ms = at_ms + 1 WHERE number = 3",
        ] {
            let (_folder, store) = three_entries().await;
            sqlx::query(tamper).execute(&store.pool).await.unwrap();
            let verified = store.verify_audit().await;
            assert!(matches!(verified, Err(Error::AuditBroken { .. })), "{tamper}");
        }
    }
}
