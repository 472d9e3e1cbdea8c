//! `try_confinement FOLDER PACKAGE PORT`: shuts itself in as the host does, then tries what is forbidden,
//! and what has to go on working, from a thread of tokio, one that ONNX Runtime runs its operators on, and
//! one that may block. Prints what came of each as JSON. `tests/tests/host_sandbox/confined.rs` reads it.

use std::collections::BTreeMap;
use std::io::Error;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result};
use selvedge_host::confine::{Reach, confine};
use selvedge_host::engine::cache::Cache;
use selvedge_host::runtime::{Runtime, RuntimeOptions};
use selvedge_host::session::library;
use selvedge_host::session::ort::environment::ThreadManager;
use selvedge_host::session::ort::session::Session;
use serde_json::json;

type Outcomes = BTreeMap<String, String>;

#[derive(Clone)]
struct Place {
    folder: PathBuf,
    port: u16,
}

impl Place {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// What this thread may do, each under a name; `ok`, or the error.
    fn attempts(&self, thread: &str) -> Outcomes {
        let mut outcomes = Outcomes::new();
        let mut tell = |name: &str, result: Result<(), Error>| {
            let outcome = result.map_or_else(|error| format!("{:?}", error.kind()), |()| "ok".to_owned());
            outcomes.insert(name.to_owned(), outcome);
        };
        let own = self.path("writable").join(thread);
        tell("may read a package", std::fs::read(self.path("readable/file")).map(drop));
        tell("may write its data", std::fs::write(&own, "mine"));
        tell("may rename its data", std::fs::rename(&own, own.with_extension("new")));
        tell("may remove its data", std::fs::remove_file(own.with_extension("new")));
        tell("may start a thread", spawned());
        tell("may connect to a socket of the system", UnixStream::connect(self.path("socket")).map(drop));
        tell("may ask about itself", std::fs::read("/proc/self/status").map(drop));

        tell("read a key", std::fs::read(self.path("secret")).map(drop));
        tell("read the passwords", std::fs::read("/etc/passwd").map(drop));
        tell("read a link to a key", std::fs::read(self.path("readable/link")).map(drop));
        tell("list another folder", std::fs::read_dir(&self.folder).map(drop));
        tell("write a package", std::fs::write(self.path("readable/file"), "changed"));
        tell("write elsewhere", std::fs::write(self.path("new"), "new"));
        tell("make a folder", std::fs::create_dir(self.path("writable/folder")));
        tell("link a key in", std::fs::hard_link(self.path("secret"), own.with_extension("key")));
        tell("make a link", std::os::unix::fs::symlink("/", own.with_extension("link")));
        let mode = std::fs::Permissions::from_mode(0o777);
        tell("change a mode", std::fs::set_permissions(self.path("writable"), mode));
        tell("run a program", Command::new("/bin/true").status().map(drop));
        tell("connect", TcpStream::connect(("127.0.0.1", self.port)).map(drop));
        tell("listen", TcpListener::bind("127.0.0.1:0").map(drop));
        tell("send a packet", UdpSocket::bind("127.0.0.1:0").map(drop));
        tell("listen on a socket of the system", UnixListener::bind(self.path("new-socket")).map(drop));
        let end = rustix::process::Signal::TERM;
        let parent = rustix::process::getppid().context("a parent");
        tell("end its parent", parent.map_or(Ok(()), |it| Ok(rustix::process::kill_process(it, end)?)));
        tell("change its root", rustix::process::chroot("/").map_err(Error::from));
        tell("name the machine", rustix::system::sethostname(b"taken").map_err(Error::from));
        outcomes
    }
}

fn spawned() -> Result<(), Error> {
    std::thread::Builder::new().spawn(|| ())?.join().map_err(|_| Error::other("it panicked"))
}

/// Tries everything on each thread that ONNX Runtime asks for, before the thread begins its work.
struct Threads {
    place: Place,
    outcomes: Arc<Mutex<Vec<Outcomes>>>,
}

impl ThreadManager for Threads {
    type Thread = std::thread::JoinHandle<()>;

    fn create(
        &self,
        work: impl FnOnce() + Send + 'static,
    ) -> selvedge_host::session::ort::Result<Self::Thread> {
        let (place, outcomes) = (self.place.clone(), Arc::clone(&self.outcomes));
        Ok(std::thread::spawn(move || {
            outcomes.lock().expect("nothing panics with it").push(place.attempts("onnxruntime"));
            work();
        }))
    }

    fn join(thread: Self::Thread) -> selvedge_host::session::ort::Result<()> {
        drop(thread.join());
        Ok(())
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, package, port] = arguments.as_slice() else {
        anyhow::bail!("usage: try_confinement FOLDER PACKAGE PORT");
    };
    let place = Place { folder: PathBuf::from(folder), port: port.parse()? };
    let set_up =
        |name| std::env::var_os(name).map(PathBuf::from).with_context(|| format!("{name} is not set"));
    let onnxruntime = set_up("SELVEDGE_ONNXRUNTIME")?;
    let modules = set_up("SELVEDGE_MODULES")?;
    library::preload(&onnxruntime)?;
    let cache = place.path("writable/compiled");
    Cache::open(&cache)?;
    let confinement = confine(&Reach {
        readable: vec![place.path("readable")],
        writable: vec![place.path("writable")],
        laid: Vec::new(),
        own: vec![modules.clone(), onnxruntime.parent().context("a folder")?.to_owned()],
    });
    let (environment, _) = library::load(&onnxruntime)?;
    let package = Path::new(package);
    let outcomes = Arc::new(Mutex::new(Vec::new()));
    let model = std::fs::read(package.join("model.onnx"))?;
    let threads = Threads { place: place.clone(), outcomes: Arc::clone(&outcomes) };
    let session = Session::builder(&environment)
        .and_then(|it| Ok(it.with_intra_threads(3)?))
        .and_then(|it| Ok(it.with_thread_manager(threads)?))
        .and_then(|mut it| it.commit_from_memory(&model))
        .map_err(|error| anyhow::anyhow!("{error}"))?;
    drop(session);
    let runtime = Runtime::new(RuntimeOptions {
        onnxruntime,
        modules,
        cache: Some(cache),
        execution_providers: Vec::new(),
        fatal: Arc::new(|_| ()),
    })?;
    let executor = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (on, at) = (place.clone(), place.clone());
    let (tokio, blocking) = executor.block_on(async {
        let tokio = tokio::spawn(async move { on.attempts("tokio") }).await;
        (tokio, tokio::task::spawn_blocking(move || at.attempts("blocking")).await)
    });
    // Compiles the built-in module, opens a session and makes an instance.
    let directory = selvedge_host::runtime::directory::Directory::read(package, None)?;
    let opened = runtime.open_directory(directory, &BTreeMap::new()).map(drop);
    let outcomes = outcomes.lock().expect("nothing panics with it").clone();
    println!(
        "{}",
        json!({
            "confinement": confinement, "full": confinement.is_full(), "onnxruntime": outcomes,
            "tokio": [tokio?], "blocking": [blocking?],
            "opened": opened.map_or_else(|error| error.to_string(), |()| "ok".to_owned()),
        })
    );
    Ok(())
}
