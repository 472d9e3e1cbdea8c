//! Packages for stories: made by `selvedge package` from tiny models that we write.

use std::path::Path;

use crate::command::Selvedge;
use crate::onnx_writer;
use crate::stack::Stack;
use crate::versions;

/// The keyring of a stack, as the command line takes it.
pub fn keys(stack: &Stack) -> String {
    stack.path("keys")
}

/// Writes an `identity` model (float32 `[2, 3]`, input `x`, output `y`), followed by `padding` bytes
/// of an unused initializer, so that the package has as many chunks as a story needs.
pub fn identity(stack: &Stack, padding: usize) -> String {
    let path = stack.path(&format!("identity-{padding}.onnx"));
    std::fs::write(&path, onnx_writer::identity_padded(padding)).expect("a model can be written");
    path
}

/// Packages `model` as `name` `version` with release counter `release`; the package's directory.
pub fn package(stack: &Stack, model: &str, name: &str, version: &str, release: u64) -> String {
    let out = stack.path(&format!("{name}-{version}.pkg"));
    let release = release.to_string();
    Selvedge::new().run(&[
        "package",
        model,
        "--name",
        name,
        "--version",
        version,
        "--release",
        &release,
        "--out",
        &out,
    ]);
    out
}

/// Packages, releases and deploys an identity model of `padding` extra bytes to the device.
pub fn push_identity(stack: &Stack, padding: usize) {
    let package = package(stack, &identity(stack, padding), "identity", "1.0.0", 1);
    stack.selvedge().run(&["release", &package, "--keys", &keys(stack)]);
    stack.selvedge().run(&["deploy", "identity", "--target", crate::stack::DEVICE]);
}

/// Packages a folder with a manifest, without running its cases here, and releases it.
pub fn release_folder(stack: &Stack, folder: &Path, release: u64) {
    let out = format!("{}-r{release}.pkg", folder.display());
    let (folder, release) = (folder.display().to_string(), release.to_string());
    Selvedge::new().run(&["package", &folder, "--release", &release, "--out", &out, "--skip-acceptance"]);
    stack.selvedge().run(&["release", &out, "--keys", &keys(stack)]);
}

/// A folder of a package: the identity model, a case that holds, and these files besides.
pub fn identity_with_files(folder: &Path, name: &str, version: &str, files: &[(String, Vec<u8>)]) {
    versions::identity(folder, name, version, 0, 6.0, "");
    let names: Vec<&String> = files.iter().map(|(file, _)| file).collect();
    let manifest = folder.join("selvedge.toml");
    let text = std::fs::read_to_string(&manifest).expect("a manifest was written");
    std::fs::write(&manifest, format!("files = {names:?}{text}")).expect("it can be written again");
    for (file, bytes) in files {
        std::fs::write(folder.join(file), bytes).expect("a file can be written");
    }
}

/// `count` bytes that repeat nowhere, from a seed.
pub fn noise(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes: Vec<u8> = Vec::with_capacity(count + 8);
    while bytes.len() < count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}

/// Assigns a release to the device.
pub fn deploy(stack: &Stack, package: &str, release: u64) {
    stack.selvedge().run(&["deploy", &format!("{package}@r{release}"), "--target", crate::stack::DEVICE]);
}
