//! `selvedge-host`: serves packages, or tries one out and ends.
//!
//! Exit codes: 0 ended as asked, 1 could not start or the trial was refused, 2 wrong command line,
//! 86 a model could not be stopped (see `control::fatal`), 130 ended by a second signal.

use std::io::Read as _;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use selvedge_control::{ProbeResult, Settings};
use selvedge_host::confine::{Reach, confine};
use selvedge_host::control::{fatal, journal::Journal};
use selvedge_host::engine::cache::Cache;
use selvedge_host::folder::{self, Folder};
#[cfg(all(target_os = "linux", target_env = "gnu"))]
use selvedge_host::memory::blocks::Blocks;
use selvedge_host::probe::{self, Confinement, Target};
use selvedge_host::runtime::{FatalCallback, Runtime, RuntimeOptions};
use selvedge_host::serve::{listen, locate, reserve, server};
use selvedge_host::session;
use selvedge_package::manifest::ExecutionProvider;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// What allocates for this program; ONNX Runtime goes to the C library itself.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[global_allocator]
static ALLOCATOR: Blocks = Blocks;

/// Bytes of settings that are read.
const MOST_SETTINGS: u64 = 1 << 20;

/// Descriptors of the host: connections, and the files of modules that may open some.
const MOST_DESCRIPTORS: u64 = 1 << 16;

/// Loads Selvedge packages, runs their modules in a sandbox and serves inference.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    places: Places,
}

/// Where the host finds what it needs.
#[derive(Debug, Args)]
struct Places {
    /// ONNX Runtime's shared library [default: beside this program in lib/, then the system's]
    #[arg(long, global = true, env = "SELVEDGE_ONNXRUNTIME", value_name = "FILE")]
    onnxruntime: Option<PathBuf>,
    /// Directory with the built-in modules [default: beside this program in modules/]
    #[arg(long, global = true, env = "SELVEDGE_MODULES", value_name = "DIR")]
    modules: Option<PathBuf>,
    /// What models may run on, if their packages ask for it: of cpu, cuda, tensorrt, openvino, xnnpack, acl
    #[arg(
        long,
        global = true,
        env = "SELVEDGE_EXECUTION_PROVIDERS",
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "cpu"
    )]
    execution_providers: Vec<ExecutionProvider>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve packages: those of a folder, and those that the control socket loads.
    Serve(Serve),
    /// Open a model or a package in this process, run it, print one line of JSON and end.
    Probe(Probe),
}

/// What to try out, and within which limits.
#[derive(Debug, Args)]
struct Probe {
    #[command(flatten)]
    what: What,
    /// Read the deployment's settings, an object of texts in JSON, from standard input.
    #[arg(long, requires = "package")]
    settings: bool,
    /// Memory that this process may ask for; the system enforces it.
    #[arg(long, value_name = "MIB")]
    memory_mib: Option<u64>,
    /// Processor time after which the system kills this process.
    #[arg(long, value_name = "SECONDS")]
    cpu_seconds: Option<u64>,
}

/// Sockets come from LISTEN_FDS where it is set, named `http` and `control` in LISTEN_FDNAMES.
#[derive(Debug, Args)]
struct Serve {
    /// Loopback address of the inference endpoint.
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// Folder of packages that are loaded and served, one in each folder below it, as the host opens them or
    /// as `selvedge package` writes them. They need no signature: who may write there says what is served.
    #[arg(long, value_name = "DIR")]
    packages: Option<PathBuf>,
    /// Path of the control socket [needed without --packages]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Directory for compiled modules; made with mode 0700.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Directory below which every package lies: apart from what the program itself needs, the host can
    /// then read nothing else. Once for each; without any it can read all files.
    #[arg(long, value_name = "DIR")]
    packages_below: Vec<PathBuf>,
}

/// Exactly one of these.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct What {
    /// An ONNX file: reads its inputs and outputs and records one case.
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// A package's directory: opens it and runs its acceptance cases.
    #[arg(long, value_name = "DIR")]
    package: Option<PathBuf>,
}

