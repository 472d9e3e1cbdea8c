//! What serving needs of a package and of what opens one. The sandbox is one implementation; tests
//! of serving bring their own.

use std::collections::BTreeMap;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use selvedge_package::{Digest, FilePath, Manifest, PackageName};

use crate::failure::{OpenError, PredictError};
use crate::runtime::{Loaded, Runtime};
use crate::tensor::NamedTensor;

/// An answer on its way.
pub type Prediction = Pin<Box<dyn Future<Output = Result<Vec<NamedTensor>, PredictError>> + Send>>;

/// An opened package.
pub trait Predictor: Send + Sync + 'static {
    /// Its manifest.
    fn manifest(&self) -> &Manifest;
    /// Digest of its OCI manifest.
    fn digest(&self) -> Digest;
    /// Its models and the digests of their ONNX files.
    fn models(&self) -> &[(PackageName, Digest)];
    /// A file of the package, verified as it is read.
    fn read_file(&self, path: &FilePath) -> Result<Vec<u8>, OpenError>;
    /// Answers inputs that were checked against the manifest.
    fn predict(self: Arc<Self>, inputs: Vec<NamedTensor>, deadline: Duration) -> Prediction;
}

/// Opens packages.
pub trait Opener: Send + Sync + 'static {
    /// Opens the package in `directory`; blocks for as long as that takes.
    fn open(
        &self,
        directory: &Path,
        digest: Digest,
        settings: &BTreeMap<String, String>,
    ) -> Result<Arc<dyn Predictor>, OpenError>;
    /// ONNX Runtime's version.
    fn onnxruntime_version(&self) -> String;
}

impl Predictor for Loaded {
    fn manifest(&self) -> &Manifest {
        self.manifest()
    }

    fn digest(&self) -> Digest {
        self.digest()
    }

    fn models(&self) -> &[(PackageName, Digest)] {
        self.models()
    }

    fn read_file(&self, path: &FilePath) -> Result<Vec<u8>, OpenError> {
        self.read_file(path)
    }

    fn predict(self: Arc<Self>, inputs: Vec<NamedTensor>, deadline: Duration) -> Prediction {
        Box::pin(async move { Loaded::predict(&self, inputs, deadline).await })
    }
}

impl Opener for Runtime {
    fn open(
        &self,
        directory: &Path,
        digest: Digest,
        settings: &BTreeMap<String, String>,
    ) -> Result<Arc<dyn Predictor>, OpenError> {
        let loaded = self.open(directory, digest, settings)?;
        Ok(loaded)
    }

    fn onnxruntime_version(&self) -> String {
        self.onnxruntime_version().to_owned()
    }
}
