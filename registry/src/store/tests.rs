//! The database of an earlier version is brought up to date; what is in force is read anew after
//! every change, and once only.

use std::borrow::Cow;
use std::collections::BTreeMap;

use selvedge_package::{DeviceId, Digest, Manifest, PackageName};
use serde_json::json;
use sqlx::migrate::Migrator;

use super::deployments::{Deployment, SELECTORS};
use super::packages::Package;
use super::targets::Kind;
use super::*;
use crate::resolve::Scope;

fn device(name: &str) -> DeviceId {
    name.parse().unwrap()
}

fn package(name: &str, release: u64) -> Package {
    let manifest: Manifest = serde_json::from_value(json!({
        "format": 1, "name": name, "version": format!("{release}.0.0"), "release": release,
        "models": [{"name": "main", "file": "model.onnx"}], "inputs": [], "outputs": [],
        "acceptance": {"cases": ["cases/one.json"]},
    }))
    .unwrap();
    let target = format!("{name}-{release}.0.0.pkg.json");
    let digest = Digest::of(target.as_bytes());
    Package { workspace: "default".into(), manifest, digest, length: 1, size: 1, target, released_ms: 0 }
}

fn deployment(id: &str, package: &Package, scope: Scope) -> Deployment {
    Deployment {
        id: id.to_owned(),
        package: package.manifest.name.clone(),
        release: package.manifest.release,
        version: package.manifest.version.to_string(),
        digest: package.digest,
        scope,
        priority: 0,
        settings: BTreeMap::new(),
        created_ms: 1,
        ended: None,
    }
}

async fn add_target(store: &Store, name: &str, labels: &[(&str, &str)]) {
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let mut change = store.change().await.unwrap();
    change.add_target("default", &device(name), Kind::Device, &labels, "", 0).await.unwrap();
    change.commit().await.unwrap();
}

async fn runs(store: &Store, name: &str) -> Vec<(String, u64)> {
    let standing = store.standing(&device(name)).await.unwrap().unwrap();
    standing.assigned().into_iter().map(|assigned| (assigned.package.to_string(), assigned.release)).collect()
}

#[tokio::test]
async fn deployments_of_earlier_versions_keep_working() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    {
        let options = SqliteConnectOptions::new().filename(&path).create_if_missing(true).foreign_keys(true);
        let pool = SqlitePool::connect_with(options).await.unwrap();
        let earlier = MIGRATIONS.migrations.iter().filter(|migration| migration.version < 3).cloned();
        let earlier = Migrator { migrations: Cow::Owned(earlier.collect()), ..Migrator::DEFAULT };
        earlier.run(&pool).await.unwrap();
        let package = package("file-type", 1);
        let manifest = serde_json::to_string(&package.manifest).unwrap();
        for statement in [
            "INSERT INTO targets (name, workspace, kind, labels, created_ms, token_hash, facts, facts_epoch, \
             facts_sequence, reported_epoch, reported_sequence) \
             VALUES ('edge-1', 'default', 'device', '{}', 0, '', '{}', -1, -1, -1, -1)"
                .to_owned(),
            format!(
                "INSERT INTO packages VALUES ('default', 'file-type', 1, '1.0.0', '{}', 1, 1, 0, 'x', '{manifest}', 0)",
                package.digest
            ),
            "INSERT INTO deployments VALUES ('old', 1, 'default', 'edge-1', 'file-type', 1, '{}', 5, 6, 'replaced')"
                .to_owned(),
            "INSERT INTO deployments VALUES ('new', 2, 'default', 'edge-1', 'file-type', 1, '{\"a\":\"b\"}', 7, \
             NULL, NULL)"
                .to_owned(),
        ] {
            sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&pool).await.unwrap();
        }
        pool.close().await;
    }
    let store = Store::open(&path).await.unwrap();
    let rows = store.deployments("default", true).await.unwrap();
    let seen: Vec<_> = rows.iter().map(|row| (row.id.as_str(), row.priority, row.ended.is_some())).collect();
    assert_eq!(seen, [("new", 0, false), ("old", 0, true)]);
    assert!(rows.iter().all(|row| row.scope == Scope::Target(device("edge-1"))));
    assert_eq!(rows[0].settings["a"], "b");
    assert_eq!(runs(&store, "edge-1").await, [("file-type".to_owned(), 1)]);
    // A new one replaces it, as before.
    let mut change = store.change().await.unwrap();
    let newer = deployment("newer", &package("file-type", 1), Scope::Target(device("edge-1")));
    assert_eq!(change.add_deployment("default", &newer).await.unwrap(), Some("new".to_owned()));
    change.commit().await.unwrap();
}

#[tokio::test]
async fn what_a_change_leaves_undone_is_never_seen() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("db")).await.unwrap();
    add_target(&store, "edge-1", &[("site", "oslo")]).await;
    let (a, b) = (package("a", 1), package("b", 1));
    let mut change = store.change().await.unwrap();
    for package in [&a, &b] {
        change.add_package(package, &[]).await.unwrap();
    }
    change.commit().await.unwrap();
    assert_eq!(runs(&store, "edge-1").await, []);
    let everywhere = || Scope::Selector("site = oslo".parse().unwrap());
    // Seen within the change, and by nobody once that is dropped; the next one has the same revision.
    for (id, package, kept) in [("1", &a, false), ("2", &b, true)] {
        let mut change = store.change().await.unwrap();
        change.add_deployment("default", &deployment(id, package, everywhere())).await.unwrap();
        let inside = change.standing(&device("edge-1")).await.unwrap().unwrap().assigned();
        assert_eq!(inside.len(), 1);
        if kept {
            change.commit().await.unwrap();
        }
    }
    assert_eq!(runs(&store, "edge-1").await, [("b".to_owned(), 1)]);
    let (one, two) = (store.in_force("default").await.unwrap(), store.in_force("default").await.unwrap());
    assert!(std::sync::Arc::ptr_eq(&one, &two), "it is read once");
    let mut change = store.change().await.unwrap();
    assert!(change.end_deployment("default", "2", 9).await.unwrap().is_some());
    assert!(change.end_deployment("default", "2", 9).await.unwrap().is_none());
    change.commit().await.unwrap();
    assert_eq!(runs(&store, "edge-1").await, []);
}

