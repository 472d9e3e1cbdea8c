//! Measuring how a blob gets to the device: a package with one large file, from the moment at which the
//! agent begins to fetch until it has everything and goes on with the next stage; and the peers that
//! move as much with nothing besides.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::command::Selvedge;
use crate::packages::{deploy, identity_with_files, keys, noise};
use crate::peer::Peer;
use crate::programs::program;
use crate::stack::Stack;
use crate::{clock, wait};

/// Time between two looks at the agent. Each costs it a little.
const LOOK: Duration = Duration::from_millis(10);

/// Name of the package.
pub const NAME: &str = "parcel";

/// Packages and releases a parcel of `bytes` bytes; the path of the file.
pub fn release_parcel(stack: &Stack, release: u64, bytes: usize) -> PathBuf {
    let folder = stack.dir.path().join(format!("parcel-{release}"));
    let files = [("parcel.bin".to_owned(), noise(bytes, release))];
    identity_with_files(&folder, NAME, &format!("{release}.0.0"), &files);
    let out = stack.path(&format!("parcel-{release}.pkg"));
    let (text, number) = (folder.display().to_string(), release.to_string());
    Selvedge::new().run(&["package", &text, "--release", &number, "--out", &out, "--skip-acceptance"]);
    stack.selvedge().run(&["release", &out, "--keys", &keys(stack)]);
    std::fs::remove_dir_all(out).expect("the package can be removed");
    folder.join("parcel.bin")
}

/// How a parcel came.
#[derive(Debug, Clone, Copy)]
pub struct Came {
    /// Bytes of all its blobs.
    pub bytes: u64,
    /// From the first sign of fetching to the last byte.
    pub arrived: Duration,
    /// The same until everything was checked, kept and handed on.
    pub done: Duration,
}

impl Came {
    /// Bytes a second, everything included.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / self.done.as_secs_f64()
    }
}

/// Deploys a release of the parcel and watches it come.
///
/// # Panics
/// Where it has not come after `limit`.
pub fn watch(stack: &Stack, release: u64, limit: Duration) -> Came {
    watch_from(stack, release, limit, &|| {})
}

/// The same; `begun` is called once, at the first sign of fetching.
///
/// # Panics
/// Where it has not come after `limit`.
pub fn watch_from(stack: &Stack, release: u64, limit: Duration, begun: &dyn Fn()) -> Came {
    deploy(stack, NAME, release);
    let (mut began, mut arrived, mut bytes) = (None, None, 0);
    wait::within(limit, LOOK, "the parcel", || {
        let status = stack.agent_status();
        let packages = status["state"]["packages"].as_array().cloned().unwrap_or_default();
        let package = packages.into_iter().find(|package| package["name"] == NAME).unwrap_or_default();
        let pending = &package["pending"];
        let fetching = pending["stage"] == "fetching" && pending["release"] == release;
        let total = pending["total"].as_u64().unwrap_or(0);
        if fetching {
            began.get_or_insert_with(|| {
                begun();
                clock::now()
            });
            bytes = bytes.max(total);
            // Between manifest and files everything that is known of so far is there, too.
            arrived = if pending["bytes"].as_u64() < Some(total) {
                None
            } else {
                arrived.or_else(|| Some(clock::now()))
            };
        } else if let Some(began) = began {
            let now = clock::now();
            let came = Came { bytes, arrived: arrived.unwrap_or(now) - began, done: now - began };
            return if package["failure"].is_null() { Ok(came) } else { Err(package.to_string()) };
        }
        Err(package.to_string())
    })
}

/// A peer that serves, until dropped.
///
/// # Panics
/// Where it does not become ready.
pub fn serving(arguments: &[&str]) -> Peer {
    let peer = Peer::start(Command::new(program("peer-pull")).args(arguments));
    assert_eq!(peer.said, "ready", "peer-pull {arguments:?}");
    peer
}

/// Lets a peer get something; the seconds that it took. `within` starts it elsewhere.
///
/// # Panics
/// Where it fails.
pub fn seconds(within: &[String], arguments: &[&str]) -> f64 {
    let peer = program("peer-pull").display().to_string();
    let words: Vec<&str> = within.iter().map(String::as_str).chain([peer.as_str()]).collect();
    let output = Command::new(words[0]).args(&words[1..]).args(arguments).output().expect("the peer starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    said.trim().parse().unwrap_or_else(|_| panic!("{arguments:?} said {said:?}"))
}
