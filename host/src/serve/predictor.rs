//! What serving needs of a package and of what opens one. The sandbox is one implementation; tests
//! of serving bring their own.

use std::collections::BTreeMap;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use selvedge_package::{Digest, FilePath, Manifest, PackageName};

use super::here;
use crate::deadline::Deadline;
use crate::failure::{OpenError, PredictError};
use crate::runtime::{Loaded, Runtime};
use crate::sequence::{Sequences, Turn};
use crate::tensor::NamedTensor;
use crate::threads::yielding::Way;

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
    /// Whether its answers took so little time lately that handing one to another thread would cost more.
    fn is_quick(&self) -> bool {
        false
    }
    /// To whom its requests give way, where they are not quick.
    fn way(&self) -> Way {
        Way::Some
    }
    /// Answers inputs that were checked against the manifest. May block for as long as a model runs:
    /// ask through [`ask`].
    ///
    /// Where [`Self::is_quick`] says so, it is polled once on a thread that serves.
    fn predict(self: Arc<Self>, inputs: Vec<NamedTensor>, deadline: Deadline) -> Prediction;
    /// Its sequences; none where it keeps nothing between requests.
    fn sequences(&self) -> Option<&Sequences> {
        None
    }
    /// As `predict`, for a request of one of its sequences, whose turn it is.
    fn proceed(self: Arc<Self>, _: Turn, inputs: Vec<NamedTensor>, deadline: Deadline) -> Prediction {
        self.predict(inputs, deadline)
    }
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

/// Time over its package's deadline after which a prediction is given up. The package keeps it itself, and the
/// host ends where a model does not; this is for a bug in either.
const GIVEN_UP: Duration = Duration::from_secs(5);

/// Before a request of a package that fails: however little each costs, and however many come, the others have the
/// machine most of the time.
pub const PAUSE: Duration = Duration::from_millis(5);

/// Time over what a client gives: guests and most models stop within it, and who gave that little is not kept
/// waiting for one that does not.
pub const STOPPED: Duration = Duration::from_millis(200);

/// Asks a package.
///
/// A run of a model blocks its thread. On one of those that serve it would keep connections, signals
/// and the control socket waiting, so that a slow model would stop the whole host. So a prediction has a
/// thread of its own, which gives way to those that serve ([`threads`](crate::threads)), unless its package has been
/// quick lately: then it is begun here, and moves to such a thread where it does not end soon (a guest gives its thread
/// back on every tick). What remains, models that are slow for the first time, can take all threads that serve but the
/// one in [`reserve`](super::reserve).
/// `held` is dropped when the package has really ended, also where nobody waits for its answer any more.
pub async fn ask(
    package: Arc<dyn Predictor>,
    inputs: Vec<NamedTensor>,
    deadline: impl Into<Deadline>,
    held: impl Send + 'static,
) -> Result<Vec<NamedTensor>, PredictError> {
    let deadline = deadline.into();
    // The time that there was from here on, and not what was left where it ran.
    let late = || PredictError::Deadline(deadline.allowed());
    let (way, quick) = (package.way(), package.is_quick());
    if way == Way::All && !quick {
        // No request is late for it: it may be the one that the package answers.
        tokio::time::sleep(PAUSE.min(deadline.allowed() / 10)).await;
    }
    let (mut prediction, mut held) = (package.predict(inputs, deadline), held);
    if quick {
        match here::ask(prediction, held, deadline.from).await {
            Ok(Err(PredictError::Deadline(_))) => return Err(late()),
            Ok(answer) => return answer,
            Err(rest) => (prediction, held) = rest,
        }
    }
    let asked = here::aside(prediction, held, way);
    let patience =
        if deadline.answer < deadline.end { deadline.answer + STOPPED } else { deadline.end + GIVEN_UP };
    match tokio::time::timeout_at(patience.into(), asked).await {
        Ok(Ok(Err(PredictError::Deadline(_)))) => Err(late()),
        Ok(Ok(outputs)) => outputs,
        Ok(Err(_)) => Err(here::panicked()),
        Err(_) => Err(late()),
    }
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

    fn is_quick(&self) -> bool {
        self.is_quick()
    }

    fn way(&self) -> Way {
        self.way()
    }

    fn predict(self: Arc<Self>, inputs: Vec<NamedTensor>, deadline: Deadline) -> Prediction {
        Box::pin(async move { Loaded::predict(&self, inputs, deadline).await })
    }

    fn sequences(&self) -> Option<&Sequences> {
        self.sequences()
    }

    fn proceed(self: Arc<Self>, turn: Turn, inputs: Vec<NamedTensor>, deadline: Deadline) -> Prediction {
        Box::pin(async move { Loaded::proceed(&self, turn, inputs, deadline).await })
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
