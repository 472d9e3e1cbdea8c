//! Probation: by requests and by time, kept through a restart of the agent, and lost by whoever breaks a
//! budget of the signed package. Nobody has to be asked: there is no registry here.

use selvedge_agent::supervise::Fate;
use selvedge_control::PackageState;
use selvedge_deployment::{Phase, Stage};
use serde_json::{Value, json};

use crate::bench::{Bench, driver, package, package_with, set_probe, set_program};

fn on_probation(bench: &Bench) -> bool {
    matches!(bench.slot().stage, Stage::Trial { phase: Phase::Probation { .. }, .. })
}

/// A bench whose release 2 is on probation by these rules, after release 1.
async fn on_trial(rules: Value) -> Bench {
    let mut bench = Bench::new().await;
    bench.host_up();
    let first = package(&bench.store, 1, json!({}));
    bench.commit(1, &first).await;
    let second = package_with(&bench.store, 2, json!({ "activation": rules }));
    bench.desire(2, &[&second]);
    bench.until("probation", on_probation).await;
    bench.asked();
    bench
}

/// The host says this of what it serves.
fn measure(bench: &Bench, requests: u64, failures: u64, latency_ms: f64, memory: u64) {
    for package in &mut bench.host.lock().unwrap().packages {
        (package.requests, package.failures) = (requests, failures);
        (package.latency_ms, package.memory) = (latency_ms, memory);
    }
}

#[tokio::test]
async fn requests_end_it_early_and_time_ends_it_at_last() {
    let mut bench = on_trial(json!({ "probation-seconds": 3600, "probation-requests": 20 })).await;
    measure(&bench, 19, 0, 1.0, 0);
    bench.until("a look", |b| b.host.lock().unwrap().looks > 0).await;
    assert!(on_probation(&bench));
    measure(&bench, 20, 0, 1.0, 0);
    bench.until("commit", |b| b.slot().committed.is_some_and(|c| c.release.release == 2)).await;
    assert!(bench.asked().is_empty(), "the route had moved already");

    let mut bench = on_trial(json!({ "probation-seconds": 1 })).await;
    bench.until("commit", |b| b.slot().committed.is_some_and(|c| c.release.release == 2)).await;
}

#[tokio::test]
async fn whoever_breaks_a_budget_is_taken_back_and_the_old_one_answers() {
    let rules = json!({ "probation-seconds": 3600, "probation-failures": 20, "probation-latency-ms": 100,
        "probation-memory-mib": 10 });
    for (requests, failures, latency_ms, memory, reason) in [
        (8, 4, 1.0, 0, "probation-failures"),
        (10, 0, 101.0, 0, "probation-latency"),
        (0, 0, 0.0, (10 << 20) + 1, "probation-memory"),
    ] {
        let mut bench = on_trial(rules.clone()).await;
        measure(&bench, requests, failures, latency_ms, memory);
        bench
            .until(reason, |b| b.slot().failure.is_some() && b.serves() && b.slot().stage == Stage::Idle)
            .await;
        assert_eq!(bench.slot().failure.unwrap().reason, reason);
        let old = bench.slot().committed.unwrap().release.digest;
        let answers = |b: &Bench| {
            let host = b.host.lock().unwrap();
            matches!(&host.packages[..], [one] if one.package.digest == old && one.state == PackageState::Serving)
        };
        bench.until("the old one", answers).await;
        assert_eq!(bench.asked(), ["load p", "activate p"]);
        assert_eq!(bench.slot().committed.unwrap().release.release, 1);
        assert!(bench.told.contains(&"rolled-back".to_owned()), "{:?}", bench.told);
    }
}

#[tokio::test]
async fn within_its_budget_it_stays() {
    let rules = json!({ "probation-seconds": 3600, "probation-requests": 40, "probation-failures": 20,
        "probation-latency-ms": 100, "probation-memory-mib": 10 });
    let mut bench = on_trial(rules).await;
    // One of the first two fails: that alone says nothing.
    measure(&bench, 1, 1, 500.0, 10 << 20);
    bench.until("a look", |b| b.host.lock().unwrap().looks > 0).await;
    assert!(on_probation(&bench));
    measure(&bench, 40, 10, 100.0, 10 << 20);
    bench.until("commit", |b| b.slot().committed.is_some_and(|c| c.release.release == 2)).await;
}

