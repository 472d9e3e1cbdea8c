//! Where the programs under test lie: beside the test's own executable.

use std::path::{Path, PathBuf};

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map(Path::to_path_buf)
        .expect("the crate lies in a folder of the repository")
}

/// The path of a program of the workspace, as `cargo build --workspace` leaves it.
///
/// # Panics
/// When it was not built, saying how to.
pub fn program(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("a running test has an executable");
    let found = own.ancestors().skip(1).take(3).map(|folder| folder.join(name)).find(|path| path.is_file());
    found.unwrap_or_else(|| {
        panic!("{name} is not built: run `cargo xtask test`, or `cargo build --workspace` first")
    })
}

/// The Python that set-up has installed what tests compare with into, or another one that has it (`SELVEDGE_PYTHON`).
pub fn python() -> PathBuf {
    std::env::var_os("SELVEDGE_PYTHON").map_or_else(|| set_up("setup/venv/bin/python"), PathBuf::from)
}

/// A product of `cargo xtask setup` or `cargo xtask modules`, by its path below `target`.
///
/// # Panics
/// When it is not there, saying how to get it.
pub fn set_up(path: &str) -> PathBuf {
    let path = root().join("target").join(path);
    assert!(
        path.exists(),
        "{} is missing: run `cargo xtask setup` and `cargo xtask modules`",
        path.display()
    );
    path
}
