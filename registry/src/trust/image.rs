//! The Image repository: releases are checked, its snapshot and timestamp are signed here.

use std::collections::BTreeMap;

use jiff::Timestamp;
use selvedge_package::bundle::Bundle;
use selvedge_signing::OnlineKeys;
use selvedge_signing::lifetimes::expiry;
use selvedge_signing::online::{sign_image_snapshot, sign_timestamp};
use serde_json::json;

use super::upload::{self, Offered};
use super::{BELIEVED, Trust, text, unsigned};
use crate::error::Error;
use crate::refusal::Refusal;
use crate::store::metadata::{ImageRoles, Repository, Role, Signed};
use crate::store::packages::Package;
use crate::store::{Change, Store};

/// Release `bundle`. The caller holds the signing lock.
pub(super) async fn release(
    trust: &Trust,
    store: &Store,
    workspace: &str,
    bundle: &Bundle,
    roles: &BTreeMap<String, String>,
    now: Timestamp,
) -> Result<Package, Refusal> {
    let roots = trust.roots(store).await?;
    let (held, released) = (store.image_roles().await?, store.released().await?);
    let manifest = bundle.manifest();
    let now_ms = now.as_millisecond();
    let mut change = store.change().await?;
    let offered = upload::verify(roots.image.as_bytes(), &held, roles, now)?;
    upload::grows(bundle, change.last_release(workspace, &manifest.name).await?)?;
    offered.check_versions(&held)?;
    let entry = offered.adds(&released, bundle)?;
    if change.target_released(&entry.target).await? {
        return Err(Refusal::VersionExists {
            package: manifest.name.clone(),
            version: manifest.version.to_string(),
        });
    }
    take(trust, &trust.online(), store, &mut change, &offered, now).await?;
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
        "roles": offered.changed(),
    });
    change.audit(now_ms, "token", "release", manifest.name.as_str(), detail).await?;
    change.commit().await?;
    trust.publish_or_log(store).await;
    tracing::info!(package = %manifest.name, release = manifest.release, "released");
    Ok(package)
}

/// Take the same releases, signed again. The caller holds the signing lock.
pub(super) async fn renew(
    trust: &Trust,
    store: &Store,
    roles: &BTreeMap<String, String>,
    now: Timestamp,
) -> Result<(), Refusal> {
    let roots = trust.roots(store).await?;
    let (held, released) = (store.image_roles().await?, store.released().await?);
    let offered = upload::verify(roots.image.as_bytes(), &held, roles, now)?;
    offered.check_versions(&held)?;
    offered.same(&released)?;
    let mut change = store.change().await?;
    take(trust, &trust.online(), store, &mut change, &offered, now).await?;
    let detail = json!({"roles": offered.changed()});
    change.audit(now.as_millisecond(), "token", "image-renew", "image", detail).await?;
    change.commit().await?;
    trust.publish_or_log(store).await;
    tracing::info!("the Image targets were signed again");
    Ok(())
}

/// Keep changed roles, and sign what names them.
pub(super) async fn take(
    trust: &Trust,
    keys: &OnlineKeys,
    store: &Store,
    change: &mut Change,
    offered: &Offered,
    now: Timestamp,
) -> Result<(), Refusal> {
    for signed in &offered.signed {
        change.keep_metadata(&Repository::Image, signed).await?;
        // Old lists of a repository that is not split are its history; bins would be far too many.
        if let Role::Bin(_) = signed.role {
            change.forget_metadata_below(&Repository::Image, signed.role.clone(), signed.version).await?;
        }
    }
    pin(trust, keys, store, change, &offered.roles, now).await.map_err(Refusal::from)
}

/// Sign a snapshot of these roles, and its timestamp.
pub(super) async fn pin(
    trust: &Trust,
    keys: &OnlineKeys,
    store: &Store,
    change: &mut Change,
    roles: &ImageRoles,
    now: Timestamp,
) -> Result<(), Error> {
    let signing = Signing { trust, keys, store, now };
    let body = signing.snapshot(change, roles, 0).await?;
    signing.timestamp(change, &body, 0).await?;
    Ok(())
}

/// Sign snapshot and timestamp again where half of their life is over, or in any case. Says whether
/// anything was signed. The caller holds the signing lock.
pub(super) async fn refresh(
    trust: &Trust,
    store: &Store,
    now: Timestamp,
    always: bool,
) -> Result<bool, Error> {
    let roles = store.image_roles().await?;
    if roles.is_empty() {
        return Ok(false);
    }
    let newest = async |role| store.newest(&Repository::Image, role).await;
    let (held_snapshot, held_timestamp) = (newest(Role::Snapshot).await?, newest(Role::Timestamp).await?);
    let now_ms = now.as_millisecond();
    let due = |held: &Option<Signed>| always || held.as_ref().is_none_or(|held| held.past_half(now_ms));
    let keys = trust.online();
    let signing = Signing { trust, keys: &keys, store, now };
    let mut change = store.change().await?;
    let body = match held_snapshot {
        Some(held) if !due(&Some(held.clone())) => {
            if !due(&held_timestamp) {
                return Ok(false);
            }
            held.body
        }
        _ => signing.snapshot(&mut change, &roles, 0).await?,
    };
    signing.timestamp(&mut change, &body, 0).await?;
    change.audit(now_ms, "registry", "sign-again", "image", json!({})).await?;
    change.commit().await?;
    Ok(true)
}

