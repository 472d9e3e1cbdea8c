//! The host shuts itself in, for good: what native code could still do when it was taken over by a model
//! or by a request. Landlock takes files, TCP, signals and abstract sockets of others away, seccomp takes
//! the system calls that nothing here needs.
//!
//! To be called after ONNX Runtime's library was loaded and every socket was opened, and before the first
//! thread is started: Landlock leaves threads that already run free. Where the kernel lacks one of the two
//! (old ones, emulation), the host runs without it and says so in its log and its metadata.

mod files;
#[cfg(all(
    target_os = "linux",
    target_endian = "little",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
mod syscalls;

use std::path::PathBuf;
use std::sync::OnceLock;

use serde::Serialize;

/// What stays within reach.
#[derive(Debug, Clone, Default)]
pub struct Reach {
    /// Where packages lie, and whatever else is read: files below are readable. Empty: all files are.
    pub readable: Vec<PathBuf>,
    /// Directories in which files are made, changed and removed.
    pub writable: Vec<PathBuf>,
    /// Directories in which packages are laid out: directories are made and removed there, too.
    pub laid: Vec<PathBuf>,
    /// Libraries and modules of the program itself, readable too.
    pub own: Vec<PathBuf>,
}

/// How far this process is shut in; its words are for people and for metadata.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Confinement {
    /// What Landlock keeps, or why it keeps nothing.
    pub landlock: String,
    /// What seccomp keeps, or why it keeps nothing.
    pub seccomp: String,
}

impl Confinement {
    /// Whether both keep everything that they are asked for.
    pub fn is_full(&self) -> bool {
        self.landlock.starts_with(FULL) && self.seccomp == FULL
    }
}

impl From<&Confinement> for selvedge_control::Confinement {
    fn from(confinement: &Confinement) -> Self {
        Self { landlock: confinement.landlock.clone(), seccomp: confinement.seccomp.clone() }
    }
}

const FULL: &str = "on";

static STATE: OnceLock<Confinement> = OnceLock::new();

/// How far this process is shut in.
pub fn state() -> &'static Confinement {
    static NEVER: OnceLock<Confinement> = OnceLock::new();
    STATE.get().unwrap_or_else(|| {
        NEVER.get_or_init(|| Confinement { landlock: "off".to_owned(), seccomp: "off".to_owned() })
    })
}

/// Shuts this process in. What cannot be had is said, not failed for: a host on an old kernel serves too.
pub fn confine(reach: &Reach) -> &'static Confinement {
    let landlock = match threads() {
        1 => files::restrict(reach).unwrap_or_else(|why| format!("off: {why}")),
        count => format!("off: {count} threads run already"),
    };
    let seccomp = match filter_syscalls() {
        Ok(()) => FULL.to_owned(),
        Err(why) => format!("off: {why}"),
    };
    let confinement = STATE.get_or_init(|| Confinement { landlock, seccomp });
    let (landlock, seccomp) = (&confinement.landlock, &confinement.seccomp);
    if confinement.is_full() {
        tracing::info!(%landlock, %seccomp, "shut in");
    } else {
        tracing::warn!(%landlock, %seccomp, "not shut in as far as could be");
    }
    confinement
}

/// Threads of this process. The system not saying counts as one.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count)
}

#[cfg(all(
    target_os = "linux",
    target_endian = "little",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
fn filter_syscalls() -> Result<(), String> {
    syscalls::filter().map_err(|error| error.to_string())
}

#[cfg(not(all(
    target_os = "linux",
    target_endian = "little",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
fn filter_syscalls() -> Result<(), String> {
    Err("there is no filter for this system".to_owned())
}
