//! The file system of the emulated machine: all of it is in memory, packed as Linux takes it at its start.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use super::machine::Tried;
use crate::{paths, run, setup};

/// Guests that tests read as they were written.
const TEXT: &str = "modules/hostile/text";
const LOADER: &str = "ld-linux-aarch64.so.1";
const LIBRARIES: [&str; 7] = [
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "libgcc_s.so.1",
    "libstdc++.so.6",
];

/// A folder that becomes one.
pub struct Root {
    folder: PathBuf,
}

impl Root {
    /// An empty one.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// What tests find there by their environment.
    pub fn environment() -> [(&'static str, &'static str); 2] {
        [("SELVEDGE_ONNXRUNTIME", "/setup/libonnxruntime.so"), ("SELVEDGE_MODULES", "/setup/modules")]
    }

    /// A shell, and what it needs.
    pub fn busybox(&mut self, unpacked: &Path) -> Result<()> {
        for folder in ["proc", "sys", "dev", "tmp", "etc"] {
            let folder = self.folder.join(folder);
            fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        }
        // One of the things that a host must not read has to be there.
        setup::write_whole(&self.folder.join("etc/passwd"), b"root:x:0:0:root:/:/bin/sh\n")?;
        self.copy(&unpacked.join("bin/busybox"), "bin/busybox")
    }

    /// The C and C++ libraries of the architecture, from the first of `folders` that has each.
    pub fn libraries(&mut self, folders: [&Path; 2]) -> Result<()> {
        for name in LIBRARIES.iter().chain(&[LOADER]) {
            let mut places = folders.iter().map(|folder| folder.join(name));
            let found =
                places.find(|path| path.exists()).with_context(|| format!("{name} of arm64 is not here"))?;
            self.copy(&found, &format!("lib/{name}"))?;
        }
        Ok(())
    }

    /// Programs that tests start, beside the tests.
    pub fn programs(&mut self, built: &Path, programs: &[&str], tests: &[(Tried, PathBuf)]) -> Result<()> {
        for program in programs {
            self.copy(&built.join(program), &format!("programs/{program}"))?;
        }
        for (tried, path) in tests {
            self.copy(path, &format!("programs/{}", tried.program))?;
        }
        Ok(())
    }

    /// ONNX Runtime's library and the modules: where the environment says, and where tests look that were built here;
    /// and what those read of the sources.
    pub fn set_up(&mut self, library: &Path) -> Result<()> {
        self.copy(library, "setup/libonnxruntime.so")?;
        for file in setup::files_below(&paths::modules())? {
            let name = file.strip_prefix(paths::modules())?.display().to_string();
            self.copy(&file, &format!("setup/modules/{name}"))?;
        }
        let target = self.folder.join(paths::root().join("target").strip_prefix("/")?);
        fs::create_dir_all(target.join("setup/onnxruntime")).context("making the set-up's place")?;
        std::os::unix::fs::symlink(
            "/setup/libonnxruntime.so",
            target.join("setup/onnxruntime/libonnxruntime.so"),
        )?;
        std::os::unix::fs::symlink("/setup/modules", target.join("modules"))?;
        let sources = self.folder.join(paths::root().strip_prefix("/")?);
        fs::create_dir_all(sources.join("tests")).context("making the tests' place")?;
        for file in setup::files_below(&paths::root().join(TEXT))? {
            self.copy(&file, &file.strip_prefix("/")?.display().to_string())?;
        }
        Ok(())
    }

    /// What runs first.
    pub fn first_program(&mut self, script: &str) -> Result<()> {
        let path = self.folder.join("init");
        setup::write_whole(&path, script.as_bytes())?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).context("making it executable")
    }

    /// Packs it all.
    pub fn pack(&self, image: &Path) -> Result<()> {
        let mut names = String::new();
        list(&self.folder, Path::new("."), &mut names)?;
        let listed = image.with_extension("list");
        setup::write_whole(&listed, names.as_bytes())?;
        let out = fs::File::create(image).with_context(|| format!("making {}", image.display()))?;
        let mut cpio = Command::new("cpio");
        cpio.args(["--create", "--format=newc", "--quiet", "--owner=+0:+0"]).current_dir(&self.folder);
        cpio.stdin(fs::File::open(&listed)?).stdout(Stdio::from(out));
        run::loudly(&mut cpio)
    }

    fn copy(&self, from: &Path, to: &str) -> Result<()> {
        let to = self.folder.join(to);
        let folder = to.parent().context("a file without a folder")?;
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        fs::copy(from, &to).with_context(|| format!("copying {}", from.display()))?;
        Ok(())
    }
}

/// Everything below, folders before what is in them.
fn list(folder: &Path, name: &Path, names: &mut String) -> Result<()> {
    let Some(text) = name.to_str().filter(|text| !text.contains('\n')) else {
        bail!("{name:?} cannot be listed")
    };
    names.push_str(text);
    names.push('\n');
    let path = folder.join(name);
    if path.symlink_metadata()?.is_dir() {
        let entries = fs::read_dir(&path).with_context(|| format!("reading {}", path.display()))?;
        for entry in entries {
            list(folder, &name.join(entry?.file_name()), names)?;
        }
    }
    Ok(())
}
