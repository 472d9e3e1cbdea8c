//! Packages that are kept though nothing assigns them: they came from a file, for a later assignment.
//!
//! Few, and the first to go when the disk is full: whoever assigns one then fetches it over the link.

use std::collections::BTreeSet;

use selvedge_package::Digest;
use serde::{Deserialize, Serialize};

use super::{Database, Key, Store, StoreError};

/// Most packages that are kept so; the oldest go first.
pub const MOST_PREFETCHED: usize = 32;

#[derive(Debug, Serialize, Deserialize)]
enum PrefetchedRecord {
    V1(Vec<Digest>),
}

impl Database {
    /// The packages, oldest first.
    pub fn prefetched(&self) -> Result<Vec<Digest>, StoreError> {
        match self.read(Key::Prefetched) {
            Ok(record) => Ok(record.map_or_else(Vec::new, |PrefetchedRecord::V1(packages)| packages)),
            // What is lost of it is fetched when it is assigned.
            Err(StoreError::Record { .. }) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

impl Store {
    /// The packages, oldest first.
    pub fn prefetched(&self) -> Result<Vec<Digest>, StoreError> {
        self.database.prefetched()
    }

    /// Keeps these packages, too.
    pub fn prefetch(&self, packages: &BTreeSet<Digest>) -> Result<(), StoreError> {
        let mut kept = self.prefetched()?;
        kept.retain(|package| !packages.contains(package));
        kept.extend(packages);
        let surplus = kept.len().saturating_sub(MOST_PREFETCHED);
        kept.drain(..surplus);
        self.put_prefetched(kept)
    }

    /// Keeps only those of them that `keep` says. Whether any are gone.
    pub fn retain_prefetched(&self, keep: impl Fn(&Digest) -> bool) -> Result<bool, StoreError> {
        let kept = self.prefetched()?;
        let left: Vec<Digest> = kept.iter().filter(|package| keep(package)).copied().collect();
        if left.len() == kept.len() {
            return Ok(false);
        }
        self.put_prefetched(left)?;
        Ok(true)
    }

    fn put_prefetched(&self, packages: Vec<Digest>) -> Result<(), StoreError> {
        let record = PrefetchedRecord::V1(packages);
        self.database.write(|transaction| transaction.put(Key::Prefetched, &record))
    }
}
