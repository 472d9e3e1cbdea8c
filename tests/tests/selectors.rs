//! Deployments by selector over labels and facts: who matches gets it, priorities decide, what ends
//! is uninstalled, and `selvedge explain` says why.

#![allow(clippy::unwrap_used)]

use selvedge_tests::packages::release_folder;
use selvedge_tests::stack::{DEVICE, Stack, reported};
use selvedge_tests::{versions, wait};
use serde_json::Value;

#[test]
fn labels_and_facts_decide_what_runs() {
    let stack = Stack::start();
    for (name, release) in [("model", 1_u64), ("model", 2), ("extra", 1)] {
        let folder = stack.dir.path().join(format!("{name}-{release}"));
        versions::identity(&folder, name, &format!("1.0.{release}"), 3000 + release as usize, 6.0, "");
        release_folder(&stack, &folder, release);
    }
    let selvedge = |arguments: &[&str]| stack.selvedge().run(arguments);
    let architecture = std::env::consts::ARCH;

    // Nothing matches yet: said, and no failure.
    let oslo = format!("arch = {architecture}, site in (oslo, bergen)");
    selvedge(&["deploy", "model@r1", "--selector", &oslo]);
    selvedge(&["deploy", "extra", "--selector", "site = trondheim"]);
    assert!(reported(&stack.target(), "model").is_none());

    // A label makes it match.
    selvedge(&["target", "label", DEVICE, "site=oslo"]);
    stack.wait_committed("model", 1);

    // Larger priority wins, whichever is newer; explain names both.
    selvedge(&["deploy", "model@r2", "--selector", "arch", "--priority", "5"]);
    stack.wait_committed("model", 2);
    selvedge(&["deploy", "model@r1", "--selector", "site = oslo", "--priority", "4"]);
    let explained = stack.selvedge().json(&["explain", DEVICE]);
    let package = package(&explained, "model");
    assert_eq!(package["assigned"]["release"], 2, "{explained}");
    let verdicts: Vec<&str> =
        array(&package["deployments"]).map(|row| row["verdict"].as_str().unwrap()).collect();
    assert_eq!(verdicts.iter().filter(|verdict| **verdict == "wins").count(), 1, "{explained}");
    assert_eq!(verdicts.iter().filter(|verdict| **verdict == "lost").count(), 2, "{explained}");
    let text = selvedge(&["explain", DEVICE]);
    assert!(text.contains("priority"), "{text}");

    // The winner ends: the next one in line runs, as an older release again.
    let winner = array(&package["deployments"]).find(|row| row["verdict"] == "wins").unwrap()["id"].clone();
    selvedge(&["undeploy", winner.as_str().unwrap()]);
    stack.wait_committed("model", 1);

    // A label that no longer matches uninstalls; another brings the other package.
    selvedge(&["target", "label", DEVICE, "site=trondheim"]);
    stack.wait_committed("extra", 1);
    wait::until("the package to be uninstalled", || {
        let target = stack.target();
        match reported(&target, "model") {
            None => Ok(()),
            Some(report) => Err(report.clone()),
        }
    });
    assert_eq!(stack.get("/v2/models/model").unwrap().0, 404);
    assert_eq!(stack.get("/v2/models/extra/ready").unwrap().0, 200);
}

fn package<'a>(explained: &'a Value, name: &str) -> &'a Value {
    let found = array(&explained["packages"]).find(|package| package["package"] == name);
    found.unwrap_or_else(|| panic!("nothing of {name} in {explained}"))
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().map(Vec::as_slice).unwrap_or_default().iter()
}
