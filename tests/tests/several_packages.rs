//! Several packages on one device: each has its versions, limits and module of its own, is asked by
//! name and by version, comes and goes alone.

#![allow(clippy::unwrap_used)]

use selvedge_tests::command::Selvedge;
use selvedge_tests::packages::{deploy, keys, release_folder};
use selvedge_tests::programs::set_up;
use selvedge_tests::stack::{DEVICE, Stack};
use selvedge_tests::{versions, wait};

const INPUT: &str = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2,3],"data":[1,2,3,4,5,6]}]}"#;

#[test]
fn each_is_its_own() {
    let stack = Stack::start();
    let example = set_up("examples/file-type").display().to_string();
    let out = stack.path("file-type.pkg");
    Selvedge::new().run(&["package", &example, "--release", "1", "--out", &out]);
    stack.selvedge().run(&["release", &out, "--keys", &keys(&stack)]);
    for (name, version, release) in [("first", "1.0.0", 1), ("second", "3.1.4", 7), ("first", "1.1.0", 2)] {
        let folder = stack.dir.path().join(format!("{name}-{version}"));
        versions::identity(&folder, name, version, 5000 + release, 6.0, "");
        release_folder(&stack, &folder, release as u64);
    }
    deploy(&stack, "file-type", 1);
    deploy(&stack, "first", 1);
    deploy(&stack, "second", 7);
    for (package, release) in [("file-type", 1), ("first", 1), ("second", 7)] {
        stack.wait_committed(package, release);
    }

    // By name, by version, by release number; what is not there says what is.
    for path in ["first", "first/versions/1.0.0", "first/versions/1", "second", "second/versions/3.1.4"] {
        let (status, answer) = stack.post(&format!("/v2/models/{path}/infer"), INPUT).unwrap();
        assert_eq!((status, &answer["outputs"][0]["data"][5]), (200, &6.0.into()), "{path}: {answer}");
    }
    for path in ["first/versions/3.1.4", "second/versions/1.0.0", "second/versions/1"] {
        let (status, answer) = stack.post(&format!("/v2/models/{path}/infer"), INPUT).unwrap();
        let name = path.split('/').next().unwrap();
        assert!(status == 404 && answer["error"].as_str().unwrap().contains(name), "{path}: {answer}");
    }

    // Limits of its own: what is too much for one is nothing for the other.
    let large = vec![b'a'; 400_000];
    assert_eq!(stack.post("/v2/models/first/infer", large.clone()).unwrap().0, 413);
    let (status, answer) = stack.post("/v2/models/file-type/raw", large).unwrap();
    assert_eq!((status, &answer["model_name"]), (200, &"file-type".into()), "{answer}");

    // A new version of one leaves the others as they are.
    let before = loaded(&stack, "second");
    deploy(&stack, "first", 2);
    stack.wait_committed("first", 2);
    assert_eq!(loaded(&stack, "second"), before, "the other package was loaded anew");

    // Gone is gone, for one only; and it can come back.
    stack.selvedge().run(&["undeploy", "first", "--target", DEVICE]);
    wait::until("it to be uninstalled", || match stack.get("/v2/models/first") {
        Ok((404, _)) => Ok(()),
        other => Err(other),
    });
    for name in ["second", "file-type"] {
        assert_eq!(stack.get(&format!("/v2/models/{name}/ready")).unwrap().0, 200, "{name}");
    }
    let packages = stack.dir.path().join("agent/packages");
    wait::until("its files to go", || match std::fs::read_dir(&packages).map(Iterator::count) {
        Ok(2) => Ok(()),
        other => Err(other),
    });
    deploy(&stack, "first", 1);
    stack.wait_committed("first", 1);
}

/// Requests that the host has counted for a package: a package loaded anew would have none.
fn loaded(stack: &Stack, name: &str) -> u64 {
    let status = stack.host_status().unwrap();
    status.packages.iter().find(|package| package.package.name.as_str() == name).unwrap().requests
}
