//! The Image repository of a push: what is released, signed by a person's key, and the two roles
//! round it that expire soon.

use jiff::{SignedDuration, Timestamp};
use selvedge_package::Bundle;
use selvedge_package::trust::{ImageFiles, RepositoryMetadata, target_name, verify_image};
use selvedge_signing::image::{ImageTarget, add_target, renew};
use selvedge_signing::lifetimes::{IMAGE_SNAPSHOT, IMAGE_TARGETS, IMAGE_TIMESTAMP, expiry};
use selvedge_signing::online::{sign_snapshot, sign_timestamp};
use selvedge_signing::{SigningError, metadata};

use super::repository::Image;
use super::ring::Ring;
use crate::failure::Failure;
use crate::keyring::failed;

/// Lists the package among the releases, unless it is there already; says whether it was not.
pub fn release(image: &mut Image, ring: &Ring, bundle: &Bundle, now: Timestamp) -> Result<bool, Failure> {
    let manifest = bundle.manifest();
    let target = ImageTarget::of(bundle);
    if let Some(targets) = &image.targets {
        // Its age is no matter here, nor are keys that a newer root has replaced: it is signed again.
        let files = ImageFiles::unsplit(targets.as_bytes());
        let verify = |root: &String| verify_image(root.as_bytes(), &files, Timestamp::UNIX_EPOCH);
        let mut tried = image.image_roots.iter().rev().map(verify);
        let newest = tried.next().ok_or_else(no_root)?;
        let read = newest.or_else(|error| tried.find_map(Result::ok).ok_or(error)).map_err(untrusted)?;
        let name = target_name(&manifest.name, &manifest.version);
        let listed = read.releases.iter().find(|listed| listed.target == name);
        if listed.is_some_and(|listed| {
            listed.digest == target.digest
                && listed.length == target.length
                && listed.custom.release == target.custom.release
        }) {
            return Ok(false);
        }
    }
    let expires = expiry(now, IMAGE_TARGETS);
    let previous = image.targets.as_deref().map(str::as_bytes);
    let signed = add_target(previous, &target, expires, &[&ring.offline.image_targets])
        .map_err(|error| failed(format!("sign {}", target.name()), error))?;
    image.targets = Some(text(signed)?);
    Ok(true)
}

/// Signs what is due: what half of its life is over of, what pins something newer, and what has a
/// version below `least` (timestamp, snapshot, targets). With `always`, everything. Says whether
/// anything was signed. There must be a release.
pub fn refresh(
    image: &mut Image,
    ring: &Ring,
    least: [u64; 3],
    always: bool,
    now: Timestamp,
) -> Result<bool, Failure> {
    let [least_timestamp, least_snapshot, least_targets] = least;
    let (Some(targets), mut changed) = (image.targets.clone(), false) else {
        return Ok(false);
    };
    let due = |file: Option<&String>, least: u64, life: SignedDuration| match file {
        Some(file) => is_due(file.as_bytes(), least, life, now).map(|due| due || always),
        None => Ok(true),
    };
    let signing = |error| failed("sign the list of releases", error);

    let mut targets = targets;
    if due(Some(&targets), least_targets, IMAGE_TARGETS)? {
        let next = version(&targets)?.saturating_add(1).max(least_targets);
        let expires = expiry(now, IMAGE_TARGETS);
        let before = with_version(&targets, next - 1)?;
        targets = text(renew(&before, expires, &[&ring.offline.image_targets]).map_err(signing)?)?;
        image.targets = Some(targets.clone());
        changed = true;
    }
    let pins = |file: Option<&String>, pinned: &str, name: &str| {
        file.is_some_and(|file| pinned_version(file, name) == version(pinned).ok())
    };
    let held = image.snapshot.as_ref();
    if !pins(held, &targets, "targets.json") || due(held, least_snapshot, IMAGE_SNAPSHOT)? {
        let next = next_version(held)?.max(least_snapshot);
        let expires = expiry(now, IMAGE_SNAPSHOT);
        let signed = sign_snapshot(next, targets.as_bytes(), expires, &ring.online.image_snapshot);
        image.snapshot = Some(text(signed.map_err(signing)?)?);
        changed = true;
    }
    let snapshot = image.snapshot.clone().unwrap_or_default();
    let held = image.timestamp.as_ref();
    if !pins(held, &snapshot, "snapshot.json") || due(held, least_timestamp, IMAGE_TIMESTAMP)? {
        let next = next_version(held)?.max(least_timestamp);
        let expires = expiry(now, IMAGE_TIMESTAMP);
        let signed = sign_timestamp(next, snapshot.as_bytes(), expires, &ring.online.image_timestamp);
        image.timestamp = Some(text(signed.map_err(signing)?)?);
        changed = true;
    }
    Ok(changed)
}

