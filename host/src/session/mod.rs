//! ONNX Runtime: the sessions of a package's models, one for each unless its manifest asks for more.
//!
//! A session runs one request at a time, since ort lets only one `run` use it; others wait within
//! their deadline. Runs that were short so far happen on the caller's thread, which costs nothing;
//! longer ones, and the first, move to a thread that may block, and those that have to wait to one that
//! goes from run to run (`queue`). Every run is watched: at its deadline
//! it is told to stop, and when that fails within its grace the host's fatal callback is called.

/// For the bench and the test that compare with it; nothing else outside of this crate may use it.
pub use ort;

pub mod blocking;
mod kinds;
mod lanes;
mod lent;
pub mod library;
pub mod providers;
mod queue;
pub mod raw;
mod run;
pub mod telemetry;
pub mod values;

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ort::environment::Environment;
use ort::session::builder::GraphOptimizationLevel;
use ort::session::{RunOptions, Session, SharedSessionInner};
use selvedge_package::tensor::TensorSpec;
use tokio::sync::{Mutex, MutexGuard, OwnedMutexGuard};

use self::kinds::{Direction, Outlet};
use self::lanes::Lanes;
use self::providers::{ProviderError, Providers};
use self::queue::Queue;
use self::run::Few;
use self::values::{Value, ValueError};
use crate::clock;
use crate::deadline::Deadline;
use crate::engine::ticker::Ticker;
use crate::engine::watch::{Stop, Watch};
use crate::tensor::Tensor;
use crate::threads::{compute, yielding::Way};

/// Runs that are expected to take longer leave the caller's thread.
const SHORT: Duration = Duration::from_micros(500);
/// Runs that take no more nanoseconds are waited for by looking again and again, at most so often: some
/// microseconds on any processor.
const AWAITED: u64 = 20_000;
const LOOKS: u32 = 400;
/// Inputs and outputs of a model.
const MOST_TENSORS: usize = 1000;

/// Why a model was not opened.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// ONNX Runtime refused it.
    #[error("ONNX Runtime does not open it: {0}")]
    Onnx(String),
    /// It takes or gives something that cannot be sent.
    #[error("its {direction} `{name}`: {source}")]
    Tensor {
        /// `input` or `output`.
        direction: &'static str,
        /// Its name.
        name: String,
        /// What is wrong with it.
        source: ValueError,
    },
    /// Two inputs, or two outputs, that one name stands for.
    #[error("two of its inputs, or of its outputs, would be called `{0}`; rename one in the model")]
    SameName(String),
    /// What it is to run on.
    #[error(transparent)]
    Provider(#[from] ProviderError),
    /// Too many inputs or outputs.
    #[error("it has {0} inputs and outputs; at most {MOST_TENSORS} are allowed")]
    TooMany(usize),
}

/// Why a run gave nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// The inputs or the names of outputs are not the model's.
    #[error("{0}")]
    InvalidInput(String),
    /// ONNX Runtime failed.
    #[error("{0}")]
    Model(String),
    /// The deadline passed.
    #[error("the model was stopped at the deadline")]
    Deadline,
}

/// An open model.
pub struct Model {
    inputs: Vec<TensorSpec>,
    defaults: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
    targets: &'static [&'static str],
    runner: Arc<Runner>,
    session: Arc<Mutex<Session>>,
    queue: Arc<Queue<Session>>,
    /// Its further sessions, and one more in its own place; `None`: it has this one alone.
    lanes: Option<Lanes>,
}

struct Runner {
    options: Arc<RunOptions>,
    watch: Arc<Watch>,
    memory: Arc<SharedSessionInner>,
    /// What the model takes and gives.
    taken: Vec<Outlet>,
    given: Vec<Outlet>,
    /// Nanoseconds that a run takes, a moving average; `u64::MAX` before the first.
    pace: AtomicU64,
}

/// How a model runs.
#[derive(Debug, Clone, Copy)]
pub struct How<'a> {
    /// Threads of one run.
    pub threads: u32,
    /// What its operators run on.
    pub providers: Providers<'a>,
}

impl How<'_> {
    /// One thread of the processor.
    pub const PLAIN: Self = Self { threads: 1, providers: Providers::CPU };
}

