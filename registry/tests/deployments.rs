//! Deployments by selector and by name: who gets them, when, how far each is, and the way back.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod support;

use std::collections::BTreeMap;

use reqwest::Method;
use selvedge_package::Digest;
use selvedge_protocol::message::{
    DeviceState, Enrolled, Failure, PackageReport, Pending, ReleaseRef, ReportBody,
};
use serde_json::{Value, json};
use support::device::Device;
use support::packages::{Wish, package, wish};
use support::{Registry, wait_for};

const BLOCK: u32 = 65_536;
const DEPLOYMENTS: &str = "/v1/workspaces/default/deployments";
const TARGETS: &str = "/v1/workspaces/default/targets";

/// A target with labels, enrolled and online; it has reported nothing yet.
async fn online(registry: &Registry, name: &str, labels: Value) -> Device {
    let (status, made) = registry.post(TARGETS, json!({"name": name, "labels": labels})).await;
    assert_eq!(status, 201, "{made}");
    let mut device = Device::connect(&made["enrolment"]).await;
    assert_eq!(device.enrol().await, Enrolled::Accepted);
    device.birth(b"n", BLOCK);
    device
}

async fn deploy(registry: &Registry, body: Value) -> Value {
    let (status, value) = registry.post(DEPLOYMENTS, body).await;
    assert_eq!(status, 201, "{value}");
    value
}

async fn label(registry: &Registry, name: &str, labels: Value) {
    let patch =
        registry.request(Method::PATCH, &format!("{TARGETS}/{name}")).json(&json!({"labels": labels}));
    assert_eq!(registry.send(patch).await.0, 200);
}

/// The one target of a deployment, once it is in this state.
async fn in_state(registry: &Registry, id: &Value, state: &str) -> Value {
    let path = format!("{DEPLOYMENTS}/{}", id.as_str().unwrap());
    wait_for(state, async || {
        let target = registry.get(&path).await.1["targets"][0].clone();
        (target["state"] == state).then_some(target)
    })
    .await
}

