//! `cargo xtask tidy`: the rules of this repository that neither the compiler nor clippy knows. They
//! also run as a test. Each rule says what to do about what it found.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context as _, Result, bail};

use crate::setup::files_below;
use crate::{paths, run};

mod edges;
mod lines;
mod locks;
mod names;

/// A text file of the repository.
pub struct Source {
    /// Its path from the root.
    pub path: String,
    /// What it holds.
    pub text: String,
}

impl Source {
    /// Whether it is Rust.
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}

/// Checks everything, formatting too.
pub fn run() -> Result<()> {
    let found = check()?;
    for fault in &found {
        run::say(fault);
    }
    let formatted = run::loudly(run::cargo().args(["fmt", "--all", "--check"]));
    if !found.is_empty() {
        bail!("{} faults", found.len());
    }
    formatted.context("run `cargo fmt --all`")?;
    run::say("tidy");
    Ok(())
}

/// Every fault, as `path:line: what`, in the order of the paths.
fn check() -> Result<BTreeSet<String>> {
    let (sources, binary) = sources()?;
    let mut found: BTreeSet<String> = binary.iter().filter_map(|path| names::check_binary(path)).collect();
    for source in &sources {
        found.extend(names::check(&source.path));
        found.extend(lines::check(source));
    }
    found.extend(edges::check()?);
    found.extend(locks::check(&sources)?);
    Ok(found)
}

/// The text files, and the paths of the others.
fn sources() -> Result<(Vec<Source>, Vec<String>)> {
    let root = paths::root();
    let mut files = files_below(&root)?;
    for hidden in [".cargo", ".ci", ".config"] {
        files.extend(files_below(&root.join(hidden)).unwrap_or_default());
    }
    let (mut sources, mut binary) = (Vec::new(), Vec::new());
    for path in files {
        let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let path = paths::shown(&path);
        match String::from_utf8(bytes) {
            Ok(text) => sources.push(Source { path, text }),
            Err(_) => binary.push(path),
        }
    }
    Ok((sources, binary))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_repository_is_tidy() {
        let found = super::check().unwrap();
        assert!(found.is_empty(), "{}", found.into_iter().collect::<Vec<_>>().join("\n"));
    }
}
