//! Puts links to ONNX Runtime and the built-in modules beside freshly built programs, where they look
//! for them, so that `target/debug/selvedge up` works by hand without a variable being set.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::paths;

/// Links beside the programs of one profile: `debug` or `release`.
pub fn link(profile: &str) -> Result<()> {
    let folder = paths::cargo_target().join(profile);
    fs::create_dir_all(folder.join("lib")).context("making a folder for the library")?;
    replace(&paths::onnxruntime(), &folder.join("lib/libonnxruntime.so"))?;
    replace(&paths::modules(), &folder.join("modules"))
}

fn replace(to: &Path, link: &Path) -> Result<()> {
    if fs::read_link(link).is_ok_and(|there| there == to) {
        return Ok(());
    }
    match fs::remove_file(link) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => symlink(to, link),
    }
    .with_context(|| format!("linking {} to {}", link.display(), to.display()))
}
