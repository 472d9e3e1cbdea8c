//! A whole arm64 machine under emulation, with Debian's own kernel: what hostile guests and models do to the host, and
//! how it shuts itself in, is tried there.
//! `qemu-user` hands system calls on to the kernel of this machine, which knows neither aarch64's numbers nor, under
//! emulation, a filter of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use super::root::Root;
use crate::setup::apt;
use crate::setup::unpack::{self, Package, Suite};
use crate::{paths, run};

/// The kernel of Debian's next release: the first with everything that the host asks for.
const KERNEL: Package = Package { name: "linux-image-arm64:arm64", suite: Suite::Backports, part: "boot" };
/// The machine's shell.
const BUSYBOX: Package = Package { name: "busybox-static:arm64", suite: Suite::Own, part: "bin" };
/// Seconds: long enough for the kernel, and for every test at some hundredths of this machine's speed.
const PATIENCE: &str = "1800";
/// What the first program prints before the name of a test and how that ended.
const MARK: &str = "selvedge-arm64:";

/// A test program of the workspace, and which of its tests are tried.
#[derive(Debug, Clone, Copy)]
pub struct Tried {
    /// The program.
    pub program: &'static str,
    /// What the names of its tests contain; empty: all of them.
    pub tests: &'static str,
}

/// What depends on the kernel, on the processor's numbers of system calls, and on the code that is made for it.
pub const TRIED: [Tried; 2] = [
    Tried { program: "host_sandbox", tests: "" },
    Tried { program: "oip_rest", tests: "shut_in::every_thread" },
];

/// What it is made of, from Debian. The set-up is locked.
pub struct Parts {
    kernel: PathBuf,
    busybox: PathBuf,
}

/// Fetches them.
pub fn parts() -> Result<Parts> {
    apt::install(&["qemu-system-arm", "cpio"])?;
    Ok(Parts { kernel: kernel()?, busybox: unpack::unpacked(BUSYBOX)? })
}

/// Boots it, runs the tests and reads how they ended. What they start was built into `built`.
pub fn run(parts: &Parts, built: &Path, library: &Path, tests: &[(Tried, PathBuf)]) -> Result<()> {
    let place = paths::root().join("target/arm64/machine");
    if place.exists() {
        fs::remove_dir_all(&place).context("removing the last machine")?;
    }
    let image = place.join("root.cpio");
    let mut root = Root::new(place.join("root"));
    root.busybox(&parts.busybox)?;
    root.libraries(["/usr/lib/aarch64-linux-gnu", "/lib/aarch64-linux-gnu"].map(Path::new))?;
    root.programs(built, &["selvedge-host", "try_confinement"], tests)?;
    root.set_up(library)?;
    root.first_program(&script(tests))?;
    root.pack(&image)?;
    let said = run::aloud(&mut emulator(&parts.kernel, &image))?;
    for (tried, _) in tests {
        match ended(&said, tried.program) {
            Some((0, passed)) if passed > 0 => {}
            Some((status, passed)) => {
                bail!("{} ended with {status} on arm64, {passed} of its tests passed", tried.program)
            }
            None => bail!("the machine stopped before {} had ended", tried.program),
        }
    }
    Ok(())
}

fn kernel() -> Result<PathBuf> {
    let boot =
        fs::read_dir(unpack::unpacked(KERNEL)?.join("boot")).context("reading the kernel's package")?;
    let mut files = boot.filter_map(Result::ok).map(|entry| entry.path());
    let is_kernel =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"));
    files.find(is_kernel).context("the kernel's package has no kernel")
}

fn emulator(kernel: &Path, image: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after", "10", PATIENCE, "qemu-system-aarch64"]);
    command.args([
        "-machine",
        "virt",
        "-cpu",
        "max",
        "-smp",
        "2",
        "-m",
        "4096",
        "-nic",
        "none",
        "-no-reboot",
    ]);
    command.args(["-display", "none", "-monitor", "none", "-serial", "stdio"]);
    command.arg("-kernel").arg(kernel).arg("-initrd").arg(image);
    command.args(["-append", "console=ttyAMA0 quiet panic=-1"]);
    // On a terminal it would wait for being in the foreground.
    command.stdin(Stdio::null());
    command
}

/// What the machine does when it has started.
fn script(tests: &[(Tried, PathBuf)]) -> String {
    let mut script = "#!/bin/busybox sh\n\
         /bin/busybox --install -s /bin\n\
         mount -t proc proc /proc\n\
         mount -t sysfs sys /sys\n\
         mount -t devtmpfs dev /dev\n\
         mount -t tmpfs tmp /tmp\n\
         ip link set lo up\n\
         ulimit -n 65536\n\
         export PATH=/bin RUST_BACKTRACE=0\n\
         uname -srm\n"
        .to_owned();
    for (name, value) in Root::environment() {
        script.push_str(&format!("export {name}={value}\n"));
    }
    for (Tried { program, tests }, _) in tests {
        script.push_str(&format!(
            "/programs/{program} --test-threads 1 {tests}\necho\necho {MARK} {program} $?\n"
        ));
    }
    // Its first program must not end: the kernel would.
    script.push_str("poweroff -f\nsleep 60\n");
    script
}

/// With which status a program ended, and how many of its tests had passed by then.
fn ended(said: &str, program: &str) -> Option<(i32, usize)> {
    let mut passed = 0;
    for line in said.lines().map(str::trim) {
        if let Some(result) = line.strip_prefix("test result: ") {
            passed = result.split_once(". ")?.1.split(' ').next()?.parse().ok()?;
        }
        if let Some(rest) = line.strip_prefix(MARK) {
            let (name, status) = rest.trim().split_once(' ')?;
            if name == program {
                return Some((status.parse().ok()?, passed));
            }
            passed = 0;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_program_that_ended_well_with_tests_counts() {
        let said = "Linux 6.12 aarch64\r\nrunning 2 tests\r\ntest result: ok. 2 passed; 0 failed; 3 filtered out\r\n\
                    selvedge-arm64: one 0\r\ntest result: FAILED. 1 passed; 1 failed; 0 ignored\r\n\
                    selvedge-arm64: two 101\r\nselvedge-arm64: three 127\r\n";
        assert_eq!(ended(said, "one"), Some((0, 2)));
        assert_eq!(ended(said, "two"), Some((101, 1)));
        assert_eq!(ended(said, "three"), Some((127, 0)));
        assert_eq!(ended(said, "four"), None);
    }
}
