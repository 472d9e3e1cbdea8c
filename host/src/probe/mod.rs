//! The throw-away child: opens a model or a package, runs it, says what it found, and ends.
//!
//! ONNX Runtime has no memory limit per session, and neither session creation nor a single operator
//! can be interrupted; so a package that a device does not know yet runs here first, under limits of
//! the system that [`confine`] sets before anything is loaded. Hitting them ends this process only.

pub mod model;
pub mod seeded;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use selvedge_control::{ControlError, Loaded, PackageRef, ProbeResult, Purpose, Reason, Settings};

use crate::cases;
use crate::clock;
use crate::runtime::directory::Directory;
use crate::runtime::{Runtime, RuntimeOptions};
use crate::serve::predictor::Predictor;

/// What to try out.
#[derive(Debug, Clone)]
pub enum Target {
    /// An ONNX file.
    Model(PathBuf),
    /// A package's directory, and the settings to open it with.
    Package(PathBuf, Settings),
}

/// Limits of the system for this process.
#[derive(Debug, Clone, Copy, Default)]
pub struct Confinement {
    /// Memory that the process may ask for, in MiB (`RLIMIT_DATA`: reserved addresses do not count).
    pub memory_mib: Option<u64>,
    /// Processor time, in seconds (`RLIMIT_CPU`); the process is killed at it.
    pub cpu_seconds: Option<u64>,
}

/// Sets the limits, for good. Call before anything is loaded.
pub fn confine(confinement: Confinement) -> std::io::Result<()> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let set = |resource, most: u64| {
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        setrlimit(resource, limit).map_err(std::io::Error::from)
    };
    if let Some(mib) = confinement.memory_mib {
        set(Resource::Data, mib.saturating_mul(1 << 20))?;
    }
    if let Some(seconds) = confinement.cpu_seconds {
        set(Resource::Cpu, seconds)?;
    }
    // A killed trial needs no core file.
    set(Resource::Core, 0)
}

/// Tries `target` out. Blocks; must not be called within tokio.
pub fn run(target: Target, options: RuntimeOptions) -> ProbeResult {
    let result = Runtime::new(options)
        .map_err(|error| refusal(Reason::Internal, format!("{:#}", anyhow::Error::from(error))))
        .and_then(|runtime| match target {
            Target::Model(file) => model::probe(&runtime, &file).map(ProbeResult::Model),
            Target::Package(directory, settings) => {
                package(&runtime, &directory, &settings).map(ProbeResult::Package)
            }
        });
    result.unwrap_or_else(ProbeResult::Refused)
}

fn refusal(reason: Reason, error: impl std::fmt::Display) -> ControlError {
    ControlError { error: error.to_string(), reason }
}

/// Opens the package, whose digest is that of what lies there: whoever starts the probe has checked it.
fn package(runtime: &Runtime, path: &Path, settings: &Settings) -> Result<Loaded, ControlError> {
    let refused = |error: crate::failure::OpenError| refusal(error.reason(), &error);
    let start = clock::now();
    let directory = Directory::read(path, None).map_err(refused)?;
    let package =
        PackageRef { name: directory.bundle().manifest().name.clone(), digest: directory.bundle().digest() };
    let loaded = runtime.open_directory(directory, settings).map_err(refused)?;
    let load_ms = clock::now().duration_since(start).as_secs_f64() * 1e3;
    let cases = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|error| refusal(Reason::Internal, error))?
        .block_on(cases::run_all(&(loaded as Arc<dyn Predictor>), Purpose::Trial))
        .map_err(|error| refusal(Reason::BadCase, error))?;
    Ok(Loaded { package, cases, load_ms })
}
