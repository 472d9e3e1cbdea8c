//! A host that ends: what is held to have ended it is taken back or, in the end, not served any more; what
//! others did is not.

use std::time::Duration;

use selvedge_agent::clock;
use selvedge_agent::supervise::Fate;
use selvedge_control::PackageRef;
use selvedge_deployment::{Health, MAX_ATTEMPTS, MAX_CRASHES, Stage};
use serde_json::json;

use crate::bench::{Bench, package, package_with, set_kills};

fn loads(bench: &Bench) -> usize {
    bench.host.lock().unwrap().asked.iter().filter(|asked| asked.starts_with("load")).count()
}

/// The host is killed each time that it opens what is committed.
async fn killed_while_it_opens(bench: &mut Bench) -> Health {
    bench.host.lock().unwrap().hangs = true;
    for _ in 0..MAX_CRASHES {
        bench.restart_host();
        let before = loads(bench);
        if !matches!(bench.slot().committed.unwrap().health, Health::Sound { .. }) {
            break;
        }
        bench.until("a load", |b| loads(b) > before || loads(b) > 0).await;
        bench.asked();
        bench.activation.host_down(&[], Fate::Killed).unwrap();
    }
    bench.slot().committed.unwrap().health
}

#[tokio::test]
async fn what_is_committed_and_killed_each_time_that_it_is_opened_is_quarantined() {
    let mut bench = Bench::new().await;
    bench.host_up();
    let first = package(&bench.store, 1, json!({}));
    bench.commit(1, &first).await;
    bench.asked();
    assert_eq!(killed_while_it_opens(&mut bench).await, Health::Quarantined);
    assert_eq!(bench.slot().failure.unwrap().reason, "quarantined");
    // The host is there, ready and idle.
    bench.host.lock().unwrap().hangs = false;
    bench.restart_host();
    bench.until("word that it is ready", |b| b.host.lock().unwrap().ready).await;
    assert_eq!(bench.asked(), ["ready"]);
    assert!(bench.told.contains(&"quarantined".to_owned()));

    // Ways out: the next release, and the same one with other settings.
    let mut with_settings = crate::bench::assignment(&first);
    with_settings.settings = [("k".to_owned(), "v".to_owned())].into();
    bench.desire_with(2, vec![with_settings]);
    bench.until("commit", |b| matches!(b.slot().committed.unwrap().health, Health::Sound { .. })).await;
    assert_eq!(bench.slot().committed.unwrap().release.settings["k"], "v");
    assert!(bench.slot().failure.is_none());
}

#[tokio::test]
async fn a_trial_is_taken_back_at_once_by_what_it_did_and_not_by_what_others_did() {
    for (fate, kills, taken_back) in [
        (Fate::Faulted, 0, true),
        (Fate::Killed, 1, true),
        (Fate::Killed, 0, false),
        (Fate::Orderly, 1, false),
    ] {
        let mut bench = Bench::new().await;
        set_kills(bench.place.path(), 7);
        bench.host_up();
        let first = package(&bench.store, 1, json!({}));
        bench.commit(1, &first).await;
        let second = package_with(&bench.store, 2, json!({ "activation": { "probation-seconds": 3600 } }));
        bench.desire(2, &[&second]);
        bench
            .until("the route to move", |b| {
                b.host.lock().unwrap().packages.iter().any(|p| p.package.digest == second.bundle.digest())
                    && matches!(b.slot().stage, Stage::Trial { .. })
                    && b.host.lock().unwrap().looks > 0
            })
            .await;
        set_kills(bench.place.path(), 7 + kills);
        bench.activation.host_down(&[], fate).unwrap();
        let slot = bench.slot();
        assert_eq!(slot.failure.is_some(), taken_back, "{fate:?} {kills}: {slot:?}");
        if taken_back {
            assert_eq!(slot.failure.unwrap().reason, "host-died");
        } else {
            assert!(matches!(slot.stage, Stage::Staged { attempts: 1, .. }), "{slot:?}");
        }
    }
}

