//! `cargo xtask bench NAME`: builds the programs in release and runs one bench program of `tests/`.
//! It fails where a bar of the report does not hold.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::setup::apt;
use crate::{beside, examples, paths, run, setup};

/// Runs `tests/src/bin/bench_NAME.rs`, or the folder of that name, with these arguments.
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
    let peer = if name == "host" {
        // A vision model, which the backend cases of ONNX bring along.
        setup::for_tests()?;
        Some(wasi_nn()?)
    } else {
        None
    };
    let program = paths::cargo_target().join("release").join(format!("bench_{name}"));
    let mut bench = run::program(&program);
    bench.env("SELVEDGE_ONNXRUNTIME", paths::onnxruntime()).env("SELVEDGE_MODULES", paths::modules());
    if let Some(peer) = peer {
        apt::install(&["wrk"])?;
        bench.env("SELVEDGE_PEER_WASI_NN", peer);
    }
    let said = run::aloud(bench.args(arguments))?;
    judge(said.lines().last().unwrap_or_default())
}

/// The peer that offers a model with wasmtime's own wasi-nn: a workspace with a lock file of its own.
fn wasi_nn() -> Result<PathBuf> {
    let folder = paths::root().join("tests/peers/wasi-nn");
    let target = paths::root().join("target/peers");
    run::step("building the peer with wasmtime's wasi-nn", || {
        let mut cargo = run::cargo();
        cargo.current_dir(&folder).env("CARGO_TARGET_DIR", &target);
        run::loudly(cargo.args(["build", "--locked", "--release"]))
    })?;
    Ok(target.join("release/peer-wasi-nn"))
}

/// Fails when the report, the last line that a bench prints, has a bar that does not hold.
fn judge(report: &str) -> Result<()> {
    let report: Value = serde_json::from_str(report).context("the bench ended without a report")?;
    let bars = report["bars"].as_array().context("the report has no bars")?;
    let missed: Vec<String> = bars
        .iter()
        .filter(|bar| bar["holds"] != true)
        .map(|bar| format!("{} is {}, and the limit is {}", bar["name"], bar["value"], bar["limit"]))
        .collect();
    if !missed.is_empty() {
        bail!("a bar does not hold: {}", missed.join("; "));
    }
    Ok(())
}

fn known() -> Result<Vec<String>> {
    let folder = paths::root().join("tests/src/bin");
    let entries = fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut names: Vec<String> = entries
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let name = name.strip_prefix("bench_")?;
            Some(name.strip_suffix(".rs").unwrap_or(name).to_owned())
        })
        .collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_that_does_not_hold_fails() {
        let report = |holds| {
            format!(
                r#"{{"bars":[{{"name":"a","value":1,"limit":2,"holds":true}},{{"name":"b","value":3,"limit":2,"holds":{holds}}}]}}"#
            )
        };
        assert!(judge(&report("true")).is_ok());
        assert!(judge(&report("false")).unwrap_err().to_string().contains("\"b\" is 3"));
        assert!(judge("").is_err());
        assert!(judge("{}").is_err());
    }
}
