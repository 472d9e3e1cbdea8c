//! The Image repository of a push: what is released, signed by a person's key, and the two roles
//! round it that expire soon.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use selvedge_package::Bundle;
use selvedge_package::trust::{
    AssignedPackage, DelegatedFile, ImageFiles, RepositoryMetadata, bins, target_name, verify_image,
};
use selvedge_signing::image::ImageTarget;
use selvedge_signing::lifetimes::{IMAGE_SNAPSHOT, IMAGE_TARGETS, IMAGE_TIMESTAMP, expiry};
use selvedge_signing::metadata;
use selvedge_signing::online::{sign_image_snapshot, sign_timestamp};
use selvedge_signing::tree::{ChangedFiles, Renewal, add_release, renew_files};

use super::repository::Image;
use super::ring::Ring;
use crate::failure::Failure;
use crate::keyring::failed;

/// Lists the package among the releases, unless it is there already; says whether it was not.
pub fn release(image: &mut Image, ring: &Ring, bundle: &Bundle, now: Timestamp) -> Result<bool, Failure> {
    let manifest = bundle.manifest();
    let target = ImageTarget::of(bundle);
    let held = files(image);
    if let Some(files) = &held {
        // Its age is no matter here, nor are keys that a newer root has replaced: it is signed again.
        let verify = |root: &String| verify_image(root.as_bytes(), files, Timestamp::UNIX_EPOCH);
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
    let root = image.image_roots.last().ok_or_else(no_root)?;
    let changed = add_release(root.as_bytes(), held.as_ref(), &target, expires, &ring.signers())
        .map_err(|error| failed(format!("sign {}", target.name()), error))?;
    keep(image, changed)?;
    Ok(true)
}

/// The lists of releases; `None` before the first.
fn files(image: &Image) -> Option<ImageFiles> {
    let targets = image.targets.as_ref()?.as_bytes().to_vec();
    let bins = image.bins.iter().map(|(role, file)| (role.clone(), file.as_bytes().to_vec())).collect();
    Some(ImageFiles { targets, bins })
}

fn keep(image: &mut Image, changed: ChangedFiles) -> Result<(), Failure> {
    for (role, file) in changed.0 {
        if role == "targets" {
            image.targets = Some(text(file)?);
        } else {
            image.bins.insert(role, text(file)?);
        }
    }
    Ok(())
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
    let Some(mut lists) = files(image) else {
        return Ok(false);
    };
    let due = |file: Option<&String>, least: u64, life: SignedDuration| match file {
        Some(file) => is_due(file.as_bytes(), least, life, now).map(|due| due || always),
        None => Ok(true),
    };
    let signing = |error| failed("sign the list of releases", error);

    let root = image.image_roots.last().ok_or_else(no_root)?.clone();
    let expires = expiry(now, IMAGE_TARGETS);
    let renewal = Renewal { root: root.as_bytes(), expires, least: least_targets };
    let renewed = renew_files(&lists, renewal, &ring.signers(), |_, head| {
        always || head_is_due(head, least_targets, IMAGE_TARGETS, now)
    })
    .map_err(signing)?;
    let mut changed = !renewed.0.is_empty();
    lists = renewed.on(Some(&lists));
    keep(image, renewed)?;
    let pins = |file: Option<&String>, pinned: &[u8], name: &str| {
        file.is_some_and(|file| pinned_version(file, name) == head(pinned).ok().map(|head| head.version))
    };
    let held = image.snapshot.as_ref();
    let pins_all = lists.roles().all(|(role, file)| pins(held, file, &format!("{role}.json")));
    if !pins_all || due(held, least_snapshot, IMAGE_SNAPSHOT)? {
        let next = next_version(held)?.max(least_snapshot);
        let expires = expiry(now, IMAGE_SNAPSHOT);
        let signed = sign_image_snapshot(next, &lists, expires, &ring.online.image_snapshot);
        image.snapshot = Some(text(signed.map_err(signing)?)?);
        changed = true;
    }
    let snapshot = image.snapshot.clone().unwrap_or_default();
    let held = image.timestamp.as_ref();
    if !pins(held, snapshot.as_bytes(), "snapshot.json") || due(held, least_timestamp, IMAGE_TIMESTAMP)? {
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

/// The repository as a device gets it: the bins of what it is assigned, and no others.
pub fn offered(image: &Image, assignments: &[AssignedPackage]) -> RepositoryMetadata {
    let bytes = |file: &Option<String>| file.as_deref().unwrap_or_default().as_bytes().to_vec();
    let wanted: BTreeSet<String> = assignments.iter().flat_map(|one| bins::branch(&one.target)).collect();
    let delegated = image.bins.iter().filter(|(role, _)| wanted.contains(*role));
    RepositoryMetadata {
        roots: image.image_roots.iter().map(|root| root.as_bytes().to_vec()).collect(),
        timestamp: bytes(&image.timestamp),
        snapshot: bytes(&image.snapshot),
        targets: bytes(&image.targets),
        delegated: delegated
            .map(|(role, file)| DelegatedFile { role: role.clone(), file: file.as_bytes().to_vec() })
            .collect(),
    }
}

/// Whether half of its life is over, or its version is below `least`.
pub fn is_due(file: &[u8], least: u64, life: SignedDuration, now: Timestamp) -> Result<bool, Failure> {
    Ok(head_is_due(&head(file)?, least, life, now))
}

fn head_is_due(head: &metadata::Head, least: u64, life: SignedDuration, now: Timestamp) -> bool {
    let left = head.expires.duration_since(now);
    // One that lives longer than it should was signed by a clock of the future.
    left < life / 2 || left > life + SignedDuration::from_hours(1) || head.version < least
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
