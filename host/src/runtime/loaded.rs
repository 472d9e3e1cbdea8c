//! An opened package: its instances, and requests to them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use selvedge_package::manifest::{Isolation, Model};
use selvedge_package::tensor::TensorSpec;
use selvedge_package::{Digest, FilePath, Manifest, PackageName};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::directory::Directory;
use super::pace::Pace;
use super::package::Shared;
use crate::clock;
use crate::deadline::{Deadline, Time};
use crate::engine::ticker::Ticker;
use crate::failure::{OpenError, PredictError};
use crate::limits::CASE_FILE_BYTES;
use crate::sandbox::{self, Instance};
use crate::sequence::{Sequences, Turn};
use crate::tensor::NamedTensor;
use crate::threads::yielding::Way;

type Answer = Result<Vec<NamedTensor>, PredictError>;

/// An opened package.
pub struct Loaded {
    directory: Directory,
    models: Vec<(PackageName, Digest)>,
    shared: Arc<Shared>,
    ticker: Arc<Ticker>,
    /// As many as requests may run side by side.
    permits: Semaphore,
    idle: Mutex<Vec<Instance>>,
    made: AtomicU64,
    sequences: Option<Sequences>,
    pace: Pace,
    /// Whether all it waits for is its thread: no file, no other thread, no other processor.
    waits_for_nothing: bool,
}

impl Loaded {
    /// Makes the package's first instance, which shows that the component does what it exports.
    pub(super) fn new(
        directory: Directory,
        models: Vec<(PackageName, Digest)>,
        shared: Shared,
        ticker: Arc<Ticker>,
    ) -> Result<Arc<Self>, OpenError> {
        let module = &directory.bundle().manifest().module;
        let (concurrency, deadline) = (module.concurrency.max(1), module.deadline_ms);
        let sequences = module.sequences.as_ref().map(Sequences::new);
        let plain = |model: &Model| model.intra_op_threads <= 1 && model.execution_providers.is_empty();
        let models_wait = !directory.bundle().manifest().models.iter().all(plain);
        let waits_for_nothing = shared.wasi_files.is_none() && !models_wait;
        let component = module.component.as_ref().map_or("direct.wasm".to_owned(), FilePath::to_string);
        let loaded = Arc::new(Self {
            directory,
            models,
            shared: Arc::new(shared),
            ticker,
            permits: Semaphore::new(concurrency as usize),
            idle: Mutex::new(Vec::with_capacity(concurrency as usize)),
            made: AtomicU64::new(0),
            sequences,
            pace: Pace::default(),
            waits_for_nothing,
        });
        let busy = loaded.ticker.enter();
        let deadline = Duration::from_millis(deadline.into());
        let first = block_on(loaded.instance(deadline.into())).map_err(|error| match error {
            PredictError::Limit(why) => OpenError::Limit(why),
            PredictError::Deadline(_) => OpenError::Limit("its init did not end by the deadline".to_owned()),
            PredictError::Internal(why) => OpenError::Internal(why),
            error => OpenError::Component { file: component, why: error.to_string() },
        })?;
        drop(busy);
        if loaded.keeps_instances() {
            loaded.put_back(first);
        }
        Ok(loaded)
    }

    /// Its manifest.
    pub fn manifest(&self) -> &Manifest {
        self.directory.bundle().manifest()
    }

    /// Digest of its OCI manifest.
    pub fn digest(&self) -> Digest {
        self.directory.bundle().digest()
    }

    /// Its models and the digests of their ONNX files.
    pub fn models(&self) -> &[(PackageName, Digest)] {
        &self.models
    }

