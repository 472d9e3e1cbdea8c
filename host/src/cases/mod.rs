//! Acceptance cases: golden inputs, and the outputs that a package has promised for them.
//!
//! `read` takes a case file, `run` asks the package and `compare` says what differs: which output,
//! which element, what was expected and what came. `record` writes a case from a run. The file's
//! form is in `docs/package.md`.

use selvedge_package::manifest::Tolerance;

use crate::tensor::NamedTensor;

pub mod compare;
pub mod read;
pub mod record;
pub mod run;

pub use run::run_all;

/// One acceptance case.
#[derive(Debug, Clone)]
pub struct Case {
    /// Its own name.
    pub name: String,
    /// What is sent.
    pub inputs: Vec<NamedTensor>,
    /// What has to come; outputs that are not here are not compared.
    pub outputs: Vec<NamedTensor>,
    /// Instead of the manifest's.
    pub tolerance: Option<Tolerance>,
}

/// A case that cannot be read, or that could never pass or fail.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("the acceptance case `{file}` is refused: {why}")]
pub struct CaseError {
    /// The case's file in the package.
    pub file: String,
    /// What is wrong with it.
    pub why: String,
}
