//! A tool chain for wasm32-wasip2: the one that runs us, after `rustup target add`; where rustup's
//! servers can't be reached, Debian's compiler with its standard library built from source, Debian's
//! `wasi-libc`, and the linkers of the tool chain that runs us.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::setup::apt;
use crate::setup::unpack::{self, Package, Suite};
use crate::{paths, run};

const TARGET: &str = "wasm32-wasip2";
/// The release's own is too old for the target.
const LIBC: Package = Package { name: "wasi-libc", suite: Suite::Backports, part: "" };
/// The standard library is 20 MB; without a network rustup gives up sooner by itself.
const RUSTUP_LIMIT: Duration = Duration::from_secs(180);
const DEBIAN: &str = "debian";
/// Set to `debian`, it takes that tool chain even where rustup's would do.
const CHOICE: &str = "SELVEDGE_GUEST_TOOLCHAIN";

/// Something that builds components.
pub enum Toolchain {
    /// The one that runs us, with the target's standard library.
    Rustup,
    /// Debian's compiler.
    Debian {
        /// `wasi-libc`, unpacked: the folder with the libraries of the target.
        libc: PathBuf,
        /// Folder with `wasm-component-ld`, and `gcc-ld/wasm-ld` below it.
        linkers: PathBuf,
    },
}

/// What a stamp should say about the wish for a tool chain; finding one costs nothing then.
pub fn wanted() -> Result<String> {
    let rustc = run::quietly(Command::new("rustc").arg("-vV"))?;
    Ok(format!("{rustc}{:?}", env::var(CHOICE).ok()))
}

impl Toolchain {
    /// Finds one, installing what it needs.
    pub fn find() -> Result<Self> {
        if env::var(CHOICE).is_ok_and(|choice| choice == DEBIAN) {
            return Self::debian();
        }
        if has_standard_library() {
            return Ok(Self::Rustup);
        }
        if run::is_there("rustup") {
            run::say(format!("· rustup target add {TARGET}"));
            let mut rustup = Command::new("rustup");
            rustup.args(["target", "add", TARGET]).env("RUSTUP_MAX_RETRIES", "0");
            let added = run::within(&mut rustup, Some(RUSTUP_LIMIT));
            if added.is_ok() && has_standard_library() {
                return Ok(Self::Rustup);
            }
            run::say("  not to be had from rustup; taking Debian's compiler instead");
        }
        Self::debian().with_context(|| format!("no tool chain builds for {TARGET}"))
    }

    /// Short name, for messages and folders.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Rustup => "rustup",
            Self::Debian { .. } => DEBIAN,
        }
    }

    fn debian() -> Result<Self> {
        let linkers = linkers()?;
        let packages = ["rustc-web", "cargo-web", "rust-web-src"];
        run::step("looking for Debian's compiler", || apt::install(&packages))?;
        let unpacked = unpack::unpacked(LIBC)?;
        let libc = unpacked.join("usr/lib").join(TARGET);
        if !libc.join("libc.a").exists() {
            bail!("{} has no libc.a: this wasi-libc is too old", libc.display());
        }
        Ok(Self::Debian { libc, linkers })
    }

    /// `cargo` with everything set but what to build.
    pub fn cargo(&self) -> Command {
        match self {
            Self::Rustup => Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into())),
            Self::Debian { libc, linkers } => {
                let mut cargo = debian_cargo();
                let ld = linkers.join("gcc-ld/wasm-ld");
                // Flags are kept apart by 0x1f, so that paths may have spaces.
                let libc = format!("-L\x1fnative={}", libc.display());
                let ld = format!("-C\x1flink-arg=--wasm-ld-path={}", ld.display());
                cargo.env("CARGO_ENCODED_RUSTFLAGS", format!("{libc}\x1f{ld}"));
                cargo.env("PATH", with_path(linkers));
                cargo.args(["-Z", "build-std=std,panic_abort"]);
                cargo
            }
        }
    }
}

/// Debian's `cargo` with Debian's `rustc`, free of what rustup's cargo told us about itself.
pub fn debian_cargo() -> Command {
    let mut cargo = Command::new("/usr/bin/cargo");
    cargo.env("RUSTC", "/usr/bin/rustc").env("RUSTC_BOOTSTRAP", "1");
    for name in ["CARGO", "RUSTUP_TOOLCHAIN", "LD_LIBRARY_PATH", "RUSTFLAGS", "RUSTC_WRAPPER"] {
        cargo.env_remove(name);
    }
    cargo
}

fn has_standard_library() -> bool {
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "target-libdir", "--target", TARGET]).current_dir(paths::root());
    let Ok(folder) = run::quietly(&mut rustc) else {
        return false;
    };
    fs::read_dir(folder.trim()).is_ok_and(|entries| {
        entries.filter_map(Result::ok).any(|file| file.file_name().to_string_lossy().starts_with("libstd-"))
    })
}

/// Where the tool chain that runs us keeps the linkers for components.
fn linkers() -> Result<PathBuf> {
    let sysroot = run::quietly(Command::new("rustc").args(["--print", "sysroot"]))?;
    let version = run::quietly(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.context("rustc does not say what it runs on")?;
    let folder = Path::new(sysroot.trim()).join("lib/rustlib").join(host).join("bin");
    if !folder.join("wasm-component-ld").exists() {
        bail!("no wasm-component-ld in {}: use a Rust that rustup installed", folder.display());
    }
    Ok(folder)
}

fn with_path(first: &Path) -> OsString {
    let mut all = OsString::from(first);
    if let Some(path) = env::var_os("PATH") {
        all.push(":");
        all.push(path);
    }
    all
}
