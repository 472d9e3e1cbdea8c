//! What can go wrong between opening a package and answering a request, and whose fault it is.

use std::path::PathBuf;
use std::time::Duration;

use selvedge_control::Reason;

/// The runtime could not be set up at all.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// No library of ONNX Runtime, or one that is too old.
    #[error(
        "could not load ONNX Runtime from `{path}`; give its place with --onnxruntime or SELVEDGE_ONNXRUNTIME"
    )]
    OnnxRuntime {
        /// Where it was looked for.
        path: PathBuf,
        /// What the loader said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// wasmtime does not run here.
    #[error("could not set up wasmtime")]
    Engine(#[source] wasmtime::Error),
    /// The directory for compiled modules cannot be used.
    #[error("the compiled-module cache `{path}` cannot be used: {why}")]
    Cache {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A thread could not be started.
    #[error("could not start the thread that keeps deadlines")]
    Ticker(#[source] std::io::Error),
}

/// A package could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A file is missing, unreadable or does not have its digest.
    #[error("`{file}` of the package is not what was signed: {why}")]
    Corrupt {
        /// The file, relative to the package's directory.
        file: String,
        /// What is wrong with it.
        why: String,
    },
    /// The manifest breaks a rule.
    #[error("the package's manifest is refused: {0}")]
    Manifest(String),
    /// A setting of the deployment that the package does not have.
    #[error("the deployment's settings are refused: {0}")]
    Settings(String),
    /// The component is not one, does not export a predictor, or asks for what it may not have.
    #[error("the component `{file}` is refused: {why}")]
    Component {
        /// The component's file.
        file: String,
        /// What is wrong with it.
        why: String,
    },
    /// ONNX Runtime does not open the model, or the model reaches outside of the package.
    #[error("the model `{model}` is refused: {why}")]
    Model {
        /// The model's name in the manifest.
        model: String,
        /// What is wrong with it.
        why: String,
    },
    /// A limit of the package was met while opening it.
    #[error("the package meets a limit while it is opened: {0}")]
    Limit(String),
    /// A fault of the host.
    #[error("the package could not be opened: {0}")]
    Internal(String),
}

impl OpenError {
    /// The word for programs.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Corrupt { .. } => Reason::Corrupt,
            Self::Manifest(_) => Reason::BadManifest,
            Self::Settings(_) => Reason::BadRequest,
            Self::Component { .. } => Reason::BadComponent,
            Self::Model { .. } => Reason::BadModel,
            Self::Limit(_) => Reason::Limit,
            Self::Internal(_) => Reason::Internal,
        }
    }
}

/// Rounded up: what is left of a deadline a moment after it began is told as the whole.
pub(crate) fn millis(time: Duration) -> u128 {
    time.as_nanos().div_ceil(1_000_000)
}

/// A request was not answered.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PredictError {
    /// The caller sent what the package does not take: the caller's fault.
    #[error("{0}")]
    InvalidInput(String),
    /// ONNX Runtime refused or failed.
    #[error("the model failed: {0}")]
    Model(String),
    /// The module gave an error of its own, or broke its contract.
    #[error("the module failed: {0}")]
    Module(String),
    /// The module trapped; its instance is gone.
    #[error("the module trapped: {0}")]
    Trap(String),
    /// A limit of the package other than its deadline.
    #[error("a limit of the package was met: {0}")]
    Limit(String),
    /// The deadline passed.
    #[error("no answer within {} ms", millis(*.0))]
    Deadline(Duration),
    /// The deadline passed before an instance was free.
    #[error("every instance of the package stayed busy for {} ms", millis(*.0))]
    Busy(Duration),
    /// A fault of the host.
    #[error("the host failed: {0}")]
    Internal(String),
}