#[allow(unsafe_code)]
fn main() -> ExitCode {
    // SAFETY: these are the first statements, so there is one thread.
    unsafe {
        selvedge_host::memory::set_up();
        selvedge_host::session::telemetry::forbid();
    }
    let arguments = Arguments::parse();
    // Levels by target are enough here, and cost no regular expressions.
    let chosen = std::env::var("SELVEDGE_LOG").ok().and_then(|text| text.parse().ok());
    let terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    tracing_subscriber::registry()
        .with(chosen.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO)))
        .with(tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(terminal))
        .init();
    let result = match arguments.command {
        Command::Serve(serve) => run(serve, arguments.places),
        Command::Probe(probe) => try_out(probe, arguments.places),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("selvedge-host: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(serve: Serve, places: Places) -> anyhow::Result<ExitCode> {
    let variable = |name| std::env::var(name).ok();
    let inherited = listen::places(
        variable("LISTEN_PID").as_deref(),
        variable("LISTEN_FDS").as_deref(),
        variable("LISTEN_FDNAMES").as_deref(),
        std::process::id(),
    )?;
    more_descriptors();
    let opened = listen::open(inherited, serve.listen, serve.control.as_deref(), serve.packages.is_some())?;
    let own = Own::of(serve.packages, &serve.data)?;
    let data = serve.data.or_else(|| own.as_ref().and_then(|own| own.data.clone()));
    let journal = Arc::new(Journal::default());
    let cache = data.as_ref().map(|data| data.join("compiled"));
    let fatal = fatal::callback(Arc::clone(&journal), data.clone());
    let options = options(places, cache, Arc::clone(&fatal));
    if let Some(own) = &own {
        own.folder.prepare();
    }
    let readable = serve.packages_below.into_iter().chain(own.iter().flat_map(Own::readable)).collect();
    let laid = own.iter().map(|own| own.made_or_laid().to_owned()).collect();
    shut_in(&options, readable, data, laid)?;
    let runtime = Runtime::new(options)?;
    let (executor, reserve) = reserve::threads().context("could not start the threads that serve")?;
    let result = executor.block_on(async {
        let folder = own.as_ref().map(|own| own.folder.clone());
        server::run(opened.listeners()?, Arc::new(runtime), journal, fatal, folder).await?;
        anyhow::Ok(())
    });
    drop(reserve);
    // A load or a run that is still at work is not waited for, nor is its library unloaded under it.
    executor.shutdown_timeout(Duration::from_secs(1));
    if let Some(own) = own {
        own.remove();
    }
    match result {
        Ok(()) => fatal::end(0),
        Err(error) => {
            eprintln!("selvedge-host: {error:#}");
            fatal::end(1)
        }
    }
}

/// A folder of packages that the person named who started this.
struct Own {
    folder: Folder,
    /// A directory made for this process, where none was given.
    data: Option<PathBuf>,
}

impl Own {
    fn of(packages: Option<PathBuf>, data: &Option<PathBuf>) -> anyhow::Result<Option<Self>> {
        let Some(path) = packages else { return Ok(None) };
        anyhow::ensure!(path.is_dir(), "`{}` is no folder: --packages names one", path.display());
        let made = match data {
            Some(_) => None,
            None => Some(folder::temporary().with_context(|| {
                let parent = std::env::temp_dir();
                format!("no directory could be made in `{}`: give --data DIR", parent.display())
            })?),
        };
        let laid = data.as_ref().or(made.as_ref()).map_or_else(PathBuf::new, |data| data.join(folder::LAID));
        let own = Self { folder: Folder::new(path, laid), data: made };
        if let Err(why) = own.folder.apart() {
            own.remove();
            anyhow::bail!(why);
        }
        Ok(Some(own))
    }

    /// The folder, and what the links in it lead to.
    fn readable(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.folder.path()).into_iter().flatten().flatten();
        let linked =
            entries.filter_map(|entry| entry.path().canonicalize().ok()).filter(|path| path.is_dir());
        std::iter::once(self.folder.path().to_owned()).chain(linked).collect()
    }

    /// Where directories are made: all of the directory that was made for this process, for it is emptied at the end.
    fn made_or_laid(&self) -> &Path {
        self.data.as_deref().unwrap_or_else(|| self.folder.laid())
    }

    fn remove(self) {
        if let Some(made) = self.data {
            // Nothing in it outlives the process. The directory itself may stay, empty: its parent is out of reach.
            drop(std::fs::remove_dir_all(made));
        }
    }
}

