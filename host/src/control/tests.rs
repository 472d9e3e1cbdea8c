//! The control socket over fake packages: load, route, unload, and what is refused.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use selvedge_control::{HostStatus, Loaded, PackageState, path, settings_digest};
use serde_json::{Value, json};
use tokio::sync::{Mutex, watch};

use super::hand_over::Copies;
use super::journal::Journal;
use super::{Control, repository, routes};
use crate::failure::PredictError;
use crate::folder::Found;
use crate::serve::Serving;
use crate::serve::fake::{Behaviour, Fake, FakeOpener, get, manifest, post};
use crate::serve::predictor::Predictor;

struct Fixture {
    opener: Arc<FakeOpener>,
    serving: Arc<Serving>,
    stop: watch::Receiver<bool>,
    router: Router,
    control: Arc<Control>,
    /// Packages for which the host was to end.
    fatal: Arc<std::sync::Mutex<Vec<String>>>,
}

fn fixture(packages: &[&Arc<dyn Predictor>]) -> Fixture {
    let opener = Arc::new(FakeOpener::default());
    opener.packages.lock().unwrap().extend(packages.iter().map(|package| Arc::clone(package)));
    let serving = Serving::new(4);
    let (stop, stopped) = watch::channel(false);
    let fatal: Arc<std::sync::Mutex<Vec<String>>> = Arc::default();
    let control = Arc::new(Control {
        serving: Arc::clone(&serving),
        opener: Arc::clone(&opener) as _,
        journal: Arc::new(Journal::default()),
        listeners: Copies::default(),
        folder: None,
        http: "127.0.0.1:1".to_owned(),
        stop,
        loading: Mutex::new(()),
        fatal: Arc::new({
            let fatal = Arc::clone(&fatal);
            move |named| fatal.lock().unwrap().push(named.package.name.to_string())
        }),
    });
    Fixture { opener, serving, stop: stopped, router: routes::router(Arc::clone(&control)), control, fatal }
}

fn package(version: &str, release: u64, behaviour: Behaviour) -> Arc<dyn Predictor> {
    Fake::package(manifest("m", version, release, "FP32", &[-1]), behaviour)
}

fn reference(package: &Arc<dyn Predictor>) -> Value {
    json!({"name": package.manifest().name, "digest": package.digest()})
}

fn load(package: &Arc<dyn Predictor>) -> Value {
    json!({"package": reference(package), "directory": "/nowhere"})
}

fn states(status: Value) -> Vec<(u64, PackageState)> {
    let status: HostStatus = serde_json::from_value(status).unwrap();
    status.packages.iter().map(|package| (package.release, package.state)).collect()
}

#[tokio::test]
async fn loads_routes_and_unloads() {
    let (first, second) = (package("1.0.0", 1, Behaviour::Echo), package("2.0.0", 2, Behaviour::Echo));
    let Fixture { router, serving, .. } = fixture(&[&first, &second]);
    let (status, body) = post(&router, path::LOAD, load(&first)).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let loaded: Loaded = serde_json::from_value(body).unwrap();
    assert!(loaded.accepted() && loaded.cases[0].case == "a");
    assert_eq!(states(get(&router, path::STATUS).await.1), [(1, PackageState::Staged)]);
    let (_, body) = post(&router, path::ACTIVATE, reference(&first)).await;
    assert_eq!(states(body), [(1, PackageState::Serving)]);
    let (_, body) = post(&router, path::ACTIVATE, reference(&first)).await;
    assert_eq!(states(body), [(1, PackageState::Serving)], "again changes nothing");
    post(&router, path::LOAD, load(&second)).await;
    let (_, body) = post(&router, path::ACTIVATE, reference(&second)).await;
    assert!(states(body).contains(&(2, PackageState::Serving)));
    // The end of the old one is told, to those who wait for it too.
    let (_, events) = get(&router, &format!("{}?since=0", path::EVENTS)).await;
    let event = &events["events"][0];
    assert_eq!((&event["package"], &event["fatal"]), (&reference(&first), &json!(false)), "{event}");
    assert_eq!(event["what"], "drained and dropped");
    assert_eq!(serving.table.len(), 1);
    for _ in 0..2 {
        let (status, body) = post(&router, path::UNLOAD, reference(&second)).await;
        assert_eq!((status, states(body).len()), (StatusCode::OK, 0));
    }
}

