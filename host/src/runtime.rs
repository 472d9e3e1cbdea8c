//! The meeting point of serving and sandbox: opens packages and answers requests.
//!
//! A [`Runtime`] is one per process. [`Runtime::open`] trusts nothing in the directory that it is
//! given: every file is checked against the digests under the package's own before anything is used.
//! A [`Loaded`] package holds its sessions and instances; dropping it frees them.

pub mod directory;
mod loaded;
pub mod models;
mod pace;
pub mod package;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use ort::environment::Environment;
use selvedge_control::PackageRef;
use selvedge_package::manifest::ExecutionProvider;
use selvedge_package::rules::Use;
use selvedge_package::{Digest, PackageName};
use wasmtime::component::Linker;

use self::directory::Directory;
pub use self::loaded::Loaded;
use self::package::Shared;
use crate::engine::cache::Cache;
use crate::engine::ticker::Ticker;
use crate::engine::{self, ComponentError};
pub use crate::failure::{OpenError, PredictError, RuntimeError};
use crate::limits::{COMPONENT_BYTES, Limits};
use crate::sandbox::files::Files;
use crate::sandbox::state::State;
use crate::sandbox::{self, Prepared};
use crate::session;
pub use crate::tensor::{NamedTensor, Tensor};

/// What a [`Runtime`] needs.
#[derive(Clone)]
pub struct RuntimeOptions {
    /// ONNX Runtime's shared library. A process has one: the first that was loaded.
    pub onnxruntime: PathBuf,
    /// Directory with the built-in modules (`direct.wasm`).
    pub modules: PathBuf,
    /// Directory for compiled modules, made with mode 0700; `None`: compile every time.
    pub cache: Option<PathBuf>,
    /// What models may run on.
    pub execution_providers: Vec<ExecutionProvider>,
    /// Called from a thread of its own, once, when a model runs on after its deadline and its second
    /// of grace: nothing but the end of the process stops it. Should report, then exit.
    pub fatal: FatalCallback,
}

/// See [`RuntimeOptions::fatal`].
pub type FatalCallback = Arc<dyn Fn(Fatal) + Send + Sync>;

/// A model, or the opening of a package, that could not be stopped.
#[derive(Debug, Clone)]
pub struct Fatal {
    /// Its package.
    pub package: PackageRef,
    /// The model's name in the package; none where the package as a whole hangs.
    pub model: Option<PackageName>,
    /// What happened, for people.
    pub what: String,
}

/// Opens packages. One per process, cheap to clone.
#[derive(Clone)]
pub struct Runtime(Arc<Inner>);

struct Inner {
    environment: Environment,
    version: String,
    engine: wasmtime::Engine,
    linker: Linker<State>,
    cache: Option<Cache>,
    ticker: Arc<Ticker>,
    modules: PathBuf,
    execution_providers: Vec<ExecutionProvider>,
    fatal: FatalCallback,
    direct: OnceLock<Arc<Prepared>>,
}

impl Runtime {
    /// Loads ONNX Runtime, sets wasmtime up and starts the thread that keeps deadlines.
    pub fn new(options: RuntimeOptions) -> Result<Self, RuntimeError> {
        let (environment, version) = session::library::load(&options.onnxruntime)?;
        let engine = engine::new_engine().map_err(RuntimeError::Engine)?;
        let linker = sandbox::linker(&engine).map_err(RuntimeError::Engine)?;
        let cache = options.cache.as_deref().map(Cache::open).transpose()?;
        if let Some(cache) = &cache {
            cache.collect(&engine);
        }
        let ticker = Arc::new(Ticker::start(engine.clone()).map_err(RuntimeError::Ticker)?);
        Ok(Self(Arc::new(Inner {
            environment,
            version,
            engine,
            linker,
            cache,
            ticker,
            modules: options.modules,
            execution_providers: options.execution_providers,
            fatal: options.fatal,
            direct: OnceLock::new(),
        })))
    }

    /// ONNX Runtime's version, as the library says it.
    pub fn onnxruntime_version(&self) -> &str {
        &self.0.version
    }

    /// ONNX Runtime's environment, of which a process has one.
    pub fn environment(&self) -> &Environment {
        &self.0.environment
    }

