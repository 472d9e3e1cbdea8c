//! Landlock: files, TCP, signals to others and their abstract sockets.

use std::path::Path;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, LandlockStatus,
    PathBeneath, PathFd, Ruleset, RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, RulesetStatus,
    Scope,
};

use super::{FULL, Reach};

/// What is asked for: the sixth version is the first with signals and abstract sockets. Older kernels keep
/// what they know.
const VERSION: ABI = ABI::V6;

/// Of the system, readable: libraries that are loaded late, locales and time zones, and what the libraries
/// ask about the processor and the process itself.
const SYSTEM: [&str; 19] = [
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/share/locale",
    "/usr/share/zoneinfo",
    "/lib",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/proc/self",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/sys/vm",
    "/sys/devices/system",
    "/sys/fs/cgroup",
    "/sys/kernel/mm",
    "/dev/random",
    "/dev/urandom",
];

/// Restricts this thread and those that it starts; says how far, or why not at all.
pub fn restrict(reach: &Reach) -> Result<String, String> {
    let said = |error: &dyn std::fmt::Display| error.to_string();
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(VERSION))
        .and_then(|ruleset| ruleset.handle_access(AccessNet::from_all(VERSION)))
        .and_then(|ruleset| ruleset.scope(Scope::from_all(VERSION)))
        .and_then(Ruleset::create)
        .map_err(|error| said(&error))?;
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let mut ruleset = ruleset;
    if reach.readable.is_empty() {
        ruleset = allow(ruleset, Path::new("/"), read)?;
    }
    for path in reach.readable.iter().chain(&reach.own).map(|path| path.as_path()) {
        ruleset = allow(ruleset, path, read)?;
    }
    for path in SYSTEM.iter().map(Path::new) {
        ruleset = allow(ruleset, path, read)?;
    }
    ruleset = allow(ruleset, Path::new("/dev/null"), read | AccessFs::WriteFile)?;
    let write = read | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::MakeReg | AccessFs::RemoveFile;
    for path in &reach.writable {
        ruleset = allow(ruleset, path, write)?;
    }
    for path in &reach.laid {
        ruleset = allow(ruleset, path, write | AccessFs::MakeDir | AccessFs::RemoveDir)?;
    }
    let status = ruleset.restrict_self().map_err(|error| said(&error))?;
    let files = if reach.readable.is_empty() { "all files readable" } else { "packages readable" };
    Ok(match (status.ruleset, status.landlock) {
        (RulesetStatus::FullyEnforced, _) => format!("{FULL}, {files}"),
        (RulesetStatus::PartiallyEnforced, LandlockStatus::Available { effective_abi, .. }) => {
            format!("in part: version {} of {}, {files}", effective_abi as i32, VERSION as i32)
        }
        (_, LandlockStatus::NotEnabled) => return Err("the kernel has it switched off".to_owned()),
        _ => return Err("the kernel does not have it".to_owned()),
    })
}

/// Allows `access` at and below `path`; one that is not there is left out.
fn allow(ruleset: RulesetCreated, path: &Path, access: BitFlags<AccessFs>) -> Result<RulesetCreated, String> {
    let Ok(metadata) = path.metadata() else { return Ok(ruleset) };
    let access = if metadata.is_dir() { access } else { access & AccessFs::from_file(VERSION) };
    let opened = PathFd::new(path).map_err(|error| error.to_string())?;
    ruleset.add_rule(PathBeneath::new(opened, access)).map_err(|error| error.to_string())
}
