//! Releases: only what a person signed, only with every blob, only forwards.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod support;

use std::collections::BTreeMap;

use reqwest::Method;
use selvedge_package::trust::{ImageFiles, verify_image};
use selvedge_signing::{SigningKey, metadata};
use serde_json::{Value, json};
use support::Registry;
use support::packages::{Package, package, sign_on};

const RELEASES: &str = "/v1/workspaces/default/releases";
const DEPLOYMENTS: &str = "/v1/workspaces/default/deployments";

async fn refused(registry: &Registry, package: &Package, targets: &str, status: u16, reason: &str) {
    let body = json!({"package": package.digest(), "roles": {"targets": targets}});
    registry.refused(RELEASES, body, status, reason).await;
}

#[tokio::test]
async fn a_package_is_released_and_listed() {
    let mut registry = Registry::start().await;
    assert_eq!(registry.newest_targets().await, None);
    let first = package("file-type", "1.0.0", 1, 200_000);
    let row = registry.release(&first).await;
    assert_eq!(row["name"], "file-type");
    assert_eq!(row["digest"], json!(first.digest()));
    assert_eq!(row["size"], json!(first.built.bundle.size()));
    let second = package("file-type", "1.1.0", 2, 10);
    registry.release(&second).await;
    registry.release(&package("other", "0.1.0", 5, 10)).await;
    let releases = async |registry: &Registry| -> Vec<(String, u64)> {
        let (_, list) = registry.get("/v1/workspaces/default/packages").await;
        let items = list["items"].as_array().unwrap();
        items
            .iter()
            .map(|row| (row["name"].as_str().unwrap().to_owned(), row["release"].as_u64().unwrap()))
            .collect()
    };
    let expected = [("file-type".to_owned(), 2), ("file-type".to_owned(), 1), ("other".to_owned(), 5)];
    assert_eq!(releases(&registry).await, expected);

    // The files are in the standard layout, and what REST gives is what was signed.
    let file = |name: &str| std::fs::read_to_string(registry.path("registry/tuf/image").join(name)).unwrap();
    let timestamp: Value = serde_json::from_str(&file("timestamp.json")).unwrap();
    let version = timestamp["signed"]["meta"]["snapshot.json"]["version"].as_u64().unwrap();
    let snapshot: Value = serde_json::from_str(&file(&format!("{version}.snapshot.json"))).unwrap();
    assert_eq!(snapshot["signed"]["meta"]["targets.json"]["version"], 3);
    for name in ["1.root.json", "1.targets.json", "3.targets.json", "timestamp.json"] {
        let path = format!("/v1/trust/image/{name}");
        let got = registry.request(Method::GET, &path).send().await.unwrap().text().await.unwrap();
        assert_eq!(got, file(name), "{name}");
    }
    let now = jiff::Timestamp::now();
    let targets =
        verify_image(file("1.root.json").as_bytes(), &ImageFiles::unsplit(file("3.targets.json")), now)
            .unwrap();
    assert_eq!(targets.releases.len(), 3);

    registry.stop();
    std::fs::remove_dir_all(registry.path("registry/tuf")).unwrap();
    registry.run().await;
    assert_eq!(releases(&registry).await, expected);
    assert!(registry.path("registry/tuf/image/timestamp.json").exists());
}

#[tokio::test]
async fn nothing_is_released_that_a_person_did_not_sign() {
    let registry = Registry::start().await;
    let package = package("file-type", "1.0.0", 1, 10);
    registry.upload(&package, &[]).await;
    let unknown = SigningKey::generate().unwrap();
    let keys = registry.keys();
    for key in [&unknown, &keys.image_root, &keys.director_root] {
        refused(&registry, &package, &sign_on(None, &package, key), 422, "untrusted").await;
    }
    let good = sign_on(None, &package, &keys.image_targets);
    let changed = good.replace(&package.digest().hex(), &"0".repeat(64));
    for bad in ["", "{}", "[[[[", &changed, &good.replace("\"version\":1", "\"version\":2")] {
        refused(&registry, &package, bad, 422, "untrusted").await;
    }
    assert_eq!(registry.newest_targets().await, None);
    let body = json!({"package": package.digest(), "roles": {"targets": good}});
    assert_eq!(registry.post(RELEASES, body.clone()).await.0, 201);
    registry.refused(RELEASES, body, 409, "release-not-growing").await;
}

