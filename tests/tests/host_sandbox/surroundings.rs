//! What a guest sees of the machine: nothing by default, and what the signed manifest grants.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::fixture::{Package, Written, ask, hostile, small};

fn package(capabilities: Value) -> Written {
    Package::new(
        selvedge_tests::onnx_writer::identity(),
        &[("x", "UINT8", &[-1])],
        &[("seen", "BYTES", &[-1])],
    )
    .component(hostile("env"))
    .module("capabilities", capabilities)
    .set("settings", json!({"threshold": "0.5", "mode": "fast"}))
    .write()
}

fn look(capabilities: Value) -> BTreeMap<String, String> {
    let package = package(capabilities);
    let loaded = package.open_with(&BTreeMap::from([("mode".to_owned(), "slow".to_owned())])).unwrap();
    let outputs = ask(&loaded, small()).unwrap();
    let lines = outputs[0].tensor.as_strings().unwrap();
    lines
        .iter()
        .map(|line| {
            let line = String::from_utf8_lossy(line);
            let (what, seen) = line.split_once(' ').unwrap();
            (what.to_owned(), seen.to_owned())
        })
        .collect()
}

#[test]
fn nothing_is_there_by_default_and_the_same_nothing_every_time() {
    let seen = look(json!([]));
    for (what, expected) in [
        ("variables", ""),
        ("wall", "0"),
        ("moved", "false"),
        ("files", ""),
        ("escape", "false"),
        ("written", "false"),
        ("settings", "mode=slow,threshold=0.5"),
    ] {
        assert_eq!(seen[what], expected, "{what}");
    }
    assert_eq!(seen, look(json!([])), "random numbers are the same every time");
}

#[test]
fn what_the_manifest_grants_is_there_and_no_more() {
    let seen = look(json!(["clocks"]));
    assert_ne!(seen["wall"], "0");
    assert_eq!((&*seen["moved"], &*seen["variables"], &*seen["files"]), ("true", "", ""));

    let seen = look(json!(["random"]));
    assert_ne!(seen["random"], look(json!(["random"]))["random"]);
    assert_eq!(seen["wall"], "0");

    let seen = look(json!(["environment"]));
    assert_eq!(seen["variables"], "mode=slow,threshold=0.5");

    let seen = look(json!(["package-files"]));
    assert!(seen["files"].contains("model.onnx"), "{}", seen["files"]);
    assert_eq!((&*seen["escape"], &*seen["written"]), ("false", "false"));
}

#[test]
fn a_setting_that_the_package_does_not_have_is_refused() {
    let package = package(json!([]));
    let settings = BTreeMap::from([("treshold".to_owned(), "1".to_owned())]);
    let error = package.open_with(&settings).err().unwrap().to_string();
    assert!(error.contains("`treshold`") && error.contains("threshold"), "{error}");
}
