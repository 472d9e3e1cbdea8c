//! New roots, renewed lists, and a repository that is split into bins: what is taken, what is refused,
//! and what devices make of it.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod support;

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use reqwest::Method;
use selvedge_package::trust::{DirectorAssignment, MetadataBundle, adopt_roots, bins};
use selvedge_protocol::envelope::from_cbor;
use selvedge_protocol::message::{Accepted, Enrolled, ReportBody, Want};
use selvedge_protocol::signed::PublicKey;
use selvedge_protocol::topic::Kind;
use selvedge_signing::roots::{RoleKeys, RootSpec, sign_root};
use selvedge_signing::tree::{Renewal, renew_files};
use selvedge_signing::{Signer, SigningKey};
use serde_json::{Value, json};
use support::device::Device;
use support::packages::{files, package, texts};
use support::{Registry, wait_for};

const BLOCK: u32 = 65_536;

fn in_days(days: i64) -> Timestamp {
    Timestamp::now() + SignedDuration::from_hours(24 * days)
}

/// The next root of a repository, changed by `change`.
async fn next(registry: &Registry, repository: &str, change: impl FnOnce(&mut RootSpec)) -> RootSpec {
    let (_, roots) = registry.get("/v1/trust/roots").await;
    let newest = roots[repository].as_array().unwrap().last().unwrap().as_str().unwrap();
    let mut spec = RootSpec::read(newest.as_bytes()).unwrap();
    spec.version += 1;
    spec.expires = in_days(700);
    change(&mut spec);
    spec
}

fn signed(spec: &RootSpec, signers: &[&dyn Signer]) -> String {
    String::from_utf8(sign_root(spec, signers).unwrap()).unwrap()
}

fn offer(repository: &str, root: &str) -> Value {
    json!({"repository": repository, "root": root})
}

async fn enrolled(registry: &Registry) -> Device {
    let mut device = Device::connect(&registry.add_target("edge-1").await).await;
    assert_eq!(device.enrol().await, Enrolled::Accepted);
    device
}

fn single(key: &SigningKey) -> RoleKeys {
    RoleKeys::single(key.public_key())
}

async fn renewed(registry: &Registry, root: &str, keys: &[&dyn Signer]) -> BTreeMap<String, String> {
    let (_, roles) = registry.image().await;
    let renewal = Renewal { root: root.as_bytes(), expires: in_days(300), least: 1 };
    texts(renew_files(&files(&roles), renewal, keys, |_, _| true).unwrap())
}

