//! The Image repository: releases are checked, its snapshot and timestamp are signed here.

use jiff::Timestamp;
use selvedge_package::bundle::Bundle;
use selvedge_signing::lifetimes::{IMAGE_SNAPSHOT, IMAGE_TIMESTAMP, expiry};
use selvedge_signing::online::{sign_snapshot, sign_timestamp};
use serde_json::json;

use super::upload::{self, Expected};
use super::{Trust, text, unsigned};
use crate::error::Error;
use crate::refusal::Refusal;
use crate::store::metadata::{Repository, Role, Signed};
use crate::store::packages::Package;
use crate::store::{Change, Store};

/// Release `bundle`. The caller holds the signing lock.
pub(super) async fn release(
    trust: &Trust,
    store: &Store,
    workspace: &str,
    bundle: &Bundle,
    targets: &str,
    now: Timestamp,
) -> Result<Package, Refusal> {
    let roots = trust.roots(store).await?;
    let previous = store.newest(&Repository::Image, Role::Targets).await?;
    let manifest = bundle.manifest();
    let now_ms = now.as_millisecond();
    let mut change = store.change().await?;
    let expected = Expected {
        root: roots.image.as_bytes(),
        previous: previous.as_ref().map(|signed| signed.body.as_bytes()),
        bundle,
        last: change.last_release(workspace, &manifest.name).await?,
    };
    let (version, expires, entry) = upload::check_targets(&expected, targets.as_bytes(), now)?;
    if change.target_released(&entry.target).await? {
        return Err(Refusal::VersionExists {
            package: manifest.name.clone(),
            version: manifest.version.to_string(),
        });
    }
    let signed = Signed {
        role: Role::Targets,
        version,
        signed_ms: now_ms,
        expires_ms: expires.as_millisecond(),
        body: targets.to_owned(),
    };
    change.keep_metadata(&Repository::Image, &signed).await?;
    let snapshot = snapshot(trust, store, &mut change, targets, now).await?;
    timestamp(trust, store, &mut change, &snapshot, now).await?;
    let package = Package {
        workspace: workspace.to_owned(),
        manifest: manifest.clone(),
        digest: bundle.digest(),
        length: bundle.length(),
        size: bundle.size(),
        target: entry.target,
        released_ms: now_ms,
    };
    let mut blobs = vec![(bundle.digest(), bundle.length())];
    blobs.extend(bundle.blobs().into_iter().map(|blob| (blob.digest, blob.size)));
    change.add_package(&package, &blobs).await?;
    let detail = json!({
        "workspace": workspace,
        "version": manifest.version,
        "release": manifest.release,
        "digest": package.digest,
        "targets": version,
    });
    change.audit(now_ms, "token", "release", manifest.name.as_str(), detail).await?;
    change.commit().await?;
    // The files are copies: if they cannot be written now, the next start writes them.
    if let Err(error) = trust.publish_image(store).await {
        tracing::error!("the release is stored, but its metadata files are not: {}", error.chain());
    }
    tracing::info!(package = %manifest.name, release = manifest.release, "released");
    Ok(package)
}

/// Sign snapshot and timestamp again where half of their life is over, or in any case. Says whether
/// anything was signed. The caller holds the signing lock.
pub(super) async fn refresh(
    trust: &Trust,
    store: &Store,
    now: Timestamp,
    always: bool,
) -> Result<bool, Error> {
    let newest = async |role| store.newest(&Repository::Image, role).await;
    let (targets, held_snapshot, held_timestamp) =
        (newest(Role::Targets).await?, newest(Role::Snapshot).await?, newest(Role::Timestamp).await?);
    let Some(targets) = targets else {
        return Ok(false);
    };
    let now_ms = now.as_millisecond();
    if targets.expires_ms <= now_ms {
        tracing::error!("the Image targets have expired: sign them again with `selvedge release`");
    }
    let due = |held: &Option<Signed>| always || held.as_ref().is_none_or(|held| held.past_half(now_ms));
    let mut change = store.change().await?;
    let body = match held_snapshot {
        Some(held) if !due(&Some(held.clone())) => {
            if !due(&held_timestamp) {
                return Ok(false);
            }
            held.body
        }
        _ => snapshot(trust, store, &mut change, &targets.body, now).await?,
    };
    timestamp(trust, store, &mut change, &body, now).await?;
    change.audit(now_ms, "registry", "sign-again", "image", json!({})).await?;
    change.commit().await?;
    Ok(true)
}

async fn snapshot(
    trust: &Trust,
    store: &Store,
    change: &mut Change,
    targets: &str,
    now: Timestamp,
) -> Result<String, Error> {
    let version = next(store, Role::Snapshot).await?;
    let expires = expiry(now, IMAGE_SNAPSHOT);
    let bytes = sign_snapshot(version, targets.as_bytes(), expires, &trust.online.image_snapshot)
        .map_err(unsigned("the Image snapshot"))?;
    keep(change, Role::Snapshot, version, expires, text("the Image snapshot", bytes)?, now).await
}

async fn timestamp(
    trust: &Trust,
    store: &Store,
    change: &mut Change,
    snapshot: &str,
    now: Timestamp,
) -> Result<String, Error> {
    let version = next(store, Role::Timestamp).await?;
    let expires = expiry(now, IMAGE_TIMESTAMP);
    let bytes = sign_timestamp(version, snapshot.as_bytes(), expires, &trust.online.image_timestamp)
        .map_err(unsigned("the Image timestamp"))?;
    keep(change, Role::Timestamp, version, expires, text("the Image timestamp", bytes)?, now).await
}

async fn next(store: &Store, role: Role) -> Result<u64, Error> {
    Ok(store.newest(&Repository::Image, role).await?.map_or(1, |signed| signed.version.saturating_add(1)))
}

async fn keep(
    change: &mut Change,
    role: Role,
    version: u64,
    expires: Timestamp,
    body: String,
    now: Timestamp,
) -> Result<String, Error> {
    let signed =
        Signed { role, version, signed_ms: now.as_millisecond(), expires_ms: expires.as_millisecond(), body };
    change.keep_metadata(&Repository::Image, &signed).await?;
    change.forget_metadata_below(&Repository::Image, role, version).await?;
    Ok(signed.body)
}
