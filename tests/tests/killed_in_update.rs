//! SIGKILL of agent, host, or both, at every moment of an update and of one that is rolled back: the version
//! that was committed answers again, and the update ends as it would have.
//!
//! A kill loses nothing that was written, synced or not: power cuts are another sweep, in `agent/tests`.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use selvedge_tests::counts::say;
use selvedge_tests::packages::{deploy, release_folder};
use selvedge_tests::stack::{Stack, reported};
use selvedge_tests::{versions, wait};
use serde_json::Value;

const INPUT: &str = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2,3],"data":[1,2,3,4,5,6]}]}"#;
/// Size of each release: large enough for its transfer to be seen.
const MODEL: usize = 6_000_000;

type Moment = (&'static str, fn(&Value) -> bool);

fn part(package: &Value) -> f64 {
    let of = |key: &str| package["pending"][key].as_f64().unwrap_or(0.0);
    if package["pending"]["stage"] == "fetching" && of("total") > 0.0 {
        of("bytes") / of("total")
    } else {
        0.0
    }
}

const FETCH: [Moment; 3] = [
    ("assigned", |package| package["pending"].is_object()),
    ("first bytes", |package| part(package) > 0.01),
    ("half", |package| part(package) > 0.5),
];
const TRIAL: Moment = ("trial", |package| package["pending"]["stage"] == "trial");
const PROBATION: Moment = ("probation", |package| {
    package["pending"]["stage"] == "trial" && package["pending"]["release"] == package["serves"]
});

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Killed {
    Agent,
    Host,
    Both,
}

const KILLED: [Killed; 3] = [Killed::Agent, Killed::Host, Killed::Both];

/// What the agent says of the package, and which release answers.
fn package(stack: &Stack) -> Value {
    let status = stack.agent_status();
    let named = |package: &&Value| package["name"] == "identity";
    let packages = status["state"]["packages"].as_array().cloned().unwrap_or_default();
    let mut package = packages.iter().find(named).cloned().unwrap_or_default();
    let host = status["host"]["packages"].as_array().cloned().unwrap_or_default();
    if let Some(serving) = host.iter().find(|package| package["state"] == "serving")
        && package.is_object()
    {
        package["serves"] = serving["release"].clone();
    }
    package
}

fn release(stack: &Stack, release: u64, last: f64) {
    let folder = stack.dir.path().join(format!("identity-{release}"));
    let size = MODEL + release as usize * 70_000;
    let probation = "\n[activation]\nprobation-seconds = 1\n";
    versions::identity(&folder, "identity", &format!("1.0.{release}"), size, last, probation);
    release_folder(stack, &folder, release);
}

/// Deploys and kills at that moment. Whether the moment was met.
fn kill_at(stack: &mut Stack, number: u64, (name, moment): Moment, killed: Killed) -> bool {
    deploy(stack, "identity", number);
    let met = wait::until(name, || {
        let package = package(stack);
        let ended = package["committed"]["release"] == number || package["failure"]["release"] == number;
        match package {
            package if moment(&package) => Ok(true),
            _ if ended => Ok(false),
            other => Err(other),
        }
    });
    if killed != Killed::Host {
        stack.agent().kill();
    }
    if killed != Killed::Agent {
        stack.kill_host();
    }
    if killed != Killed::Host {
        stack.start_agent();
    }
    wait::until("an answer", || match stack.post("/v2/models/identity/infer", INPUT) {
        Ok((200, _)) => Ok(()),
        other => Err(other),
    });
    met
}

#[test]
fn killed_at_every_moment_of_an_update_and_of_a_rollback() {
    let mut stack = Stack::start();
    release(&stack, 1, 6.0);
    deploy(&stack, "identity", 1);
    stack.wait_committed("identity", 1);
    let (mut number, mut good) = (1, 1);
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut missed = 0;
    for (last, moments) in
        [(6.0, &[FETCH[0], FETCH[1], FETCH[2], TRIAL, PROBATION][..]), (41.5, &[FETCH[1], TRIAL])]
    {
        for moment in moments {
            for killed in KILLED {
                number += 1;
                release(&stack, number, last);
                let met = kill_at(&mut stack, number, *moment, killed);
                missed += usize::from(!met);
                if last == 6.0 {
                    good = number;
                    stack.wait_committed("identity", good);
                } else {
                    wait::until("the failure to be reported", || {
                        let target = stack.target();
                        let failed = reported(&target, "identity")
                            .is_some_and(|p| p["failure"]["release"] == number && p["pending"].is_null());
                        if failed { Ok(()) } else { Err(target["reported"].clone()) }
                    });
                    stack.wait_committed("identity", good);
                }
                stack.wait_ready("identity", &format!("1.0.{good}"));
                let what = if last == 6.0 { "update" } else { "rollback" };
                *counts.entry(format!("{what}: {killed:?}")).or_default() += usize::from(met);
            }
        }
    }
    let kills: usize = counts.values().sum();
    say(&format!("power cut: killed: {kills} kills {counts:?}, {missed} moments missed"));
    assert!(missed < 5, "{missed} moments were not met");
    // Nothing is left of what was interrupted.
    let left: Vec<_> = std::fs::read_dir(stack.path("agent/partial")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}
