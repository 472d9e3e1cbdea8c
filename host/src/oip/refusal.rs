//! What a client did wrong, in words that name the tensor, the element and what would be right.

use selvedge_package::tensor::Datatype;

use super::lexer::JsonError;

/// A request that the protocol, or the package's manifest, does not allow.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// The body is not JSON, or not of the request's form.
    #[error("the request is refused: {0}")]
    Json(#[from] JsonError),
    /// A message of gRPC that is none, or not of the request's form.
    #[error("the message is refused: {0}")]
    Message(String),
    /// A field of one tensor.
    #[error("{what} {index}{}: {problem}", name.as_ref().map(|name| format!(" (`{name}`)")).unwrap_or_default())]
    Tensor {
        /// `input` or `output`.
        what: &'static str,
        /// Its place in the request.
        index: usize,
        /// Its name, where that is known.
        name: Option<String>,
        /// What is wrong.
        problem: String,
    },
    /// Something that the protocol knows and this server does not offer.
    #[error("{0} is not offered by this server")]
    NotOffered(String),
    /// A parameter of the request.
    #[error("parameter `{name}`: {problem}")]
    Parameter {
        /// Its name.
        name: &'static str,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// More than one of a thing that may be there once.
    #[error("{what} `{name}` comes twice")]
    Twice {
        /// `input`, `output`, `field` or `parameter`.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// A field that has to be there.
    #[error("`{0}` is missing")]
    Missing(&'static str),
    /// More than a request may have.
    #[error("more than {limit} {what}")]
    TooMany {
        /// `inputs`, `outputs`, `parameters`.
        what: &'static str,
        /// How many there may be.
        limit: usize,
    },
    /// An input that the package does not have.
    #[error("the package has no input `{name}`; it takes {known}")]
    UnknownInput {
        /// The name that came.
        name: String,
        /// What it has.
        known: String,
    },
    /// An input that did not come.
    #[error("input `{name}` is missing; the package takes {known}")]
    MissingInput {
        /// The name.
        name: String,
        /// What it has.
        known: String,
    },
    /// An input of another type.
    #[error("input `{name}` is {actual} and has to be {expected}")]
    Datatype {
        /// The input.
        name: String,
        /// What the manifest says.
        expected: Datatype,
        /// What came.
        actual: Datatype,
    },
    /// An input of another shape.
    #[error("input `{name}` has the shape {actual:?} and has to have {expected:?} (-1: any)")]
    Shape {
        /// The input.
        name: String,
        /// What the manifest says.
        expected: Vec<i64>,
        /// What came.
        actual: Vec<u64>,
    },
    /// An output that the package does not have.
    #[error("the package has no output `{name}`; it gives {known}")]
    UnknownOutput {
        /// The name that came.
        name: String,
        /// What it has.
        known: String,
    },
    /// Inputs that together are larger than the package allows.
    #[error("the inputs take {bytes} bytes together; the package allows {limit}")]
    TooLarge {
        /// What they take.
        bytes: usize,
        /// What they may take.
        limit: usize,
    },
    /// Bytes after the JSON that no input takes.
    #[error(
        "{0} bytes after the inputs' binary data belong to no input: the sum of `binary_data_size` is less"
    )]
    Left(usize),
    /// A raw request for a package that does not take one.
    #[error(
        "the package takes {0}: raw bodies are for packages with a single input, of one element of BYTES or \
         of elements of fixed size in a shape with at most one free extent"
    )]
    NotRaw(String),
    /// A raw body that is not so many elements.
    #[error("the raw body has {actual} bytes, and input `{name}` ({datatype} {shape:?}) takes {expected}")]
    RawLength {
        /// The input.
        name: String,
        /// Its type.
        datatype: Datatype,
        /// Its shape.
        shape: Vec<i64>,
        /// What it takes, in words.
        expected: String,
        /// What came.
        actual: usize,
    },
}
