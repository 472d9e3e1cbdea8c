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
    let magika = paths::setup().join("magika");
    let fetched = ["model.onnx", "config.min.json", "content_types_kb.min.json"];
    let fetched = fetched.map(|name| (magika.join(name), name.to_owned()));
    put_together("file-type", "01-file-type", fetched.into())
}

/// `target/examples/voice-activity`, likewise. Its recordings are fetched for the tests only.
pub fn voice_activity() -> Result<PathBuf> {
    setup::for_tests()?;
    let mut fetched = vec![(paths::setup().join("silero-vad/silero_vad.onnx"), "silero_vad.onnx".to_owned())];
    for recording in ["sense_and_sensibility-0870.wav", "sense_and_sensibility-0930.wav", "004.wav"] {
        fetched.push((paths::setup().join("speech").join(recording), format!("recordings/{recording}")));
    }
    put_together("voice-activity", "02-voice-activity", fetched)
}

/// The folder `name`, of the module of that name, the sources below `examples/`, and what was `fetched`.
fn put_together(name: &str, sources: &str, fetched: Vec<(PathBuf, String)>) -> Result<PathBuf> {
    guests::build()?;
    let _lock = setup::lock()?;
    let sources = paths::root().join("examples").join(sources);
    let folder = paths::root().join("target/examples").join(name);
    let component = format!("{name}.wasm");
    let mut parts = vec![(paths::modules().join(&component), component)];
    parts.extend(fetched);
    for file in setup::files_below(&sources)? {
        let name = file.strip_prefix(&sources)?.display().to_string();
        if name == "selvedge.toml" || name.starts_with("cases/") || name.starts_with("samples/") {
            parts.push((file, name));
        }
    }
    let key = parts.iter().try_fold(Key::new(), |key, (path, name)| key.text(name).tree(path))?;
    let stamp = Stamp::new(&format!("example-{name}"), key);
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
