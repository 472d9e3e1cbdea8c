//! What cannot be a package is refused at the desk: exit code 4, a message that says what is wrong
//! and where, and nothing left behind.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use selvedge_tests::command::Selvedge;
use selvedge_tests::onnx_writer;
use tempfile::TempDir;

const MANIFEST: &str = r#"
name = "identity"
version = "1.0.0"
[[models]]
name = "model"
file = "model.onnx"
"#;

/// The smallest core module: magic and version, no component.
const CORE_WASM: &[u8] = b"\0asm\x01\0\0\0";
/// The smallest component: it exports nothing.
const EMPTY_COMPONENT: &[u8] = b"\0asm\x0d\0\x01\0";

#[test]
fn a_sound_folder_is_packaged() {
    let folder = folder(MANIFEST);
    let out = folder.path().join("out.pkg");
    Selvedge::new().run(&["package", path(folder.path()), "--release", "1", "--out", path(&out)]);
    assert!(out.join("oci-layout").is_file() && out.join("index.json").is_file());
}

#[test]
fn a_model_that_is_not_onnx() {
    let folder = folder(MANIFEST);
    fs::write(folder.path().join("model.onnx"), b"\xff\xd8 this is no protobuf").unwrap();
    refused(&folder, "model");
}

#[test]
fn a_component_that_is_none() {
    for (bytes, says) in [
        (b"certainly not WebAssembly".as_slice(), "component"),
        (CORE_WASM, "core"),
        (EMPTY_COMPONENT, "predictor"),
    ] {
        let folder = folder(&with("", "[module]\ncomponent = \"module.wasm\"\n"));
        fs::write(folder.path().join("module.wasm"), bytes).unwrap();
        refused(&folder, says);
    }
}

#[test]
fn a_manifest_with_an_unknown_field_names_the_nearest() {
    let folder = folder(&with("lisence = \"MIT\"\n", ""));
    refused(&folder, "license");
}

#[test]
fn a_manifest_that_is_too_large() {
    let folder = folder(&with(&format!("description = \"{}\"\n", "x".repeat(3 << 20)), ""));
    refused(&folder, "bytes");
}

#[test]
fn paths_that_escape() {
    for escape in ["/etc/passwd", "../model.onnx", "a/../../model.onnx", "C:\\\\model.onnx"] {
        let folder = folder(&MANIFEST.replace("model.onnx", escape));
        refused(&folder, "path");
    }
}

#[test]
fn a_link_that_leads_out_of_the_folder() {
    let folder = folder(&with("files = [\"secret.txt\"]\n", ""));
    std::os::unix::fs::symlink("/etc/hostname", folder.path().join("secret.txt")).unwrap();
    refused(&folder, "secret.txt");
}

#[test]
fn names_that_stand_twice() {
    let twice = "[[models]]\nname = \"model\"\nfile = \"model.onnx\"\n";
    refused(&folder(&with("", twice)), "model");
    let inputs = "[[inputs]]\nname = \"x\"\ndatatype = \"FP32\"\nshape = [1]\n";
    let folder = folder(&with("", &format!("{inputs}{inputs}")));
    refused(&folder, "x");
}

#[test]
fn a_file_that_is_not_there() {
    let folder = folder(&with("files = [\"labels.txt\"]\n", ""));
    refused(&folder, "labels.txt");
}

fn with(fields: &str, tables: &str) -> String {
    format!("{fields}{MANIFEST}{tables}")
}

fn folder(manifest: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("selvedge.toml"), manifest).unwrap();
    fs::write(folder.path().join("model.onnx"), onnx_writer::identity_padded(100)).unwrap();
    folder
}

fn refused(folder: &TempDir, says: &str) {
    let out = folder.path().join("out.pkg");
    let (code, said) =
        Selvedge::new().refused(&["package", path(folder.path()), "--release", "1", "--out", path(&out)]);
    assert_eq!(code, 4, "{said}");
    assert!(said.contains(says), "`{says}` is not in: {said}");
    assert!(!said.contains("panicked"), "{said}");
    assert!(!out.exists(), "a refused package was left behind");
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}
