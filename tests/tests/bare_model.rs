//! `selvedge package model.onnx` without a manifest: the probe reads names, types and shapes, finds
//! external data, and records one acceptance case, which every device then has to pass.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use selvedge_package::Bundle;
use selvedge_tests::command::Selvedge;
use selvedge_tests::onnx_writer;
use tempfile::TempDir;

#[test]
fn identity_add_and_two_layers() {
    let models: [(&str, Vec<u8>, usize); 3] = [
        ("identity", onnx_writer::identity(), 1),
        ("add", onnx_writer::add(), 2),
        ("two-layers", onnx_writer::two_layers(), 1),
    ];
    for (name, model, inputs) in models {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("model.onnx"), model).unwrap();
        let bundle = package(&folder, name);
        let manifest = bundle.manifest();
        assert_eq!(manifest.inputs.len(), inputs, "{name}");
        assert_eq!(manifest.outputs.len(), 1, "{name}");
        assert_eq!(manifest.acceptance.cases.len(), 1, "{name}");
        assert!(manifest.module.component.is_none(), "{name} has a module though none was given");
    }
}

#[test]
fn external_data_is_found_and_packed() {
    let folder = tempfile::tempdir().unwrap();
    let (model, data) = onnx_writer::two_layers_external("model.onnx.data");
    fs::write(folder.path().join("model.onnx"), model).unwrap();
    fs::write(folder.path().join("model.onnx.data"), &data).unwrap();
    let bundle = package(&folder, "external");
    assert_eq!(bundle.manifest().models[0].external_data[0].as_str(), "model.onnx.data");
    let packed = bundle.files().find(|file| file.path.as_str() == "model.onnx.data").unwrap();
    assert_eq!(packed.digest, selvedge_package::Digest::of(&data));
}

#[test]
fn external_data_that_is_missing_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (model, _) = onnx_writer::two_layers_external("model.onnx.data");
    fs::write(folder.path().join("model.onnx"), model).unwrap();
    let model = folder.path().join("model.onnx").display().to_string();
    let out = folder.path().join("out.pkg").display().to_string();
    let (code, said) = Selvedge::new().refused(&["package", &model, "--out", &out]);
    assert_eq!(code, 4, "{said}");
    assert!(said.contains("model.onnx.data"), "{said}");
}

fn package(folder: &TempDir, name: &str) -> Bundle {
    let model = folder.path().join("model.onnx").display().to_string();
    let out = folder.path().join("out.pkg");
    Selvedge::new().run(&["package", &model, "--name", name, "--out", &out.display().to_string()]);
    let index: serde_json::Value =
        serde_json::from_slice(&fs::read(out.join("index.json")).unwrap()).unwrap();
    let manifest = blob(&out, index["manifests"][0]["digest"].as_str().unwrap());
    let oci: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
    let config = blob(&out, oci["config"]["digest"].as_str().unwrap());
    Bundle::parse(&manifest, &config).unwrap()
}

fn blob(layout: &Path, digest: &str) -> Vec<u8> {
    fs::read(layout.join("blobs").join(digest.replace(':', "/"))).unwrap()
}
