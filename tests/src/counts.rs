//! What a test has counted, for people: printed, and written where `cargo xtask test PART` collects it.

use std::fs::File;
use std::io::Write as _;

/// Says one line.
///
/// # Panics
/// Where the file that the variable `SELVEDGE_COUNTS` names cannot be written.
pub fn say(line: &str) {
    println!("{line}");
    let Some(path) = std::env::var_os("SELVEDGE_COUNTS") else { return };
    let mut file = File::options().create(true).append(true).open(&path).expect("counts can be collected");
    // One write: tests run side by side.
    file.write_all(format!("{line}\n").as_bytes()).expect("counts can be collected");
}