#[tokio::test]
async fn what_is_named_while_it_is_opened_is_taken_back_and_what_is_killed_is_tried_a_few_times() {
    let mut bench = Bench::new().await;
    bench.host_up();
    bench.host.lock().unwrap().hangs = true;
    let first = package(&bench.store, 1, json!({}));
    bench.desire(1, &[&first]);
    bench.until("a load", |b| loads(b) > 0).await;
    let named = PackageRef { name: "p".parse().unwrap(), digest: first.bundle.digest() };
    bench.activation.host_down(&[named], Fate::Orderly).unwrap();
    assert_eq!(bench.slot().failure.unwrap().reason, "host-died");
    assert_eq!(bench.slot().stage, Stage::Idle);

    let second = package(&bench.store, 2, json!({}));
    bench.desire(2, &[&second]);
    let mut starts = 0;
    while bench.slot().failure.is_none() {
        bench.asked();
        bench.restart_host();
        if bench.slot().failure.is_some() {
            break;
        }
        bench.until("a load", |b| loads(b) > 0).await;
        starts += 1;
        bench.activation.host_down(&[], Fate::Killed).unwrap();
    }
    assert_eq!((starts, bench.slot().failure.unwrap().reason.as_str()), (MAX_ATTEMPTS, "attempts-exhausted"));
    // First deployments that fail leave a host that is ready and idle, and the next one is taken.
    bench.host.lock().unwrap().hangs = false;
    bench.restart_host();
    bench.until("word that it is ready", |b| b.host.lock().unwrap().ready).await;
    let third = package(&bench.store, 3, json!({}));
    bench.commit(3, &third).await;
}

/// The exchange about a load breaks off a moment before the end of the host is told: what would be opened
/// next is not asked for, and not blamed.
#[tokio::test]
async fn what_was_opened_when_the_host_broke_off_is_counted_and_nothing_else() {
    let mut bench = Bench::new().await;
    bench.host_up();
    let culprit = package(&bench.store, 1, json!({}));
    let others = ["q", "r"].map(|name| package_with(&bench.store, 2, json!({ "name": name })));
    bench.desire(1, &[&culprit, &others[0], &others[1]]);
    let committed = |b: &Bench| b.activation.state().slots.values().filter(|s| s.committed.is_some()).count();
    bench.until("commits", |b| committed(b) == 3).await;
    bench.host.lock().unwrap().breaks_at = Some(culprit.bundle.digest());
    for crash in 0..MAX_CRASHES {
        bench.restart_host();
        bench.asked();
        bench.until("the break", |b| b.host.lock().unwrap().asked.contains(&"load p".to_owned())).await;
        let until = clock::since_boot() + Duration::from_millis(300);
        bench.until("what follows from it", |_| clock::since_boot() > until).await;
        assert_eq!(bench.asked().last().unwrap(), "load p", "crash {crash}");
        bench.activation.host_down(&[], Fate::Faulted).unwrap();
        for (name, slot) in &bench.activation.state().slots {
            let crashes = match slot.committed.as_ref().unwrap().health {
                Health::Sound { crashes, .. } => crashes,
                _ => MAX_CRASHES,
            };
            assert_eq!(crashes, if name.as_str() == "p" { crash + 1 } else { 0 }, "{name}");
        }
    }
    // Without it everything else is served.
    bench.restart_host();
    bench.until("the others", |b| b.host.lock().unwrap().packages.len() == 2).await;
}

/// A host that ended for a model that could not be stopped: everything else answers again before it does.
#[tokio::test]
async fn the_host_is_back_without_what_it_had_to_end_for() {
    let mut bench = Bench::new().await;
    bench.host_up();
    let culprit = package(&bench.store, 1, json!({}));
    let other = package_with(&bench.store, 2, json!({ "name": "q" }));
    bench.desire(1, &[&culprit, &other]);
    let committed = |b: &Bench| b.activation.state().slots.values().filter(|s| s.committed.is_some()).count();
    bench.until("commits", |b| committed(b) == 2).await;
    let named = PackageRef { name: "p".parse().unwrap(), digest: culprit.bundle.digest() };
    for end in 1..=MAX_CRASHES {
        bench.asked();
        bench.activation.host_down(std::slice::from_ref(&named), Fate::Orderly).unwrap();
        bench.restart_host();
        bench.until("word that it is ready", |b| b.host.lock().unwrap().ready).await;
        assert_eq!(bench.asked(), ["load q", "activate q", "ready"], "{end}");
        if end == 1 {
            // It has its chance again, while everything else is served.
            bench.until("the other one", |b| b.host.lock().unwrap().packages.len() == 2).await;
        }
    }
    let health = |b: &Bench, name: &str| {
        let slots = &b.activation.state().slots;
        slots[&name.parse().unwrap()].committed.as_ref().unwrap().health
    };
    assert_eq!(health(&bench, "p"), Health::Quarantined);
    assert!(matches!(health(&bench, "q"), Health::Sound { crashes: 0, .. }));
}