    pub(crate) fn models(&self) -> models::Opener<'_> {
        models::Opener {
            environment: &self.0.environment,
            ticker: &self.0.ticker,
            fatal: &self.0.fatal,
            allowed: &self.0.execution_providers,
        }
    }

    pub(crate) fn ticker(&self) -> &Arc<Ticker> {
        &self.0.ticker
    }

    /// Opens the package in `directory`, which must be `digest` (of its `package.json`). Blocks for as
    /// long as reading, compiling and optimising take: call it on a thread that may block.
    pub fn open(
        &self,
        directory: &Path,
        digest: Digest,
        settings: &BTreeMap<String, String>,
    ) -> Result<Arc<Loaded>, OpenError> {
        let directory = Directory::read(directory, Some(digest))?;
        self.open_directory(directory, settings)
    }

    /// As [`Runtime::open`], for a directory of which the manifests were read.
    pub fn open_directory(
        &self,
        directory: Directory,
        settings: &BTreeMap<String, String>,
    ) -> Result<Arc<Loaded>, OpenError> {
        let manifest = directory.bundle().manifest();
        let settings = merge(&manifest.settings, settings)?;
        // Models and the component are verified where they are read, which is before any is used.
        let read_later = |used| matches!(used, Use::Model | Use::Component);
        for file in directory.bundle().files().filter(|file| !read_later(file.used)) {
            directory.verify(file.path)?;
        }
        let prepared = match &manifest.module.component {
            Some(file) => {
                let bytes = directory.bytes(file, COMPONENT_BYTES)?;
                Arc::new(self.prepare(file.as_str(), &bytes)?)
            }
            None => self.direct()?,
        };
        let wasi_files = Files::of(&manifest.module).map_err(OpenError::Limit)?;
        let opener = self.models();
        let mut models = Vec::with_capacity(manifest.models.len());
        let mut digests = Vec::with_capacity(manifest.models.len());
        let mut files = Vec::with_capacity(manifest.models.len());
        for model in &manifest.models {
            let file = directory.expected(&model.file)?;
            digests.push((model.name.clone(), file.0));
            files.push(file);
            models.push((model.name.clone(), Arc::new(opener.open(&directory, model)?)));
        }
        let shared = Shared {
            name: manifest.name.clone(),
            directory: directory.path().to_owned(),
            limits: Limits::of(&manifest.module),
            capabilities: manifest.module.capabilities.clone(),
            settings,
            models,
            files,
            wasi_files,
            prepared,
        };
        Loaded::new(directory, digests, shared, self.0.ticker.clone())
    }

    fn prepare(&self, file: &str, bytes: &[u8]) -> Result<Prepared, OpenError> {
        let refused = |why| OpenError::Component { file: file.to_owned(), why };
        let component = engine::compile(&self.0.engine, self.0.cache.as_ref(), bytes)
            .map_err(|error: ComponentError| refused(error.to_string()))?;
        Prepared::new(&self.0.linker, &component).map_err(refused)
    }

    /// The built-in module, compiled once for the process.
    fn direct(&self) -> Result<Arc<Prepared>, OpenError> {
        if let Some(direct) = self.0.direct.get() {
            return Ok(direct.clone());
        }
        let path = self.0.modules.join("direct.wasm");
        let bytes = std::fs::read(&path).map_err(|error| {
            OpenError::Internal(format!(
                "the built-in module `{}` cannot be read ({error}); give its directory with --modules or SELVEDGE_MODULES",
                path.display()
            ))
        })?;
        let direct = Arc::new(self.prepare("direct.wasm", &bytes)?.built_in());
        Ok(self.0.direct.get_or_init(|| direct).clone())
    }
}

/// The deployment's settings over the manifest's, which name all that there are.
fn merge(
    defaults: &BTreeMap<String, String>,
    settings: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, OpenError> {
    selvedge_package::rules::check_settings("settings", settings, &selvedge_package::limits::Limits::PACKAGE)
        .map_err(|error| OpenError::Settings(error.to_string()))?;
    let mut merged = defaults.clone();
    for (key, value) in settings {
        match merged.get_mut(key) {
            Some(default) => default.clone_from(value),
            None => {
                let known: Vec<_> = defaults.keys().map(String::as_str).collect();
                return Err(OpenError::Settings(format!(
                    "the package has no setting `{key}`; it has: {}",
                    if known.is_empty() { "none".to_owned() } else { known.join(", ") }
                )));
            }
        }
    }
    Ok(merged)
}
