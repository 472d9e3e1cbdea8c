//! A host that refuses: a trial is lost by what its release is, not by how the host is; what is committed
//! gives way to the release before it, not at once and not for the host's troubles.

use std::time::Duration;

use selvedge_agent::clock;
use selvedge_agent::supervise::Fate;
use selvedge_deployment::Stage;
use serde_json::{Value, json};

use crate::bench::{Bench, package, package_with, set_probe};

fn refusal(reason: &str) -> Value {
    json!({ "error": format!("it is refused: {reason}"), "reason": reason })
}

fn refuse(bench: &Bench, reason: &str, times: usize) {
    bench.host.lock().unwrap().refusals = vec![refusal(reason); times];
}

fn committed(bench: &Bench) -> u64 {
    bench.slot().committed.map_or(0, |committed| committed.release.release)
}

#[tokio::test]
async fn a_trial_is_lost_by_what_its_release_is() {
    for reason in ["bad-manifest", "bad-component", "bad-model", "bad-case", "limit"] {
        let mut bench = Bench::new().await;
        bench.host_up();
        let first = package(&bench.store, 1, json!({}));
        refuse(&bench, reason, 1);
        bench.desire(1, &[&first]);
        bench.until("failure", |b| b.slot().failure.is_some()).await;
        assert_eq!(bench.slot().failure.unwrap().reason, reason);
    }
}

/// A host under its own service was restarted between the load and the route: the new one knows nothing.
#[tokio::test]
async fn a_trial_is_not_lost_by_a_host_that_has_forgotten_it() {
    let mut bench = Bench::new().await;
    bench.host_up();
    let first = package(&bench.store, 1, json!({}));
    bench.commit(1, &first).await;
    bench.host.lock().unwrap().forgets = 1;
    let second = package(&bench.store, 2, json!({}));
    bench.desire(2, &[&second]);
    bench.until("word of it", |b| b.told.contains(&"trial-put-off".to_owned())).await;
    // Its end is told, and the next one comes.
    assert!(matches!(bench.slot().stage, Stage::Trial { attempt: 1, .. }), "{:?}", bench.slot());
    bench.activation.host_down(&[], Fate::Orderly).unwrap();
    bench.host_up();
    bench.until("commit", |b| committed(b) == 2).await;
    assert!(bench.slot().failure.is_none());
}

#[tokio::test]
async fn a_trial_that_the_host_hinders_is_tried_again_by_itself() {
    let mut bench = Bench::new().await;
    bench.host_up();
    let first = package(&bench.store, 1, json!({}));
    bench.commit(1, &first).await;
    refuse(&bench, "internal", 1);
    let second = package(&bench.store, 2, json!({}));
    bench.commit(2, &second).await;
    assert_eq!(bench.told.iter().filter(|told| *told == "trial-put-off").count(), 1, "{:?}", bench.told);
}

/// Between two tries the release that made way answers again, whatever hinders the other one.
#[tokio::test]
async fn a_trial_that_is_hindered_lets_the_old_release_answer_meanwhile() {
    for by_the_probe in [false, true] {
        let mut bench = Bench::new().await;
        bench.host_up();
        let first = package(&bench.store, 1, json!({}));
        bench.commit(1, &first).await;
        if by_the_probe {
            set_probe(bench.place.path(), &json!({ "refused": refusal("internal") }));
        } else {
            refuse(&bench, "internal", 2);
        }
        let second = package_with(&bench.store, 2, json!({ "activation": { "swap": "stop-first" } }));
        bench.desire(2, &[&second]);
        bench.until("the old one has to go", |b| !b.serves()).await;
        bench.until("the next start", |b| matches!(b.slot().stage, Stage::Staged { attempts: 1, .. })).await;
        bench.until("the old one", Bench::serves).await;
        assert!(bench.slot().failure.is_none());
        set_probe(bench.place.path(), &well());
        bench.until("commit", |b| committed(b) == 2).await;
    }
}

/// The host opens what is committed no more, as after an update of its library.
#[tokio::test]
async fn what_is_committed_and_refused_gives_way_to_the_release_before_it() {
    for (reason, gives_way) in [("bad-model", true), ("internal", false)] {
        let mut bench = Bench::new().await;
        bench.host_up();
        let first = package(&bench.store, 1, json!({}));
        bench.commit(1, &first).await;
        let second = package(&bench.store, 2, json!({}));
        bench.commit(2, &second).await;
        bench.host.lock().unwrap().refuses = Some((second.bundle.digest(), refusal(reason)));
        bench.restart_host();
        let loads =
            |b: &Bench| b.host.lock().unwrap().asked.iter().filter(|asked| *asked == "load p").count();
        let mut refused = 0;
        while refused < 12 && !bench.told.contains(&"gives-way".to_owned()) {
            bench.until("a load", |b| loads(b) > 0).await;
            let until = clock::since_boot() + Duration::from_millis(200);
            bench.until("what follows from it", |_| clock::since_boot() > until).await;
            refused += bench.asked().iter().filter(|asked| *asked == "load p").count();
            // The same host: the pause is over.
            bench.host_up();
        }
        assert!(refused >= 10, "after {refused}");
        assert_eq!(bench.told.contains(&"gives-way".to_owned()), gives_way);
        assert!(bench.told.contains(&"not-served".to_owned()));
        if gives_way {
            bench.until("the release before", |b| committed(b) == 1 && b.serves()).await;
            let report = bench.activation.report(None, None).packages.remove(0);
            let failure = report.failure.unwrap();
            assert_eq!((report.serving, failure.release, failure.reason.as_str()), (true, 2, reason));
            // The way out: it is assigned anew, and the host takes it.
            bench.host.lock().unwrap().refuses = None;
            let third = package(&bench.store, 3, json!({}));
            bench.commit(3, &third).await;
        } else {
            assert_eq!((committed(&bench), bench.slot().stage), (2, Stage::Idle));
            bench.host.lock().unwrap().refuses = None;
            bench.until("service", Bench::serves).await;
        }
    }
}

fn well() -> Value {
    json!({ "package": { "package": { "name": "p", "digest": selvedge_package::Digest::of(b"") },
        "cases": [{ "case": "c", "ms": 1.0 }], "load_ms": 1.0 } })
}
