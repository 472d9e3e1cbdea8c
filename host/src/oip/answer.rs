//! An answer to an inference request, whatever it is written in.

use super::request::{Form, Parameters};
use crate::tensor::NamedTensor;

/// An answer.
#[derive(Debug, Clone)]
pub struct InferAnswer {
    /// The package that answered.
    pub model_name: String,
    /// Its version.
    pub model_version: String,
    /// The request's.
    pub id: Option<String>,
    /// Who answered: digests of the package and of its models.
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
