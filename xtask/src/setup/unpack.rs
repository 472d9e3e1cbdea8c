//! Debian packages that are unpacked into `target/setup` and not installed: those that only a newer suite has, and
//! those of another architecture.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use super::private_apt::{codename, configure};
use super::{Key, Stamp};
use crate::{paths, run};

/// Where a package comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    /// The release that runs here.
    Own,
    /// What newer releases have, built for this one.
    Backports,
}

/// A package, and what of it is wanted.
#[derive(Debug, Clone, Copy)]
pub struct Package {
    /// Its name, with `:ARCHITECTURE` where that is another one. One that is empty and depends on one that has its
    /// own version stands for that.
    pub name: &'static str,
    /// Its suite.
    pub suite: Suite,
    /// The folder in it that is unpacked; empty: all.
    pub part: &'static str,
}

/// Unpacks a package, unless that was done before, and says where.
pub fn unpacked(package: Package) -> Result<PathBuf> {
    let Package { name, suite, part } = package;
    let stem = name.replace(':', "-");
    let folder = paths::setup().join(&stem);
    let suite = match suite {
        Suite::Own => codename()?,
        Suite::Backports => format!("{}-backports", codename()?),
    };
    let stamp = Stamp::new(&stem, Key::new().text(name).text(&suite).text(part));
    if stamp.is_fresh(std::slice::from_ref(&folder)) {
        return Ok(folder);
    }
    run::step(&format!("fetching {name} from Debian's {suite}"), || {
        let private = paths::setup().join(".apt");
        if private.exists() {
            // Of a run that broke off: what was downloaded then may be another package.
            fs::remove_dir_all(&private).context("removing the last apt configuration")?;
        }
        let configuration = configure(&private, &suite)?;
        let download = private.join("download");
        fs::create_dir_all(&download).context("making the download folder")?;
        let apt = |program: &str| {
            let mut command = Command::new(program);
            command.env("APT_CONFIG", &configuration).current_dir(&download);
            command
        };
        run::quietly(apt("apt-get").args(["update", "-qq"]))?;
        let shown = run::quietly(apt("apt-cache").args(["show", "--no-all-versions", name]))?;
        let real = stands_for(&shown).unwrap_or_else(|| name.to_owned());
        run::quietly(apt("apt-get").args(["download", "-qq", &real]))?;
        let file = fs::read_dir(&download)?
            .filter_map(Result::ok)
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
            .context("apt downloaded nothing")?;
        let new = folder.with_extension("new");
        if new.exists() {
            fs::remove_dir_all(&new).context("removing one that was not finished")?;
        }
        extract(&file, part, &new)?;
        if folder.exists() {
            fs::remove_dir_all(&folder).context("removing the old one")?;
        }
        fs::rename(&new, &folder).context("moving it to its place")?;
        fs::remove_dir_all(&private).context("removing the private apt configuration")?;
        stamp.set()
    })?;
    Ok(folder)
}

/// Unpacks a package's files, or those in the folder `part`.
fn extract(file: &Path, part: &str, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("making {}", to.display()))?;
    let mut files = Command::new("dpkg-deb");
    let mut files =
        files.arg("--fsys-tarfile").arg(file).stdout(Stdio::piped()).spawn().context("dpkg-deb")?;
    let mut tar = Command::new("tar");
    tar.arg("--extract").arg("--directory").arg(to).stdin(files.stdout.take().context("no pipe")?);
    if !part.is_empty() {
        tar.arg(format!("./{part}"));
    }
    let unpacked = run::loudly(&mut tar);
    // With it goes the last reading end of the pipe: what still writes into that ends, too.
    drop(tar);
    let read = files.wait().context("waiting for dpkg-deb")?;
    unpacked?;
    if !read.success() {
        bail!("{} cannot be read: dpkg-deb ended with {read}", file.display());
    }
    Ok(())
}

/// The package that one without files stands for: it depends on exactly its version.
fn stands_for(shown: &str) -> Option<String> {
    let field = |name: &str| shown.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let of_its_version = format!(" (= {})", field("Version")?);
    let depends = field("Depends")?;
    // A package with files depends on more than that.
    let (only, architecture) = (depends.strip_suffix(&of_its_version)?, field("Architecture")?);
    (!only.contains([',', '|', ' '])).then(|| format!("{only}:{architecture}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_that_stands_for_another_is_followed() {
        let meta = "Package: k\nVersion: 6.1-2\nArchitecture: arm64\nDepends: k-6.1 (= 6.1-2)\n";
        assert_eq!(stands_for(meta), Some("k-6.1:arm64".to_owned()));
        for depends in ["k-6.1 (= 6.1-3)", "libc6 (>= 2), k-6.1 (= 6.1-2)", "k-6.1"] {
            assert_eq!(stands_for(&meta.replace("k-6.1 (= 6.1-2)", depends)), None, "{depends}");
        }
    }
}
