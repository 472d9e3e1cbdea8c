//! Fetches what programs and tests need, each thing once, pinned, into `target/setup`. A second run
//! finds everything there and needs no network. Nothing is installed into the person's own Python.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context as _, Result};
use rustix::fs::{FlockOperation, flock};

use crate::{examples, paths, run};

pub mod apt;
mod magika;
mod onnx_backend;
pub mod onnxruntime;
mod private_apt;
mod programs;
mod python;
mod silero;
mod simulator;
mod stamp;
pub mod unpack;
mod wheel;

pub use onnxruntime::Architecture;
pub use stamp::{Key, Stamp, files_below};

/// The name under which the test stories get their Python.
pub const VENV: &str = "venv";

/// Everything, the guest modules and the examples' package folders.
pub fn all() -> Result<()> {
    for_tests()?;
    examples::file_type()?;
    examples::voice_activity()?;
    run::say("set-up is complete");
    Ok(())
}

/// What the demo needs.
pub fn for_demo() -> Result<()> {
    let _lock = lock()?;
    onnxruntime::library(Architecture::here()?)?;
    magika::files()
}

/// What the tests need.
pub fn for_tests() -> Result<()> {
    for_demo()?;
    let _lock = lock()?;
    programs::install()?;
    python::venv()?;
    simulator::file()?;
    silero::files()?;
    onnx_backend::cases()
}

/// Two set-ups at once would fetch everything twice; the second waits for the first.
pub fn lock() -> Result<File> {
    let folder = paths::setup();
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let path = folder.join(".lock");
    let file = File::create(&path).with_context(|| format!("opening {}", path.display()))?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        run::say("· waiting for another set-up on this checkout");
        flock(&file, FlockOperation::LockExclusive).context("locking the set-up")?;
    }
    Ok(file)
}

/// Writes a file whole or not at all.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = path.parent().context("a file without a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let new = path.with_extension(format!("new-{}", std::process::id()));
    fs::write(&new, bytes).with_context(|| format!("writing {}", new.display()))?;
    fs::rename(&new, path).with_context(|| format!("renaming to {}", path.display()))
}