#[tokio::test]
async fn an_agent_that_starts_again_goes_on_where_the_host_is_still_there() {
    let mut bench = on_trial(json!({ "probation-seconds": 3600, "probation-requests": 20 })).await;
    for _ in 0..9 {
        (bench.activation, bench.outcomes) = driver(bench.place.path(), &bench.store);
        bench.host_up();
        assert!(on_probation(&bench));
    }
    assert!(bench.asked().is_empty(), "the host was not to notice");
    measure(&bench, 20, 0, 1.0, 0);
    bench.until("commit", |b| b.slot().committed.is_some_and(|c| c.release.release == 2)).await;

    // Another host is there: it starts again, from the trial on.
    let mut bench = on_trial(json!({ "probation-seconds": 3600 })).await;
    (bench.activation, bench.outcomes) = driver(bench.place.path(), &bench.store);
    bench.host.lock().unwrap().packages.clear();
    bench.host_up();
    assert!(!on_probation(&bench));
    bench.until("probation", on_probation).await;
    assert!(matches!(bench.slot().stage, Stage::Trial { attempt: 2, .. }));
    assert_eq!(
        bench.asked(),
        ["load p", "activate p", "load p", "activate p"],
        "the old one answers meanwhile"
    );
    bench.activation.host_down(&[], Fate::Orderly).unwrap();
}

#[tokio::test]
async fn a_host_that_does_not_serve_it_proves_nothing() {
    // Another host answers before the end of the first is told: it is waited for.
    let mut bench = on_trial(json!({ "probation-seconds": 1 })).await;
    {
        let mut host = bench.host.lock().unwrap();
        (host.looks, host.starts) = (0, 1);
        host.packages.clear();
    }
    bench.until("looks", |b| b.host.lock().unwrap().looks > 2).await;
    assert!(on_probation(&bench), "{:?}", bench.slot());
    bench.activation.host_down(&[], Fate::Faulted).unwrap();
    assert_eq!(bench.slot().committed.unwrap().release.release, 1);
    assert_eq!(bench.slot().failure.unwrap().reason, "host-died");

    // The same host has it no longer: the trial starts again.
    let mut bench = on_trial(json!({ "probation-seconds": 3600 })).await;
    bench.host.lock().unwrap().packages.clear();
    bench.until("another start", |b| matches!(b.slot().stage, Stage::Trial { attempt: 2, .. })).await;
}

#[tokio::test]
async fn time_without_a_host_proves_nothing_when_the_agent_ends() {
    let mut bench = on_trial(json!({ "probation-seconds": 1 })).await;
    (bench.activation, bench.outcomes) = driver(bench.place.path(), &bench.store);
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    bench.activation.stopping().unwrap();
    assert!(
        matches!(bench.slot().stage, Stage::Trial { attempt: 1, proved_ms: 0, .. }),
        "{:?}",
        bench.slot()
    );
}

#[tokio::test]
async fn what_takes_more_memory_than_it_says_is_refused() {
    let mut bench = Bench::new().await;
    bench.host_up();
    let case = json!({ "package": { "package": { "name": "p", "digest": selvedge_package::Digest::of(b"") },
        "cases": [{ "case": "c", "ms": 1.0 }], "load_ms": 1.0 } });
    // Long enough to be seen; a shell takes more than one MiB.
    set_program(bench.place.path(), &format!("sleep 0.3\ncat <<'END'\n{case}\nEND"));
    let limited = |mib: u32| json!({ "acceptance": { "cases": ["c.json"], "memory-mib": mib } });
    let first = package_with(&bench.store, 1, limited(1));
    bench.desire(1, &[&first]);
    bench.until("failure", |b| b.slot().failure.is_some()).await;
    let failure = bench.slot().failure.unwrap();
    assert_eq!(failure.reason, "acceptance-memory", "{}", failure.what);
    assert!(bench.slot().committed.is_none() && !bench.serves());
    set_probe(bench.place.path(), &case);
    let second = package_with(&bench.store, 2, limited(1000));
    bench.commit(2, &second).await;
}