#[tokio::test]
async fn a_package_of_the_folder_that_is_refused_leaves_what_answers_alone() {
    let failing = package("1.0.0", 1, Behaviour::Fail(PredictError::Trap("asked for".to_owned())));
    let Fixture { router, control, opener, .. } = fixture(&[&failing]);
    let found = || Found {
        folder: "m".to_owned(),
        directory: "/nowhere".into(),
        package: serde_json::from_value(reference(&failing)).unwrap(),
        version: "1.0.0".to_owned(),
    };
    let put = async || repository::put(&control, found()).await;
    let states = async || states(get(&router, path::STATUS).await.1);
    assert!(put().await.is_err(), "its case fails");
    assert_eq!(states().await, []);
    // It answers, with other settings and then with the same ones, since somebody routed it all the same.
    for settings in [json!({"threshold": "0.5"}), json!({})] {
        let mut other = load(&failing);
        other["settings"] = settings.clone();
        post(&router, path::LOAD, other).await;
        post(&router, path::ACTIVATE, reference(&failing)).await;
        while control.serving.table.len() > 1 {
            tokio::task::yield_now().await;
        }
        let opened = *opener.opened.lock().unwrap();
        let same = settings == json!({});
        assert_eq!(put().await.is_ok(), same, "{settings}");
        assert_eq!(states().await, [(1, PackageState::Serving)], "{settings}");
        assert_eq!(*opener.opened.lock().unwrap() == opened, same, "{settings}");
    }
}

#[tokio::test]
async fn loading_again_runs_the_cases_and_opens_nothing() {
    let first = package("1.0.0", 1, Behaviour::Echo);
    let Fixture { router, opener, .. } = fixture(&[&first]);
    for _ in 0..2 {
        let (_, body) = post(&router, path::LOAD, load(&first)).await;
        assert_eq!(body["cases"].as_array().map(Vec::len), Some(1));
    }
    assert_eq!(*opener.opened.lock().unwrap(), 1);
    let mut other = load(&first);
    other["settings"] = json!({"threshold": "0.5"});
    post(&router, path::LOAD, other).await;
    let said: HostStatus = serde_json::from_value(get(&router, path::STATUS).await.1).unwrap();
    let with = [("threshold".to_owned(), "0.5".to_owned())].into();
    assert_eq!(said.packages[0].settings, Some(settings_digest(&with)), "it says with which");
    assert_eq!(*opener.opened.lock().unwrap(), 2, "other settings");
    assert_eq!(states(get(&router, path::STATUS).await.1), [(1, PackageState::Staged)]);
}

#[tokio::test]
async fn new_settings_of_what_is_served_are_staged_beside_it() {
    let first = package("1.0.0", 1, Behaviour::Echo);
    let Fixture { router, serving, .. } = fixture(&[&first]);
    post(&router, path::LOAD, load(&first)).await;
    post(&router, path::ACTIVATE, reference(&first)).await;
    let mut other = load(&first);
    other["settings"] = json!({"threshold": "0.5"});
    post(&router, path::LOAD, other).await;
    let both = states(get(&router, path::STATUS).await.1);
    assert_eq!(both, [(1, PackageState::Serving), (1, PackageState::Staged)]);
    post(&router, path::LOAD, load(&first)).await;
    let one = states(get(&router, path::STATUS).await.1);
    assert_eq!(one, [(1, PackageState::Serving)], "the first settings are wanted again");
    let mut other = load(&first);
    other["settings"] = json!({"threshold": "0.5"});
    post(&router, path::LOAD, other).await;
    post(&router, path::ACTIVATE, reference(&first)).await;
    while serving.table.len() > 1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(serving.table.find("m", None).unwrap().settings["threshold"], "0.5");
}

#[tokio::test]
async fn a_case_that_fails_says_which_element() {
    let case = json!({"name": "golden",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [2], "data": [1, 3]}]});
    let wrong = Fake::with_case(manifest("m", "1.0.0", 1, "FP32", &[-1]), Behaviour::Echo, case);
    let trap = package("2.0.0", 2, Behaviour::Fail(PredictError::Trap("unreachable".to_owned())));
    let Fixture { router, .. } = fixture(&[&wrong, &trap]);
    let (status, body) = post(&router, path::LOAD, load(&wrong)).await;
    let loaded: Loaded = serde_json::from_value(body).unwrap();
    assert!(status == StatusCode::OK && !loaded.accepted());
    let failure = loaded.first_failure().unwrap();
    assert_eq!(failure.case, "golden");
    let text = failure.failure.as_deref().unwrap();
    assert!(text.starts_with("output `y`, element 1 (at [1]): expected 3.0, got 2.0"), "{text}");
    let (_, body) = post(&router, path::LOAD, load(&trap)).await;
    assert_eq!(body["cases"][0]["failure"], "the module trapped: unreachable");
}