#[tokio::test]
async fn keys_of_every_role_are_rotated_while_devices_run() {
    let mut registry = Registry::start().await;
    let keys = registry.keys();
    let mut edge = enrolled(&registry).await;
    registry.release(&package("file-type", "1.0.0", 1, 10)).await;
    registry.deploy("file-type", "edge-1").await;
    edge.birth(b"n", BLOCK);
    edge.shall_run(&[("file-type", 1)]).await;

    // The Director's online keys, after their files are beside the old ones.
    let online = ["director-targets", "director-snapshot", "director-timestamp"];
    let made: Vec<SigningKey> = online.iter().map(|_| SigningKey::generate().unwrap()).collect();
    let spec = next(&registry, "director", |spec| {
        (spec.targets, spec.snapshot, spec.timestamp) =
            (single(&made[0]), single(&made[1]), single(&made[2]));
    })
    .await;
    let root = signed(&spec, &[&keys.director_root]);
    registry.refused("/v1/trust/roots", offer("director", &root), 422, "online-keys").await;
    for (name, key) in online.iter().zip(&made) {
        key.save(&registry.path(&format!("keys/online/{name}.2.pem"))).unwrap();
    }
    assert_eq!(registry.post("/v1/trust/roots", offer("director", &root)).await.0, 201);
    // Who is connected hears of it at once, signed by the new keys.
    let accepted = wait_for("the new root", async || {
        let accepted = edge.accepts().await;
        (accepted.state.director_root_version().unwrap() == 2).then_some(accepted)
    })
    .await;
    assert_eq!(accepted.desired.assignments.len(), 1);
    let director = PublicKey(*made[0].public_key().as_bytes());
    assert_eq!(edge.state.director_keys().unwrap(), [director.0]);
    let row = edge.report(1, 1, ReportBody::Facts(BTreeMap::new()));
    edge.send_rows(vec![row]);
    assert_eq!(edge.ack(&director).await, (1, 1));

    // The Image repository's: root, targets (what was released comes with it), snapshot, timestamp.
    let image = ["image-snapshot", "image-timestamp"];
    let made: Vec<SigningKey> = (0..4).map(|_| SigningKey::generate().unwrap()).collect();
    for (name, key) in image.iter().zip(&made) {
        key.save(&registry.path(&format!("keys/online/{name}.2.pem"))).unwrap();
    }
    let spec = next(&registry, "image", |spec| {
        (spec.snapshot, spec.timestamp) = (single(&made[0]), single(&made[1]));
        (spec.root, spec.targets) = (single(&made[2]), single(&made[3]));
    })
    .await;
    let root = signed(&spec, &[&keys.image_root, &made[2]]);
    registry.refused("/v1/trust/roots", offer("image", &root), 422, "untrusted").await;
    let mut body = offer("image", &root);
    body["roles"] = json!(renewed(&registry, &root, &[&keys.image_targets]).await);
    registry.refused("/v1/trust/roots", body.clone(), 422, "untrusted").await;
    body["roles"] = json!(renewed(&registry, &root, &[&made[3]]).await);
    assert_eq!(registry.post("/v1/trust/roots", body).await.0, 201);
    wait_for("the new root", async || {
        (edge.accepts().await.state.image_root_version().unwrap() == 2).then_some(())
    })
    .await;
    // The old targets key releases nothing any more, the new one does.
    let later = package("file-type", "1.1.0", 2, 10);
    registry.upload(&later, &[]).await;
    let old = registry.sign(&later, &[&keys.image_targets]).await;
    let body = |roles| json!({"package": later.digest(), "roles": roles});
    registry.refused("/v1/workspaces/default/releases", body(old), 422, "untrusted").await;
    let new = registry.sign(&later, &[&made[3]]).await;
    assert_eq!(registry.post("/v1/workspaces/default/releases", body(new)).await.0, 201);
    registry.deploy("file-type", "edge-1").await;
    edge.shall_run(&[("file-type", 2)]).await;

    // All of it holds after a restart, whose folder still has the first roots.
    registry.stop();
    registry.run().await;
    let (_, roots) = registry.get("/v1/trust/roots").await;
    assert_eq!(
        (roots["image"].as_array().unwrap().len(), roots["director"].as_array().unwrap().len()),
        (2, 2)
    );
    assert!(registry.path("registry/tuf/image/2.root.json").exists());
    edge.birth(b"after", BLOCK);
    wait_for("the nonce", async || (edge.accepts().await.desired.nonce == b"after").then_some(())).await;
    // A device that was away since the beginning gets every root.
    let mut late = Device::connect(&registry.add_target("late").await).await;
    assert_eq!(late.enrol().await, Enrolled::Accepted);
    late.birth(b"late", BLOCK);
    let state = late.accepts().await.state;
    assert_eq!((state.image_root_version().unwrap(), state.director_root_version().unwrap()), (2, 2));
}

#[tokio::test]
async fn roots_that_do_not_follow_are_refused_and_change_nothing() {
    let registry = Registry::start().await;
    let keys = registry.keys();
    registry.release(&package("file-type", "1.0.0", 1, 10)).await;
    let before = registry.get("/v1/trust/roots").await.1;
    let stranger = SigningKey::generate().unwrap();
    let root = |spec: &RootSpec, signers: &[&dyn Signer]| signed(spec, signers);
    let good = next(&registry, "image", |_| {}).await;
    let check = async |repository: &str, text: &str, status: u16, reason: &str| {
        registry.refused("/v1/trust/roots", offer(repository, text), status, reason).await;
    };
    // It skips a version, goes back, or is the same.
    for version in [1, 3, u64::MAX] {
        let spec = RootSpec { version, ..good.clone() };
        check("image", &root(&spec, &[&keys.image_root]), 409, "root-version").await;
    }
    // Nobody, a stranger, or only the new keys have signed; or only the old ones.
    check("image", &root(&good, &[&stranger]), 422, "untrusted").await;
    let taken = RootSpec { root: single(&stranger), ..good.clone() };
    check("image", &root(&taken, &[&stranger]), 422, "untrusted").await;
    check("image", &root(&taken, &[&keys.image_root]), 422, "untrusted").await;
    let three = [&keys.image_root, &stranger, &keys.image_targets];
    let many = RoleKeys { keys: three.iter().map(|key| key.public_key()).collect(), threshold: 2 };
    let threshold = RootSpec { root: many, ..good.clone() };
    check("image", &root(&threshold, &[&keys.image_root]), 422, "untrusted").await;
    // It has expired; it is the other repository's; it is no root.
    let over = RootSpec { expires: in_days(-1), ..good.clone() };
    check("image", &root(&over, &[&keys.image_root]), 422, "untrusted").await;
    check("director", &root(&good, &[&keys.image_root]), 422, "untrusted").await;
    for garbage in ["", "{}", "[[[[", &"x".repeat(100_000)] {
        check("image", garbage, 422, "untrusted").await;
    }
    check("both", &root(&good, &[&keys.image_root]), 400, "malformed").await;
    // Online roles name keys that the registry does not hold, or want two.
    let unknown = RootSpec { timestamp: single(&stranger), ..good.clone() };
    check("image", &root(&unknown, &[&keys.image_root]), 422, "online-keys").await;
    let mut two = good.timestamp.clone();
    two.keys.push(stranger.public_key());
    two.threshold = 2;
    let two = RootSpec { timestamp: two, ..good.clone() };
    check("image", &root(&two, &[&keys.image_root]), 422, "online-keys").await;
    assert_eq!(registry.get("/v1/trust/roots").await.1, before);
    // Nothing of all that is in the way of the good one.
    let text = root(&good, &[&keys.image_root]);
    assert_eq!(registry.post("/v1/trust/roots", offer("image", &text)).await.0, 201);
    check("image", &text, 409, "root-version").await;
}

