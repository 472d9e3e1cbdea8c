//! python-tuf's repository simulator, which is in its source distribution only. pip checks the sha256
//! before it looks inside, and reads the distribution's name with the build tool that is pinned in the
//! virtual environment; nothing is built or installed.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result};

use super::{Key, Stamp, VENV};
use crate::{paths, run};

const FILE: &str = "repository_simulator.py";

/// Takes one file out of a tar: its name, the tar, the folder for it.
const TAKE: &str = "import sys, tarfile
name, tar, folder = sys.argv[1:]
with tarfile.open(tar) as archive:
    found = next(member for member in archive if member.isfile() and member.name.endswith('/tests/' + name))
    with open(folder + '/' + name, 'wb') as file:
        file.write(archive.extractfile(found).read())
";

/// Makes sure that `target/setup/tuf-simulator` holds the simulator. The virtual environment is there.
pub fn file() -> Result<()> {
    let folder = paths::setup().join("tuf-simulator");
    let pinned = paths::root().join("xtask/python-sdists.txt");
    let stamp = Stamp::new("tuf-simulator", Key::new().tree(&pinned)?);
    if stamp.is_fresh(&[folder.join(FILE)]) {
        return Ok(());
    }
    run::step("fetching the repository simulator of python-tuf", || {
        let download = paths::setup().join(format!(".download-{}", std::process::id()));
        fs::create_dir_all(&download).with_context(|| format!("making {}", download.display()))?;
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        let python = paths::setup().join(VENV).join("bin/python");
        let take = || {
            let mut pip = Command::new(&python);
            pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]);
            pip.args(["--require-hashes", "--no-binary=:all:", "--no-build-isolation", "--requirement"]);
            run::quietly(pip.arg(&pinned).arg("--dest").arg(&download))?;
            let tar = fs::read_dir(&download)?.next().context("pip downloaded nothing")??.path();
            run::quietly(Command::new(&python).args(["-c", TAKE, FILE]).arg(tar).arg(&folder))
        };
        let taken = take();
        // Left-overs are harmless, and the download's own error matters more.
        let _ = fs::remove_dir_all(&download);
        taken?;
        stamp.set()
    })
}
