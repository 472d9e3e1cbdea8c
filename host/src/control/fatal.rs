//! The end of a process whose model cannot be stopped: ONNX Runtime offers no way to end an operator
//! that does not look, so the process ends and says which package it was.
//!
//! Said three times, since any of them may be lost: as an event, on standard error, and in
//! [`RECORD`] for whoever looks after the process is gone.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use selvedge_control::Event;

use super::journal::Journal;
use crate::runtime::{Fatal, FatalCallback};

/// Exit code of a host that ended because a model could not be stopped.
pub const EXIT_CODE: i32 = 86;

/// File in the data directory that holds the last such [`Event`] as JSON.
pub const RECORD: &str = "fatal.json";

/// Time for those who wait for events to get the last one.
const FAREWELL: Duration = Duration::from_millis(200);

/// What the runtime calls when a model runs on.
pub fn callback(journal: Arc<Journal>, data: Option<PathBuf>) -> FatalCallback {
    Arc::new(move |fatal: Fatal| {
        let name = fatal.package.name.clone();
        let event = journal.add(fatal.package, fatal.what, true);
        if let Some(data) = &data
            && let Err(error) = write_record(data, &event)
        {
            tracing::error!(%error, "the fatal event could not be written down");
        }
        tracing::error!(
            package = %name, digest = %event.package.digest,
            "ending with exit code {EXIT_CODE}: {}", event.what
        );
        drop(std::io::stderr().flush());
        std::thread::sleep(FAREWELL);
        end(EXIT_CODE);
    })
}

fn write_record(data: &Path, event: &Event) -> std::io::Result<()> {
    let text = serde_json::to_vec(event)?;
    let new = data.join(format!("{RECORD}.new"));
    std::fs::write(&new, text)?;
    std::fs::rename(new, data.join(RECORD))
}

/// Ends the process at once. Destructors of ONNX Runtime are not run: they would wait for, or pull
/// the ground from under, the threads that are still at work.
pub fn end(code: i32) -> ! {
    // SAFETY: `_exit` has no requirements; it does not return.
    #[allow(unsafe_code)]
    unsafe {
        libc::_exit(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_control::PackageRef;
    use selvedge_package::Digest;

    #[test]
    fn the_record_names_the_package() {
        let directory = tempfile::tempdir().unwrap();
        let package = PackageRef { name: "m".parse().unwrap(), digest: Digest::of(b"") };
        let event = Journal::default().add(package, "ran on".to_owned(), true);
        write_record(directory.path(), &event).unwrap();
        write_record(directory.path(), &event).unwrap();
        let text = std::fs::read(directory.path().join(RECORD)).unwrap();
        assert_eq!(serde_json::from_slice::<Event>(&text).unwrap(), event);
    }
}