    /// How many instances were made so far; those that live, and those that were thrown away.
    pub fn instances_made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    /// How many instances wait for a request.
    pub fn idle_instances(&self) -> usize {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Its sequences, where it keeps any.
    pub fn sequences(&self) -> Option<&Sequences> {
        self.sequences.as_ref()
    }

    /// Whether its requests took so little time lately that another thread is not worth its while. Never for a
    /// module that may read files, which it does on the thread that it has, nor for a model that has others compute.
    pub fn is_quick(&self) -> bool {
        self.pace.is_quick() && !self.pace.fails() && self.waits_for_nothing
    }

    /// To whom its requests give way: to all others while most of them fail.
    pub fn way(&self) -> Way {
        if self.pace.fails() { Way::All } else { Way::Some }
    }

    /// A file of the package, read and checked anew on every call. At most 64 MiB.
    pub fn read_file(&self, path: &FilePath) -> Result<Vec<u8>, OpenError> {
        self.directory.bytes(path, CASE_FILE_BYTES)
    }

    /// Answers one request. Inputs are checked by the caller against the manifest; what the module
    /// gives back is checked here, and cut to the manifest's outputs, in their order. Its `time` is cut
    /// to the manifest's, from when it began to count. Must be called within tokio, with timers.
    ///
    /// Computes on the caller's thread: a guest yields on every tick, and a model that was not quick
    /// so far runs on a thread that may block.
    pub async fn predict(
        &self,
        inputs: Vec<NamedTensor>,
        time: impl Into<Time>,
    ) -> Result<Vec<NamedTensor>, PredictError> {
        self.answer(None, inputs, time.into()).await
    }

    /// As [`Self::predict`], for a request of a sequence, whose turn it is. The sequence ends with an error of the
    /// instance, and with any error of its first request.
    pub async fn proceed(
        &self,
        turn: Turn,
        inputs: Vec<NamedTensor>,
        time: impl Into<Time>,
    ) -> Result<Vec<NamedTensor>, PredictError> {
        self.answer(Some(turn), inputs, time.into()).await
    }

    async fn answer(
        &self,
        turn: Option<Turn>,
        inputs: Vec<NamedTensor>,
        time: Time,
    ) -> Result<Vec<NamedTensor>, PredictError> {
        let whole = Duration::from_millis(self.manifest().module.deadline_ms.into());
        let now = clock::now();
        let deadline = time.deadline(now).within(whole);
        let allowed = deadline.allowed();
        let size = inputs.iter().fold(0_usize, |size, it| size.saturating_add(it.tensor.footprint()));
        if size > self.shared.limits.tensors {
            return Err(PredictError::Limit(format!(
                "inputs of {} MiB; the package takes {} MiB",
                size.div_ceil(1 << 20),
                self.shared.limits.tensors >> 20
            )));
        }
        let _busy = self.ticker.enter();
        // What is rare is apart: what is awaited here lies in every request.
        let (_permit, began) = match self.permits.try_acquire() {
            Ok(permit) => (permit, now),
            Err(_) => (Box::pin(self.permit(deadline, allowed)).await?, clock::now()),
        };
        let run = self.pace.run(began);
        let (answer, ended) = match self.one(turn, inputs, deadline, began).await {
            Ok(answered) => answered,
            Err(error) => (Err(error), None),
        };
        let answer = answer.and_then(|outputs| declared(outputs, &self.manifest().outputs));
        // Who gave it little time has no word in this; as `serve::answer` blames it.
        let little = deadline.allowed() < deadline.whole / 2;
        if !(little && matches!(answer, Err(PredictError::Deadline(_)))) {
            self.pace.ran(run, ended, answer.as_ref().err());
        }
        answer.map_err(|error| in_all(error, allowed))
    }

    /// Makes an instance, where none is kept, asks it, and keeps it or frees it. Its answer, and when that was there,
    /// if the clock was read then.
    async fn one(
        &self,
        mut turn: Option<Turn>,
        inputs: Vec<NamedTensor>,
        deadline: Deadline,
        began: Instant,
    ) -> Result<(Answer, Option<Instant>), PredictError> {
        let kept = match &mut turn {
            Some(turn) => turn.take().and_then(|state| state.downcast().ok()).map(|instance| *instance),
            None => self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop(),
        };
        // Making one takes time.
        let (mut instance, began): (Instance, _) = match kept {
            Some(instance) => (instance, Some(began)),
            None => (Box::pin(self.instance(deadline)).await?, None),
        };
        instance.place(turn.as_ref().map(|turn| turn.part().clone()));
        let (answer, ended) = instance.call(inputs, deadline, began).await;
        let reusable = match &answer {
            Ok(_) => true,
            Err(error) => sandbox::reusable(error),
        };
        match turn {
            Some(turn) if reusable && (answer.is_ok() || !turn.part().first) => turn.keep(Box::new(instance)),
            None if reusable && self.keeps_instances() => self.put_back(instance),
            // Dropped, and the sequence with it.
            Some(_) | None => {}
        }
        Ok((answer, ended))
    }

    async fn permit(
        &self,
        deadline: Deadline,
        allowed: Duration,
    ) -> Result<SemaphorePermit<'_>, PredictError> {
        match tokio::time::timeout_at(deadline.answer.into(), self.permits.acquire()).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(closed)) => Err(PredictError::Internal(closed.to_string())),
            Err(_) => Err(PredictError::Busy(allowed)),
        }
    }

    async fn instance(&self, deadline: Deadline) -> Result<Instance, PredictError> {
        self.made.fetch_add(1, Ordering::Relaxed);
        Instance::new(&self.shared, deadline).await
    }

    /// A module that keeps something for its sequences must not find there what another caller left.
    fn keeps_instances(&self) -> bool {
        self.manifest().module.isolation == Isolation::Package && self.sequences.is_none()
    }

    fn put_back(&self, instance: Instance) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(instance);
    }
}