/// Where a model comes from.
#[derive(Debug, Clone, Copy)]
pub enum Source<'a> {
    /// Bytes that were verified: no external data.
    Bytes(&'a [u8]),
    /// A verified file, with external data beside it.
    File(&'a Path),
}

impl Model {
    /// Opens a model. Blocks while ONNX Runtime optimises it. `failed`
    /// is called when a run cannot be stopped.
    pub fn open(
        environment: &Environment,
        ticker: &Ticker,
        source: Source<'_>,
        how: How<'_>,
        failed: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, SessionError> {
        let session = build(environment, source, how)?;
        let count = session.inputs().len() + session.outputs().len();
        if count > MOST_TENSORS {
            return Err(SessionError::TooMany(count));
        }
        let mut taken = outlets(&session, Direction::Input, session.inputs())?;
        let given = outlets(&session, Direction::Output, session.outputs())?;
        let (inputs, outputs) = (specs(&taken)?, specs(&given)?);
        taken.extend(defaults(&session, &inputs, MOST_TENSORS - count));
        let given = given.into_iter().map(|outlet| apart(outlet, &taken)).collect();
        let defaults = taken.iter().flat_map(Outlet::specs).skip(inputs.len()).cloned().collect();
        let options =
            Arc::new(RunOptions::new().map_err(|error| SessionError::Onnx(first_line(error.message())))?);
        let watch = Arc::new(Watch::new({
            let options = options.clone();
            // Neither call can fail but for an invalid handle.
            move |stop| match stop {
                Stop::Now => drop(options.terminate()),
                Stop::Over => drop(options.unterminate()),
                Stop::Failed => failed(),
            }
        }));
        ticker.add(&watch);
        let runner = Arc::new(Runner {
            options,
            watch,
            memory: session.inner(),
            taken,
            given,
            pace: AtomicU64::new(u64::MAX),
        });
        let targets = how.providers.targets();
        let session = Arc::new(Mutex::new(session));
        let queue = Queue::new(Arc::clone(&session));
        Ok(Self { inputs, defaults, outputs, targets, runner, session, queue, lanes: None })
    }

    /// Several sessions of the same model as one, which has to be the first of them. `None`: there are none.
    pub fn together(mut all: Vec<Self>) -> Option<Self> {
        let first = all.first()?;
        if all.len() == 1 {
            return all.pop();
        }
        let (inputs, defaults, outputs) =
            (first.inputs.clone(), first.defaults.clone(), first.outputs.clone());
        let (runner, targets) = (first.runner.clone(), first.targets);
        let (session, queue) = (first.session.clone(), first.queue.clone());
        Some(Self {
            inputs,
            defaults,
            outputs,
            targets,
            runner,
            session,
            queue,
            lanes: Some(Lanes::new(all)),
        })
    }

    /// Inputs in the model's order. Those that the model declares optional may be left out.
    pub fn inputs(&self) -> &[TensorSpec] {
        &self.inputs
    }

    /// What it takes, too, and has a value of its own for: initialisers that are inputs.
    pub fn defaults(&self) -> &[TensorSpec] {
        &self.defaults
    }

    /// Outputs in the model's order.
    pub fn outputs(&self) -> &[TensorSpec] {
        &self.outputs
    }

    /// Where it runs: `cpu`, `gpu`.
    pub fn targets(&self) -> &'static [&'static str] {
        self.targets
    }

    /// Runs the model. No `outputs` asks for all of them, and none is asked for twice. Others are not kept, though ONNX Runtime computes them
    /// all the same. One that the model declares optional comes if there is one.
    pub async fn run(
        &self,
        inputs: Vec<(String, Tensor)>,
        outputs: Vec<String>,
        deadline: Deadline,
    ) -> Result<Vec<(String, Tensor)>, RunError> {
        self.check_wanted(&outputs)?;
        self.check(&inputs)?;
        let lane = match &self.lanes {
            Some(lanes) => Some(lanes.take(deadline).await?),
            None => None,
        };
        let model = lane.as_ref().map_or(self, |lane| lane.model);
        model.run_alone(inputs, outputs, deadline).await
    }

    /// In this session.
    async fn run_alone(
        &self,
        inputs: Vec<(String, Tensor)>,
        outputs: Vec<String>,
        deadline: Deadline,
    ) -> Result<Vec<(String, Tensor)>, RunError> {
        let answer = if self.runner.short() {
            let mut session = self.lock(deadline).await?;
            self.runner.run(&mut session, &inputs, &outputs, deadline)?
        } else if blocking::allowed() {
            if let Ok(mut session) = self.session.try_lock() {
                self.runner.run(&mut session, &inputs, &outputs, deadline)?
            } else {
                let (runner, wanted) = (self.runner.clone(), outputs.clone());
                self.queue.ask(deadline, move |session| runner.run(session, &inputs, &wanted, deadline))?
            }
        } else {
            let mut session = self.lock(deadline).await?;
            let (runner, wanted) = (self.runner.clone(), outputs.clone());
            compute(Way::Some, move || runner.run(&mut session, &inputs, &wanted, deadline))
                .await
                .map_err(|error| RunError::Model(format!("its thread ended: {error}")))??
        };
        Ok(select(answer, &outputs))
    }

    /// As [`Self::run`], where it has to wait for nothing and may run on this thread; `None`: it does not. Who has just
    /// read the clock and will again gives what it `began` at, and says afterwards what it took ([`Self::learn`]).
    pub fn run_at_once(
        &self,
        inputs: &[(String, Tensor)],
        outputs: &[String],
        deadline: Deadline,
        began: Option<Instant>,
    ) -> Option<Result<Vec<(String, Tensor)>, RunError>> {
        if self.lanes.is_some() || !(blocking::allowed() || self.runner.short()) {
            return None;
        }
        if let Err(error) = self.check_wanted(outputs).and_then(|()| self.check(inputs)) {
            return Some(Err(error));
        }
        let mut session = self.soon()?;
        let answer = self.runner.run_from(began, &mut session, inputs, outputs, deadline);
        Some(answer.map(|answer| select(answer, outputs)))
    }

    /// A run took so long.
    pub fn learn(&self, took: Duration) {
        self.runner.learn(took);
    }

    /// The session, if it is free or about to be: a run of a few microseconds is waited for right here, since
    /// anything else would take longer.
    fn soon(&self) -> Option<MutexGuard<'_, Session>> {
        let looks = if self.runner.pace.load(Ordering::Relaxed) <= AWAITED { LOOKS } else { 1 };
        for _ in 0..looks {
            if let Ok(session) = self.session.try_lock() {
                return Some(session);
            }
            std::hint::spin_loop();
        }
        None
    }

    /// As [`Model::run`], on this thread, blocking. For the probe.
    pub fn run_here(
        &self,
        inputs: &[(String, Tensor)],
        deadline: Deadline,
    ) -> Result<Vec<(String, Tensor)>, RunError> {
        self.check(inputs)?;
        self.runner.run(&mut self.session.blocking_lock(), inputs, &[], deadline)
    }

    async fn lock(&self, deadline: Deadline) -> Result<OwnedMutexGuard<Session>, RunError> {
        tokio::time::timeout_at(deadline.answer.into(), self.session.clone().lock_owned())
            .await
            .map_err(|_| RunError::Deadline)
    }

    /// Before anything else is done with them: there may be any number.
    fn check_wanted(&self, outputs: &[String]) -> Result<(), RunError> {
        if outputs.is_empty() {
            return Ok(());
        }
        if outputs.len() > self.outputs.len() {
            let (asked, there) = (outputs.len(), self.outputs.len());
            return Err(RunError::InvalidInput(format!(
                "{asked} outputs were asked for; the model has {there}"
            )));
        }
        let known: HashSet<&str> = self.outputs.iter().map(|spec| spec.name.as_str()).collect();
        let mut asked = HashSet::with_capacity(outputs.len());
        for name in outputs {
            if !known.contains(name.as_str()) {
                return Err(RunError::InvalidInput(unknown("output", name, &self.outputs)));
            }
            if !asked.insert(name.as_str()) {
                return Err(RunError::InvalidInput(format!(
                    "the model's output `{name}` was asked for twice"
                )));
            }
        }
        Ok(())
    }

    fn check(&self, inputs: &[(String, Tensor)]) -> Result<(), RunError> {
        for (index, (name, tensor)) in inputs.iter().enumerate() {
            let mut specs = self.inputs.iter().chain(&self.defaults);
            let Some(spec) = specs.find(|spec| spec.name == *name) else {
                return Err(RunError::InvalidInput(unknown("input", name, &self.inputs)));
            };
            if inputs[..index].iter().any(|(before, _)| before == name) {
                return Err(RunError::InvalidInput(format!("the model's input `{name}` was given twice")));
            }
            if spec.datatype != tensor.datatype() {
                return Err(RunError::InvalidInput(format!(
                    "the model's input `{name}` is {}, and {} came",
                    spec.datatype,
                    tensor.datatype()
                )));
            }
        }
        // ONNX Runtime itself would run without an input and fail somewhere inside.
        let missing =
            |spec: &&TensorSpec| !spec.optional && !inputs.iter().any(|(name, _)| *name == spec.name);
        match self.inputs.iter().find(missing) {
            Some(missing) => {
                Err(RunError::InvalidInput(format!("the model's input `{}` is missing", missing.name)))
            }
            None => Ok(()),
        }
    }
}

