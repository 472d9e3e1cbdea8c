//! The driver against a host that the test plays: what it asks of the host, in which order, and
//! what becomes of the deployment.
#![allow(clippy::unwrap_used)]

mod bench;
mod blame;
mod carry;
#[path = "../control_socket/mod.rs"]
mod control_socket;
mod probation;
mod refusal;

use selvedge_agent::supervise::Fate;
use selvedge_control::PackageState;
use selvedge_deployment::Stage;
use selvedge_package::trust::{Assignment, Desired};
use selvedge_package::{Digest, PackageName};
use selvedge_protocol::block::block_frame;
use serde_json::json;

use bench::{Bench, assignment, driver, package, set_memory, set_probe, set_program};

#[tokio::test]
async fn a_first_install_is_committed_and_served_again_after_a_crash() {
    let mut bench = Bench::new().await;
    let built = package(&bench.store, 1, json!({}));
    bench.desire(1, &[&built]);
    assert!(matches!(bench.slot().stage, Stage::Staged { .. }), "no host, no trial: {:?}", bench.slot());
    bench.host_up();
    bench.until("commit", |b| b.slot().committed.is_some()).await;
    assert_eq!(bench.asked(), ["ready", "load p", "activate p"]);
    assert_eq!(bench.activation.state().generation, 1);
    let report = bench.activation.report(None, None);
    assert!(report.packages[0].serving && report.packages[0].pending.is_none(), "{report:?}");
    assert_eq!(report.packages[0].committed.as_ref().unwrap().version, "1.0.0");

    // The host is killed: what is committed is loaded again, without a probe.
    set_probe(bench.place.path(), &json!("nobody should ask"));
    bench.restart_host();
    assert!(!bench.activation.report(None, None).packages[0].serving);
    bench.until("word that it is ready", |b| b.host.lock().unwrap().ready).await;
    assert_eq!(bench.asked(), ["load p", "activate p", "ready"]);

    // The agent is killed and finds its host: there is nothing to do.
    (bench.activation, bench.outcomes) = driver(bench.place.path(), &bench.store);
    bench.activation.pursue().unwrap();
    bench.host_up();
    assert!(bench.activation.report(None, None).packages[0].serving);
    assert!(bench.asked().is_empty());

    // Not assigned any more: it is dropped, from the host and from the disk.
    bench.desire(2, &[]);
    bench.until("removal", |b| !b.serves()).await;
    assert_eq!(bench.asked(), ["unload p"]);
    bench.until("collection", |b| !b.store.has(&built.bundle.digest()).unwrap()).await;
}

#[tokio::test]
async fn a_failed_case_is_not_committed_and_the_old_release_stays() {
    let mut bench = Bench::new().await;
    bench.host_up();
    let first = package(&bench.store, 1, json!({}));
    bench.commit(1, &first).await;
    set_probe(
        bench.place.path(),
        &json!({ "package": { "package": { "name": "p", "digest": Digest::of(b"") },
            "cases": [{ "case": "golden", "ms": 1.0, "failure": "y[0]: expected 41.5, got 6" }],
            "load_ms": 1.0 } }),
    );
    let second = package(&bench.store, 2, json!({}));
    bench.asked();
    bench.desire(2, &[&second]);
    bench.until("failure", |b| b.slot().failure.is_some()).await;
    let failure = bench.slot().failure.unwrap();
    assert_eq!(failure.reason, "acceptance-failed");
    assert!(failure.what.contains("golden") && failure.what.contains("41.5"), "{}", failure.what);
    assert!(bench.asked().is_empty(), "the host never saw it");
    assert!(bench.serves() && bench.slot().committed.unwrap().release.release == 1);
    assert!(bench.told.contains(&"rolled-back".to_owned()), "{:?}", bench.told);
}