/// As many descriptors as the system lets this process have: modules may open files.
fn more_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.map_or(MOST_DESCRIPTORS, |most| most.min(MOST_DESCRIPTORS));
    if limit.current.is_some_and(|current| current < most) {
        // What cannot be had is met again where connections are counted.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: limit.maximum });
    }
}

/// Loads ONNX Runtime's library, which may not be read any more afterwards, and shuts this process in. No
/// thread has been started.
fn shut_in(
    options: &RuntimeOptions,
    readable: Vec<PathBuf>,
    data: Option<PathBuf>,
    laid: Vec<PathBuf>,
) -> anyhow::Result<()> {
    session::library::preload(&options.onnxruntime)?;
    for directory in readable.iter().chain(&data).chain(&laid) {
        // Landlock knows what is there, and nothing that is made later.
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .with_context(|| format!("`{}` could not be made", directory.display()))?;
    }
    if let Some(cache) = &options.cache {
        Cache::open(cache)?;
    }
    let library = options.onnxruntime.parent().map(PathBuf::from);
    let own = library.into_iter().chain([options.modules.clone()]).collect();
    confine(&Reach { readable, writable: data.into_iter().collect(), laid, own });
    Ok(())
}

/// The directories that a path leads through: its own, and where a link there points to.
fn folders(path: &Path) -> Vec<PathBuf> {
    let folder =
        |path: &Path| if path.is_dir() { Some(path.to_owned()) } else { path.parent().map(PathBuf::from) };
    let real = path.canonicalize().ok();
    let absolute = std::path::absolute(path).ok();
    absolute.iter().chain(&real).filter_map(|path| folder(path)).collect()
}

fn try_out(probe: Probe, places: Places) -> anyhow::Result<ExitCode> {
    let settings = if probe.settings { read_settings()? } else { Settings::new() };
    let readable =
        probe.what.model.iter().chain(&probe.what.package).flat_map(|path| folders(path)).collect();
    let target = match (probe.what.model, probe.what.package) {
        (Some(model), None) => Target::Model(model),
        (None, Some(package)) => Target::Package(package, settings),
        _ => anyhow::bail!("give exactly one of --model and --package"),
    };
    // Before anything is loaded and any thread is started.
    probe::confine(Confinement { memory_mib: probe.memory_mib, cpu_seconds: probe.cpu_seconds })
        .context("the limits of the trial could not be set")?;
    let fatal: FatalCallback = Arc::new(|stuck| {
        eprintln!("selvedge-host: {}", stuck.what);
        fatal::end(fatal::EXIT_CODE);
    });
    let options = options(places, None, fatal);
    shut_in(&options, readable, None, Vec::new())?;
    let result = probe::run(target, options);
    println!("{}", serde_json::to_string(&result).context("the result could not be written")?);
    Ok(match result {
        ProbeResult::Model(_) | ProbeResult::Package(_) => ExitCode::SUCCESS,
        ProbeResult::Refused(_) => ExitCode::FAILURE,
    })
}

/// As they come from whoever starts the probe; the package says which there are.
fn read_settings() -> anyhow::Result<Settings> {
    let mut text = Vec::new();
    std::io::stdin().take(MOST_SETTINGS).read_to_end(&mut text).context("the settings could not be read")?;
    serde_json::from_slice(&text).context("the settings on standard input are no object of texts in JSON")
}

fn options(places: Places, cache: Option<PathBuf>, fatal: FatalCallback) -> RuntimeOptions {
    RuntimeOptions {
        onnxruntime: locate::onnxruntime(places.onnxruntime),
        modules: locate::modules(places.modules),
        cache,
        execution_providers: places.execution_providers,
        fatal,
    }
}
