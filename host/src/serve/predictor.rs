//! What serving needs of a package and of what opens one. The sandbox is one implementation; tests
//! of serving bring their own.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use selvedge_package::{Digest, FilePath, Manifest, PackageName};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::clock;
use crate::deadline::Deadline;
use crate::failure::{OpenError, PredictError};
use crate::runtime::{Loaded, Runtime};
use crate::sequence::{Sequences, Turn};
use crate::session::blocking;
use crate::tensor::NamedTensor;
use crate::threads::{self, yielding::Way};

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

/// Longest time that a quick package waits for a thread that serves, before it gets another one.
const QUICK_PLACE: Duration = Duration::from_millis(1);

/// Before a request of a package that fails: however little each costs, and however many come, the others have the
/// machine most of the time.
const PAUSE: Duration = Duration::from_millis(5);

/// Time over what a client gives: guests and most models stop within it, and who gave that little is not kept
/// waiting for one that does not.
pub const STOPPED: Duration = Duration::from_millis(200);

/// Asks a package.
///
/// A run of a model blocks its thread. On one of those that serve it would keep connections, signals
/// and the control socket waiting, so that a slow model would stop the whole host. So a prediction has a
/// thread of its own, which gives way to those that serve ([`threads`]), unless its package has been quick
/// lately: then it is begun here, and moves to such a thread where it does not end at once (a guest gives its
/// thread back on every tick). What remains, models that are slow for the first time, can take all threads that
/// serve but one ([`place`]).
/// `held` is dropped when the package has really ended, also where nobody waits for its answer any more.
pub async fn ask(
    package: Arc<dyn Predictor>,
    inputs: Vec<NamedTensor>,
    deadline: impl Into<Deadline>,
    held: impl Send + 'static,
) -> Result<Vec<NamedTensor>, PredictError> {
    let deadline = deadline.into();
    // The time that there was from here on, and not what was left where it ran.
    let allowed = deadline.answer.saturating_duration_since(clock::now());
    let late = || PredictError::Deadline(allowed);
    let (quick, way) = (package.is_quick(), package.way());
    let mut prediction = package.predict(inputs, deadline);
    if quick && let Some(_place) = place().await {
        let begun = std::future::poll_fn(|context| {
            let polled = AssertUnwindSafe(|| prediction.as_mut().poll(context));
            Poll::Ready(match std::panic::catch_unwind(polled) {
                Ok(Poll::Ready(Err(PredictError::Deadline(_)))) => Some(Err(late())),
                Ok(Poll::Ready(outputs)) => Some(outputs),
                Ok(Poll::Pending) => None,
                Err(_) => Some(Err(panicked())),
            })
        });
        if let Some(outputs) = begun.await {
            return outputs;
        }
    }
    if way == Way::All {
        // No request is late for it: it may be the one that the package answers.
        tokio::time::sleep(PAUSE.min(allowed / 10)).await;
    }
    // What the module logs belongs to the request's trace, if it has one.
    let span = tracing::Span::current();
    let asked = threads::compute(way, move || {
        let _entered = span.entered();
        let outputs = blocking::allow(|| Handle::current().block_on(prediction));
        drop(held);
        outputs
    });
    let patience =
        if deadline.answer < deadline.end { deadline.answer + STOPPED } else { deadline.end + GIVEN_UP };
    match tokio::time::timeout_at(patience.into(), asked).await {
        Ok(Ok(Err(PredictError::Deadline(_)))) => Err(late()),
        Ok(Ok(outputs)) => outputs,
        Ok(Err(_)) => Err(panicked()),
        Err(_) => Err(late()),
    }
}

fn panicked() -> PredictError {
    PredictError::Internal("the request panicked; the host's log says more".to_owned())
}

/// Threads that serve: one for each processor, and at least two.
pub fn serving_threads() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from).max(2)
}

/// A place among those that compute on a thread that serves, of which at least one is left to serve. Where all
/// are taken it waits for less time than another thread would cost if the answers there are quick, as expected.
async fn place() -> Option<SemaphorePermit<'static>> {
    static PLACES: OnceLock<Semaphore> = OnceLock::new();
    let places = PLACES.get_or_init(|| Semaphore::new(serving_threads() - 1));
    match places.try_acquire() {
        Ok(place) => Some(place),
        Err(_) => tokio::time::timeout(QUICK_PLACE, places.acquire()).await.ok()?.ok(),
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