#[tokio::test]
async fn every_blob_must_be_there_and_unchanged() {
    let registry = Registry::start().await;
    let package = package("file-type", "1.0.0", 1, 200_000);
    let targets = sign_on(None, &package, &registry.keys().image_targets);
    refused(&registry, &package, &targets, 422, "missing-blob").await;
    for (digest, _) in &package.blobs {
        // Everything that was not uploaded before this one is still missing.
        refused(&registry, &package, &targets, 422, "missing-blob").await;
        registry.upload(&package, &[*digest]).await;
        refused(&registry, &package, &targets, 422, "missing-blob").await;
        std::fs::remove_dir_all(registry.path("registry/blobs/sha256")).unwrap();
        std::fs::create_dir(registry.path("registry/blobs/sha256")).unwrap();
    }
    registry.upload(&package, &[]).await;
    let (model, bytes) = package.model();
    let path = registry.path("registry/blobs/sha256").join(model.hex());
    let mut changed = bytes.to_vec();
    changed[150_000] ^= 1;
    std::fs::write(&path, &changed).unwrap();
    refused(&registry, &package, &targets, 422, "blob-mismatch").await;
    std::fs::write(&path, &bytes[1..]).unwrap();
    refused(&registry, &package, &targets, 422, "blob-mismatch").await;
    // Uploading it again heals it.
    assert_eq!(registry.put(model, bytes).await.0, 200);
    let body = json!({"package": package.digest(), "roles": {"targets": targets}});
    assert_eq!(registry.post(RELEASES, body).await.0, 201);
    // Something that is no package at all.
    let garbage = selvedge_package::Digest::of(b"garbage");
    registry.put(garbage, b"garbage").await;
    let body = json!({"package": garbage, "roles": {"targets": "x"}});
    registry.refused(RELEASES, body, 422, "invalid-package").await;
}

/// `text` without the entries of `names`, as a base for signing something that breaks a rule.
fn without(text: &str, names: &[&str]) -> String {
    let mut value: Value = serde_json::from_str(text).unwrap();
    let entries = value["signed"]["targets"].as_object_mut().unwrap();
    for name in names {
        entries.remove(*name).unwrap();
    }
    value.to_string()
}

#[tokio::test]
async fn releases_only_go_forwards_and_lose_nothing() {
    let registry = Registry::start().await;
    let key = registry.keys().image_targets;
    let first = package("file-type", "1.0.0", 3, 10);
    registry.release(&first).await;
    registry.release(&package("other", "1.0.0", 1, 10)).await;
    let newest = registry.newest_targets().await.unwrap();

    for release in [2, 3] {
        let stale = package("file-type", "2.0.0", release, 10);
        registry.upload(&stale, &[]).await;
        let targets = sign_on(Some(&without(&newest, &["file-type-1.0.0.pkg.json"])), &stale, &key);
        refused(&registry, &stale, &targets, 409, "release-not-growing").await;
    }
    let next = package("file-type", "2.0.0", 4, 10);
    registry.upload(&next, &[]).await;
    let lost = sign_on(Some(&without(&newest, &["other-1.0.0.pkg.json"])), &next, &key);
    refused(&registry, &next, &lost, 409, "targets-lost").await;
    let same_version = package("file-type", "1.0.0", 4, 10);
    registry.upload(&same_version, &[]).await;
    let replaced = sign_on(Some(&without(&newest, &["file-type-1.0.0.pkg.json"])), &same_version, &key);
    refused(&registry, &same_version, &replaced, 409, "targets-lost").await;
    refused(&registry, &next, &sign_on(None, &next, &key), 409, "targets-version").await;

    // Two people who signed on top of the same metadata: the second signs again.
    let rival = package("rival", "1.0.0", 1, 10);
    registry.upload(&rival, &[]).await;
    let theirs = sign_on(Some(&newest), &rival, &key);
    registry.release(&next).await;
    refused(&registry, &rival, &theirs, 409, "targets-version").await;

    // An entry that is not the package, and one that was not asked for.
    let newest = registry.newest_targets().await.unwrap();
    let mut lying = package("rival", "1.0.0", 1, 10);
    lying.built.bundle = package("rival", "1.0.0", 9, 10).built.bundle;
    refused(&registry, &rival, &sign_on(Some(&newest), &lying, &key), 422, "entry-mismatch").await;
    let two = sign_on(Some(&newest), &package("stowaway", "1.0.0", 1, 10), &key);
    let mut value: Value = serde_json::from_str(&two).unwrap();
    value["signed"]["version"] = json!(metadata::head(newest.as_bytes()).unwrap().version);
    refused(&registry, &rival, &sign_on(Some(&value.to_string()), &rival, &key), 422, "entry-mismatch").await;
    registry.release(&rival).await;
}

