//! What is refused before it runs: changed files, components that are none, models that are none.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use selvedge_control::Reason;
use selvedge_host::failure::RuntimeError;
use selvedge_host::runtime::{Runtime, RuntimeOptions};
use selvedge_package::Digest;
use selvedge_package::manifest::ExecutionProvider;
use selvedge_tests::{counts, onnx_writer};
use serde_json::json;

use crate::fixture::{Package, Written, ask, floats, fp32, hostile, options, runtime};

fn check(package: &Written, reason: Reason, part: &str) {
    let error = package.refusal();
    assert_eq!(error.reason(), reason, "{error}");
    assert!(error.to_string().contains(part), "{error}");
}

#[test]
fn a_changed_byte_in_any_file_is_found() {
    for file in ["model.onnx", "cases/one.json", "manifest.json", "package.json"] {
        let package = Package::identity().write();
        let path = package.path().join(file);
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        check(&package, Reason::Corrupt, file);
    }
}

#[test]
fn missing_longer_linked_and_special_files_are_found() {
    for harm in ["missing", "longer", "link", "pipe", "folder"] {
        let package = Package::identity().write();
        let path = package.path().join("model.onnx");
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        match harm {
            "longer" => std::fs::write(&path, [&bytes[..], b"x"].concat()).unwrap(),
            "link" => {
                std::fs::write(package.path().join("other"), &bytes).unwrap();
                symlink(package.path().join("other"), &path).unwrap();
            }
            "pipe" => {
                let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
                rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
            }
            "folder" => std::fs::create_dir(&path).unwrap(),
            _ => {}
        }
        check(&package, Reason::Corrupt, "model.onnx");
    }
}

#[test]
fn another_package_than_the_one_asked_for_is_refused() {
    let package = Package::identity().write();
    let error = runtime().open(package.path(), Digest::of(b"other"), &Default::default()).err().unwrap();
    assert_eq!(error.reason(), Reason::Corrupt);
}

#[test]
fn components_that_are_none_say_what_they_are() {
    let component = |bytes: Vec<u8>| Package::guest(bytes).write();
    check(&component(b"not wasm at all".to_vec()), Reason::BadComponent, "not WebAssembly");
    check(&component(vec![]), Reason::BadComponent, "not WebAssembly");
    check(&component(b"\0asm\x01\0\0\0".to_vec()), Reason::BadComponent, "core module");
    check(&component(b"\0asm\x0d\0\x01\0garbage".to_vec()), Reason::BadComponent, "wasmtime");
    let mut cut = hostile("trap");
    cut.truncate(cut.len() / 2);
    check(&component(cut), Reason::BadComponent, "wasmtime");
    check(&component(hostile("wrong-export")), Reason::BadComponent, "does not export `predict`");
    check(&component(hostile("sockets")), Reason::BadComponent, "network");
}

#[test]
fn models_that_are_none_say_what_they_are() {
    let model =
        |bytes: Vec<u8>| Package::new(bytes, &[("x", "FP32", &[2, 3])], &[("y", "FP32", &[2, 3])]).write();
    check(&model(b"<html>404</html>".to_vec()), Reason::BadModel, "not an ONNX file");
    check(&model(vec![]), Reason::BadModel, "no graph");
    let mut cut = onnx_writer::two_layers();
    cut.truncate(cut.len() / 2);
    check(&model(cut), Reason::BadModel, "not an ONNX file");
    check(&model(b"\x18\0\0\0ORTM\0\0\0\0".to_vec()), Reason::BadModel, ".ort");
    // A graph of an operator that does not exist.
    let x = onnx_writer::value("x", onnx_writer::Element::Float, &[1.into()]);
    let y = onnx_writer::value("y", onnx_writer::Element::Float, &[1.into()]);
    let graph = onnx_writer::graph([onnx_writer::node("Nonsense", &["x"], &["y"])], [], [x], [y]);
    check(&model(onnx_writer::model(graph)), Reason::BadModel, "Nonsense");
}

