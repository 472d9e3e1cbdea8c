//! `cargo xtask test`: installs what the tests need, builds the programs that stories start, and
//! runs every test. Something missing fails the run; nothing is skipped.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::{attacks, beside, clock, counts, examples, paths, run, setup};

const NEXTEST: &str = "0.9.143";

/// A part of the tests that can be run alone.
#[derive(Debug, PartialEq)]
struct Part {
    name: &'static str,
    /// Nextest's filter for it.
    filter: &'static str,
    end: End,
}

/// What is shown when a part has run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Nothing.
    Nothing,
    /// The table of attacks.
    Attacks,
    /// The lines in which tests say what they counted.
    Counts,
}

const PARTS: [Part; 8] = [
    Part { name: "stories", filter: "package(selvedge-tests)", end: End::Nothing },
    Part { name: "attacks", filter: "package(selvedge-tests) & binary(attacks)", end: End::Attacks },
    Part { name: "hostile", filter: "package(selvedge-tests) & binary(host_sandbox)", end: End::Counts },
    Part { name: "strangers", filter: "package(selvedge-strangers)", end: End::Nothing },
    Part { name: "links", filter: "package(selvedge-tests) & binary(links)", end: End::Counts },
    Part {
        name: "power-cut",
        filter: "test(/power_cut/) | binary(/power_cut/) | binary(killed_in_update)",
        end: End::Counts,
    },
    Part {
        name: "swap",
        filter: "package(selvedge-tests) & binary(swap) | package(selvedge-deployment)",
        end: End::Counts,
    },
    Part { name: "onnx-backend", filter: "package(selvedge-tests) & binary(onnx_backend)", end: End::Counts },
];

/// A program besides (`tests/src/bin/memory_kill.rs`): it needs what not every machine gives.
const MEMORY_KILL: &str = "memory-kill";

/// The names of the parts, for a person.
pub fn parts() -> String {
    let mut names: Vec<&str> = PARTS.iter().map(|part| part.name).collect();
    names.push(MEMORY_KILL);
    names.join(", ")
}

/// Runs all tests, or a part, or those that the arguments for nextest name.
pub fn run(arguments: &[String]) -> Result<()> {
    if arguments.first().is_some_and(|first| first == MEMORY_KILL) {
        return memory_kill();
    }
    let (part, arguments) = split(arguments)?;
    let end = part.map_or(End::Nothing, |part| part.end);
    let (rows, lines) = match end {
        End::Nothing => (None, None),
        End::Attacks => (Some(attacks::collect()?), None),
        End::Counts => (None, Some(counts::collect()?)),
    };
    let started = clock::Started::now();
    setup::for_tests()?;
    examples::file_type()?;
    examples::voice_activity()?;
    let nextest = nextest()?;
    run::step("testing the guest modules' own code", || {
        let mut cargo = run::cargo();
        cargo.current_dir(paths::module_sources());
        cargo.env("CARGO_TARGET_DIR", paths::root().join("target/guests/native"));
        // The others are made for the sandbox only and have nothing to test outside.
        run::loudly(cargo.args([
            "test",
            "--quiet",
            "--locked",
            "--package",
            "file-type",
            "--package",
            "voice-activity",
        ]))
    })?;
    // Programs and tests in one go: apart, they would want two builds of what they share.
    run::step("building programs and tests", || {
        run::loudly(run::cargo().args(["build", "--workspace", "--bins", "--tests", "--locked"]))
    })?;
    beside::link("debug")?;
    let mut command = Command::new(&nextest);
    command.current_dir(paths::root()).args(["nextest", "run", "--workspace", "--locked"]);
    if env::var_os("CI").is_some() {
        command.args(["--profile", "ci"]);
    }
    command.env("SELVEDGE_ONNXRUNTIME", paths::onnxruntime());
    command.env("SELVEDGE_MODULES", paths::modules());
    command.args(part.map(|part| ["--filterset", part.filter]).into_iter().flatten());
    if let Some(lines) = &lines {
        command.env(counts::VARIABLE, lines);
    }
    if let Some(rows) = &rows {
        // Every row is worth its line, whatever became of others.
        command.env(attacks::VARIABLE, rows).arg("--no-fail-fast");
    }
    let result = run::loudly(command.args(arguments)).context("the tests failed");
    let minutes = started.elapsed().as_secs_f64() / 60.0;
    let outcome = if result.is_ok() { "passed" } else { "FAILED" };
    run::say(format!("tests {outcome}; set-up, build and tests took {minutes:.1} min"));
    let table = rows.as_ref().map_or(Ok(()), attacks::show);
    let counted = lines.as_ref().map_or(Ok(()), counts::show);
    result.and(table).and(counted)
}

/// Has the kernel kill a host for want of memory, and looks at what becomes of its device.
fn memory_kill() -> Result<()> {
    setup::for_tests()?;
    run::step("building the programs", || {
        run::loudly(run::cargo().args(["build", "--workspace", "--bins", "--locked"]))
    })?;
    beside::link("debug")?;
    let mut program = run::program(&paths::cargo_target().join("debug/memory_kill"));
    program.env("SELVEDGE_ONNXRUNTIME", paths::onnxruntime()).env("SELVEDGE_MODULES", paths::modules());
    run::loudly(&mut program)
}

/// The part that the first argument names, if it does, and the rest.
fn split(arguments: &[String]) -> Result<(Option<&'static Part>, &[String])> {
    let Some((first, rest)) = arguments.split_first() else { return Ok((None, arguments)) };
    if first.starts_with('-') {
        return Ok((None, arguments));
    }
    let part = PARTS.iter().find(|part| part.name == first);
    let known = || format!("no part of the tests is called `{first}`; there are: {}", parts());
    Ok((Some(part.with_context(known)?), rest))
}

/// `cargo-nextest`: the person's own, or one that is built into `target/setup/tools`.
fn nextest() -> Result<PathBuf> {
    if run::quietly(Command::new("cargo-nextest").args(["nextest", "--version"])).is_ok() {
        return Ok(PathBuf::from("cargo-nextest"));
    }
    let tools = paths::setup().join("tools");
    let program = tools.join("bin/cargo-nextest");
    if !program.exists() {
        run::step(&format!("installing cargo-nextest {NEXTEST}"), || {
            let mut cargo = run::cargo();
            cargo.args(["install", "--locked", "--version", NEXTEST, "cargo-nextest", "--root"]);
            run::loudly(cargo.arg(&tools))
        })?;
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_told_from_arguments() {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        assert_eq!(split(&[]).unwrap(), (None, &[][..]));
        let flags = words(&["-E", "test(x)"]);
        assert_eq!(split(&flags).unwrap(), (None, &flags[..]));
        let stories = words(&["stories", "--no-fail-fast"]);
        assert_eq!(split(&stories).unwrap(), (Some(&PARTS[0]), &stories[1..]));
        assert_eq!(split(&words(&["attacks"])).unwrap().0.unwrap().end, End::Attacks);
        assert_eq!(split(&words(&["power-cut"])).unwrap().0.unwrap().end, End::Counts);
        assert!(split(&words(&["storys"])).unwrap_err().to_string().contains("stories"));
    }
}