impl Runner {
    fn short(&self) -> bool {
        self.pace.load(Ordering::Relaxed) <= SHORT.as_nanos() as u64
    }

    fn run(
        &self,
        session: &mut Session,
        inputs: &[(String, Tensor)],
        wanted: &[String],
        deadline: Deadline,
    ) -> Result<Vec<(String, Tensor)>, RunError> {
        self.run_from(None, session, inputs, wanted, deadline)
    }

    fn run_from(
        &self,
        began: Option<Instant>,
        session: &mut Session,
        inputs: &[(String, Tensor)],
        wanted: &[String],
        deadline: Deadline,
    ) -> Result<Vec<(String, Tensor)>, RunError> {
        let mut values = Few::new();
        for outlet in &self.taken {
            let value = value(outlet, inputs).map_err(|error| {
                RunError::InvalidInput(format!("the model's input `{}`: {error}", outlet.name()))
            })?;
            values.extend(value.map(|value| (outlet, value)));
        }
        let given: Few<&Outlet> = if wanted.is_empty() {
            self.given.iter().collect()
        } else {
            let wanted: HashSet<&str> = wanted.iter().map(String::as_str).collect();
            let asked = |spec: &TensorSpec| wanted.contains(spec.name.as_str());
            self.given.iter().filter(|outlet| outlet.specs().iter().any(asked)).collect()
        };
        let start = began.unwrap_or_else(clock::now);
        if start >= deadline.answer {
            return Err(RunError::Deadline);
        }
        self.watch.arm(deadline, start);
        let answer = run::run(session, &self.options, &values, &given);
        let stopped = self.watch.disarm();
        if began.is_none() {
            self.learn(clock::now() - start);
        }
        let answer = match answer {
            // Too late, even where it came to its end.
            _ if stopped => return Err(RunError::Deadline),
            Ok(answer) => answer,
            Err(error) => return Err(refused(&error)),
        };
        let mut outputs = Vec::with_capacity(answer.len());
        for (value, outlet) in answer.into_iter().zip(given) {
            let failed =
                |why: &dyn Display| RunError::Model(format!("its output `{}`: {why}", outlet.name()));
            let Some(value) = value else {
                if outlet.is_optional() {
                    continue;
                }
                return Err(failed(&"ONNX Runtime gave none"));
            };
            if outlet.is_plain() {
                let tensor = values::from_value(value, &self.memory, session.allocator())
                    .map_err(|error| failed(&error))?;
                outputs.push((outlet.name().to_owned(), tensor));
                continue;
            }
            let tensors = outlet
                .tensors_of(value, &self.memory, session.allocator())
                .map_err(|error| failed(&error))?;
            let names = outlet.specs().iter().map(|spec| spec.name.clone());
            outputs.extend(names.zip(tensors));
        }
        Ok(outputs)
    }