fn facts(pairs: &[(&str, &str)]) -> ReportBody {
    ReportBody::Facts(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
}

/// A state with one package: committed, pending with its stage, serving, failed.
fn state(desired: u64, committed: u64, pending: Option<(u64, &str)>, failed: Option<u64>) -> ReportBody {
    let release =
        |release| ReleaseRef { release, version: format!("{release}.0.0"), digest: Digest::of(b"x") };
    ReportBody::State(DeviceState {
        generation: 1,
        desired,
        fresh: None,
        refused: None,
        packages: vec![PackageReport {
            name: "file-type".parse().unwrap(),
            committed: (committed > 0).then(|| release(committed)),
            pending: pending.map(|(number, stage)| Pending {
                release: release(number),
                stage: stage.to_owned(),
                bytes: 40,
                total: 100,
            }),
            serving: committed > 0,
            failure: failed.map(|release| Failure {
                release,
                reason: "acceptance".to_owned(),
                what: "case one: expected 1, actual 2".to_owned(),
            }),
        }],
    })
}

fn report(device: &mut Device, sequence: u64, body: ReportBody) {
    let row = device.report(1, sequence, body);
    device.send_rows(vec![row]);
}

async fn releases(registry: &Registry, releases: &[u64]) {
    for release in releases {
        registry.release(&package("file-type", &format!("{release}.0.0"), *release, 1000)).await;
    }
}

#[tokio::test]
async fn a_selector_follows_labels_and_targets_that_come_later() {
    let registry = Registry::start().await;
    releases(&registry, &[1]).await;
    let mut oslo = online(&registry, "oslo-1", json!({"site": "oslo"})).await;
    let mut bergen = online(&registry, "bergen-1", json!({"site": "bergen"})).await;
    oslo.shall_run(&[]).await;
    bergen.shall_run(&[]).await;
    let body = json!({"package": "file-type", "selector": "site in (oslo,trondheim)"});
    let made = deploy(&registry, body).await;
    assert_eq!(
        (&made["selector"], &made["target"], &made["priority"]),
        (&json!("site in (oslo, trondheim)"), &Value::Null, &json!(0))
    );
    assert_eq!((&made["summary"]["targets"], &made["hints"]), (&json!(1), &json!([])));
    let accepted = oslo.shall_run(&[("file-type", 1)]).await;
    let assignment = &accepted.desired.assignments[0];
    assert!(oslo.pull(assignment.digest, assignment.length, BLOCK).await.is_ok());
    // Blobs are for those who shall run it.
    assert!(bergen.pull(assignment.digest, assignment.length, BLOCK).await.is_err());
    // A target that comes later gets it at its enrolment.
    let mut late = online(&registry, "late", json!({"site": "trondheim"})).await;
    late.shall_run(&[("file-type", 1)]).await;
    // Labels change: one matches no longer, another does now.
    label(&registry, "oslo-1", json!({})).await;
    label(&registry, "bergen-1", json!({"site": "oslo"})).await;
    oslo.shall_run(&[]).await;
    assert!(oslo.pull(assignment.digest, assignment.length, BLOCK).await.is_err());
    bergen.shall_run(&[("file-type", 1)]).await;
    // It is removed: all uninstall.
    let path = format!("{DEPLOYMENTS}/{}", made["id"].as_str().unwrap());
    assert_eq!(registry.send(registry.request(Method::DELETE, &path)).await.0, 204);
    bergen.shall_run(&[]).await;
    late.shall_run(&[]).await;
    let (_, ended) = registry.get(&path).await;
    assert_eq!((&ended["ended"], &ended["targets"]), (&json!("removed"), &json!([])));
}

#[tokio::test]
async fn priorities_decide_and_removal_gives_way() {
    let registry = Registry::start().await;
    releases(&registry, &[1, 2, 3]).await;
    let mut edge = online(&registry, "edge-1", json!({"site": "oslo"})).await;
    let wide = deploy(&registry, json!({"package": "file-type", "release": 1, "selector": "name"})).await;
    edge.shall_run(&[("file-type", 1)]).await;
    let own = json!({"package": "file-type", "release": 2, "target": "edge-1", "priority": 7});
    let own = deploy(&registry, own).await;
    edge.shall_run(&[("file-type", 2)]).await;
    // Newer, and beaten by the larger priority: the device hears nothing.
    let newer = json!({"package": "file-type", "release": 3, "selector": "site = oslo", "priority": 6});
    let newer = deploy(&registry, newer).await;
    assert_eq!((&newer["summary"]["lost"], &newer["replaces"]), (&json!(1), &Value::Null));
    let (_, explained) = registry.get(&format!("{TARGETS}/edge-1/explain")).await;
    let package = &explained["packages"][0];
    assert_eq!(package["assigned"]["deployment"], own["id"]);
    let verdicts: Vec<_> = package["deployments"]
        .as_array()
        .unwrap()
        .iter()
        .map(|deployment| (deployment["id"].clone(), deployment["verdict"].as_str().unwrap().to_owned()))
        .collect();
    let expected = [(&own, "wins"), (&newer, "lost"), (&wide, "lost")]
        .map(|(deployment, verdict)| (deployment["id"].clone(), verdict.to_owned()));
    assert_eq!(verdicts, expected);
    let lost = package["deployments"][1]["why"].as_str().unwrap();
    assert!(lost.contains(own["id"].as_str().unwrap()) && lost.contains("priority 7"), "{lost}");
    // It ends, and the next best takes its place; the same scope and priority replaces.
    let end = |made: &Value| {
        registry.request(Method::DELETE, &format!("{DEPLOYMENTS}/{}", made["id"].as_str().unwrap()))
    };
    assert_eq!(registry.send(end(&own)).await.0, 204);
    edge.shall_run(&[("file-type", 3)]).await;
    let again = json!({"package": "file-type", "release": 2, "selector": "site in (oslo)", "priority": 6});
    assert_eq!(deploy(&registry, again).await["replaces"], newer["id"]);
    edge.shall_run(&[("file-type", 2)]).await;
    let (status, gone) = registry.send(end(&newer)).await;
    assert_eq!((status.as_u16(), &gone["reason"]), (404, &json!("no-deployment")));
    let (_, listed) = registry.get(DEPLOYMENTS).await;
    assert_eq!(listed["items"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_plan_says_what_would_happen_and_does_nothing() {
    let registry = Registry::start().await;
    releases(&registry, &[1, 2]).await;
    let wanted = Wish { architectures: &["x86_64"], min_release: 0 };
    registry.release(&wish("picky", "1.0.0", 1, 100, wanted)).await;
    let mut arm = online(&registry, "arm", json!({"site": "oslo"})).await;
    let mut amd = online(&registry, "amd", json!({"site": "oslo"})).await;
    report(&mut arm, 1, facts(&[("architecture", "aarch64"), ("memory-mib", "900")]));
    report(&mut amd, 1, facts(&[("architecture", "x86_64"), ("memory-mib", "8000")]));
    for name in ["arm", "amd"] {
        wait_for("facts", async || {
            registry.target(name).await["facts"]["memory-mib"].is_string().then_some(())
        })
        .await;
    }
    let plan = async |body: Value| {
        let (status, plan) = registry.post(&format!("{DEPLOYMENTS}?plan=true"), body).await;
        assert_eq!(status, 200, "{plan}");
        plan
    };
    let planned = plan(json!({"package": "picky", "selector": "site = oslo"})).await;
    assert_eq!((&planned["plan"], &planned["deployment"]["id"]), (&json!(true), &Value::Null));
    let summary = &planned["summary"];
    assert_eq!(
        (&summary["targets"], &summary["wins"], &summary["blocked"]),
        (&json!(2), &json!(1), &json!(1)),
        "{planned}"
    );
    let (first, second) = (&planned["targets"][0], &planned["targets"][1]);
    assert_eq!((&first["name"], &first["verdict"]), (&json!("amd"), &json!("wins")));
    assert_eq!((&second["name"], &second["verdict"]), (&json!("arm"), &json!("blocked")));
    assert!(second["why"].as_str().unwrap().contains("aarch64"), "{second}");
    assert_eq!(plan(json!({"package": "picky", "selector": "ram < 1GiB"})).await["summary"]["targets"], 1);
    assert_eq!(plan(json!({"package": "picky", "target": "arm"})).await["summary"]["blocked"], 1);
    let hinted = plan(json!({"package": "picky", "selector": "stie = oslo, arhc"})).await;
    assert_eq!(
        hinted["hints"],
        json!(["no target has `arhc`; did you mean `arch`?", "no target has `stie`; did you mean `site`?"])
    );
    assert_eq!(registry.get(DEPLOYMENTS).await.1, json!({"items": []}));
    let made =
        deploy(&registry, json!({"package": "file-type", "release": 1, "selector": "site = oslo"})).await;
    let replacing = plan(json!({"package": "file-type", "selector": "site = oslo"})).await;
    assert_eq!((&replacing["replaces"], &replacing["summary"]["wins"]), (&made["id"], &json!(2)));
    assert_eq!(registry.get(DEPLOYMENTS).await.1["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn bad_deployments_are_refused_for_their_own_reason() {
    let registry = Registry::start().await;
    releases(&registry, &[1]).await;
    registry.add_target("edge-1").await;
    for (body, status, reason) in [
        (json!({"package": "file-type"}), 400, "malformed"),
        (json!({"package": "file-type", "target": "edge-1", "selector": "name"}), 400, "malformed"),
        (json!({"package": "file-type", "selector": ""}), 400, "selector"),
        (json!({"package": "file-type", "selector": "site = "}), 400, "selector"),
        (json!({"package": "file-type", "selector": "k,".repeat(600)}), 400, "selector"),
        (
            json!({"package": "file-type", "target": "edge-1", "priority": 3_000_000_000_u64}),
            400,
            "malformed",
        ),
        (json!({"package": "file-type", "target": "edge-1", "priority": "high"}), 400, "malformed"),
        (json!({"package": "file-typo", "selector": "name"}), 404, "no-package"),
        (json!({"package": "file-type", "selector": "name", "release": 2}), 404, "no-package"),
        (json!({"package": "file-type", "target": "edge-2"}), 404, "no-target"),
        (json!({"package": "file-type", "selector": "name", "settings": {"x": "y"}}), 422, "setting"),
    ] {
        registry.refused(DEPLOYMENTS, body.clone(), status, reason).await;
        let plan = format!("{DEPLOYMENTS}?plan=true");
        registry.refused(&plan, body, status, reason).await;
    }
    for (path, body, reason) in
        [("/none/rollback", json!({}), "no-deployment"), ("/..%2f/rollback", json!({}), "no-deployment")]
    {
        registry.refused(&format!("{DEPLOYMENTS}{path}"), body, 404, reason).await;
    }
    for path in ["targets/nobody/explain", "targets/edge-1/explain?package=nothing", "deployments/none"] {
        assert_eq!(registry.get(&format!("/v1/workspaces/default/{path}")).await.0, 404, "{path}");
    }
}

#[tokio::test]
async fn progress_is_told_from_reports() {
    let registry = Registry::start().await;
    releases(&registry, &[1, 2]).await;
    let mut edge = online(&registry, "edge-1", json!({})).await;
    let made = deploy(&registry, json!({"package": "file-type", "target": "edge-1"})).await;
    let id = &made["id"];
    assert_eq!(in_state(&registry, id, "unheard").await["online"], true);
    let accepted = edge.shall_run(&[("file-type", 2)]).await.desired.sequence;
    report(&mut edge, 1, state(accepted, 1, None, None));
    let waiting = in_state(&registry, id, "waiting").await;
    assert_eq!(waiting["running"], json!({"release": 1, "version": "1.0.0", "serving": true}));
    assert_eq!(waiting["settled"], false);
    for (sequence, stage) in [(2, "fetching"), (3, "staged"), (4, "trial")] {
        report(&mut edge, sequence, state(accepted, 1, Some((2, stage)), None));
        let target = in_state(&registry, id, stage).await;
        assert_eq!((&target["bytes"], &target["total"]), (&json!(40), &json!(100)));
    }
    report(&mut edge, 5, state(accepted, 1, None, Some(2)));
    let failed = in_state(&registry, id, "failed").await;
    assert_eq!(
        failed["failure"],
        json!({"release": 2, "reason": "acceptance", "what": "case one: expected 1, actual 2"})
    );
    report(&mut edge, 6, state(accepted, 2, None, None));
    assert_eq!(in_state(&registry, id, "serving").await["settled"], true);
    // What is new about another package says nothing about this one.
    registry.release(&package("other", "1.0.0", 1, 100)).await;
    let other = deploy(&registry, json!({"package": "other", "target": "edge-1"})).await;
    assert!(edge.shall_run(&[("file-type", 2), ("other", 1)]).await.desired.sequence > accepted);
    in_state(&registry, &other["id"], "waiting").await;
    in_state(&registry, id, "serving").await;
    // New settings: not serving again before the device has accepted them.
    let body = json!({"package": "file-type", "target": "edge-1", "settings": {"threshold": "0.9"}});
    let again = deploy(&registry, body).await;
    in_state(&registry, &again["id"], "waiting").await;
    // It may be told once more what it was told before.
    let accepted = loop {
        let accepted = edge.shall_run(&[("file-type", 2), ("other", 1)]).await;
        if !accepted.desired.assignments[0].settings.is_empty() {
            break accepted.desired.sequence;
        }
    };
    report(&mut edge, 7, state(accepted, 2, None, None));
    in_state(&registry, &again["id"], "serving").await;
    let (_, shown) = registry.get(&format!("{DEPLOYMENTS}/{}", again["id"].as_str().unwrap())).await;
    assert_eq!((&shown["summary"]["targets"], &shown["summary"]["serving"]), (&json!(1), &json!(1)));
}

#[tokio::test]
async fn facts_that_come_later_decide_anew() {
    let registry = Registry::start().await;
    let wanted = Wish { architectures: &["aarch64"], min_release: 0 };
    registry.release(&wish("picky", "1.0.0", 1, 100, wanted)).await;
    let mut edge = online(&registry, "edge-1", json!({})).await;
    edge.shall_run(&[]).await;
    deploy(&registry, json!({"package": "picky", "selector": "cores >= 4"})).await;
    let explained = async || {
        let (status, explained) = registry.get(&format!("{TARGETS}/edge-1/explain?package=picky")).await;
        assert_eq!(status, 200, "{explained}");
        explained["packages"][0]["deployments"][0].clone()
    };
    let (none, why) = (explained().await, "`cores >= 4` does not hold: it has no `cores`");
    assert_eq!((&none["verdict"], &none["why"]), (&json!("no-match"), &json!(why)));
    report(&mut edge, 1, facts(&[("cores", "4"), ("architecture", "x86_64")]));
    wait_for("a blocked deployment", async || (explained().await["verdict"] == "blocked").then_some(()))
        .await;
    report(&mut edge, 2, facts(&[("cores", "4"), ("architecture", "aarch64")]));
    edge.shall_run(&[("picky", 1)]).await;
    // It says that it is another one again: what it was told it can never run.
    report(&mut edge, 3, facts(&[("cores", "4"), ("architecture", "x86_64")]));
    edge.shall_run(&[]).await;
}

#[tokio::test]
async fn rollback_goes_down_to_the_floor() {
    let registry = Registry::start().await;
    releases(&registry, &[1, 2]).await;
    let floor = Wish { architectures: &[], min_release: 2 };
    registry.release(&wish("file-type", "3.0.0", 3, 1000, floor)).await;
    let mut edge = online(&registry, "edge-1", json!({})).await;
    let settings = json!({"threshold": "0.9"});
    let body = json!({"package": "file-type", "selector": "name", "priority": 4, "settings": settings});
    let first = deploy(&registry, body).await;
    let accepted = edge.shall_run(&[("file-type", 3)]).await.desired.sequence;
    let back = |made: &Value| format!("{DEPLOYMENTS}/{}/rollback", made["id"].as_str().unwrap());
    registry.refused(&back(&first), json!({"release": 3}), 409, "same-release").await;
    registry.refused(&back(&first), json!({"release": 9}), 404, "no-package").await;
    registry.refused(&back(&first), json!({"realease": 1}), 400, "malformed").await;
    // Nothing is committed yet: it may go anywhere.
    report(&mut edge, 1, state(accepted, 3, None, None));
    wait_for("the report", async || registry.target("edge-1").await["reported"].is_object().then_some(()))
        .await;
    let (status, refused) = registry.post(&back(&first), json!({"release": 1})).await;
    assert_eq!((status.as_u16(), &refused["reason"]), (422, &json!("unfit")));
    assert!(refused["error"].as_str().unwrap().contains("edge-1 takes nothing below release 2"), "{refused}");
    let (status, second) = registry.send(registry.request(Method::POST, &back(&first))).await;
    assert_eq!(status, 201, "{second}");
    assert_eq!(
        (
            &second["release"],
            &second["selector"],
            &second["priority"],
            &second["replaces"],
            &second["settings"]
        ),
        (&json!(2), &json!("name"), &json!(4), &first["id"], &settings)
    );
    assert_eq!(second["dropped_settings"], json!([]));
    let accepted = edge.shall_run(&[("file-type", 2)]).await.desired.sequence;
    registry.refused(&back(&first), json!({}), 404, "no-deployment").await;
    // The floor stays when what set it is gone, so that release 1 is out of reach for ever.
    report(&mut edge, 2, state(accepted, 2, None, None));
    in_state(&registry, &second["id"], "serving").await;
    registry.refused(&back(&second), json!({}), 422, "unfit").await;
    // Who deploys it nevertheless is refused, and by selector it is skipped: the target keeps release 2.
    let below = json!({"package": "file-type", "release": 1, "target": "edge-1"});
    registry.refused(DEPLOYMENTS, below, 422, "unfit").await;
    let body = json!({"package": "file-type", "release": 1, "selector": "name", "priority": 4});
    assert_eq!(deploy(&registry, body).await["summary"]["blocked"], 1);
    let (_, explained) = registry.get(&format!("{TARGETS}/edge-1/explain")).await;
    let package = &explained["packages"][0];
    assert_eq!(
        (&package["kept"], &package["assigned"]["release"], &package["assigned"]["deployment"]),
        (&json!(true), &json!(2), &Value::Null),
        "{package}"
    );
    assert_eq!(registry.target("edge-1").await["desired"][0]["release"], 2);
    let database = format!("sqlite://{}", registry.path("registry/registry.sqlite").display());
    let database = sqlx::SqlitePool::connect(&database).await.unwrap();
    let actions: Vec<(String,)> =
        sqlx::query_as("SELECT action FROM audit WHERE action IN ('deploy', 'rollback') ORDER BY number")
            .fetch_all(&database)
            .await
            .unwrap();
    assert_eq!(actions, ["deploy", "rollback", "deploy"].map(|action| (action.to_owned(),)));
    database.close().await;
    // Forward again.
    deploy(&registry, json!({"package": "file-type", "release": 3, "selector": "name", "priority": 4})).await;
    edge.shall_run(&[("file-type", 3)]).await;
}

#[tokio::test]
async fn a_rollback_drops_settings_that_are_not_known() {
    let registry = Registry::start().await;
    let older = package("file-type", "1.0.0", 1, 100);
    registry.release(&older).await;
    registry
        .release(&support::packages::with_settings("file-type", "2.0.0", 2, &["threshold", "mode"]))
        .await;
    registry.add_target("edge-1").await;
    let settings = json!({"threshold": "0.9", "mode": "fast"});
    let made =
        deploy(&registry, json!({"package": "file-type", "target": "edge-1", "settings": settings})).await;
    let path = format!("{DEPLOYMENTS}/{}/rollback", made["id"].as_str().unwrap());
    let (status, back) = registry.post(&path, Value::Null).await;
    assert_eq!(status, 201, "{back}");
    assert_eq!(
        (&back["dropped_settings"], &back["settings"]),
        (&json!(["mode"]), &json!({"threshold": "0.9"}))
    );
    let path = format!("{DEPLOYMENTS}/{}/rollback", back["id"].as_str().unwrap());
    registry.refused(&path, json!({}), 404, "no-package").await;
}

#[tokio::test]
async fn a_flood_of_births_is_answered_with_the_last_nonce() {
    let registry = Registry::start().await;
    releases(&registry, &[1]).await;
    let mut edge = online(&registry, "edge-1", json!({})).await;
    for number in 0..30_u8 {
        edge.birth(&[number], BLOCK);
    }
    while edge.accepts().await.desired.nonce != [29] {}
}

#[tokio::test]
async fn many_changes_at_once_end_with_the_last() {
    let registry = Registry::start().await;
    releases(&registry, &[1, 2]).await;
    let mut edge = online(&registry, "edge-1", json!({})).await;
    // More than its bucket allows at once: the last of them is told nevertheless, without a heartbeat.
    for number in 0..30_u64 {
        let release = number % 2 + 1;
        let settings: BTreeMap<&str, String> = BTreeMap::from([("threshold", number.to_string())]);
        let body =
            json!({"package": "file-type", "release": release, "target": "edge-1", "settings": settings});
        deploy(&registry, body).await;
    }
    loop {
        let accepted = edge.shall_run(&[("file-type", 2)]).await;
        if accepted.desired.assignments[0].settings["threshold"] == "29" {
            break;
        }
    }
}