#[tokio::test]
async fn what_memory_would_not_hold_beside_the_old_one_takes_its_place() {
    let mut bench = Bench::new().await;
    bench.host_up();
    set_memory(bench.place.path(), 1000);
    let first = package(&bench.store, 1, json!({}));
    bench.commit(1, &first).await;
    assert!(!bench.told.contains(&"stops-first".to_owned()), "there was nothing to stop");
    bench.asked();
    let second = package(&bench.store, 2, json!({}));
    bench.commit(2, &second).await;
    assert_eq!(bench.asked(), ["unload p", "load p", "activate p"]);
    assert!(bench.told.contains(&"stops-first".to_owned()), "{:?}", bench.told);

    // The next one fails: the old one comes back by itself.
    let refusal = json!({ "error": "no memory", "reason": "limit" });
    bench.host.lock().unwrap().refusals.push(refusal);
    let third = package(&bench.store, 3, json!({}));
    bench.desire(3, &[&third]);
    bench.until("the old one", |b| b.slot().failure.is_some() && b.serves()).await;
    assert_eq!(bench.asked(), ["unload p", "load p", "load p", "activate p"]);
    assert_eq!(bench.slot().committed.unwrap().release.release, 2);

    // With memory for both they are side by side again.
    set_memory(bench.place.path(), 10_000_000);
    let fourth = package(&bench.store, 4, json!({}));
    bench.commit(4, &fourth).await;
    assert_eq!(bench.asked(), ["load p", "activate p"]);
}

#[tokio::test]
async fn a_probe_killed_for_want_of_memory_has_it_to_itself_the_second_time() {
    let mut bench = Bench::new().await;
    bench.host_up();
    let first = package(&bench.store, 1, json!({}));
    bench.commit(1, &first).await;
    bench.asked();
    set_program(bench.place.path(), "kill -KILL $$");
    set_memory(bench.place.path(), 1000);
    let second = package(&bench.store, 2, json!({}));
    bench.desire(2, &[&second]);
    bench.until("failure", |b| b.slot().failure.is_some() && b.serves()).await;
    assert_eq!(bench.slot().failure.unwrap().reason, "probe-crashed");
    assert_eq!(bench.asked(), ["unload p", "load p", "activate p"], "the old one came back");

    // Killed by somebody while there is memory: that is no reason to stop what answers.
    set_memory(bench.place.path(), 10_000_000);
    let third = package(&bench.store, 3, json!({}));
    bench.desire(3, &[&third]);
    bench.until("failure", |b| b.slot().failure.is_some_and(|failure| failure.release == 3)).await;
    assert!(bench.asked().is_empty());
}

#[tokio::test]
async fn a_release_that_drains_is_shown_until_it_is_gone() {
    let mut bench = Bench::new().await;
    bench.host_up();
    bench.host.lock().unwrap().drains = true;
    for release in [1, 2] {
        let built = package(&bench.store, release, json!({}));
        bench.commit(release, &built).await;
    }
    let draining = |b: &Bench| {
        let packages = &b.activation.host().unwrap().packages;
        packages.iter().any(|package| package.state == PackageState::Draining)
    };
    assert!(draining(&bench));
    assert_eq!(bench.asked(), ["ready", "load p", "activate p", "load p", "activate p"], "it is left alone");
    bench.host.lock().unwrap().packages.retain(|p| p.state != PackageState::Draining);
    bench.activation.noticed().unwrap();
    bench.until("a look", |b| !draining(b)).await;
    assert!(bench.asked().is_empty());
}

#[tokio::test]
async fn progress_never_falls_back_while_what_came_is_put_into_its_place() {
    let mut bench = Bench::new().await;
    let built = package(&bench.store, 1, json!({}));
    let model = built.bundle.descriptor(&"models/m.onnx".parse().unwrap()).unwrap().digest;
    bench.store.remove_blob(&model).unwrap();
    bench.desire(1, &[&built]);
    let progress = |bench: &mut Bench| {
        let pending = bench.activation.report(None, None).packages.remove(0).pending.unwrap();
        (pending.stage, pending.bytes, pending.total)
    };
    let (stage, before, total) = progress(&mut bench);
    assert_eq!((stage.as_str(), before), ("fetching", total - b"model 1".len() as u64));
    bench.activation.connected(128 * 1024);
    let need = bench.activation.errands().needs.remove(0);
    let block = block_frame(need.transfer, 0, b"model 1").unwrap();
    bench.activation.frame(&block).unwrap();
    assert_eq!(progress(&mut bench), ("fetching".to_owned(), total, total), "not yet in its place");
    bench.until("all of it", |b| matches!(b.slot().stage, Stage::Staged { .. })).await;
    assert_eq!(progress(&mut bench), ("staged".to_owned(), total, total));
    assert_eq!(bench.activation.chunks(), 1);
}

