//! `cargo xtask fuzz NAME --seconds N`: builds one target of `tests/fuzz` with libFuzzer's coverage and
//! lets it run from its seeds. What it finds, and what it has learned, lies in `target/fuzz`.
//!
//! Run by hand: the ordinary tests feed hostile inputs with generators of their own
//! (`protocol/tests/hostile.rs`, `package/tests`; `tests/strangers`, which feeds changed seeds to what the
//! host's targets are made of), and take no build of everything for it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::{paths, run};

/// Limits of one input: memory in MiB, seconds, bytes.
const LIMITS: [&str; 3] = ["-rss_limit_mb=2048", "-timeout=10", "-max_len=65536"];

/// A package of targets.
#[derive(Clone, Copy)]
struct Package {
    /// Its folder below `tests/fuzz`.
    folder: &'static str,
    /// The package whose example `seeds` writes its first inputs, and the folder of that one's workspace.
    seeds: (&'static str, &'static str),
}

/// Those of the host are apart: all the others are built without it.
const PACKAGES: [Package; 2] = [
    Package { folder: ".", seeds: ("selvedge-fuzz", "tests/fuzz") },
    Package { folder: "host", seeds: ("selvedge-strangers", ".") },
];

/// Runs a target, or each of them, for so long.
pub fn run(name: &str, seconds: u64) -> Result<()> {
    let known = known()?;
    let chosen: Vec<&String> = known.iter().filter(|target| name == "all" || *target == name).collect();
    if chosen.is_empty() {
        bail!("no fuzz target is called {name}; there are: {}, all", known.join(", "));
    }
    let triple = triple()?;
    let target = paths::root().join("target/fuzz");
    for package in PACKAGES {
        let missing = |name: &&&String| !folder().join("seeds").join(name).exists();
        let of_package = targets(package)?;
        if !chosen.iter().filter(missing).any(|name| of_package.contains(name)) {
            continue;
        }
        let (writer, workspace) = package.seeds;
        run::step("writing the first inputs", || {
            let mut cargo = run::cargo();
            // Without the coverage: it is a program like any other, and has a build of its own.
            cargo.current_dir(paths::root().join(workspace)).env("RUSTFLAGS", "");
            if workspace != "." {
                cargo.env("CARGO_TARGET_DIR", &target);
            }
            run::loudly(cargo.args(["run", "--locked", "--package", writer, "--example", "seeds"]))
        })?;
    }
    for name in chosen {
        run::step(&format!("building the fuzz target {name}"), || {
            let mut cargo = cargo(&target);
            run::loudly(cargo.args([
                "build",
                "--locked",
                "--release",
                "--target",
                &triple,
                "--workspace",
                "--bin",
                name,
            ]))
        })?;
        let (corpus, found) = (target.join("corpus").join(name), target.join("found").join(name));
        for folder in [&corpus, &found] {
            fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        }
        run::step(&format!("fuzzing {name} for {:?}", Duration::from_secs(seconds)), || {
            let mut fuzz = run::program(&target.join(&triple).join("release").join(name));
            fuzz.arg(format!("-max_total_time={seconds}")).args(LIMITS);
            fuzz.args(["-print_final_stats=1", &format!("-artifact_prefix={}/", found.display())]);
            fuzz.arg(&corpus).arg(folder().join("seeds").join(name));
            run::loudly(&mut fuzz).with_context(|| format!("what was found is in {}", paths::shown(&found)))
        })?;
    }
    Ok(())
}

fn folder() -> PathBuf {
    paths::root().join("tests/fuzz")
}

/// In its folder, where cargo finds the flags.
fn cargo(target: &PathBuf) -> Command {
    let mut cargo = run::cargo();
    cargo.current_dir(folder()).env("CARGO_TARGET_DIR", target);
    cargo
}

fn known() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for package in PACKAGES {
        names.extend(targets(package)?);
    }
    names.sort();
    Ok(names)
}

fn targets(package: Package) -> Result<Vec<String>> {
    let bins = folder().join(package.folder).join("src/bin");
    let entries = fs::read_dir(&bins).with_context(|| format!("reading {}", bins.display()))?;
    let names = entries.filter_map(Result::ok).filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names.filter_map(|name| name.strip_suffix(".rs").map(str::to_owned)).collect())
}

/// What this machine's compiler builds for: with it named, build scripts are left without coverage.
fn triple() -> Result<String> {
    let said = run::quietly(Command::new("rustc").arg("-vV"))?;
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc does not say what it runs on")
}
