//! Opens models: what one takes and gives, as tensors, and the session that it runs in.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ort::environment::Environment;
use ort::session::builder::GraphOptimizationLevel;
use ort::session::{RunOptions, Session};
use selvedge_package::tensor::TensorSpec;
use tokio::sync::Mutex;

use super::kinds::{Direction, Outlet};
use super::lanes::Lanes;
use super::queue::Queue;
use super::runner::Runner;
use super::values::ValueError;
use super::{How, Model, SessionError, Source, first_line, raw};
use crate::engine::ticker::Ticker;
use crate::engine::watch::{Stop, Watch};

/// Inputs and outputs of a model.
pub const MOST_TENSORS: usize = 1000;

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
