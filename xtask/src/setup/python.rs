//! Python: pip to download wheels, and the virtual environment that tests compare with, every
//! package of it pinned by version and hash.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::{Key, Stamp, VENV, apt};
use crate::{paths, run};

/// Newest first; the comparison packages need 3.11.
const PYTHONS: [&str; 6] = ["python3", "python3.14", "python3.13", "python3.12", "python3.11", "python"];

/// `pip`, of the person's Python or, where that has none, of an environment of our own.
pub fn pip() -> Result<Command> {
    let mut candidates = vec![PathBuf::from("python3")];
    candidates.push(paths::setup().join(".pip/bin/python"));
    for python in &candidates {
        let mut command = Command::new(python);
        command.args(["-m", "pip"]);
        if run::quietly(Command::new(python).args(["-m", "pip", "--version"])).is_ok() {
            return Ok(command);
        }
    }
    let folder = paths::setup().join(".pip");
    make_environment("python3", &folder)?;
    let mut command = Command::new(folder.join("bin/python"));
    command.args(["-m", "pip"]);
    Ok(command)
}

/// Makes sure that `target/setup/venv` has the pinned packages.
pub fn venv() -> Result<()> {
    let folder = paths::setup().join(VENV);
    let requirements = paths::root().join("xtask/python-requirements.txt");
    let python = recent()?;
    let version = run::quietly(Command::new(python).arg("--version"))?;
    let stamp = Stamp::new(VENV, Key::new().text(version.trim()).tree(&requirements)?);
    if stamp.is_fresh(&[folder.join("bin/python")]) {
        return Ok(());
    }
    run::step("installing the Python packages that tests compare with", || {
        // A half-made one is of no use, and pip would not remove what is no longer pinned.
        if folder.exists() {
            fs::remove_dir_all(&folder).context("removing the old environment")?;
        }
        make_environment(python, &folder)?;
        let mut pip = Command::new(folder.join("bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        pip.args(["--require-hashes", "--only-binary=:all:", "--requirement"]);
        run::quietly(pip.arg(&requirements))?;
        stamp.set()
    })
}

/// A virtual environment with pip; Debian splits what it takes off Python.
fn make_environment(python: &str, folder: &PathBuf) -> Result<()> {
    let make = || run::quietly(Command::new(python).args(["-m", "venv"]).arg(folder));
    if make().is_err() {
        apt::install(&["python3-venv"]).context("`python3 -m venv` does not work here")?;
        make()?;
    }
    Ok(())
}

fn recent() -> Result<&'static str> {
    let check = "import sys; sys.exit(sys.version_info < (3, 11))";
    let good = |python: &&str| run::quietly(Command::new(python).args(["-c", check])).is_ok();
    match PYTHONS.into_iter().find(good) {
        Some(python) => Ok(python),
        None => bail!("no Python of version 3.11 or newer: install one as `python3`"),
    }
}
