//! `cargo xtask test hostile|links|onnx-backend|power-cut|swap`: the lines in which tests say what they counted,
//! collected in a file and shown at the end. A part that counted nothing has not run, and fails.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use crate::paths;

/// The variable that names the file.
pub const VARIABLE: &str = "SELVEDGE_COUNTS";

/// A new, empty file for the lines.
pub fn collect() -> Result<PathBuf> {
    let path = paths::cargo_target().join("counts.txt");
    fs::create_dir_all(paths::cargo_target()).context("making the target directory")?;
    fs::write(&path, "").with_context(|| format!("emptying {}", path.display()))?;
    Ok(path)
}

/// Prints what was counted.
pub fn show(path: &PathBuf) -> Result<()> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    println!("{}", sorted(&text)?);
    Ok(())
}

fn sorted(text: &str) -> Result<String> {
    let mut lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    if lines.is_empty() {
        bail!("no test of this part has counted anything");
    }
    lines.sort_unstable();
    Ok(lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_shown_in_order_and_none_is_a_fault() {
        assert_eq!(sorted("b: 2\na: 1\n\n").unwrap(), "a: 1\nb: 2");
        assert!(sorted("\n").is_err());
    }
}
