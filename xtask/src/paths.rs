//! Where things lie in the repository. Set-up products have fixed places under `target/`, even
//! where cargo's own target directory is another one: `.cargo/config.toml` names them.

use std::env;
use std::path::{Path, PathBuf};

/// Root of the repository.
pub fn root() -> PathBuf {
    let manifest = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let xtask = manifest.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
    xtask.parent().map(Path::to_path_buf).unwrap_or(xtask)
}

/// What set-up fetched.
pub fn setup() -> PathBuf {
    root().join("target/setup")
}

/// Built guest components.
pub fn modules() -> PathBuf {
    root().join("target/modules")
}

/// Sources of the guest components.
pub fn module_sources() -> PathBuf {
    root().join("modules")
}

/// The ONNX Runtime library for programs on this machine.
pub fn onnxruntime() -> PathBuf {
    setup().join("onnxruntime/libonnxruntime.so")
}

/// Where cargo puts the workspace's programs.
pub fn cargo_target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |set| root().join(set))
}

/// `path` as seen from the root of the repository, for messages.
pub fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}