/// The tolerance of this machine's architecture holds in place of the general one; those of others do not.
#[tokio::test]
async fn a_tolerance_is_that_of_the_architecture() {
    let accepted = async |general: f64, architecture: &str, own: f64| {
        let case = json!({"name": "golden",
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [2]}],
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [1], "data": [2.5]}]});
        let mut manifest = manifest("m", "1.0.0", 1, "FP32", &[-1]);
        manifest["acceptance"] = json!({
            "cases": ["cases/a.json"],
            "tolerance": {"absolute": general, "relative": 0.0},
            "tolerance-by-architecture": {(architecture): {"absolute": own, "relative": 0.0}},
        });
        let near = Fake::with_case(manifest, Behaviour::Echo, case);
        let Fixture { router, .. } = fixture(&[&near]);
        let (_, body) = post(&router, path::LOAD, load(&near)).await;
        serde_json::from_value::<Loaded>(body).unwrap().accepted()
    };
    assert!(accepted(0.1, std::env::consts::ARCH, 1.0).await);
    assert!(!accepted(1.0, std::env::consts::ARCH, 0.1).await);
    assert!(accepted(1.0, "pdp11", 0.1).await);
    assert!(!accepted(0.1, "pdp11", 1.0).await);
}

#[tokio::test]
async fn a_case_over_its_time_fails() {
    let mut slow = manifest("m", "1.0.0", 1, "FP32", &[-1]);
    slow["module"]["deadline-ms"] = json!(20);
    let never = Behaviour::Wait(Arc::new(tokio::sync::Semaphore::new(0)));
    let slow = Fake::package(slow, never);
    let Fixture { router, .. } = fixture(&[&slow]);
    let (_, body) = post(&router, path::LOAD, load(&slow)).await;
    assert_eq!(body["cases"][0]["failure"], "no answer within 20 ms");
}

/// A load that does not end keeps nobody waiting: the host ends, and says for whom.
#[tokio::test]
async fn a_load_that_hangs_is_named() {
    let never = Behaviour::Wait(Arc::new(tokio::sync::Semaphore::new(0)));
    let (hangs, other) = (package("1.0.0", 1, never), package("2.0.0", 2, Behaviour::Echo));
    let Fixture { router, fatal, .. } = fixture(&[&hangs, &other]);
    let mut impatient = load(&hangs);
    impatient["patience_ms"] = json!(50);
    let (status, body) = post(&router, path::LOAD, impatient).await;
    assert_eq!((status.as_u16(), &body["reason"]), (422, &json!("limit")), "{body}");
    assert!(body["error"].as_str().unwrap().contains("longer than 0.05 s"), "{body}");
    while fatal.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(*fatal.lock().unwrap(), ["m"]);
    let mut patient = load(&other);
    patient["patience_ms"] = json!(60_000);
    assert_eq!(post(&router, path::LOAD, patient).await.0, StatusCode::OK);
    assert_eq!(fatal.lock().unwrap().len(), 1);
}

/// A fake whose requests take these times, with so many cases, warm-up passes and sessions.
fn timed(
    ms: &[u64],
    cases: usize,
    warm_up: u64,
    sessions: u32,
) -> (Arc<dyn Predictor>, Arc<std::sync::Mutex<Vec<Duration>>>) {
    let mut manifest = manifest("m", "1.0.0", 1, "FP32", &[-1]);
    manifest["acceptance"] = json!({"cases": vec!["cases/a.json"; cases], "latency-ms": 2000});
    manifest["activation"] = json!({"warm-up": warm_up});
    manifest["module"]["concurrency"] = json!(2);
    manifest["models"][0]["sessions"] = json!(sessions);
    let times = ms.iter().rev().map(|ms| Duration::from_millis(*ms)).collect();
    let times = Arc::new(std::sync::Mutex::new(times));
    (Fake::package(manifest, Behaviour::Times(Arc::clone(&times))), times)
}

#[tokio::test]
async fn a_case_is_too_slow_when_it_is_so_every_time() {
    let check = async |ms: &[u64], accepted: bool| {
        let (fake, _) = timed(ms, 1, 0, 1);
        let Fixture { router, .. } = fixture(&[&fake]);
        let loaded: Loaded = serde_json::from_value(post(&router, path::LOAD, load(&fake)).await.1).unwrap();
        assert_eq!(loaded.accepted(), accepted, "{ms:?}: {loaded:?}");
    };
    check(&[2500, 2500, 0], true).await;
    check(&[2500, 2500, 2500], false).await;
}

