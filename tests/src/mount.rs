//! A small file system of the test's own.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A file system in memory; unmounted when it is dropped.
pub struct Small {
    place: TempDir,
}

/// Set in a test that runs in a namespace of its own.
const INSIDE: &str = "SELVEDGE_TEST_NAMESPACE";

/// Runs `story`, which mounts something: here where that is allowed, else in a user and mount namespace of
/// its own.
///
/// # Panics
/// Where neither is allowed, saying what is needed.
pub fn allowed(name: &str, story: impl FnOnce()) {
    if Small::mount(1).is_ok() || std::env::var_os(INSIDE).is_some() {
        return story();
    }
    let own = std::env::current_exe().expect("a running test has an executable");
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount"])
        .arg(own)
        .args([name, "--exact", "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .expect("unshare (util-linux) can be run");
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(
        output.status.success() && said[0].contains("1 passed"),
        "this test mounts a small file system: it needs root, or `unshare --user --map-root-user --mount` to \
         be allowed (a container needs CAP_SYS_ADMIN or unprivileged user namespaces)\n{}\n{}",
        said[0],
        said[1]
    );
    println!("{}", said[0]);
}

impl Small {
    /// Mounts one of so many MiB.
    pub fn mount(mib: u64) -> Result<Self, String> {
        let place = tempfile::tempdir().map_err(|error| error.to_string())?;
        let size = format!("size={mib}m,mode=0700");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(place.path()))?;
        Ok(Self { place })
    }

    /// Has it at another path, too.
    pub fn link(&self, path: &Path) {
        std::os::unix::fs::symlink(self.place.path(), path).expect("a link can be made");
    }

    /// Takes all that is free, to the last block.
    pub fn fill(&self) {
        use std::io::Write;
        let mut filler =
            std::fs::File::options().create(true).append(true).open(self.filler()).expect("a file");
        for piece in [1 << 16, 1 << 12] {
            while filler.write_all(&vec![7; piece]).is_ok() {}
        }
    }

    /// Gives back what [`Small::fill`] took.
    pub fn empty(&self) {
        std::fs::remove_file(self.filler()).expect("the filler is there");
    }

    /// Makes it read-only, or writable again. Nobody may have a file of it open for writing.
    pub fn remount(&self, how: &str) -> Result<(), String> {
        run(Command::new("mount").args(["-o", &format!("remount,{how}")]).arg(self.place.path()))
    }

    fn filler(&self) -> PathBuf {
        self.place.path().join("filler")
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = run(Command::new("umount").arg("--lazy").arg(self.place.path()));
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(format!("{command:?}: {said}")) }
}
