//! The Director: signs what each device shall run, whenever that or the device's nonce changes.
//!
//! The sequence grows with every change of the assignments and only then; the version of the
//! metadata grows with every signature. Neither ever goes back, not even for a name used again.

use std::collections::BTreeMap;

use jiff::Timestamp;
use selvedge_package::trust::{AssignedPackage, DirectorAssignment, FORMAT};
use selvedge_package::{DeviceId, PackageName};
use selvedge_signing::director::sign_device;
use selvedge_signing::lifetimes::expiry;
use serde_json::json;

use super::{Claims, Trust, text, unsigned};
use crate::error::Error;
use crate::store::Store;
use crate::store::in_force::{Standing, signed_form, written};
use crate::store::metadata::{Directed, Repository, Role, Signed};

/// Sign for `device` where that is due. The caller holds the signing lock.
pub(super) async fn direct(
    trust: &Trust,
    store: &Store,
    device: &DeviceId,
    claims: &Claims,
    now: Timestamp,
) -> Result<bool, Error> {
    if store.newest(&Repository::Image, Role::Timestamp).await?.is_none() {
        return Ok(false);
    }
    let now_ms = now.as_millisecond();
    let before = store.directed(device).await?;
    let mut change = store.change().await?;
    let standing = change.standing(device).await?;
    let assignments = signed_form(standing.as_ref().map(Standing::assigned).unwrap_or_default());
    let written = written(&assignments)?;
    let same = before.as_ref().is_some_and(|before| before.assignments == written);
    let mine = Repository::Director(device.clone());
    let held = store.newest(&mine, Role::Timestamp).await?.map_or(0, |signed| signed.version);
    let told = before.as_ref().map_or(0, |before| before.sequence);
    // It has accepted more than was ever signed here: this registry was restored from a backup.
    let (seen, heard) = (claims.director_above(held), claims.sequence_above(told));
    if let Some(before) = &before
        && same
        && (seen, heard) == (None, None)
        && before.nonce == claims.nonce
        && !before.past_half(now_ms)
    {
        return Ok(true);
    }
    let sequence = match &before {
        Some(before) if same && seen.is_none() && heard.is_none() => before.sequence,
        _ => heard.unwrap_or(told).saturating_add(1),
    };
    let since = since(&assignments, standing.as_ref(), sequence);
    let version = seen.unwrap_or(held).saturating_add(1);
    let expires = expiry(now, trust.lifetimes.director);
    let assignment = DirectorAssignment {
        format: FORMAT,
        device: device.clone(),
        sequence,
        issued_at: now,
        nonce: claims.nonce.clone(),
        assignments,
    };
    let what = format!("what {device} shall run");
    let keys = trust.online();
    let signed = sign_device(version, &assignment, expires, keys.director()).map_err(unsigned(&what))?;
    for (role, bytes) in [
        (Role::Targets, signed.targets),
        (Role::Snapshot, signed.snapshot),
        (Role::Timestamp, signed.timestamp),
    ] {
        let signed = Signed {
            role,
            version,
            signed_ms: now_ms,
            expires_ms: expires.as_millisecond(),
            body: text(&what, bytes)?,
        };
        change.keep_metadata(&mine, &signed).await?;
        change.forget_metadata_below(&mine, signed.role, version).await?;
    }
    let directed = Directed {
        sequence,
        since,
        assignments: written,
        nonce: claims.nonce.clone(),
        body: text(&what, signed.assignment)?,
        signed_ms: now_ms,
        expires_ms: expires.as_millisecond(),
    };
    change.keep_directed(device, &directed).await?;
    if !same || seen.is_some() || heard.is_some() {
        let detail = json!({"sequence": sequence, "version": version, "assignments": assignment.assignments});
        change.audit(now_ms, "registry", "direct", device.as_str(), detail).await?;
    }
    change.commit().await?;
    if let Err(error) = trust.files.director(store, device).await {
        tracing::error!(%device, "its metadata files are not written: {}", error.chain());
    }
    Ok(true)
}

/// For each package the sequence since which it is assigned like this.
fn since(
    assignments: &[AssignedPackage],
    standing: Option<&Standing>,
    sequence: u64,
) -> BTreeMap<PackageName, u64> {
    let one = |assigned: &AssignedPackage| {
        let before = standing.and_then(|standing| standing.since(assigned));
        (assigned.package.clone(), before.unwrap_or(sequence))
    };
    assignments.iter().map(one).collect()
}

/// Whether what was signed is not what the device shall run, or not what it has accepted.
pub(super) async fn behind(store: &Store, device: &DeviceId, desired: u64) -> Result<bool, Error> {
    match store.standing(device).await? {
        Some(standing) => standing.behind(desired),
        None => Ok(false),
    }
}