/// On trial every case runs and is asked again by as many as may ask at once; what was accepted before
/// runs one case, and more of them only while that takes no time.
#[tokio::test]
async fn a_trial_warms_up_and_a_return_is_brief() {
    let asked = async |purpose: &str, ms: &[u64], cases: usize, warm_up: u64| {
        let (purpose, sessions) = purpose.split_once(" in ").unwrap_or((purpose, "1"));
        let (fake, times) = timed(ms, cases, warm_up, sessions.parse().unwrap());
        let Fixture { router, .. } = fixture(&[&fake]);
        let mut body = load(&fake);
        body["purpose"] = json!(purpose);
        let (_, body) = post(&router, path::LOAD, body).await;
        (body["cases"].as_array().unwrap().len(), ms.len() - times.lock().unwrap().len())
    };
    let none = [0; 40];
    assert_eq!(asked("trial", &none, 3, 0).await, (3, 3));
    assert_eq!(asked("trial", &none, 3, 2).await, (3, 3 + 2 * 3 * 2));
    assert_eq!(asked("serve", &none, 3, 2).await, (3, 3), "no time passed");
    assert_eq!(asked("serve in 2", &none, 1, 2).await, (1, 1 + 2), "each session once");
    assert_eq!(asked("serve", &[2500, 0, 0, 0], 3, 2).await, (1, 2), "slow, and once more for its latency");
}

#[tokio::test]
async fn what_is_refused_has_a_reason() {
    let good = package("1.0.0", 1, Behaviour::Echo);
    let unreadable =
        Fake::with_case(manifest("m", "2.0.0", 2, "FP32", &[-1]), Behaviour::Echo, json!({"name": "a"}));
    let Fixture { router, .. } = fixture(&[&good, &unreadable]);
    let check = async |path: &str, body: Value, status: u16, reason: &str| {
        let (actual, body) = post(&router, path, body).await;
        assert_eq!((actual.as_u16(), &body["reason"]), (status, &json!(reason)), "{body}");
        assert!(body["error"].is_string());
    };
    check(path::LOAD, json!({}), 400, "bad-request").await;
    check(path::LOAD, json!("["), 400, "bad-request").await;
    let mut relative = load(&good);
    relative["directory"] = json!("here");
    check(path::LOAD, relative, 400, "bad-request").await;
    let mut unknown = load(&good);
    unknown["package"]["digest"] = json!(selvedge_package::Digest::of(b"other"));
    check(path::LOAD, unknown, 422, "corrupt").await;
    let mut renamed = load(&good);
    renamed["package"]["name"] = json!("other");
    check(path::LOAD, renamed, 422, "bad-manifest").await;
    check(path::LOAD, load(&unreadable), 422, "bad-case").await;
    check(path::ACTIVATE, reference(&good), 404, "not-loaded").await;
    check("/v1/other", json!({}), 400, "bad-request").await;
    check(path::STATUS, json!({}), 400, "bad-request").await;
    check("/v2/repository/models/%ff/load", json!({}), 400, "bad-request").await;
    check("/v2/repository/models/%ff/unload", json!({}), 400, "bad-request").await;
    assert_eq!(get(&router, "/v1/events?since=x").await.0, StatusCode::BAD_REQUEST);
    assert!(states(get(&router, path::STATUS).await.1).is_empty(), "nothing refused stays loaded");
}

#[tokio::test]
async fn is_ready_once_it_was_told_so() {
    let Fixture { router, serving, .. } = fixture(&[]);
    assert_eq!(get(&router, path::STATUS).await.1["ready"], json!(false));
    for _ in 0..2 {
        let (status, body) = post(&router, path::READY, json!({})).await;
        assert_eq!((status, &body["ready"]), (StatusCode::OK, &json!(true)));
        assert!(serving.ready());
    }
    assert_eq!(get(&router, path::STATUS).await.1["ready"], json!(true));
    assert_eq!(get(&router, path::READY).await.0, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn shutdown_drains_and_stops() {
    let Fixture { router, serving, stop, .. } = fixture(&[]);
    assert_eq!(post(&router, path::SHUTDOWN, "").await.0, StatusCode::ACCEPTED);
    assert!(*stop.borrow() && serving.draining() && !serving.ready());
}
