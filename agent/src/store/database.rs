//! The transactional database: trust, desired state, deployment, outbox, bitmaps of transfers.
//!
//! A change is one transaction: all of it is durable when [`Database::write`] returns, or none is.
//! A record that is damaged is an error; it is never taken for one that was not yet written.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use redb::{ReadableDatabase, ReadableTable, TableDefinition};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::disk::{Backend, Disk, beside};
use super::{StoreError, record, reserve};

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
    /// What the device shows to its broker.
    Credentials,
    /// Packages that are kept for a later assignment.
    Prefetched,
    /// Written when the disk has failed and has to prove itself.
    Proof,
    /// What is used of the day's data budget.
    Budget,
}

impl Key {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Epoch => "epoch",
            Self::Trust => "trust",
            Self::Deployment => "deployment",
            Self::Credentials => "credentials",
            Self::Prefetched => "prefetched",
            Self::Proof => "proof",
            Self::Budget => "budget",
        }
    }
}

/// The open database.
///
/// After anything that failed the engine refuses everything until it is opened anew, which is done here at
/// the next use: a disk that is full, read-only or broken for a while is no reason to end. On a full one
/// the reserve is given up for it.
pub struct Database {
    /// `None` where it could not be opened again; the next use tries.
    inner: RwLock<Option<redb::Database>>,
    /// Where it is; `None` for one in memory.
    place: Option<(Arc<dyn Disk>, PathBuf)>,
    /// Whether the disk was found full since that was last asked.
    found_full: AtomicBool,
}

