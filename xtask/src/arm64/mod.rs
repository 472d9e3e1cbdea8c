//! `cargo xtask arm64`: cross-builds agent and host for aarch64 with Debian's compilers, and lets the
//! emulated host (a Cortex-A72, as in a Raspberry Pi 4) run the example's acceptance cases, so that
//! its answers are the expected ones within the package's tolerance. Then the tests of the sandbox and of how the
//! host shuts itself in run on a whole emulated machine with a kernel of its own (`machine`). Run by hand: it takes a while.

mod machine;
mod root;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::guests::debian_cargo;
use crate::setup::unpack::{self, Package, Suite};
use crate::setup::{self, Architecture, apt, onnxruntime};
use crate::{clock, examples, paths, run};

const TARGET: &str = "aarch64-unknown-linux-gnu";
/// The release's own crashes in ONNX Runtime's look at the processor.
const EMULATOR: Package = Package { name: "qemu-user", suite: Suite::Backports, part: "" };

/// Builds and tries.
pub fn run() -> Result<()> {
    if Architecture::here()? == Architecture::Aarch64 {
        bail!("this machine is aarch64: `cargo xtask demo` tries the real thing");
    }
    let started = clock::Started::now();
    let example = patient(&examples::file_type()?)?;
    let Prerequisites { library, emulator, machine } = prerequisites()?;
    let built = paths::root().join("target/arm64").join(TARGET).join("release");
    run::step("building agent and host for aarch64", build)?;
    let minutes = started.elapsed().as_secs_f64() / 60.0;
    run::say(format!("  cross-built after {minutes:.1} min"));

    let programs = wrappers(&built, &emulator)?;
    for name in ["selvedge-agent", "selvedge-host"] {
        let version = run::quietly(Command::new(programs.join(name)).arg("--version"))?;
        run::say(format!("  {} (aarch64, emulated)", version.trim()));
    }
    run::step("building the programs of this machine", || {
        run::loudly(run::cargo().args(["build", "--locked", "--workspace", "--bins"]))
    })?;
    run::step("running the example's acceptance cases on the emulated host", || {
        let mut package = run::program(&paths::cargo_target().join("debug/selvedge"));
        package.arg("package").arg(&example).args(["--release", "1", "--force", "--programs"]).arg(&programs);
        package.arg("--out").arg(paths::root().join("target/arm64/file-type.pkg"));
        package.env("SELVEDGE_ONNXRUNTIME", &library).env("SELVEDGE_MODULES", paths::modules());
        run::say(format!("$ {}", run::shown(&package)));
        run::loudly(&mut package)
    })?;
    let tests = run::step("building the tests of the machine for aarch64", tests)?;
    machine::run(&machine, &built, &library, &tests)?;
    let minutes = started.elapsed().as_secs_f64() / 60.0;
    run::say(format!(
        "aarch64: every case passed within its tolerance, and what means harm does none; {minutes:.1} min in all"
    ));
    Ok(())
}

/// The example with a longer deadline: emulation is a few hundred times slower than the processor.
fn patient(example: &Path) -> Result<PathBuf> {
    let folder = paths::root().join("target/arm64/file-type");
    for file in setup::files_below(example)? {
        let name = file.strip_prefix(example)?;
        let mut bytes = fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
        if name == Path::new("selvedge.toml") {
            let text = String::from_utf8(bytes).context("selvedge.toml is not UTF-8")?;
            let changed = text.replace("deadline-ms = 5000", "deadline-ms = 60000");
            if changed == text {
                bail!("the example's manifest has another deadline than this expects");
            }
            bytes = changed.into_bytes();
        }
        setup::write_whole(&folder.join(name), &bytes)?;
    }
    Ok(folder)
}

/// What is there when the compilers are.
struct Prerequisites {
    library: PathBuf,
    emulator: PathBuf,
    machine: machine::Parts,
}

/// Fetches everything, before anything is built.
fn prerequisites() -> Result<Prerequisites> {
    let _lock = setup::lock()?;
    apt::add_architecture("arm64")?;
    apt::install(&["rustc-web", "cargo-web", "libstd-rust-web-dev:arm64"])?;
    apt::install(&["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross", "libc6:arm64", "libstdc++6:arm64"])?;
    let library = onnxruntime::library(Architecture::Aarch64)?;
    let emulator = unpack::unpacked(EMULATOR)?.join("usr/bin/qemu-aarch64");
    run::quietly(Command::new(&emulator).arg("--version")).context("the emulator does not start")?;
    Ok(Prerequisites { library, emulator, machine: machine::parts()? })
}

fn build() -> Result<()> {
    let mut cargo = cross();
    run::loudly(cargo.args(["--bins", "--package", "selvedge-agent", "--package", "selvedge-host"]))
}

/// Builds the test programs that are tried on the machine; where they are.
fn tests() -> Result<Vec<(machine::Tried, PathBuf)>> {
    let mut cargo = cross();
    cargo.args(["--package", "selvedge-tests", "--bin", "try_confinement"]);
    cargo.args(machine::TRIED.iter().flat_map(|tried| ["--test", tried.program]));
    let told = run::quietly(cargo.args(["--message-format", "json-render-diagnostics"]))?;
    let programs: Vec<(String, PathBuf)> = told.lines().filter_map(made).collect();
    let of = |tried: &machine::Tried| {
        let found = programs.iter().find(|(name, _)| name == tried.program);
        let (_, path) = found.with_context(|| format!("cargo does not say where {} is", tried.program))?;
        Ok((*tried, path.clone()))
    };
    machine::TRIED.iter().map(of).collect()
}

/// The program that a line of cargo's says it has made.
fn made(line: &str) -> Option<(String, PathBuf)> {
    let line: Value = serde_json::from_str(line).ok()?;
    Some((line["target"]["name"].as_str()?.to_owned(), line["executable"].as_str()?.into()))
}

fn cross() -> Command {
    let mut cargo = debian_cargo();
    cargo.current_dir(paths::root()).env("CARGO_TARGET_DIR", paths::root().join("target/arm64"));
    cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc");
    cargo.env("CC_aarch64_unknown_linux_gnu", "aarch64-linux-gnu-gcc");
    cargo.env("CXX_aarch64_unknown_linux_gnu", "aarch64-linux-gnu-g++");
    // Whole-program optimisation takes longer than everything else here and proves nothing more.
    cargo.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    cargo.args(["build", "--locked", "--release", "--target", TARGET]);
    cargo
}

/// Programs that run the foreign ones: the kernel here need not know how to.
fn wrappers(built: &Path, emulator: &Path) -> Result<PathBuf> {
    let folder = paths::root().join("target/arm64/programs");
    for name in ["selvedge-agent", "selvedge-host"] {
        let program = built.join(name);
        let text = format!(
            "#!/bin/sh\nexec '{}' -cpu cortex-a72 '{}' \"$@\"\n",
            emulator.display(),
            program.display()
        );
        let path = folder.join(name);
        setup::write_whole(&path, text.as_bytes())?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).context("making it executable")?;
    }
    Ok(folder)
}
