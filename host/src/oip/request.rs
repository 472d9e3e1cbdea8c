//! An inference request, whatever it was written in.

use std::collections::BTreeMap;

use super::elements::Encoding;
use crate::tensor::NamedTensor;

/// What a request may cost before the package's manifest is looked at.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of one tensor, and of all inputs together; stops shapes and bodies that eat memory.
    pub tensor_bytes: usize,
    /// Inputs, and requested outputs; stops lists whose check would take quadratic time.
    pub tensors: usize,
    /// Bytes of a tensor's or parameter's name, and of the id; stops errors as large as requests.
    pub name_bytes: usize,
    /// Parameters of the request and of each tensor.
    pub parameters: usize,
}

impl Limits {
    /// The limits of a package whose tensors may take `tensor_mib` MiB.
    pub fn for_package(tensor_mib: u32) -> Self {
        let tensor_bytes = usize::try_from(u64::from(tensor_mib) << 20).unwrap_or(usize::MAX);
        Self { tensor_bytes, tensors: 256, name_bytes: 1024, parameters: 64 }
    }
}

/// A request for inference.
#[derive(Debug, Clone, Default)]
pub struct InferRequest {
    /// Echoed in the answer.
    pub id: Option<String>,
    /// What the client says beside its tensors.
    pub parameters: Parameters,
    /// In the order of the request.
    pub inputs: Vec<NamedTensor>,
    /// Outputs that the client wants; empty: all.
    pub outputs: Vec<RequestedOutput>,
    /// How they are written where it names none.
    pub form: Form,
}

/// How an output is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// In JSON, its BYTES elements so.
    Json(Encoding),
    /// As bytes after the JSON.
    Binary,
}

impl Default for Form {
    fn default() -> Self {
        Self::Json(Encoding::Text)
    }
}

/// An output that a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestedOutput {
    /// Its name.
    pub name: String,
    /// How it shall be written.
    pub form: Form,
}

/// Parameters by name.
pub type Parameters = BTreeMap<String, Parameter>;

/// A parameter's value: the protocol has no others.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[serde(untagged)]
pub enum Parameter {
    /// `true` or `false`.
    Boolean(bool),
    /// A whole number.
    Integer(i64),
    /// A whole number above those.
    Unsigned(u64),
    /// Another number.
    Number(f64),
    /// Text.
    Text(String),
}

/// Parameters of the protocol's extensions that change what a request means. Ignoring one would
/// give a wrong answer, so they are refused by name until they are offered.
pub const NOT_OFFERED: [(&str, &str); 4] = [
    ("shared_memory_region", "shared memory"),
    ("shared_memory_byte_size", "shared memory"),
    ("shared_memory_offset", "shared memory"),
    ("classification", "the classification extension"),
];