#[tokio::test]
async fn a_device_that_is_far_behind_gets_its_roots_in_parts() {
    let registry = Registry::start().await;
    let key = registry.keys().director_root;
    let mut edge = enrolled(&registry).await;
    registry.release(&package("file-type", "1.0.0", 1, 10)).await;
    for version in 2..=40 {
        let spec = next(&registry, "director", |_| {}).await;
        assert_eq!(spec.version, version);
        let root = signed(&spec, &[&key]);
        assert_eq!(registry.post("/v1/trust/roots", offer("director", &root)).await.0, 201);
    }
    for (nonce, count, reached) in [(b"1", 32, 33), (b"2", 7, 40), (b"3", 0, 40)] {
        edge.birth(nonce, BLOCK);
        // It may be told once more what the birth before was answered with.
        let bundle = loop {
            let bytes = match edge.want().await {
                Want::Inline(bytes) => bytes,
                Want::Pull { digest, size } => edge.pull(digest, size, BLOCK).await.unwrap(),
            };
            let bundle: MetadataBundle = from_cbor(&bytes).unwrap();
            if DirectorAssignment::parse(&bundle.assignment).unwrap().nonce == nonce {
                break bundle;
            }
        };
        assert_eq!(bundle.director.roots.len(), count);
        if let Some(state) = adopt_roots(&edge.state, &bundle).unwrap() {
            edge.state = state;
        }
        assert_eq!(edge.state.director_root_version().unwrap(), reached);
    }
}

#[tokio::test]
async fn a_renewal_loses_and_adds_nothing() {
    let registry = Registry::start().await;
    let key = registry.keys().image_targets;
    registry.release(&package("file-type", "1.0.0", 1, 10)).await;
    registry.release(&package("other", "1.0.0", 1, 10)).await;
    let (root, roles) = registry.image().await;
    let good = renewed(&registry, &root, &[&key]).await;
    let check = async |roles: Value, status: u16, reason: &str| {
        registry.refused("/v1/trust/image", json!({"roles": roles}), status, reason).await;
    };
    let more = registry.sign(&package("third", "1.0.0", 1, 10), &[&key]).await;
    check(json!(more), 422, "entry-mismatch").await;
    let fewer = support::packages::sign_on(None, &package("file-type", "1.0.0", 1, 10), &key);
    check(json!({"targets": fewer}), 409, "targets-version").await;
    check(json!(roles), 409, "targets-version").await;
    let stranger = SigningKey::generate().unwrap();
    check(json!(renewed(&registry, &root, &[&stranger]).await), 422, "untrusted").await;
    check(json!({}), 422, "untrusted").await;
    check(json!({"root": root}), 422, "untrusted").await;
    check(json!({"bin-0": good["targets"]}), 422, "untrusted").await;
    check(json!({"../../x": "y"}), 422, "untrusted").await;
    // One entry less, in the next version.
    let mut value: Value = serde_json::from_str(&roles["targets"]).unwrap();
    value["signed"]["targets"].as_object_mut().unwrap().remove("other-1.0.0.pkg.json").unwrap();
    let lost = renew_files(
        &files(&BTreeMap::from([("targets".to_owned(), value.to_string())])),
        Renewal { root: root.as_bytes(), expires: in_days(300), least: 1 },
        &[&key],
        |_, _| true,
    );
    check(json!(texts(lost.unwrap())), 409, "targets-lost").await;
    assert_eq!(registry.image().await.1, roles);
    let (status, watched) = registry.post("/v1/trust/image", json!({"roles": good})).await;
    assert_eq!(status, 200, "{watched}");
    assert_eq!(registry.image().await.1, good);
}

