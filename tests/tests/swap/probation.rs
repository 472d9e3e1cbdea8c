//! Probation with real programs, and with nobody to ask: a device that is cut off commits or takes back by
//! the rules of the signed package alone, and says so when it is back. A crash, a hang and failing requests
//! cost the release on trial, nothing else.

use rustix::process::Signal;
use selvedge_tests::packages::{deploy, release_folder};
use selvedge_tests::process::send;
use selvedge_tests::stack::{Stack, reported};
use selvedge_tests::versions::{self, BEHAVE, FAIL, RUN_AWAY};
use selvedge_tests::wait;
use serde_json::Value;

/// A week on probation, or five good answers; one failure in ten is too much.
const RULES: &str =
    "\n[activation]\nprobation-seconds = 604800\nprobation-requests = 5\nprobation-failures = 10\n";
const PATH: &str = "/v2/models/runner/infer";

/// A device that has `other` and release 1 of `runner` committed, and release 2 of it on probation.
fn on_probation(release_2: impl Fn(&std::path::Path)) -> Stack {
    let stack = Stack::start();
    let folder = |name: &str| stack.dir.path().join(name);
    versions::identity(&folder("other"), "other", "1.0.0", 100, 6.0, "");
    release_folder(&stack, &folder("other"), 1);
    versions::runaway(&folder("first"), "runner", "1.0.0");
    release_folder(&stack, &folder("first"), 1);
    release_2(&folder("second"));
    release_folder(&stack, &folder("second"), 2);
    for (package, release) in [("other", 1), ("runner", 1)] {
        deploy(&stack, package, release);
        stack.wait_committed(package, release);
    }
    deploy(&stack, "runner", 2);
    wait::until("release 2 to answer on probation", || match stack.post(PATH, BEHAVE) {
        Ok((200, answer)) if answer["model_version"] == "2.0.0" => Ok(()),
        other => Err(other),
    });
    let package = runner(&stack);
    assert_eq!(
        (&package["pending"]["stage"], &package["committed"]["release"]),
        (&"trial".into(), &1.into())
    );
    stack
}

fn runner(stack: &Stack) -> Value {
    let status = stack.agent_status();
    let packages = status["state"]["packages"].as_array().cloned().unwrap_or_default();
    packages.into_iter().find(|package| package["name"] == "runner").unwrap_or_default()
}

/// Nobody far away is there.
fn cut_off(stack: &mut Stack) {
    stack.broker.as_mut().unwrap().stop();
    stack.broker = None;
    stack.registry.as_mut().unwrap().stop();
    stack.registry = None;
}

/// Release 2 is gone, by that reason, and release 1 answers as `other` does.
fn taken_back(stack: &Stack, reason: &str) {
    // Nobody asks before that: what is answered well counts for the release on trial.
    wait::until("release 2 to be gone", || match runner(stack) {
        package if package["pending"].is_null() && package["serving"] == true => Ok(()),
        package => Err(package),
    });
    wait::until("release 1 to answer again", || match stack.post(PATH, BEHAVE) {
        Ok((200, answer)) if answer["model_version"] == "1.0.0" => Ok(()),
        other => Err(other),
    });
    let package = runner(stack);
    let failure = &package["failure"];
    assert_eq!((&failure["release"], &failure["reason"]), (&2.into(), &reason.into()), "{package}");
    assert_eq!(package["committed"]["release"], 1, "{package}");
    stack.wait_ready("other", "1.0.0");
}

#[test]
fn a_device_that_is_cut_off_commits_what_proves_itself() {
    let mut stack = on_probation(|folder| versions::runaway_with(folder, "runner", "2.0.0", 2, RULES));
    cut_off(&mut stack);
    // An agent that starts anew in between changes nothing.
    stack.agent().kill();
    stack.start_agent();
    for _ in 0..5 {
        assert_eq!(stack.post(PATH, BEHAVE).unwrap().0, 200);
    }
    wait::until("the commit", || match runner(&stack) {
        package if package["committed"]["release"] == 2 && package["pending"].is_null() => Ok(()),
        package => Err(package),
    });
    stack.start_broker();
    stack.start_registry();
    stack.wait_committed("runner", 2);
    assert!(reported(&stack.target(), "runner").unwrap()["failure"].is_null());
}

#[test]
fn a_device_that_is_cut_off_takes_back_what_fails() {
    let mut stack = on_probation(|folder| versions::runaway_with(folder, "runner", "2.0.0", 2, RULES));
    cut_off(&mut stack);
    for _ in 0..10 {
        let answer = stack.post(PATH, FAIL).unwrap();
        assert!(answer.0 >= 500, "{answer:?}");
    }
    taken_back(&stack, "probation-failures");
    stack.start_broker();
    stack.start_registry();
    wait::until("the failure to be reported", || {
        let target = stack.target();
        match reported(&target, "runner") {
            Some(report) if report["failure"]["reason"] == "probation-failures" => Ok(()),
            other => Err(other.cloned()),
        }
    });
}

#[test]
fn a_hang_on_probation_costs_the_release_on_trial() {
    let stack = on_probation(|folder| versions::runaway_with(folder, "runner", "2.0.0", 2, RULES));
    let _ = stack.post(PATH, RUN_AWAY);
    taken_back(&stack, "host-died");
}

/// The host aborts, as it does by native code's hand, with two packages in it and nothing said: what is on
/// trial is held to have done it.
#[test]
fn a_crash_on_probation_costs_the_release_on_trial() {
    let stack = on_probation(|folder| versions::runaway_with(folder, "runner", "2.0.0", 2, RULES));
    send(stack.host_id().unwrap(), Signal::ABORT);
    taken_back(&stack, "host-died");
}

/// The first deployment ever: a case that runs away in native code ends nothing but its probe.
#[test]
fn a_first_deployment_that_hangs_leaves_a_healthy_idle_device() {
    let stack = Stack::start();
    let folder = stack.dir.path().join("hangs");
    versions::runaway_with(&folder, "runner", "1.0.0", 3000, "");
    release_folder(&stack, &folder, 1);
    let host = wait::until("a host", || stack.host_id().ok_or("none yet"));
    deploy(&stack, "runner", 1);
    wait::until("the failure to be reported", || {
        let target = stack.target();
        match reported(&target, "runner") {
            Some(report) if report["failure"]["release"] == 1 && report["pending"].is_null() => Ok(()),
            other => Err(other.cloned()),
        }
    });
    assert_eq!(stack.host_id(), Some(host), "the host never saw it");
    for path in ["/v2/health/live", "/v2/health/ready"] {
        wait::until(path, || match stack.get(path) {
            Ok((200, _)) => Ok(()),
            other => Err(other),
        });
    }
    let good = stack.dir.path().join("good");
    versions::runaway(&good, "runner", "2.0.0");
    release_folder(&stack, &good, 2);
    deploy(&stack, "runner", 2);
    stack.wait_committed("runner", 2);
}
