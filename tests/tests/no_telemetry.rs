//! ONNX Runtime's Linux builds carry a telemetry client. A device's host leaves no trace of it.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use selvedge_tests::onnx_writer;
use selvedge_tests::programs::{program, set_up};

#[test]
fn opening_a_model_writes_nothing_below_the_home_directory() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    std::fs::create_dir(&home).unwrap();
    let model = folder.path().join("identity.onnx");
    std::fs::write(&model, onnx_writer::identity()).unwrap();
    let output = Command::new(program("selvedge-host"))
        .args(["probe", "--model"])
        .arg(&model)
        .env("HOME", &home)
        .env_remove("XDG_CACHE_HOME")
        .env_remove("ORT_DISABLE_TELEMETRY")
        .env("SELVEDGE_ONNXRUNTIME", set_up("setup/onnxruntime/libonnxruntime.so"))
        .env("SELVEDGE_MODULES", set_up("modules"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(below(&home), Vec::<String>::new());
}

fn below(folder: &Path) -> Vec<String> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path().display().to_string()).collect()
}