    /// Moves the average by an eighth. Runs of one session do not overlap, so nothing is lost.
    fn learn(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX - 1);
        let pace = match self.pace.load(Ordering::Relaxed) {
            u64::MAX => took,
            pace => pace - pace / 8 + took / 8,
        };
        self.pace.store(pace, Ordering::Relaxed);
    }
}

fn outlets(
    session: &Session,
    direction: Direction,
    of: &[ort::value::Outlet],
) -> Result<Vec<Outlet>, SessionError> {
    of.iter()
        .enumerate()
        .map(|(index, outlet)| {
            raw::is_sparse(session, direction, index)
                .and_then(|sparse| match sparse {
                    true => Err(ValueError::Kind("a sparse tensor".to_owned())),
                    false => Outlet::new(direction, outlet.name(), outlet.dtype()),
                })
                .map_err(|source| refused_tensor(direction, outlet.name(), source))
        })
        .collect()
}

/// An output that is an input, too, comes as the very value that was lent for the run: what is kept of it is a copy.
fn apart(given: Outlet, taken: &[Outlet]) -> Outlet {
    if taken.iter().any(|outlet| outlet.name() == given.name()) { given.copied() } else { given }
}

/// The tensors that stand for all of them, each under a name of its own.
fn specs(outlets: &[Outlet]) -> Result<Vec<TensorSpec>, SessionError> {
    let mut specs: Vec<TensorSpec> = Vec::with_capacity(outlets.len());
    let mut names = HashSet::new();
    for spec in outlets.iter().flat_map(Outlet::specs) {
        if !names.insert(spec.name.as_str()) {
            return Err(SessionError::SameName(spec.name.clone()));
        }
        specs.push(spec.clone());
    }
    Ok(specs)
}