#[tokio::test]
async fn people_are_told_before_what_they_signed_ends() {
    let registry = Registry::start().await;
    let keys = registry.keys();
    registry.release(&package("file-type", "1.0.0", 1, 10)).await;
    let (_, watched) = registry.get("/v1/trust").await;
    let role = |role: &Value| (role["repository"].clone(), role["role"].clone(), role["signed_by"].clone());
    let roles: Vec<_> = watched["roles"].as_array().unwrap().iter().map(role).collect();
    let expected = [
        ("image", "root", "people"),
        ("director", "root", "people"),
        ("image", "targets", "people"),
        ("image", "snapshot", "registry"),
        ("image", "timestamp", "registry"),
    ];
    assert_eq!(roles, expected.map(|(one, two, three)| (json!(one), json!(two), json!(three))));
    assert_eq!(watched["warnings"], json!([]));
    let spec = next(&registry, "director", |spec| spec.expires = in_days(29)).await;
    let root = signed(&spec, &[&keys.director_root]);
    let (_, watched) = registry.post("/v1/trust/roots", offer("director", &root)).await;
    let warnings = watched["warnings"].as_array().unwrap();
    assert_eq!(warnings.len(), 1, "{watched}");
    assert!(warnings[0].as_str().unwrap().starts_with("the director root expires at"), "{watched}");
}

#[tokio::test]
async fn lifetimes_are_chosen_and_what_is_signed_here_is_signed_again_in_time() {
    let mut registry = Registry::start().await;
    registry.arguments = ["--expiry", "image-timestamp=60s,director=60s"].map(str::to_owned).to_vec();
    registry.stop();
    registry.run().await;
    let mut edge = enrolled(&registry).await;
    registry.release(&package("file-type", "1.0.0", 1, 10)).await;
    edge.birth(b"n", BLOCK);
    let first = edge.accepts().await;
    let timestamp = async || {
        let path = "/v1/trust/image/timestamp.json";
        let text = registry.request(Method::GET, path).send().await.unwrap().text().await.unwrap();
        selvedge_signing::metadata::head(text.as_bytes()).unwrap()
    };
    let before = timestamp().await;
    assert!(before.expires <= Timestamp::now() + SignedDuration::from_secs(60));
    // Half a minute later both are signed again, and the device hears of it without asking.
    wait_for("another timestamp", async || (timestamp().await.version > before.version).then_some(())).await;
    let second = edge.accepts().await;
    assert_eq!(second.desired.sequence, first.desired.sequence);
    assert!(second.desired.issued_at > first.desired.issued_at);
    for bad in ["director=1s", "image-targets=9d", "x"] {
        let args = ["serve", "--data", "x", "--online-keys", "x", "--roots", "x", "--expiry", bad];
        assert!(!support::Running::start(&args).exits(), "{bad}");
    }
}

