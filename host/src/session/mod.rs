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
mod check;
mod kinds;
mod lanes;
mod lent;
pub mod library;
mod open;
pub mod providers;
mod queue;
pub mod raw;
mod run;
mod runner;
pub mod telemetry;
mod turn;
pub mod values;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use ort::session::Session;
use selvedge_package::tensor::TensorSpec;
use tokio::sync::Mutex;

use self::lanes::Lanes;
use self::open::MOST_TENSORS;
use self::providers::{ProviderError, Providers};
use self::queue::Queue;
use self::runner::Runner;
use self::values::ValueError;

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

/// Who takes the time of a run, from which follows what the next ones are expected to take.
#[derive(Debug)]
pub enum Timed<'a> {
    /// The run itself.
    Here,
    /// Who asks for it, read the clock a moment ago and will again: it says what the run took ([`Model::learn`]), if
    /// there was one.
    ByCaller {
        /// When the run begins.
        began: Instant,
        /// How it went; none: ONNX Runtime was not asked at all.
        ran: &'a mut Option<Ran>,
    },
}

/// How a run went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ran {
    /// To its end, or to where it was stopped.
    Through,
    /// ONNX Runtime would not, or failed on the way.
    NotThrough,
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
}

/// ONNX Runtime's messages go on with stack traces and paths of its own build.
fn first_line(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    line.chars().take(1000).collect()
}