#[tokio::test]
async fn a_thousand_targets_and_a_hundred_deployments_are_two_queries() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("db")).await.unwrap();
    let mut change = store.change().await.unwrap();
    for number in 0..1000 {
        let labels = BTreeMap::from([("group".to_owned(), (number % 100).to_string())]);
        let name = device(&format!("t{number}"));
        change.add_target("default", &name, Kind::Device, &labels, "", 0).await.unwrap();
    }
    for number in 0..100 {
        let package = package(&format!("p{number}"), 1);
        change.add_package(&package, &[]).await.unwrap();
        let scope = Scope::Selector(format!("group = {number}").parse().unwrap());
        change.add_deployment("default", &deployment(&number.to_string(), &package, scope)).await.unwrap();
    }
    change.commit().await.unwrap();
    let standings = store.standings("default").await.unwrap();
    assert_eq!(standings.len(), 1000);
    for standing in &standings {
        assert!(std::sync::Arc::ptr_eq(&standing.in_force, &standings[0].in_force));
        let group = &standing.target.labels["group"];
        let assigned = standing.assigned();
        let expected: PackageName = format!("p{group}").parse().unwrap();
        assert_eq!(assigned.iter().map(|one| &one.package).collect::<Vec<_>>(), [&expected]);
    }
}

#[tokio::test]
async fn deployments_in_force_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("db")).await.unwrap();
    let a = package("a", 1);
    let mut change = store.change().await.unwrap();
    change.add_package(&a, &[]).await.unwrap();
    for number in 0..SELECTORS {
        let scope = Scope::Selector(format!("k = {number}").parse().unwrap());
        change.add_deployment("default", &deployment(&number.to_string(), &a, scope)).await.unwrap();
    }
    // One that replaces another is none more.
    let same = Scope::Selector("k = 1".parse().unwrap());
    change.add_deployment("default", &deployment("again", &a, same)).await.unwrap();
    let more = Scope::Selector("more".parse().unwrap());
    let refused = change.add_deployment("default", &deployment("more", &a, more)).await;
    assert!(matches!(refused, Err(Refusal::TooManyDeployments)));
}

#[tokio::test]
async fn a_name_used_again_keeps_nothing_of_before() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("db")).await.unwrap();
    add_target(&store, "edge-1", &[]).await;
    let name = device("edge-1");
    let a = package("a", 1);
    let mut change = store.change().await.unwrap();
    change.add_package(&a, &[]).await.unwrap();
    change.add_deployment("default", &deployment("1", &a, Scope::Target(name.clone()))).await.unwrap();
    let assigned = in_force::signed_form(change.standing(&name).await.unwrap().unwrap().assigned());
    let directed = metadata::Directed {
        sequence: 7,
        assignments: in_force::written(&assigned).unwrap(),
        since: BTreeMap::new(),
        nonce: Vec::new(),
        body: String::new(),
        signed_ms: 1,
        expires_ms: 2,
    };
    change.keep_directed(&name, &directed).await.unwrap();
    change.commit().await.unwrap();
    let standing = store.standing(&name).await.unwrap().unwrap();
    assert_eq!((standing.sequence().unwrap(), standing.told().len()), (7, 1));
    assert!(!standing.behind(7).unwrap() && standing.behind(6).unwrap());
    let mut change = store.change().await.unwrap();
    change.remove_target("default", &name, 3).await.unwrap();
    change.commit().await.unwrap();
    add_target(&store, "edge-1", &[]).await;
    let standing = store.standing(&name).await.unwrap().unwrap();
    assert_eq!((standing.sequence().unwrap(), standing.told().len()), (8, 0));
    assert!(standing.behind(7).unwrap() && standing.assigned().is_empty());
}

/// An enrolment is looked at before it is written down; what happens in between counts.
#[tokio::test]
async fn a_key_is_registered_only_under_the_token_that_was_proved() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("db")).await.unwrap();
    let name = device("edge-1");
    let mut change = store.change().await.unwrap();
    change.add_target("default", &name, Kind::Device, &BTreeMap::new(), "first", 0).await.unwrap();
    change.commit().await.unwrap();
    let register = async |token: &str| {
        let mut change = store.change().await.unwrap();
        let done = change.register_key(&name, &[7; 32], token, 2).await.unwrap();
        change.commit().await.unwrap();
        done
    };
    let mut change = store.change().await.unwrap();
    change.mark_revoked(&name, 1).await.unwrap();
    change.commit().await.unwrap();
    assert!(!register("first").await, "revoked meanwhile");
    let mut change = store.change().await.unwrap();
    change.set_token(&name, "second").await.unwrap();
    change.commit().await.unwrap();
    assert!(!register("first").await, "replaced meanwhile");
    assert!(register("second").await);
    assert!(!register("second").await, "it has a key");
}