#[tokio::test]
async fn a_large_repository_is_split_and_a_device_gets_its_branch_alone() {
    let registry = Registry::start().await;
    let mut edge = enrolled(&registry).await;
    for number in 1..=(bins::LARGEST_BIN as u64 + 2) {
        registry.release(&package(&format!("p{number}"), "1.0.0", 1, 10)).await;
    }
    let (_, roles) = registry.image().await;
    assert!(roles.len() > 10, "{:?}", roles.keys());
    let branch = bins::branch("p7-1.0.0.pkg.json");
    assert!(roles.contains_key(&branch[0]));
    // The files are all there, under their versions.
    let snapshot = std::fs::read_dir(registry.path("registry/tuf/image")).unwrap();
    let names: Vec<String> =
        snapshot.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    for (role, text) in &roles {
        let version = selvedge_signing::metadata::head(text.as_bytes()).unwrap().version;
        let name = format!("{version}.{role}.json");
        assert!(names.contains(&name), "{name}");
        let got = registry.request(Method::GET, &format!("/v1/trust/image/{name}")).send().await.unwrap();
        assert_eq!(got.text().await.unwrap(), *text);
    }
    registry.deploy("p7", "edge-1").await;
    edge.birth(b"n", BLOCK);
    let Want::Inline(bytes) = edge.want().await else { panic!() };
    let bundle: MetadataBundle = from_cbor(&bytes).unwrap();
    let sent: Vec<&str> = bundle.image.delegated.iter().map(|file| file.role.as_str()).collect();
    assert_eq!(sent, [branch[0].as_str()]);
    let accepted = edge.accept(&bytes);
    assert_eq!(accepted.desired.assignments[0].package.as_str(), "p7");
    // It says what it has, and is sent less; what it would export to a file is whole.
    let (image, director) = edge.state.accepted_versions();
    edge.claims = Accepted { image, director };
    edge.birth(b"m", BLOCK);
    let Want::Inline(bytes) = edge.want().await else { panic!() };
    let bundle: MetadataBundle = from_cbor(&bytes).unwrap();
    assert!(
        bundle.image.snapshot.is_empty() && bundle.image.targets.is_empty() && bundle.image.roots.is_empty()
    );
    edge.accept(&bytes);
    let path = "/v1/workspaces/default/targets/edge-1/bundle";
    let response = registry.request(Method::GET, path).send().await.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["content-type"]),
        (200, &"application/cbor".parse().unwrap())
    );
    let whole: MetadataBundle = from_cbor(&response.bytes().await.unwrap()).unwrap();
    assert!(!whole.image.snapshot.is_empty() && whole.image.roots.len() == 1);
}

#[tokio::test]
async fn a_registry_restored_from_a_backup_goes_above_what_its_devices_accepted() {
    let registry = Registry::start().await;
    let mut edge = enrolled(&registry).await;
    registry.release(&package("file-type", "1.0.0", 1, 10)).await;
    registry.deploy("file-type", "edge-1").await;
    edge.birth(b"n", BLOCK);
    edge.shall_run(&[("file-type", 1)]).await;
    // What it says that it has accepted is believed within bounds, and only of enrolled devices.
    edge.claims = Accepted { image: [40, 30, 1], director: [50, 50, 50] };
    edge.desired = Some(20);
    edge.birth(b"m", BLOCK);
    let accepted = edge.accepts().await;
    assert_eq!(accepted.desired.sequence, 21);
    let (image, director) = edge.state.accepted_versions();
    assert_eq!((image[0], image[1], director), (41, 31, [51, 51, 51]));
    edge.claims = Accepted { image: [u64::MAX, 1 << 60, 1], director: [1 << 62; 3] };
    edge.desired = Some(1 << 60);
    edge.birth(b"o", BLOCK);
    edge.accepts().await;
    let (image, director) = edge.state.accepted_versions();
    assert!(image[0] < 50 && image[1] < 50 && director[0] < 60, "{image:?} {director:?}");
    // Releases that the backup lacks cannot be made up: people must know.
    edge.claims = Accepted { image: [1, 1, 9], director: [1; 3] };
    edge.desired = None;
    edge.birth(b"p", BLOCK);
    edge.want().await;
    let target = registry.target("edge-1").await;
    let events = target["events"].as_array().unwrap();
    assert!(events.iter().any(|event| event["kind"] == "lost-releases"), "{target}");
    // The next list may be signed above it.
    let (root, roles) = registry.image().await;
    let renewal = Renewal { root: root.as_bytes(), expires: in_days(300), least: 10 };
    let key = registry.keys().image_targets;
    let roles = texts(renew_files(&files(&roles), renewal, &[&key], |_, _| true).unwrap());
    assert_eq!(registry.post("/v1/trust/image", json!({"roles": roles})).await.0, 200);
    edge.birth(b"q", BLOCK);
    edge.accepts().await;
    assert_eq!(edge.state.accepted_versions().0[2], 10);
    assert!(edge.nothing_on(Kind::Ack).await);
}

#[tokio::test]
async fn blobs_are_fetched_with_the_token_alone() {
    let registry = Registry::start().await;
    let package = package("file-type", "1.0.0", 1, 200_000);
    registry.release(&package).await;
    let (model, bytes) = package.model();
    let path = format!("/v1/blobs/{model}");
    let got = registry.request(Method::GET, &path).send().await.unwrap();
    assert_eq!(got.headers()["content-length"], bytes.len().to_string().as_str());
    assert_eq!(got.bytes().await.unwrap(), bytes);
    let missing = selvedge_package::Digest::of(b"missing");
    assert_eq!(registry.get(&format!("/v1/blobs/{missing}")).await.0, 404);
    let stranger = reqwest::get(format!("{}{path}", registry.url)).await.unwrap();
    assert_eq!(stranger.status(), 401);
}