#[tokio::test]
async fn deployments_are_checked_and_replaced() {
    let registry = Registry::start().await;
    registry.add_target("edge-1").await;
    registry.release(&package("file-type", "1.0.0", 1, 10)).await;
    registry.release(&package("file-type", "1.1.0", 2, 10)).await;
    let on = |package: &str, release: Value, target: &str, settings: Value| json!({"package": package, "release": release, "target": target, "settings": settings});
    for (body, status, reason) in [
        (on("file-type", json!(7), "edge-1", json!({})), 404, "no-package"),
        (on("file-type", json!(u64::MAX), "edge-1", json!({})), 404, "no-package"),
        (on("nothing", json!(null), "edge-1", json!({})), 404, "no-package"),
        (on("file-type", json!(null), "edge-2", json!({})), 404, "no-target"),
        (on("file-type", json!(null), "edge-1", json!({"colour": "red"})), 422, "setting"),
        (on("file-type", json!(null), "edge-1", json!({"threshold": 1})), 400, "malformed"),
        (on("file-type", json!(-1), "edge-1", json!({})), 400, "malformed"),
        (on("FILE", json!(null), "edge-1", json!({})), 400, "malformed"),
    ] {
        registry.refused(DEPLOYMENTS, body, status, reason).await;
    }
    let newest = registry.deploy("file-type", "edge-1").await;
    assert_eq!((&newest["release"], &newest["version"]), (&json!(2), &json!("1.1.0")));
    let body = on("file-type", json!(1), "edge-1", json!({"threshold": "0.9"}));
    let (status, older) = registry.post(DEPLOYMENTS, body).await;
    assert_eq!(status, 201, "{older}");
    let desired = registry.target("edge-1").await["desired"].clone();
    assert_eq!(desired.as_array().unwrap().len(), 1);
    assert_eq!((&desired[0]["release"], &desired[0]["settings"]), (&json!(1), &json!({"threshold": "0.9"})));
    let list = registry.get(DEPLOYMENTS).await.1;
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    assert_eq!(list["items"][0]["id"], older["id"]);
    let all = registry.get(&format!("{DEPLOYMENTS}?ended=true")).await.1;
    let ended: BTreeMap<&str, &Value> = all["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["id"].as_str().unwrap(), &row["ended"]))
        .collect();
    assert_eq!(ended[newest["id"].as_str().unwrap()], "replaced");

    let path = format!("{DEPLOYMENTS}/{}", older["id"].as_str().unwrap());
    let (status, _) = registry.send(registry.request(Method::DELETE, &path)).await;
    assert_eq!(status, 204);
    let (status, value) = registry.send(registry.request(Method::DELETE, &path)).await;
    assert_eq!((status.as_u16(), value["reason"].as_str()), (404, Some("no-deployment")));
    assert_eq!(registry.target("edge-1").await["desired"], json!([]));
}
