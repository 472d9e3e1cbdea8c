//! Snapshot and timestamp: the roles that the registry signs by itself, again and again.

use std::collections::HashMap;

use jiff::Timestamp;
use tough::schema::{Snapshot, Timestamp as TimestampRole};

use crate::lifetimes::whole_seconds;
use crate::metadata::{self, SPEC};
use crate::{Signer, SigningError};

/// A `snapshot.json` of `version` that pins `targets` (the bytes of `targets.json`).
pub fn sign_snapshot(
    version: u64,
    targets: &[u8],
    expires: Timestamp,
    signer: &dyn Signer,
) -> Result<Vec<u8>, SigningError> {
    let snapshot = Snapshot {
        spec_version: SPEC.to_owned(),
        version: metadata::version("snapshot", version)?,
        expires: whole_seconds(expires),
        meta: HashMap::from([("targets.json".to_owned(), metadata::pin(targets)?)]),
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
