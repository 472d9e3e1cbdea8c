//! Element types and tensor descriptions, as the Open Inference Protocol v2 names them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An element type. The text form is the protocol's own (`FP32`, `INT64`, `BYTES`, …).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[allow(missing_docs)]
pub enum Datatype {
    Bool,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Int8,
    Int16,
    Int32,
    Int64,
    Fp16,
    Bf16,
    Fp32,
    Fp64,
    /// A string of arbitrary bytes.
    Bytes,
}

impl Datatype {
    /// Size of one element in bytes; `None` for `BYTES`, whose elements differ in size.
    pub const fn size(self) -> Option<usize> {
        Some(match self {
            Self::Bool | Self::Uint8 | Self::Int8 => 1,
            Self::Uint16 | Self::Int16 | Self::Fp16 | Self::Bf16 => 2,
            Self::Uint32 | Self::Int32 | Self::Fp32 => 4,
            Self::Uint64 | Self::Int64 | Self::Fp64 => 8,
            Self::Bytes => return None,
        })
    }

    /// The protocol's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::Uint8 => "UINT8",
            Self::Uint16 => "UINT16",
            Self::Uint32 => "UINT32",
            Self::Uint64 => "UINT64",
            Self::Int8 => "INT8",
            Self::Int16 => "INT16",
            Self::Int32 => "INT32",
            Self::Int64 => "INT64",
            Self::Fp16 => "FP16",
            Self::Bf16 => "BF16",
            Self::Fp32 => "FP32",
            Self::Fp64 => "FP64",
            Self::Bytes => "BYTES",
        }
    }
}

impl fmt::Display for Datatype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One input or output of a package as its clients see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorSpec {
    /// The tensor's name: at most 255 bytes.
    pub name: String,
    /// Element type.
    pub datatype: Datatype,
    /// Extent of each dimension; -1 where it may vary. Empty for a scalar.
    pub shape: Vec<i64>,
    /// Whether a request may come without it, or an answer.
    #[serde(default, skip_serializing_if = "is_required")]
    pub optional: bool,
}

// serde asks by reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_required(optional: &bool) -> bool {
    !optional
}

impl TensorSpec {
    /// A tensor that has to be there.
    pub fn new(name: impl Into<String>, datatype: Datatype, shape: impl Into<Vec<i64>>) -> Self {
        Self { name: name.into(), datatype, shape: shape.into(), optional: false }
    }

    /// The same, which may be left out.
    #[must_use]
    pub fn optional(self) -> Self {
        Self { optional: true, ..self }
    }
}