#[test]
fn external_data_outside_of_the_package_is_refused() {
    for location in ["../model.data", "/etc/passwd", "other.data", "model.data/../../x"] {
        let (model, data) = onnx_writer::two_layers_external(location);
        let package = Package::new(model, &[("x", "FP32", &[-1, 4])], &[("y", "FP32", &[-1, 2])])
            .set("models", json!([{"name": "main", "file": "model.onnx", "external-data": ["model.data"]}]))
            .file("model.data", data)
            .write();
        check(&package, Reason::BadModel, "external data");
    }
    counts::say("hostile model external data: not opened: 4 paths out of its package");
}

#[test]
fn what_a_model_is_to_run_on_has_to_be_allowed_and_there() {
    let package = |providers: &[&str]| {
        let model = json!({"name": "main", "file": "model.onnx", "execution-providers": providers});
        Package::identity().set("models", json!([model])).write()
    };
    check(
        &package(&["cuda", "cpu"]),
        Reason::BadModel,
        "`cuda`, and this device allows `cpu` (`--execution-providers`",
    );
    // The set-up's library has the processor alone.
    let everything = RuntimeOptions { execution_providers: ExecutionProvider::ALL.to_vec(), ..options() };
    let runtime = Runtime::new(everything).unwrap();
    let open = |package: &Written| runtime.open(package.path(), package.digest, &Default::default());
    for asked in ["cuda", "tensorrt", "openvino", "xnnpack", "acl"] {
        let error = open(&package(&[asked, "cpu"])).map(drop).unwrap_err();
        let says = format!("asks for the execution provider `{asked}`, and this ONNX Runtime has `cpu`");
        assert!(error.to_string().contains(&says), "{error}");
    }
    let loaded = open(&package(&["cpu"])).unwrap();
    assert_eq!(floats(&ask(&loaded, vec![fp32("x", &[2, 3], &[2.0; 6])]).unwrap()[0].tensor), [2.0; 6]);
}

#[test]
fn a_cache_that_others_can_write_to_is_refused_and_a_damaged_file_is_made_again() {
    let place = tempfile::tempdir().unwrap();
    let cache = place.path().join("compiled");
    let with =
        |cache: &std::path::Path| Runtime::new(RuntimeOptions { cache: Some(cache.to_owned()), ..options() });
    let package = Package::guest(hostile("trap")).write();
    let open =
        |runtime: &Runtime| runtime.open(package.path(), package.digest, &Default::default()).map(drop);
    open(&with(&cache).unwrap()).unwrap();
    assert_eq!(std::fs::metadata(&cache).unwrap().permissions().mode() & 0o777, 0o700);
    let files =
        || -> Vec<_> { std::fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap().path()).collect() };
    assert_eq!(files().len(), 1);
    let compiled = std::fs::read(&files()[0]).unwrap();
    for harm in ["byte", "cut", "empty"] {
        let mut damaged = compiled.clone();
        match harm {
            "byte" => damaged[compiled.len() - 1] ^= 1,
            "cut" => damaged.truncate(compiled.len() / 2),
            _ => damaged.clear(),
        }
        std::fs::write(&files()[0], damaged).unwrap();
        open(&with(&cache).unwrap()).unwrap();
        assert_eq!(std::fs::read(&files()[0]).unwrap(), compiled, "{harm}");
    }
    counts::say("hostile file in the compiled cache: 3 of a wrong digest removed and compiled again");
    std::fs::set_permissions(&cache, std::fs::Permissions::from_mode(0o770)).unwrap();
    match with(&cache).err() {
        Some(RuntimeError::Cache { why, .. }) => assert!(why.contains("770"), "{why}"),
        other => panic!("{other:?}"),
    }
    let elsewhere = place.path().join("link");
    symlink(&cache, &elsewhere).unwrap();
    assert!(matches!(with(&elsewhere).err(), Some(RuntimeError::Cache { .. })));
}

#[test]
fn a_package_opens_twice_and_both_answer() {
    let package = Package::identity().write();
    let (one, two) = (package.open().unwrap(), package.open().unwrap());
    for loaded in [&one, &two] {
        let outputs = ask(loaded, vec![fp32("x", &[2, 3], &[2.0; 6])]).unwrap();
        assert_eq!(floats(&outputs[0].tensor), [2.0; 6]);
    }
}
