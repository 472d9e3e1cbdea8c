//! Builds the guest components of `modules/` into `target/modules`. A folder `NAME` gives
//! `NAME.wasm`, `hostile/NAME` gives `hostile/NAME.wasm`. Components are files that programs read at
//! run time; none is compiled into a program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::setup::{self, Key, Stamp};
use crate::{paths, run};

mod toolchain;

use toolchain::Toolchain;
pub use toolchain::debian_cargo;

/// A member of the guests' workspace.
struct Guest {
    /// What cargo calls the file that it builds.
    built: String,
    /// Where the component belongs.
    destination: PathBuf,
}

/// Builds what changed; says where the components are.
pub fn build() -> Result<Vec<PathBuf>> {
    let _lock = setup::lock()?;
    let guests = guests()?;
    let products: Vec<PathBuf> = guests.iter().map(|guest| guest.destination.clone()).collect();
    let sources = Key::new()
        .tree(&paths::module_sources())?
        .tree(&paths::root().join("host/wit"))?
        .text(toolchain::wanted()?.as_str());
    let stamp = Stamp::new("modules", sources);
    if stamp.is_fresh(&products) {
        return Ok(products);
    }
    let toolchain = Toolchain::find()?;
    run::step(&format!("building {} guest modules ({})", guests.len(), toolchain.name()), || {
        let target = paths::root().join("target/guests").join(toolchain.name());
        let mut cargo = toolchain.cargo();
        cargo.current_dir(paths::module_sources()).env("CARGO_TARGET_DIR", &target);
        cargo.args(["build", "--locked", "--release", "--workspace"]);
        run::loudly(cargo.args(["--target", "wasm32-wasip2"]))?;
        let built = target.join("wasm32-wasip2/release");
        for guest in &guests {
            let bytes =
                fs::read(built.join(&guest.built)).with_context(|| format!("reading {}", guest.built))?;
            setup::write_whole(&guest.destination, &bytes)?;
        }
        stamp.set()
    })?;
    Ok(products)
}

fn guests() -> Result<Vec<Guest>> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(paths::module_sources());
    cargo.args(["metadata", "--no-deps", "--format-version", "1"]);
    let metadata: Value = serde_json::from_str(&run::quietly(&mut cargo)?)?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    packages.iter().map(guest).collect()
}

fn guest(package: &Value) -> Result<Guest> {
    let name = package["name"].as_str().context("a package without a name")?;
    let manifest = package["manifest_path"].as_str().context("a package without a manifest")?;
    let folder = Path::new(manifest).parent().context("a manifest without a folder")?;
    let folder = folder.strip_prefix(paths::module_sources()).unwrap_or(folder);
    let destination = paths::modules().join(folder).with_extension("wasm");
    Ok(Guest { built: format!("{}.wasm", name.replace('-', "_")), destination })
}
