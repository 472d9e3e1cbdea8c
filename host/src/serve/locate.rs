//! Where the files lie that come with this program: what was given, else beside the executable, else
//! the system's.

use std::path::{Path, PathBuf};

/// File name of ONNX Runtime's library.
const LIBRARY: &str = "libonnxruntime.so";

/// ONNX Runtime's library: `given`, `lib/` beside the executable, or the name alone, for the
/// system's loader to find.
pub fn onnxruntime(given: Option<PathBuf>) -> PathBuf {
    given.unwrap_or_else(|| {
        beside(&["lib", "../lib/selvedge"], LIBRARY).unwrap_or_else(|| PathBuf::from(LIBRARY))
    })
}

/// The directory with the built-in modules: `given`, or `modules/` beside the executable.
pub fn modules(given: Option<PathBuf>) -> PathBuf {
    given.unwrap_or_else(|| {
        beside(&[".", "../lib/selvedge"], "modules").unwrap_or_else(|| PathBuf::from("modules"))
    })
}

fn beside(directories: &[&str], name: &str) -> Option<PathBuf> {
    let executable = std::env::current_exe().ok()?;
    let home = executable.parent()?;
    directories.iter().map(|directory| join(home, directory, name)).find(|path| path.exists())
}

fn join(home: &Path, directory: &str, name: &str) -> PathBuf {
    if directory == "." { home.join(name) } else { home.join(directory).join(name) }
}
