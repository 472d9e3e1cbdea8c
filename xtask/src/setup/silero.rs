//! The speech model of example 02 and the Python code that it is compared with, out of the `silero-vad` wheel, and
//! recordings of people who speak, out of Debian's test data of a speech recogniser.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::wheel::Wheel;
use super::{Key, Stamp, apt, write_whole};
use crate::{paths, run};

const WHEEL: Wheel = Wheel {
    package: "silero-vad",
    version: "6.2.3",
    platforms: &["any"],
    sha256: "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8",
};

/// Debian's package with recordings: sentences out of a book (public domain) and names of playing cards.
const RECORDINGS: &str = "pocketsphinx-testdata";
/// How many there are in it.
const COUNT: usize = 10;

/// Makes sure that `target/setup/silero-vad` holds the model and the code, and `target/setup/speech` the recordings.
pub fn files() -> Result<()> {
    let folder = paths::setup().join("silero-vad");
    let files = [
        ("silero_vad/data/silero_vad.onnx", folder.join("silero_vad.onnx")),
        ("silero_vad/utils_vad.py", folder.join("silero_vad/utils_vad.py")),
    ];
    let stamp = Stamp::new("silero-vad", Key::new().text(WHEEL.version).text(WHEEL.sha256));
    let products = files.each_ref().map(|(_, path)| path.clone());
    if !stamp.is_fresh(&products) {
        WHEEL.unpack(&files)?;
        stamp.set()?;
    }
    recordings()
}

fn recordings() -> Result<()> {
    let folder = paths::setup().join("speech");
    let stamp = Stamp::new("speech", Key::new().text(RECORDINGS));
    if stamp.is_fresh(std::slice::from_ref(&folder)) {
        return Ok(());
    }
    apt::install(&[RECORDINGS])?;
    let list = run::quietly(Command::new("dpkg-query").args(["--listfiles", RECORDINGS]))?;
    let files: Vec<PathBuf> = list.lines().filter(|name| name.ends_with(".wav")).map(PathBuf::from).collect();
    if files.len() != COUNT {
        bail!("{RECORDINGS} has {} recordings, not {COUNT}", files.len());
    }
    for file in files {
        let bytes = fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
        // Only the number at the end of a long name tells one from another.
        let name = file.file_name().unwrap_or_default().to_string_lossy().replace("_01_austen_64kb-", "-");
        write_whole(&folder.join(name), &bytes)?;
    }
    stamp.set()
}
