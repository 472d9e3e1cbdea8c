//! The transactional database: trust, desired state, deployment, outbox, bitmaps of transfers.
//!
//! A change is one transaction: all of it is durable when [`Database::write`] returns, or none is.
//! A record that is damaged is an error; it is never taken for one that was not yet written.

use std::fmt;
use std::path::Path;

use redb::{ReadableDatabase, ReadableTable, TableDefinition};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::disk::{Backend, Disk, beside};
use super::{StoreError, record};

/// Single records, by name.
const RECORDS: TableDefinition<&str, &[u8]> = TableDefinition::new("records");
/// Which chunks of a partial blob are on disk, by the blob's digest.
pub(super) const BITMAPS: TableDefinition<&[u8; 32], &[u8]> = TableDefinition::new("bitmaps");
/// Signed reports that wait for their acknowledgement, by epoch and sequence.
pub(super) const OUTBOX: TableDefinition<(u64, u64), &[u8]> = TableDefinition::new("outbox");

/// Memory that the database may use to cache pages, in bytes: the file is small and rarely read.
const CACHE: usize = 512 * 1024;

/// The single records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Key {
    /// Who the device is, and whether its key is registered.
    Device,
    /// The counter that grows at every start.
    Epoch,
    /// The trust state.
    Trust,
    /// The deployment state machine.
    Deployment,
}

impl Key {
    fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Epoch => "epoch",
            Self::Trust => "trust",
            Self::Deployment => "deployment",
        }
    }
}

/// The open database.
pub struct Database {
    inner: redb::Database,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Database")
    }
}

/// For `map_err` of database operations.
pub(super) fn failed<E: Into<redb::Error>>(action: &'static str) -> impl FnOnce(E) -> StoreError {
    move |error| StoreError::Database { action, source: Box::new(error.into()) }
}

impl Database {
    /// Opens the database, repairing it after a power cut, checking every page, or makes it: under
    /// another name first, since one that is half made cannot be told from one that is damaged.
    pub fn open(disk: &dyn Disk, path: &Path) -> Result<Self, StoreError> {
        let backend = |path: &Path| disk.database(path).map(Backend).map_err(StoreError::io("open", path));
        let size = |path: &Path| disk.size(path).map_err(StoreError::io("look at", path));
        if size(path)?.is_none() {
            let new = beside(path);
            if size(&new)?.is_some() {
                disk.remove_file(&new).map_err(StoreError::io("remove", &new))?;
            }
            drop(Self::with_backend(backend(&new)?)?);
            disk.rename(&new, path).map_err(StoreError::io("rename to", path))?;
        }
        Self::with_backend(backend(path)?)
    }

    /// A copy in memory of the bytes of a database file: reads a file that another process may have
    /// left unrepaired, and changes nothing.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, StoreError> {
        let memory = redb::backends::InMemoryBackend::new();
        let fill = || -> std::io::Result<()> {
            redb::StorageBackend::set_len(&memory, bytes.len() as u64)?;
            redb::StorageBackend::write(&memory, 0, bytes)
        };
        fill().map_err(StoreError::io("copy", Path::new("agent.redb")))?;
        Self::with_backend(memory)
    }

    fn with_backend(backend: impl redb::StorageBackend) -> Result<Self, StoreError> {
        let inner = redb::Builder::new()
            .set_cache_size(CACHE)
            .set_check_integrity_on_open(true)
            .create_with_backend(backend)
            .map_err(failed("open"))?;
        let database = Self { inner };
        // Readers expect the tables; making them is one write, at the first start only.
        if !database.has_tables()? {
            database.write(|transaction| transaction.make_tables())?;
        }
        Ok(database)
    }

    fn has_tables(&self) -> Result<bool, StoreError> {
        let read = self.inner.begin_read().map_err(failed("begin reading"))?;
        match read.open_table(OUTBOX) {
            Ok(_) => Ok(true),
            Err(redb::TableError::TableDoesNotExist(_)) => Ok(false),
            Err(error) => Err(failed("open a table")(error)),
        }
    }

    /// A record; `None` where it was never written.
    pub fn read<T: DeserializeOwned>(&self, key: Key) -> Result<Option<T>, StoreError> {
        let read = self.begin_read()?;
        let table = read.open_table(RECORDS).map_err(failed("open a table"))?;
        let Some(bytes) = table.get(key.name()).map_err(failed("read a record"))? else {
            return Ok(None);
        };
        record::decode(bytes.value())
            .map(Some)
            .map_err(|why| StoreError::Record { key: key.name().to_owned(), why })
    }

    pub(super) fn begin_read(&self) -> Result<redb::ReadTransaction, StoreError> {
        self.inner.begin_read().map_err(failed("begin reading"))
    }

    /// Makes one change, whole or not at all.
    pub fn write<R>(
        &self,
        change: impl FnOnce(&mut Transaction) -> Result<R, StoreError>,
    ) -> Result<R, StoreError> {
        let inner = self.inner.begin_write().map_err(failed("begin writing"))?;
        let mut transaction = Transaction { inner };
        let result = change(&mut transaction)?;
        transaction.inner.commit().map_err(failed("commit"))?;
        Ok(result)
    }
}

/// A change under way.
pub struct Transaction {
    pub(super) inner: redb::WriteTransaction,
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Transaction")
    }
}

impl Transaction {
    /// Writes a record.
    pub fn put<T: Serialize>(&mut self, key: Key, value: &T) -> Result<(), StoreError> {
        let bytes =
            record::encode(value).map_err(|why| StoreError::Record { key: key.name().to_owned(), why })?;
        let mut table = self.inner.open_table(RECORDS).map_err(failed("open a table"))?;
        table.insert(key.name(), bytes.as_slice()).map_err(failed("write a record"))?;
        Ok(())
    }

    /// A record as this change sees it.
    pub fn get<T: DeserializeOwned>(&mut self, key: Key) -> Result<Option<T>, StoreError> {
        let table = self.inner.open_table(RECORDS).map_err(failed("open a table"))?;
        let Some(bytes) = table.get(key.name()).map_err(failed("read a record"))? else {
            return Ok(None);
        };
        record::decode(bytes.value())
            .map(Some)
            .map_err(|why| StoreError::Record { key: key.name().to_owned(), why })
    }

    fn make_tables(&mut self) -> Result<(), StoreError> {
        self.inner.open_table(RECORDS).map_err(failed("make a table"))?;
        self.inner.open_table(BITMAPS).map_err(failed("make a table"))?;
        self.inner.open_table(OUTBOX).map_err(failed("make a table"))?;
        Ok(())
    }
}
