//! `cargo xtask bench NAME`: builds the programs in release and runs one bench program of `tests/`.

use std::fs;

use anyhow::{Context as _, Result, bail};

use crate::{beside, examples, paths, run};

/// Runs `tests/src/bin/bench_NAME.rs` with these arguments.
pub fn run(name: &str, arguments: &[String]) -> Result<()> {
    let known = known()?;
    if !known.iter().any(|bench| bench == name) {
        bail!("no bench is called {name}; there are: {}", known.join(", "));
    }
    examples::file_type()?;
    run::step("building the programs in release", || {
        run::loudly(run::cargo().args(["build", "--release", "--workspace", "--bins"]))
    })?;
    beside::link("release")?;
    let program = paths::cargo_target().join("release").join(format!("bench_{name}"));
    let mut bench = run::program(&program);
    bench.env("SELVEDGE_ONNXRUNTIME", paths::onnxruntime()).env("SELVEDGE_MODULES", paths::modules());
    run::loudly(bench.args(arguments))
}

fn known() -> Result<Vec<String>> {
    let folder = paths::root().join("tests/src/bin");
    let entries = fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut names: Vec<String> = entries
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            Some(name.strip_prefix("bench_")?.strip_suffix(".rs")?.to_owned())
        })
        .collect();
    names.sort();
    Ok(names)
}
