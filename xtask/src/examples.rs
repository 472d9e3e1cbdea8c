//! Puts an example's package folder together: what is committed, what set-up fetched and the guest
//! module that was built. `selvedge package` takes the folder as it is.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::setup::{self, Key, Stamp};
use crate::{guests, paths, run};

/// `target/examples/file-type`, made anew when a part of it changed.
pub fn file_type() -> Result<PathBuf> {
    setup::for_demo()?;
    guests::build()?;
    let _lock = setup::lock()?;
    let sources = paths::root().join("examples/01-file-type");
    let magika = paths::setup().join("magika");
    let folder = paths::root().join("target/examples/file-type");
    let mut parts = vec![(paths::modules().join("file-type.wasm"), "file-type.wasm".to_owned())];
    for name in ["model.onnx", "config.min.json", "content_types_kb.min.json"] {
        parts.push((magika.join(name), name.to_owned()));
    }
    for file in setup::files_below(&sources)? {
        let name = file.strip_prefix(&sources)?.display().to_string();
        if name == "selvedge.toml" || name.starts_with("cases/") || name.starts_with("samples/") {
            parts.push((file, name));
        }
    }
    let key = parts.iter().try_fold(Key::new(), |key, (path, name)| key.text(name).tree(path))?;
    let stamp = Stamp::new("example-file-type", key);
    let products: Vec<PathBuf> = parts.iter().map(|(_, name)| folder.join(name)).collect();
    if !stamp.is_fresh(&products) {
        run::say(format!("· putting together {}", paths::shown(&folder)));
        if folder.exists() {
            fs::remove_dir_all(&folder).context("removing the old folder")?;
        }
        for ((source, _), product) in parts.iter().zip(&products) {
            let bytes = fs::read(source).with_context(|| format!("reading {}", source.display()))?;
            setup::write_whole(product, &bytes)?;
        }
        stamp.set()?;
    }
    Ok(folder)
}
