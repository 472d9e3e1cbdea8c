//! Whether a host that an earlier agent left is the one that is to run.
//!
//! It may have been started with another program, other arguments or another address, or its program
//! may have been replaced by a newer one under the same name. Such a host is drained and ended, and
//! the right one is started: what a person asks of the agent is what the device does.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use selvedge_control::HostStatus;

use super::attend::end;
use super::{Options, Process, Trace};

/// Ends the host that an agent had started before its service was to keep one: it would hold the address, and
/// answer there with what nobody steers. Why, for people; `None`: there is none.
pub(super) async fn end_ours(options: &Options) -> Option<String> {
    let left = Trace::read(&options.run_file("host.json"))?;
    let mut process = Process::adopt(left.pid).ok()?;
    // The service's own is asked for nothing here.
    let ours = !options.run_file("control.sock").is_symlink();
    tracing::info!(pid = left.pid, "the host that an agent had started is ended: its service keeps one");
    end(ours.then(|| options.client()).as_ref(), options, &mut process).await;
    Some("the agent had started it, and its service is to keep it running".to_owned())
}

/// What is not as it is to be, for people; `None`: nothing that can be seen.
pub(super) fn difference(options: &Options, process: &Process, status: &HostStatus) -> Option<String> {
    if let Some(why) = other_address(options.http, &status.http) {
        return Some(why);
    }
    let place = PathBuf::from("/proc").join(process.id()?.to_string());
    let found = std::fs::read(place.join("cmdline")).ok()?;
    other_program(&options.command(), &found, &place.join("exe"))
}

/// Whether a host that serves there serves where it is to.
pub(super) fn same_address(wanted: SocketAddr, serves: &str) -> bool {
    other_address(wanted, serves).is_none()
}

fn other_address(wanted: SocketAddr, serves: &str) -> Option<String> {
    let found: SocketAddr = serves.parse().ok()?;
    // Port 0 is any.
    let same = found.ip() == wanted.ip() && (wanted.port() == 0 || found.port() == wanted.port());
    (!same).then(|| format!("it serves on {found} and is to serve on {wanted}"))
}

fn other_program(wanted: &[OsString], found: &[u8], executable: &Path) -> Option<String> {
    let found = found.strip_suffix(b"\0").unwrap_or(found);
    let found: Vec<&OsStr> = found.split(|byte| *byte == 0).map(OsStr::from_bytes).collect();
    // A script runs as its interpreter's argument.
    let Some(interpreter) = found.len().checked_sub(wanted.len()) else {
        return Some("it was started with other arguments".to_owned());
    };
    if found[interpreter..].iter().zip(wanted).any(|(found, wanted)| found != wanted) {
        return Some("it was started as another program, or with other arguments".to_owned());
    }
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    let program = Path::new(wanted.first()?);
    match (identity(executable), identity(program)) {
        (Some(runs), Some(is)) if interpreter == 0 && runs != is => {
            Some(format!("{} is another file than the one that runs", program.display()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::{Farewell, HostEvent, HostProgram, Supervisor};

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    fn check(wanted: &str, found: &str, executable: &str, expected: Option<&str>) {
        let found = format!("{}\0", found.replace(' ', "\0"));
        let why = other_program(&words(wanted), found.as_bytes(), Path::new(executable));
        match (&why, expected) {
            (None, None) => {}
            (Some(why), Some(expected)) if why.contains(expected) => {}
            _ => panic!("{why:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn another_program_and_other_arguments_are_seen() {
        let sh = std::fs::canonicalize("/bin/sh").unwrap();
        let (sh, own) = (sh.to_str().unwrap(), "/proc/self/exe");
        check("/bin/sh serve --data d", "/bin/sh serve --data d", sh, None);
        check("/bin/sh serve --data d", "/bin/sh serve --data e", sh, Some("other arguments"));
        check("/bin/sh serve --data d --modules m", "/bin/sh serve --data d", sh, Some("other arguments"));
        check("/bin/sh serve --data d", "/bin/sh serve --data d --modules m", sh, Some("other arguments"));
        check("/bin/sh serve", "/bin/sh serve", own, Some("another file"));
        check("/tmp/host serve", "/bin/sh /tmp/host serve", sh, None);
        check("/bin/sh serve", "/bin/sh serve", "/nowhere", None);
        check("/bin/sh serve", "", sh, Some("other arguments"));
    }

    #[test]
    fn another_address_is_seen_and_any_port_is_any() {
        let check = |wanted: &str, serves: &str| other_address(wanted.parse().unwrap(), serves).is_some();
        assert!(!check("127.0.0.1:80", "127.0.0.1:80"));
        assert!(!check("127.0.0.1:0", "127.0.0.1:80"));
        assert!(check("127.0.0.1:81", "127.0.0.1:80"));
        assert!(check("[::1]:0", "127.0.0.1:80"));
        assert!(!check("127.0.0.1:80", "garbage"));
    }

    /// What an agent with `host-control` finds of the time before it.
    #[tokio::test]
    async fn a_host_that_an_agent_had_started_makes_way_for_the_services() {
        let place = tempfile::tempdir().unwrap();
        let data = place.path().to_owned();
        for folder in ["run", "host"] {
            std::fs::create_dir(data.join(folder)).unwrap();
        }
        let options = Options {
            http: "127.0.0.1:0".parse().unwrap(),
            launcher: PathBuf::new(),
            host: HostProgram { binary: PathBuf::new(), modules: None, onnxruntime: None },
            outlives: true,
            control: Some(data.join("service.sock")),
            data: data.clone(),
        };
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        Trace::of(child.id()).unwrap().write(&data.join("run/host.json")).unwrap();
        let (sender, mut events) = tokio::sync::mpsc::channel(4);
        let supervisor = Supervisor::start(options, sender).await.unwrap();
        assert!(matches!(events.recv().await, Some(HostEvent::Replaced(_))));
        assert!(child.try_wait().unwrap().is_some(), "it goes on");
        assert!(!data.join("run/host.json").exists());
        assert!(data.join("run/control.sock").is_symlink());
        supervisor.stop(Farewell::Leave).await;
    }
}