fn refused_tensor(direction: Direction, name: &str, source: ValueError) -> SessionError {
    let direction = match direction {
        Direction::Input => "input",
        Direction::Output => "output",
    };
    SessionError::Tensor { direction, name: name.to_owned(), source }
}

/// What the model has values of its own for and still takes: at most `most`, and none that cannot be sent, nor
/// under a name that stands for something else. A model may have its weights among them.
fn defaults(session: &Session, inputs: &[TensorSpec], most: usize) -> Vec<Outlet> {
    let mut names: HashSet<String> = inputs.iter().map(|spec| spec.name.clone()).collect();
    let all = session.overridable_initializers();
    let outlets = all.iter().filter_map(|one| Outlet::new(Direction::Input, one.name(), one.dtype()).ok());
    let apart = outlets.filter(|outlet| outlet.specs().iter().all(|spec| names.insert(spec.name.clone())));
    apart.take(most).map(Outlet::optional).collect()
}

/// What ONNX Runtime takes, made of the tensors that stand for it; none where it was left out.
fn value<'a>(outlet: &Outlet, inputs: &'a [(String, Tensor)]) -> Result<Option<Value<'a>>, ValueError> {
    let find = |name: &str| inputs.iter().find(|(given, _)| given == name).map(|(_, tensor)| tensor);
    let tensors: Vec<&Tensor> = match outlet.specs() {
        [spec] => match find(&spec.name) {
            Some(tensor) => return outlet.to_value(&[tensor]).map(Some),
            None => Vec::new(),
        },
        specs => specs.iter().filter_map(|spec| find(&spec.name)).collect(),
    };
    match tensors.len() {
        0 if outlet.is_optional() => Ok(None),
        some if some < outlet.specs().len() => {
            let names: Vec<_> = outlet.specs().iter().map(|spec| format!("`{}`", spec.name)).collect();
            Err(ValueError::Parts(format!("{} come together or not at all", names.join(" and "))))
        }
        _ => outlet.to_value(&tensors).map(Some),
    }
}

/// ONNX Runtime's arena stays on: without it a host with `file-type` is 4 MiB smaller, and every run
/// costs a tenth more, for pages that come from the system and go back again.
fn build(environment: &Environment, source: Source<'_>, how: How<'_>) -> Result<Session, SessionError> {
    let builder = || -> ort::Result<_> {
        let builder = Session::builder(environment)?
            .with_optimization_level(GraphOptimizationLevel::All)?
            .with_intra_threads(how.threads.max(1) as usize)?
            .with_inter_threads(1)?
            .with_intra_op_spinning(false)?;
        Ok(builder)
    };
    let onnx = |error: ort::Error| SessionError::Onnx(first_line(error.message()));
    let mut builder = how.providers.register(builder().map_err(onnx)?)?;
    match source {
        Source::Bytes(bytes) => builder.commit_from_memory(bytes),
        Source::File(path) => builder.commit_from_file(path),
    }
    .map_err(onnx)
}

fn refused(error: &ort::Error) -> RunError {
    let why = first_line(error.message());
    match error.code() {
        ort::ErrorCode::InvalidArgument => RunError::InvalidInput(why),
        _ => RunError::Model(why),
    }
}

/// ONNX Runtime's messages go on with stack traces and paths of its own build.
fn first_line(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    line.chars().take(1000).collect()
}

fn unknown(direction: &str, name: &str, specs: &[TensorSpec]) -> String {
    let known: Vec<_> = specs.iter().take(20).map(|spec| format!("`{}`", spec.name)).collect();
    let name: String = name.chars().take(80).collect();
    format!("the model has no {direction} `{name}`; it has {}", known.join(", "))
}

fn select(answer: Vec<(String, Tensor)>, wanted: &[String]) -> Vec<(String, Tensor)> {
    if wanted.is_empty() {
        return answer;
    }
    let mut answer: HashMap<String, Tensor> = answer.into_iter().collect();
    wanted.iter().filter_map(|name| answer.remove_entry(name)).collect()
}