#[tokio::test]
async fn going_back_to_the_release_before_asks_for_nothing_again() {
    let mut bench = Bench::new().await;
    bench.host_up();
    bench.activation.connected(128 * 1024);
    let runs = |release| move |b: &Bench| b.slot().committed.is_some_and(|c| c.release.release == release);
    let first = package(&bench.store, 1, json!({}));
    bench.desire(1, &[&first]);
    bench.until("commit", runs(1)).await;
    let second = package(&bench.store, 2, json!({}));
    bench.desire(2, &[&second]);
    bench.until("commit", runs(2)).await;
    bench.asked();
    bench.desire(3, &[&first]);
    bench.until("commit of the release before", runs(1)).await;
    assert_eq!(bench.asked(), ["load p", "activate p"]);
    assert_eq!(bench.needs, 0);

    // Further back nothing is kept.
    let third = package(&bench.store, 3, json!({}));
    bench.desire(4, &[&third]);
    bench.until("commit", runs(3)).await;
    bench.until("collection", |b| !b.store.has(&second.bundle.digest()).unwrap()).await;
    bench.desire(5, &[&second]);
    bench.until("a question to the registry", |b| b.needs > 0).await;
    assert!(bench.serves());
}

#[tokio::test]
async fn new_settings_are_reported_when_they_run_and_not_before() {
    let mut bench = Bench::new().await;
    bench.host_up();
    let built = package(&bench.store, 1, json!({}));
    bench.commit(1, &built).await;
    bench.asked();
    let with = |value: &str| {
        let settings = [("k".to_owned(), value.to_owned())].into();
        vec![Assignment { settings, ..assignment(&built) }]
    };
    bench.desire_with(2, with("1"));
    let report = bench.activation.report(None, None).packages.remove(0);
    assert!(report.serving, "with the settings before");
    assert_eq!(report.pending.unwrap().release, report.committed.unwrap());
    bench.until("the settings", |b| b.host.lock().unwrap().served.get("k").is_some_and(|v| v == "1")).await;
    bench.until("commit", |b| b.slot().stage == Stage::Idle).await;
    assert_eq!(bench.asked(), ["load p", "activate p"]);
    let report = bench.activation.report(None, None).packages.remove(0);
    assert!(report.serving && report.pending.is_none() && report.failure.is_none(), "{report:?}");
    assert_eq!(bench.slot().committed.unwrap().release.settings["k"], "1");

    // Those that the package refuses are reported, and those before them stay.
    bench.host.lock().unwrap().refusals.push(json!({ "error": "k is no number", "reason": "limit" }));
    bench.desire_with(3, with("x"));
    bench.until("failure", |b| b.slot().failure.is_some()).await;
    assert!(bench.serves() && bench.slot().committed.unwrap().release.settings["k"] == "1");
    assert_eq!(bench.asked(), ["load p"]);
    bench.desire_with(4, with("2"));
    bench.until("commit", |b| b.slot().committed.unwrap().release.settings["k"] == "2").await;

    // An agent that finds its host sees with which settings it serves.
    bench.asked();
    (bench.activation, bench.outcomes) = driver(bench.place.path(), &bench.store);
    bench.host_up();
    assert!(bench.activation.report(None, None).packages[0].serving);
    assert!(bench.asked().is_empty(), "it was loaded once more");

    // A host that is started anew has them from the beginning.
    bench.asked();
    bench.restart_host();
    bench.until("word that it is ready", |b| b.host.lock().unwrap().ready).await;
    assert_eq!(bench.host.lock().unwrap().served["k"], "2");
    assert_eq!(bench.asked(), ["load p", "activate p", "ready"]);
}

