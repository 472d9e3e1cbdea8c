//! A release whose acceptance case fails on the device: never committed, reported with the case, the
//! expected and the actual value; the device stays healthy and takes the next release.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use selvedge_tests::command::Selvedge;
use selvedge_tests::packages::{deploy, release_folder};
use selvedge_tests::stack::{Stack, reported};
use selvedge_tests::{versions, wait};

#[test]
fn a_failed_case_is_reported_and_the_next_release_is_taken() {
    let stack = Stack::start();
    let wrong = folder(&stack, "1.0.0", 41.5);
    push(&stack, &wrong, 1);

    let failure = wait::until("the failure to be reported", || {
        let target = stack.target();
        match reported(&target, "identity") {
            Some(report) if report["failure"].is_object() => Ok(report.clone()),
            other => Err(other.cloned()),
        }
    });
    let what = failure["failure"]["what"].as_str().unwrap();
    assert!(
        what.contains("golden") && what.contains("41.5") && what.contains('6'),
        "neither case, expected nor actual value in: {what}"
    );
    assert!(failure["committed"].is_null() && failure["serving"] == false, "{failure}");
    assert_eq!(stack.get("/v2/models/identity").unwrap().0, 404);
    assert_eq!(stack.get("/v2/health/live").unwrap().0, 200, "the host is healthy and idle");

    let right = folder(&stack, "1.0.1", 6.0);
    push(&stack, &right, 2);
    stack.wait_committed("identity", 2);
    let report = reported(&stack.target(), "identity").unwrap().clone();
    assert!(report["failure"].is_null(), "{report}");
}

#[test]
fn hostile_modules_cost_their_own_package_only() {
    let stack = Stack::start();
    let right = folder(&stack, "1.0.0", 6.0);
    push(&stack, &right, 1);
    stack.wait_committed("identity", 1);
    for (release, hostile) in (2..).zip(["spin", "spin-init", "balloon"]) {
        let version = format!("1.0.{release}");
        let folder = folder(&stack, &version, 6.0);
        let module = selvedge_tests::programs::set_up(&format!("modules/hostile/{hostile}.wasm"));
        fs::copy(module, format!("{folder}/module.wasm")).unwrap();
        let manifest = format!("{folder}/selvedge.toml");
        let limits = "\n[module]\ncomponent = \"module.wasm\"\ndeadline-ms = 500\nmemory-mib = 16\n";
        fs::write(&manifest, fs::read_to_string(&manifest).unwrap() + limits).unwrap();
        push(&stack, &folder, release);
        wait::until(&format!("{hostile} to be reported"), || {
            let target = stack.target();
            match reported(&target, "identity") {
                Some(report) if report["failure"]["release"] == release && report["pending"].is_null() => {
                    Ok(())
                }
                other => Err(other.cloned()),
            }
        });
        stack.wait_committed("identity", 1);
        assert_eq!(
            stack.get("/v2/models/identity/ready").unwrap().0,
            200,
            "{hostile} took the good one with it"
        );
    }
}

#[test]
fn packaging_refuses_it_before_it_leaves_the_desk() {
    let stack = Stack::without_agent();
    let wrong = folder(&stack, "1.0.0", 41.5);
    let out = stack.path("out.pkg");
    let (code, said) = Selvedge::new().refused(&["package", &wrong, "--release", "1", "--out", &out]);
    assert_eq!(code, 4, "{said}");
    assert!(said.contains("golden") && said.contains("41.5"), "{said}");
    assert!(fs::metadata(&out).is_err(), "a refused package was left behind");
}

/// A package folder whose only case expects `last` as its last element; the model gives 6.
fn folder(stack: &Stack, version: &str, last: f64) -> String {
    let folder = stack.dir.path().join(format!("identity-{version}"));
    versions::identity(&folder, "identity", version, 100, last, "");
    folder.display().to_string()
}

fn push(stack: &Stack, folder: &str, release: u64) {
    release_folder(stack, Path::new(folder), release);
    deploy(stack, "identity", release);
}
