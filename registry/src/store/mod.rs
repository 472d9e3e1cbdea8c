//! What the registry remembers: one module per thing, over SQLite for now.
//!
//! SQL is plain enough for PostgreSQL; what only SQLite knows is in this file. A change and its
//! audit entry are one transaction. Reading never blocks writing.

pub mod audit;
pub mod certificates;
pub mod deployments;
pub mod in_force;
pub mod metadata;
pub mod notices;
pub mod packages;
pub mod presence;
pub mod reports;
pub mod targets;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{Sqlite, SqlitePool, Transaction};
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::error::Error;
use crate::refusal::Refusal;

static MIGRATIONS: sqlx::migrate::Migrator = sqlx::migrate!("./migrations");

/// The database.
#[derive(Debug, Clone)]
pub struct Store {
    pool: SqlitePool,
    /// Held by whoever writes. Waiting here costs no connection, so that a writer that also reads
    /// always finds one.
    writer: Arc<Mutex<()>>,
    cache: in_force::Cache,
    changes: Arc<AtomicU64>,
}

/// A transaction that writes; dropped without [`Change::commit`] it leaves nothing.
pub struct Change {
    transaction: Transaction<'static, Sqlite>,
    cache: in_force::Cache,
    changes: Arc<AtomicU64>,
    _writer: OwnedMutexGuard<()>,
}

impl Store {
    /// Open the database at `path`, making it and bringing it up to date.
    pub async fn open(path: &Path) -> Result<Self, Error> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(Duration::from_secs(10));
        let pool = SqlitePoolOptions::new()
            .max_connections(4)
            .acquire_timeout(Duration::from_secs(20))
            .connect_with(options)
            .await
            .map_err(Error::database("be opened"))?;
        MIGRATIONS.run(&pool).await.map_err(|source| Error::Migrate { path: path.to_owned(), source })?;
        Ok(Self { pool, writer: Arc::default(), cache: in_force::Cache::default(), changes: Arc::default() })
    }

    /// Begin to write. SQLite has one writer: the lock is taken now, not at the first statement,
    /// so that what is read in the transaction still holds when it writes.
    pub async fn change(&self) -> Result<Change, Error> {
        let writer = Arc::clone(&self.writer).lock_owned().await;
        let transaction =
            self.pool.begin_with("BEGIN IMMEDIATE").await.map_err(Error::database("begin a change"))?;
        Ok(Change { transaction, cache: self.cache.clone(), changes: self.changes.clone(), _writer: writer })
    }

    /// Whether there is such a workspace.
    pub async fn expect_workspace(&self, name: &str) -> Result<(), Refusal> {
        let found: Option<(String,)> = sqlx::query_as("SELECT name FROM workspaces WHERE name = $1")
            .bind(name)
            .fetch_optional(&self.pool)
            .await
            .map_err(Error::database("read workspaces"))?;
        match found {
            Some(_) => Ok(()),
            None => Err(Refusal::NoWorkspace(name.chars().take(80).collect())),
        }
    }

    /// Close every connection, so that the write-ahead log is folded into the database.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

impl Store {
    /// How many changes were committed since the start: what was read at the same number still holds.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }
}

impl Change {
    /// Make it durable.
    pub async fn commit(self) -> Result<(), Error> {
        let committed = self.transaction.commit().await.map_err(Error::database("commit a change"));
        // Also where it failed: nobody knows then what is in the database.
        self.changes.fetch_add(1, Ordering::SeqCst);
        committed
    }
}

/// Numbers in the database are signed; a counter beyond that is refused, not wrapped.
pub(crate) fn to_column(value: u64) -> Result<i64, Error> {
    i64::try_from(value)
        .map_err(|_| Error::Corrupt { what: "counter", why: format!("{value} is beyond 2^63") })
}

/// The other way.
pub(crate) fn from_column(value: i64) -> Result<u64, Error> {
    u64::try_from(value).map_err(|_| Error::Corrupt { what: "counter", why: format!("{value} is negative") })
}

/// JSON for a text column.
pub(crate) fn to_json<T: serde::Serialize>(what: &'static str, value: &T) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|error| Error::Corrupt { what, why: error.to_string() })
}

/// The other way.
pub(crate) fn from_json<T: serde::de::DeserializeOwned>(what: &'static str, text: &str) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|error| Error::Corrupt { what, why: error.to_string() })
}

/// A checked name from a text column.
pub(crate) fn from_text<T: std::str::FromStr>(what: &'static str, text: &str) -> Result<T, Error>
where
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error: T::Err| Error::Corrupt { what, why: error.to_string() })
}