/// Sign snapshot and timestamp above what a device has accepted, if that is more than was ever signed
/// here: this registry was restored from a backup. Gives the version of its targets where even that is
/// more than the one here: then releases were lost. The caller holds the signing lock.
pub(super) async fn catch_up(
    trust: &Trust,
    store: &Store,
    accepted: [u64; 3],
    now: Timestamp,
) -> Result<Option<u64>, Error> {
    let Some(targets) = store.newest(&Repository::Image, Role::Targets).await? else { return Ok(None) };
    let [timestamp_seen, snapshot_seen, targets_seen] = accepted;
    let newest = async |role| {
        Ok::<_, Error>(store.newest(&Repository::Image, role).await?.map_or(0, |signed| signed.version))
    };
    let (held_timestamp, held_snapshot) = (newest(Role::Timestamp).await?, newest(Role::Snapshot).await?);
    let lost = (targets_seen > targets.version).then_some(targets_seen);
    let believed = |seen: u64, held: u64| seen > held && seen - held <= BELIEVED;
    if !believed(timestamp_seen, held_timestamp) && !believed(snapshot_seen, held_snapshot) {
        return Ok(lost);
    }
    let bounded = |seen: u64, held: u64| if believed(seen, held) { seen } else { 0 };
    let roles = store.image_roles().await?;
    let mut change = store.change().await?;
    let above = bounded(snapshot_seen, held_snapshot);
    let keys = trust.online();
    let signing = Signing { trust, keys: &keys, store, now };
    let body = signing.snapshot(&mut change, &roles, above).await?;
    signing.timestamp(&mut change, &body, bounded(timestamp_seen, held_timestamp)).await?;
    let detail = json!({"timestamp": timestamp_seen, "snapshot": snapshot_seen});
    change.audit(now.as_millisecond(), "registry", "catch-up", "image", detail).await?;
    change.commit().await?;
    tracing::warn!("a device has accepted newer metadata than this registry has signed: signed above it");
    trust.publish_or_log(store).await;
    Ok(lost)
}

/// With what is signed.
struct Signing<'a> {
    trust: &'a Trust,
    keys: &'a OnlineKeys,
    store: &'a Store,
    now: Timestamp,
}

impl Signing<'_> {
    /// A snapshot of these roles, above this version too.
    async fn snapshot(&self, change: &mut Change, roles: &ImageRoles, above: u64) -> Result<String, Error> {
        let version = next(self.store, Role::Snapshot, above).await?;
        let expires = expiry(self.now, self.trust.lifetimes.image_snapshot);
        let bytes = sign_image_snapshot(version, &upload::files(roles), expires, &self.keys.image_snapshot)
            .map_err(unsigned("the Image snapshot"))?;
        let body = text("the Image snapshot", bytes)?;
        self.keep(change, Role::Snapshot, version, expires, body).await
    }

    async fn timestamp(&self, change: &mut Change, snapshot: &str, above: u64) -> Result<String, Error> {
        let version = next(self.store, Role::Timestamp, above).await?;
        let expires = expiry(self.now, self.trust.lifetimes.image_timestamp);
        let bytes = sign_timestamp(version, snapshot.as_bytes(), expires, &self.keys.image_timestamp)
            .map_err(unsigned("the Image timestamp"))?;
        let body = text("the Image timestamp", bytes)?;
        self.keep(change, Role::Timestamp, version, expires, body).await
    }

    async fn keep(
        &self,
        change: &mut Change,
        role: Role,
        version: u64,
        expires: Timestamp,
        body: String,
    ) -> Result<String, Error> {
        let signed = Signed {
            role: role.clone(),
            version,
            signed_ms: self.now.as_millisecond(),
            expires_ms: expires.as_millisecond(),
            body,
        };
        change.keep_metadata(&Repository::Image, &signed).await?;
        change.forget_metadata_below(&Repository::Image, role, version).await?;
        Ok(signed.body)
    }
}

async fn next(store: &Store, role: Role, above: u64) -> Result<u64, Error> {
    let held = store.newest(&Repository::Image, role).await?.map_or(0, |signed| signed.version);
    Ok(held.max(above).saturating_add(1))
}
