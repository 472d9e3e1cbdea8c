//! The public backend cases of ONNX, out of the package `onnx` in the virtual environment. The node cases
//! are not files but made by its code, so they are written down once, here.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result};

use super::{Key, Stamp, VENV};
use crate::{paths, run};

const FILE: &str = "cases.jsonl";

/// Makes sure that `target/setup/onnx-backend` holds the cases. The virtual environment is there.
pub fn cases() -> Result<()> {
    let folder = paths::setup().join("onnx-backend");
    let pinned = paths::root().join("xtask/python-requirements.txt");
    let collect = paths::root().join("tests/tests/onnx_backend/collect.py");
    let stamp = Stamp::new("onnx-backend", Key::new().tree(&pinned)?.tree(&collect)?);
    if stamp.is_fresh(&[folder.join(FILE)]) {
        return Ok(());
    }
    run::step("writing down the backend cases of onnx", || {
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        let new = folder.join(format!("{FILE}.new"));
        let python = paths::setup().join(VENV).join("bin/python");
        run::quietly(Command::new(&python).arg(&collect).arg(&new))?;
        fs::rename(&new, folder.join(FILE)).context("moving the cases to their place")?;
        stamp.set()
    })
}
