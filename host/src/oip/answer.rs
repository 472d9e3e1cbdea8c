//! An answer to an inference request, whatever it is written in.

use std::sync::Arc;

use super::request::{Form, Parameters};
use crate::tensor::NamedTensor;

/// Who answers: what all answers of a package say.
#[derive(Debug, Default)]
pub struct Answerer {
    /// The package.
    pub name: String,
    /// Its version as clients write it.
    pub version: String,
    /// Digests of the package and of its models.
    pub provenance: Parameters,
    /// All of that as it stands in JSON: what comes before a request's id, and what comes after it.
    pub(super) json: [Vec<u8>; 2],
}

/// An answer.
#[derive(Debug, Clone)]
pub struct InferAnswer {
    /// The package that answered.
    pub by: Arc<Answerer>,
    /// The request's.
    pub id: Option<String>,
    /// What this answer says beside what all of them do; nothing in JSON.
    pub parameters: Parameters,
    /// In the order of the request, or of the manifest.
    pub outputs: Vec<AnsweredOutput>,
}

/// An output of an answer.
#[derive(Debug, Clone)]
pub struct AnsweredOutput {
    /// Name and elements.
    pub tensor: NamedTensor,
    /// How it was asked for.
    pub form: Form,
}
