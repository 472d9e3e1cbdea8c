//! Snapshot and timestamp: the roles that the registry signs by itself, again and again.

use std::collections::HashMap;

use jiff::Timestamp;
use selvedge_package::trust::ImageFiles;
use tough::schema::{Metafile, Snapshot, Timestamp as TimestampRole};

use crate::lifetimes::whole_seconds;
use crate::metadata::{self, SPEC};
use crate::{Signer, SigningError};

/// A `snapshot.json` of `version` that pins an Image repository: `targets.json` by version, length and
/// hash, the bins by version alone. There may be hundreds of bins, and a device loads the snapshot
/// every time: their signatures are enough, and their versions say that they are the newest.
pub fn sign_image_snapshot(
    version: u64,
    files: &ImageFiles,
    expires: Timestamp,
    signer: &dyn Signer,
) -> Result<Vec<u8>, SigningError> {
    let mut meta = HashMap::from([("targets.json".to_owned(), metadata::pin(&files.targets)?)]);
    for (role, file) in &files.bins {
        let version = metadata::version("metadata", metadata::head(file)?.version)?;
        let pin = Metafile { length: None, hashes: None, version, _extra: HashMap::new() };
        meta.insert(format!("{role}.json"), pin);
    }
    snapshot(version, meta, expires, signer)
}

/// A `snapshot.json` of `version` that pins `targets` (the bytes of `targets.json`) and nothing else.
pub fn sign_snapshot(
    version: u64,
    targets: &[u8],
    expires: Timestamp,
    signer: &dyn Signer,
) -> Result<Vec<u8>, SigningError> {
    let meta = HashMap::from([("targets.json".to_owned(), metadata::pin(targets)?)]);
    snapshot(version, meta, expires, signer)
}

fn snapshot(
    version: u64,
    meta: HashMap<String, Metafile>,
    expires: Timestamp,
    signer: &dyn Signer,
) -> Result<Vec<u8>, SigningError> {
    let snapshot = Snapshot {
        spec_version: SPEC.to_owned(),
        version: metadata::version("snapshot", version)?,
        expires: whole_seconds(expires),
        meta,
        _extra: HashMap::new(),
    };
    metadata::sign("snapshot", snapshot, &[signer])
}

/// A `timestamp.json` of `version` that pins `snapshot` (the bytes of `snapshot.json`).
pub fn sign_timestamp(
    version: u64,
    snapshot: &[u8],
    expires: Timestamp,
    signer: &dyn Signer,
) -> Result<Vec<u8>, SigningError> {
    let timestamp = TimestampRole {
        spec_version: SPEC.to_owned(),
        version: metadata::version("timestamp", version)?,
        expires: whole_seconds(expires),
        meta: HashMap::from([("snapshot.json".to_owned(), metadata::pin(snapshot)?)]),
        _extra: HashMap::new(),
    };
    metadata::sign("timestamp", timestamp, &[signer])
}
