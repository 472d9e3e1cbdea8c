//! Versions that follow one another on a device: nobody who asks notices a swap, a version with a
//! fault never takes over or is taken back, and what ran before answers on.

#![allow(clippy::unwrap_used)]

mod probation;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::PathBuf;
use std::time::Duration;

use selvedge_tests::asking::{Asked, Asking, failures};
use selvedge_tests::packages::{deploy, release_folder};
use selvedge_tests::stack::{SERVING, Stack, reported};
use selvedge_tests::versions::{self, BEHAVE, RUN_AWAY};
use selvedge_tests::wait;
use serde_json::Value;

const INPUT: &str = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2,3],"data":[1,2,3,4,5,6]}]}"#;
const PACE: Duration = Duration::from_millis(5);

/// A manifest's line for one version after the other.
const STOP_FIRST: &str = "\n[activation]\nswap = \"stop-first\"\n";

#[test]
fn nobody_who_asks_notices_a_swap() {
    let stack = Stack::start();
    for release in 1..=4_u64 {
        release_folder(&stack, &identity(&stack, release, 6.0, ""), release);
    }
    deploy(&stack, "identity", 1);
    stack.wait_committed("identity", 1);
    let asking = ask(&stack);
    // Up, further up, and back: a rollback is a swap too.
    for release in [2, 3, 4, 3, 1] {
        deploy(&stack, "identity", release);
        stack.wait_committed("identity", release);
        let seen = asking.sent();
        wait::until("more requests", || if asking.sent() > seen + 5 { Ok(()) } else { Err(asking.sent()) });
    }
    let asked = asking.stop();
    assert_eq!(failures(&asked), Vec::<&String>::new(), "of {}", asked.len());
    in_order(&asked, &["1.0.1", "1.0.2", "1.0.3", "1.0.4", "1.0.3", "1.0.1"]);
    only(&stack, "1.0.1");
}

#[test]
fn a_version_that_fails_its_cases_never_answers() {
    let stack = Stack::start();
    release_folder(&stack, &identity(&stack, 1, 6.0, ""), 1);
    release_folder(&stack, &identity(&stack, 2, 41.5, ""), 2);
    deploy(&stack, "identity", 1);
    stack.wait_committed("identity", 1);
    let asking = ask(&stack);
    deploy(&stack, "identity", 2);
    let report = wait_failure(&stack, 2);
    let what = report["failure"]["what"].as_str().unwrap();
    for part in ["golden", "41.5", "6"] {
        assert!(what.contains(part), "`{part}` is missing in: {what}");
    }
    let asked = asking.stop();
    assert_eq!(failures(&asked), Vec::<&String>::new());
    in_order(&asked, &["1.0.1"]);
    only(&stack, "1.0.1");
}

#[test]
fn stop_first_brings_the_old_one_back_when_the_new_one_fails() {
    let stack = Stack::start();
    release_folder(&stack, &identity(&stack, 1, 6.0, ""), 1);
    release_folder(&stack, &identity(&stack, 2, 41.5, STOP_FIRST), 2);
    release_folder(&stack, &identity(&stack, 3, 6.0, STOP_FIRST), 3);
    deploy(&stack, "identity", 1);
    stack.wait_committed("identity", 1);
    deploy(&stack, "identity", 2);
    wait_failure(&stack, 2);
    stack.wait_committed("identity", 1);
    stack.wait_ready("identity", "1.0.1");
    deploy(&stack, "identity", 3);
    stack.wait_committed("identity", 3);
    only(&stack, "1.0.3");
}