/// The deadline that the caller gave, waiting included.
fn in_all(error: PredictError, allowed: Duration) -> PredictError {
    match error {
        PredictError::Deadline(_) => PredictError::Deadline(allowed),
        error => error,
    }
}

/// The outputs that the manifest declares, in its order; others are dropped. Those that may be left out may
/// be missing.
fn declared(answer: Vec<NamedTensor>, specs: &[TensorSpec]) -> Result<Vec<NamedTensor>, PredictError> {
    let fits = |output: &NamedTensor, spec: &TensorSpec| {
        output.name == spec.name && output.tensor.datatype() == spec.datatype && shaped(&output.tensor, spec)
    };
    if answer.len() == specs.len() && answer.iter().zip(specs).all(|(output, spec)| fits(output, spec)) {
        return Ok(answer);
    }
    let mut answer: Vec<Option<NamedTensor>> = answer.into_iter().map(Some).collect();
    let mut outputs = Vec::with_capacity(specs.len());
    for spec in specs {
        let found = answer
            .iter_mut()
            .find(|output| output.as_ref().is_some_and(|output| output.name == spec.name))
            .and_then(Option::take);
        let found = match found {
            Some(found) => found,
            None if spec.optional => continue,
            None => {
                return Err(PredictError::Module(format!("it did not give the output `{}`", spec.name)));
            }
        };
        if !fits(&found, spec) {
            return Err(PredictError::Module(format!(
                "its output `{}` is {} {:?} instead of {} {:?}",
                spec.name,
                found.tensor.datatype(),
                found.tensor.shape(),
                spec.datatype,
                spec.shape
            )));
        }
        outputs.push(found);
    }
    Ok(outputs)
}

fn shaped(tensor: &crate::tensor::Tensor, spec: &TensorSpec) -> bool {
    let fits = |(&extent, &wanted): (&u64, &i64)| wanted < 0 || wanted.unsigned_abs() == extent;
    tensor.shape().len() == spec.shape.len() && tensor.shape().iter().zip(&spec.shape).all(fits)
}

/// Runs a future to its end on this thread, which may block: within tokio, or without.
fn block_on<T>(future: impl Future<Output = Result<T, PredictError>>) -> Result<T, PredictError> {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        return runtime.block_on(future);
    }
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| PredictError::Internal(format!("tokio could not be started: {error}")))?
        .block_on(future)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Tensor;
    use selvedge_package::tensor::Datatype;

    fn tensor(name: &str, datatype: Datatype, shape: &[u64]) -> NamedTensor {
        let bytes = shape.iter().product::<u64>() as usize * datatype.size().unwrap();
        NamedTensor::new(name, Tensor::fixed(datatype, shape, vec![0; bytes]).unwrap())
    }

    fn spec(name: &str, shape: &[i64]) -> TensorSpec {
        TensorSpec::new(name, Datatype::Fp32, shape)
    }

    fn check(answer: &[NamedTensor], specs: &[TensorSpec]) -> Result<Vec<String>, String> {
        declared(answer.to_vec(), specs)
            .map(|outputs| outputs.into_iter().map(|output| output.name).collect())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn an_answer_has_the_manifests_outputs_in_its_order() {
        let (a, b) = (tensor("a", Datatype::Fp32, &[2]), tensor("b", Datatype::Fp32, &[1, 3]));
        let specs = [spec("b", &[-1, 3]), spec("a", &[2])];
        let expected = Ok(vec!["b".to_owned(), "a".to_owned()]);
        assert_eq!(check(&[b.clone(), a.clone()], &specs), expected);
        assert_eq!(check(&[a.clone(), tensor("c", Datatype::Bool, &[]), b.clone()], &specs), expected);
        assert!(check(std::slice::from_ref(&a), &specs).unwrap_err().contains("`b`"));
        let either = [specs[0].clone(), specs[1].clone().optional()];
        assert_eq!(check(std::slice::from_ref(&b), &either), Ok(vec!["b".to_owned()]));
        assert_eq!(check(&[b.clone(), a.clone()], &either), expected);
        assert!(check(std::slice::from_ref(&a), &either).unwrap_err().contains("`b`"));
        assert!(check(&[b.clone(), tensor("a", Datatype::Fp64, &[2])], &specs).unwrap_err().contains("FP64"));
        assert!(check(&[b.clone(), tensor("a", Datatype::Fp32, &[3])], &specs).unwrap_err().contains("[3]"));
        assert!(check(&[b, tensor("a", Datatype::Fp32, &[2, 1])], &specs).is_err());
    }
}