/// How often the disk had to prove itself.
#[derive(Serialize, Deserialize)]
enum ProofRecord {
    V1(u64),
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
    ///
    /// # Errors
    /// [`StoreError::Unusable`] for one whose content is damaged: it needs a person.
    pub fn open(disk: &Arc<dyn Disk>, path: &Path) -> Result<Self, StoreError> {
        let backend = |path: &Path| disk.database(path).map(Backend).map_err(StoreError::io("open", path));
        let size = |path: &Path| disk.size(path).map_err(StoreError::io("look at", path));
        let before = size(path)?;
        // It was whole under another name before it got this one: an empty file is what is left of one.
        if before == Some(0) {
            let empty = std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "the file is empty");
            let source = Box::new(redb::Error::Io(empty));
            return Err(StoreError::Unusable { path: path.to_owned(), source });
        }
        if before.is_none() {
            let new = beside(path);
            if size(&new)?.is_some() {
                disk.remove_file(&new).map_err(StoreError::io("remove", &new))?;
            }
            drop(with_backend(backend(&new)?)?);
            disk.rename(&new, path).map_err(StoreError::io("rename to", path))?;
        }
        let inner = with_backend(backend(path)?).map_err(|error| error.unless_io(path))?;
        Ok(Self::from_parts(inner, Some((Arc::clone(disk), path.to_owned()))))
    }

    fn from_parts(inner: redb::Database, place: Option<(Arc<dyn Disk>, PathBuf)>) -> Self {
        Self { inner: RwLock::new(Some(inner)), place, found_full: AtomicBool::new(false) }
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
        Ok(Self::from_parts(with_backend(memory)?, None))
    }

    /// The database, opened again where it is not open.
    fn opened(&self) -> Result<RwLockReadGuard<'_, Option<redb::Database>>, StoreError> {
        let open = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        if open.is_some() {
            return Ok(open);
        }
        drop(open);
        self.reopen()?;
        Ok(self.inner.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Closes it and opens it again, which forgets that a write failed.
    fn reopen(&self) -> Result<(), StoreError> {
        let Some((disk, path)) = &self.place else {
            return Ok(());
        };
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        // Closed before it is opened, or both would think the file theirs.
        *inner = None;
        let backend = disk.database(path).map(Backend).map_err(StoreError::io("open", path))?;
        *inner = Some(with_backend(backend).map_err(|error| error.unless_io(path))?);
        Ok(())
    }

    /// Whether a write has found the disk full since this was last asked; it may have succeeded
    /// thereafter, by the reserve.
    pub fn found_full(&self) -> bool {
        self.found_full.swap(false, Ordering::Relaxed)
    }

    /// A record; `None` where it was never written.
    pub fn read<T: DeserializeOwned>(&self, key: Key) -> Result<Option<T>, StoreError> {
        self.look(|read| {
            let table = read.open_table(RECORDS).map_err(failed("open a table"))?;
            let Some(bytes) = table.get(key.name()).map_err(failed("read a record"))? else {
                return Ok(None);
            };
            record::decode(bytes.value())
                .map(Some)
                .map_err(|why| StoreError::Record { key: key.name().to_owned(), why })
        })
    }

    /// Looks at what is there. What fails is tried anew, once, with the database opened again.
    pub(super) fn look<R>(
        &self,
        what: impl Fn(&redb::ReadTransaction) -> Result<R, StoreError>,
    ) -> Result<R, StoreError> {
        match self.try_look(&what) {
            Err(StoreError::Database { .. }) if self.place.is_some() => {
                self.close();
                self.try_look(&what)
            }
            result => result,
        }
    }

    fn try_look<R>(
        &self,
        what: impl Fn(&redb::ReadTransaction) -> Result<R, StoreError>,
    ) -> Result<R, StoreError> {
        let open = self.opened()?;
        let inner = open.as_ref().ok_or(StoreError::Closed)?;
        what(&inner.begin_read().map_err(failed("begin reading"))?)
    }

    /// The next use opens it again, which forgets that something failed.
    fn close(&self) {
        if self.place.is_some() {
            *self.inner.write().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    /// Whether the disk does what it should: the database is opened anew, which checks every page of it,
    /// and written.
    pub fn prove(&self) -> Result<(), StoreError> {
        self.reopen()?;
        self.write(|transaction| {
            let ProofRecord::V1(last) = transaction.get(Key::Proof)?.unwrap_or(ProofRecord::V1(0));
            transaction.put(Key::Proof, &ProofRecord::V1(last.wrapping_add(1)))
        })
    }

    /// Makes one change, whole or not at all. It is made anew where the disk was full and the reserve
    /// could be given up; an error that [`StoreError::is_full`] says that nothing has changed and that
    /// it can be tried again.
    pub fn write<R>(
        &self,
        change: impl Fn(&mut Transaction) -> Result<R, StoreError>,
    ) -> Result<R, StoreError> {
        let again = |error: StoreError| {
            if error.is_full() {
                self.found_full.store(true, Ordering::Relaxed);
            }
            if matches!(error, StoreError::Database { .. }) {
                self.close();
            }
            error
        };
        match self.try_write(&change).map_err(again) {
            Err(error) if error.is_full() && self.give_up_reserve() => self.try_write(&change).map_err(again),
            result => result,
        }
    }

    fn try_write<R>(
        &self,
        change: impl Fn(&mut Transaction) -> Result<R, StoreError>,
    ) -> Result<R, StoreError> {
        let open = self.opened()?;
        write(open.as_ref().ok_or(StoreError::Closed)?, change)
    }

    fn give_up_reserve(&self) -> bool {
        self.place.as_ref().is_some_and(|(disk, path)| reserve::give_up(&**disk, path.parent()))
    }
}

fn with_backend(backend: impl redb::StorageBackend) -> Result<redb::Database, StoreError> {
    let inner = redb::Builder::new()
        .set_cache_size(CACHE)
        .set_check_integrity_on_open(true)
        .create_with_backend(backend)
        .map_err(failed("open"))?;
    // Readers expect the tables; making them is one write, at the first start only.
    if !has_tables(&inner)? {
        write(&inner, Transaction::make_tables)?;
    }
    Ok(inner)
}

fn has_tables(inner: &redb::Database) -> Result<bool, StoreError> {
    let read = inner.begin_read().map_err(failed("begin reading"))?;
    match read.open_table(OUTBOX) {
        Ok(_) => Ok(true),
        Err(redb::TableError::TableDoesNotExist(_)) => Ok(false),
        Err(error) => Err(failed("open a table")(error)),
    }
}

fn write<R>(
    inner: &redb::Database,
    change: impl Fn(&mut Transaction) -> Result<R, StoreError>,
) -> Result<R, StoreError> {
    let inner = inner.begin_write().map_err(failed("begin writing"))?;
    let mut transaction = Transaction { inner };
    let result = change(&mut transaction)?;
    transaction.inner.commit().map_err(failed("commit"))?;
    Ok(result)
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

    /// Takes a record away; it may be gone already.
    pub fn remove(&mut self, key: Key) -> Result<(), StoreError> {
        let mut table = self.inner.open_table(RECORDS).map_err(failed("open a table"))?;
        table.remove(key.name()).map_err(failed("remove a record"))?;
        Ok(())
    }

    fn make_tables(&mut self) -> Result<(), StoreError> {
        self.inner.open_table(RECORDS).map_err(failed("make a table"))?;
        self.inner.open_table(BITMAPS).map_err(failed("make a table"))?;
        self.inner.open_table(OUTBOX).map_err(failed("make a table"))?;
        Ok(())
    }
}