#[test]
fn a_version_that_brings_the_host_down_is_quarantined() {
    let stack = Stack::start();
    release_folder(&stack, &identity(&stack, 1, 6.0, ""), 1);
    let folder = stack.dir.path().join("runaway");
    versions::runaway(&folder, "identity", "2.0.0");
    release_folder(&stack, &folder, 2);
    let other = stack.dir.path().join("other");
    versions::identity(&other, "other", "1.0.0", 100, 6.0, "");
    release_folder(&stack, &other, 1);
    for (package, release) in [("other", 1), ("identity", 1), ("identity", 2)] {
        deploy(&stack, package, release);
        stack.wait_committed(package, release);
    }
    let path = "/v2/models/identity/versions/2.0.0/infer";
    assert_eq!(stack.post(path, BEHAVE).unwrap().0, 200, "it is committed, and good for what its case asks");
    // Each time the host ends, since nothing else ends the operator; it is back without being told.
    let report = wait::until("the quarantine", || {
        let _ = stack.post(path, RUN_AWAY);
        let target = stack.target();
        match reported(&target, "identity") {
            Some(report) if report["failure"]["reason"] == "quarantined" => Ok(report.clone()),
            other => Err(other.cloned()),
        }
    });
    assert_eq!(report["failure"]["release"], 2, "{report}");
    // The one before it passed its trial anew, and the package beside it is served.
    stack.wait_committed("identity", 1);
    stack.wait_ready("other", "1.0.0");
    let answer = stack.post("/v2/models/identity/infer", INPUT).unwrap();
    assert_eq!((answer.0, &answer.1["model_version"]), (200, &Value::from("1.0.1")), "{answer:?}");
    let events = stack.target()["events"].to_string();
    assert!(events.contains("identity"), "the end of the host is not put down to the package: {events}");
    // The way out: the release itself, once something else was assigned between.
    deploy(&stack, "identity", 1);
    deploy(&stack, "identity", 2);
    stack.wait_committed("identity", 2);
}

fn ask(stack: &Stack) -> Asking {
    Asking::start(format!("{}/v2/models/identity/infer", stack.inference()), INPUT, PACE)
}

/// Release `release` as version `1.0.release`, whose case expects `last`.
fn identity(stack: &Stack, release: u64, last: f64, more: &str) -> PathBuf {
    let folder = stack.dir.path().join(format!("identity-{release}"));
    // Sizes differ so that the blobs do.
    versions::identity(&folder, "identity", &format!("1.0.{release}"), 1000 + release as usize, last, more);
    folder
}

/// Whether the answers are those of `steps`, one version after the other, and of each there is one: whoever asks when an
/// answer has come gets no earlier step's. Requests that are under way together may be answered in either order.
fn in_order(asked: &[Asked], steps: &[&str]) {
    let (mut running, mut earliest, mut seen) = (BinaryHeap::new(), 0, vec![0; steps.len()]);
    for asked in asked {
        let Ok(version) = &asked.answer else { continue };
        while let Some(Reverse((end, step))) = running.peek()
            && *end < asked.at
        {
            earliest = earliest.max(*step);
            running.pop();
        }
        let step = (earliest..steps.len()).find(|&step| steps[step] == version);
        let step = step.unwrap_or_else(|| panic!("{version} answered when {} had", steps[earliest]));
        seen[step] += 1;
        running.push(Reverse((asked.at + asked.took, step)));
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?} answers of {steps:?}");
}

fn wait_failure(stack: &Stack, release: u64) -> Value {
    wait::until(&format!("the failure of r{release} to be reported"), || {
        let target = stack.target();
        match reported(&target, "identity") {
            Some(report) if report["failure"]["release"] == release && report["pending"].is_null() => {
                Ok(report.clone())
            }
            other => Err(other.cloned()),
        }
    })
}

/// Waits until the host has nothing but this version of it: what was before is drained and gone.
fn only(stack: &Stack, version: &str) {
    wait::until(&format!("only {version} to be loaded"), || {
        let host = stack.host_status();
        match host.as_ref().map(|status| status.packages.as_slice()) {
            Ok([one]) if one.version == version && one.state == SERVING => Ok(()),
            _ => Err(Box::new(host)),
        }
    });
}