/// Versions of timestamp, snapshot and targets; 0 where there is none.
pub fn versions(image: &Image) -> Result<[u64; 3], Failure> {
    let of = |file: &Option<String>| file.as_deref().map_or(Ok(0), version);
    Ok([of(&image.timestamp)?, of(&image.snapshot)?, of(&image.targets)?])
}

/// The repository as a device gets it.
pub fn offered(image: &Image) -> RepositoryMetadata {
    let bytes = |file: &Option<String>| file.as_deref().unwrap_or_default().as_bytes().to_vec();
    RepositoryMetadata {
        roots: image.image_roots.iter().map(|root| root.as_bytes().to_vec()).collect(),
        timestamp: bytes(&image.timestamp),
        snapshot: bytes(&image.snapshot),
        targets: bytes(&image.targets),
        ..RepositoryMetadata::default()
    }
}

/// Whether half of its life is over, or its version is below `least`.
pub fn is_due(file: &[u8], least: u64, life: SignedDuration, now: Timestamp) -> Result<bool, Failure> {
    let head = head(file)?;
    let left = head.expires.duration_since(now);
    // One that lives longer than it should was signed by a clock of the future.
    Ok(left < life / 2 || left > life + SignedDuration::from_hours(1) || head.version < least)
}

/// Signed metadata is JSON, so it is text.
pub fn text(bytes: Vec<u8>) -> Result<String, Failure> {
    String::from_utf8(bytes)
        .map_err(|source| Failure::Internal { what: "signed metadata is not text", source: source.into() })
}

fn head(file: &[u8]) -> Result<metadata::Head, Failure> {
    metadata::head(file).map_err(|error| failed("read what was signed before", error))
}

fn version(file: &str) -> Result<u64, Failure> {
    Ok(head(file.as_bytes())?.version)
}

fn next_version(file: Option<&String>) -> Result<u64, Failure> {
    file.map_or(Ok(1), |file| Ok(version(file)?.saturating_add(1)))
}

/// The version of `name` that a snapshot or timestamp pins.
fn pinned_version(file: &str, name: &str) -> Option<u64> {
    let value: serde_json::Value = serde_json::from_str(file).ok()?;
    value["signed"]["meta"][name]["version"].as_u64()
}

/// The same list with another version: what is signed next has the one after it.
fn with_version(targets: &str, version: u64) -> Result<Vec<u8>, Failure> {
    let unread = |source: serde_json::Error| {
        failed("read what was signed before", SigningError::NotMetadata { what: "targets", source })
    };
    let mut value: serde_json::Value = serde_json::from_str(targets).map_err(unread)?;
    value["signed"]["version"] = version.max(1).into();
    serde_json::to_vec(&value).map_err(unread)
}

fn no_root() -> Failure {
    Failure::Internal { what: "the memory of `selvedge push` has no root", source: "none was taken".into() }
}

fn untrusted(source: selvedge_package::trust::TrustError) -> Failure {
    Failure::Untrusted {
        what: "what was pushed before is not signed by these keys".to_owned(),
        advice: "check --keys and --repository: they belong together".to_owned(),
        source: Some(source.into()),
    }
}