#[tokio::test]
async fn a_damaged_file_is_found_dropped_and_fetched_again() {
    let mut bench = Bench::new().await;
    bench.host_up();
    let built = package(&bench.store, 1, json!({}));
    bench.commit(1, &built).await;
    bench.asked();

    // A byte changes on disk, the host is restarted and notices.
    let model = built.bundle.descriptor(&"models/m.onnx".parse().unwrap()).unwrap().digest;
    let file = bench.store.root().join("blobs/sha256").join(model.hex());
    std::fs::write(&file, b"model 9").unwrap();
    let refusal = json!({ "error": "models/m.onnx does not have its digest", "reason": "corrupt" });
    {
        let mut host = bench.host.lock().unwrap();
        host.packages.clear();
        host.ready = false;
        host.refusals.push(refusal);
    }
    bench.activation.host_down(&[], Fate::Orderly).unwrap();
    bench.host_up();
    bench.until("word of the damaged blob", |b| b.told.contains(&"corrupt-blob".to_owned())).await;
    assert!(!bench.store.has(&model).unwrap());
    assert!(!bench.store.package_path(&built.bundle.digest()).exists());

    // It comes again; here by hand, and the agent is restarted to look.
    bench.store.put_blob(b"model 1").unwrap();
    (bench.activation, bench.outcomes) = driver(bench.place.path(), &bench.store);
    bench.activation.pursue().unwrap();
    bench.host_up();
    bench.until("service", Bench::serves).await;
    // Without it the host was ready; with it, it is.
    assert_eq!(bench.asked(), ["load p", "ready", "load p", "activate p"]);
}

#[tokio::test]
async fn a_release_that_cannot_be_loaded_does_not_keep_the_host_from_being_ready() {
    let mut bench = Bench::new().await;
    bench.host_up();
    let built = package(&bench.store, 1, json!({}));
    bench.commit(1, &built).await;
    bench.asked();
    bench.host.lock().unwrap().refusals.push(json!({ "error": "no memory", "reason": "limit" }));
    bench.restart_host();
    bench.until("service", Bench::serves).await;
    assert_eq!(bench.asked(), ["load p", "ready", "load p", "activate p"]);
}

#[tokio::test]
async fn what_this_device_cannot_use_is_refused_before_it_is_fetched() {
    let mut bench = Bench::new().await;
    for (sequence, requires, reason) in [
        (1, json!({ "architectures": ["aarch64"] }), "wrong-hardware"),
        (2, json!({ "ram-mib": 2000 }), "too-little-memory"),
    ] {
        let built = package(&bench.store, sequence, requires);
        bench.desire(sequence, &[&built]);
        assert_eq!(bench.slot().failure.unwrap().reason, reason);
    }
    // Assigned under another counter than it says of itself.
    let built = package(&bench.store, 3, json!({}));
    let mut assigned = assignment(&built);
    assigned.release = 4;
    let issued_at = "2026-11-27T00:00:00Z".parse().unwrap();
    let desired = Desired { sequence: 3, issued_at, nonce: Vec::new(), assignments: vec![assigned] };
    bench.activation.desire(&bench.trust, &desired).unwrap();
    bench.activation.pursue().unwrap();
    assert_eq!(bench.slot().failure.unwrap().reason, "other-package");
    let name: PackageName = "p".parse().unwrap();
    assert!(bench.activation.state().slots[&name].committed.is_none());
}

#[tokio::test]
async fn a_host_that_cannot_be_run_says_nothing_about_the_package() {
    let mut bench = Bench::new().await;
    std::fs::remove_file(bench.place.path().join("host")).unwrap();
    bench.host_up();
    let built = package(&bench.store, 1, json!({}));
    bench.desire(1, &[&built]);
    bench.until("word of it", |b| b.told.contains(&"probe-not-run".to_owned())).await;
    assert!(bench.slot().failure.is_none());
    set_probe(
        bench.place.path(),
        &json!({ "package": { "package": { "name": "p", "digest": Digest::of(b"") },
            "cases": [{ "case": "c", "ms": 1.0 }], "load_ms": 1.0 } }),
    );
    bench.until("commit", |b| b.slot().committed.is_some()).await;
}

#[tokio::test]
async fn a_trial_that_waits_keeps_what_is_committed_from_no_new_host() {
    let mut bench = Bench::new().await;
    bench.host_up();
    let first = package(&bench.store, 1, json!({}));
    bench.commit(1, &first).await;
    std::fs::remove_file(bench.place.path().join("host")).unwrap();
    let second = package(&bench.store, 2, json!({}));
    bench.desire(2, &[&second]);
    bench.until("word of it", |b| b.told.contains(&"probe-not-run".to_owned())).await;
    bench.asked();
    bench.restart_host();
    // At once: nothing here lets time pass for the driver.
    for _ in 0..50 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(bench.asked(), ["load p"]);
}
