//! A release whose acceptance case fails on the device: never committed, reported with the case, the
//! expected and the actual value; the device stays healthy and takes the next release.

#![allow(clippy::unwrap_used)]

use std::fs;

use selvedge_tests::command::Selvedge;
use selvedge_tests::onnx_writer;
use selvedge_tests::packages::keys;
use selvedge_tests::stack::{DEVICE, Stack, reported};
use selvedge_tests::wait;

const MANIFEST: &str = r#"
name = "identity"
version = "VERSION"
[[models]]
name = "model"
file = "model.onnx"
[[inputs]]
name = "x"
datatype = "FP32"
shape = [2, 3]
[[outputs]]
name = "y"
datatype = "FP32"
shape = [2, 3]
[acceptance]
cases = ["cases/golden.json"]
"#;

#[test]
fn a_failed_case_is_reported_and_the_next_release_is_taken() {
    let stack = Stack::start();
    let wrong = folder(&stack, "1.0.0", 41.5);
    push(&stack, &wrong, "1.0.0", 1);

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
    push(&stack, &right, "1.0.1", 2);
    stack.wait_committed("identity", 2);
    let report = reported(&stack.target(), "identity").unwrap().clone();
    assert!(report["failure"].is_null(), "{report}");
}

#[test]
fn hostile_modules_cost_their_own_package_only() {
    let stack = Stack::start();
    let right = folder(&stack, "1.0.0", 6.0);
    push(&stack, &right, "1.0.0", 1);
    stack.wait_committed("identity", 1);
    for (release, hostile) in (2..).zip(["spin", "spin-init", "balloon"]) {
        let version = format!("1.0.{release}");
        let folder = folder(&stack, &version, 6.0);
        let module = selvedge_tests::programs::set_up(&format!("modules/hostile/{hostile}.wasm"));
        fs::copy(module, format!("{folder}/module.wasm")).unwrap();
        let manifest = format!("{folder}/selvedge.toml");
        let limits = "\n[module]\ncomponent = \"module.wasm\"\ndeadline-ms = 500\nmemory-mib = 16\n";
        fs::write(&manifest, fs::read_to_string(&manifest).unwrap() + limits).unwrap();
        push(&stack, &folder, &version, release);
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
    fs::create_dir_all(folder.join("cases")).unwrap();
    fs::write(folder.join("selvedge.toml"), MANIFEST.replace("VERSION", version)).unwrap();
    fs::write(folder.join("model.onnx"), onnx_writer::identity_padded(100)).unwrap();
    let tensor = |name: &str, last: f64| serde_json::json!({"name": name, "datatype": "FP32", "shape": [2, 3], "data": [1.0, 2.0, 3.0, 4.0, 5.0, last]});
    let case =
        serde_json::json!({"name": "golden", "inputs": [tensor("x", 6.0)], "outputs": [tensor("y", last)]});
    fs::write(folder.join("cases/golden.json"), case.to_string()).unwrap();
    folder.display().to_string()
}

fn push(stack: &Stack, folder: &str, version: &str, release: u64) {
    let out = stack.path(&format!("identity-{version}.pkg"));
    Selvedge::new().run(&[
        "package",
        folder,
        "--release",
        &release.to_string(),
        "--out",
        &out,
        "--skip-acceptance",
    ]);
    stack.selvedge().run(&["release", &out, "--keys", &keys(stack)]);
    stack.selvedge().run(&["deploy", "identity", "--target", DEVICE]);
}
