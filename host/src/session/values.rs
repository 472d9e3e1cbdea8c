//! Tensors to ONNX Runtime's values and back.
//!
//! Elements of fixed size cross without a copy in both directions (`lent`). BYTES become ONNX strings here and
//! only here; what cannot be one (not UTF-8, or with a NUL) is refused. What is no tensor of the protocol's
//! types crosses by the rules of `kinds`.
use std::sync::Arc;

use ort::AsPointer as _;
use ort::memory::Allocator;
use ort::session::SharedSessionInner;
use ort::value::{DynValue, TensorElementType};
use selvedge_package::tensor::Datatype;

use super::lent::{self, Handle, Lent};
use crate::tensor::{Strings, Tensor, TensorError};

/// Why a value did not cross.
#[derive(Debug, thiserror::Error)]
pub enum ValueError {
    /// An element of BYTES that ONNX Runtime cannot take.
    #[error("element {index} is no ONNX string: {why}")]
    NotText {
        /// Its place, row-major.
        index: usize,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A value of the model that is no tensor, or of elements that have no name in the protocol.
    #[error("it is {0}, which is not supported")]
    Kind(String),
    /// Tensors that stand for no value, or the other way round.
    #[error("{0}")]
    Parts(String),
    /// ONNX Runtime gave something that is no tensor of ours.
    #[error("it is malformed")]
    Malformed(#[source] TensorError),
    /// ONNX Runtime refused.
    #[error(transparent)]
    Onnx(#[from] ort::Error),
}

/// The element type's name in the protocol, where it has one.
pub fn datatype(element: TensorElementType) -> Option<Datatype> {
    Some(match element {
        TensorElementType::Bool => Datatype::Bool,
        TensorElementType::Uint8 => Datatype::Uint8,
        TensorElementType::Uint16 => Datatype::Uint16,
        TensorElementType::Uint32 => Datatype::Uint32,
        TensorElementType::Uint64 => Datatype::Uint64,
        TensorElementType::Int8 => Datatype::Int8,
        TensorElementType::Int16 => Datatype::Int16,
        TensorElementType::Int32 => Datatype::Int32,
        TensorElementType::Int64 => Datatype::Int64,
        TensorElementType::Float16 => Datatype::Fp16,
        TensorElementType::Bfloat16 => Datatype::Bf16,
        TensorElementType::Float32 => Datatype::Fp32,
        TensorElementType::Float64 => Datatype::Fp64,
        TensorElementType::String => Datatype::Bytes,
        _ => return None,
    })
}

/// The element type of that name.
pub fn element(datatype: Datatype) -> TensorElementType {
    match datatype {
        Datatype::Bool => TensorElementType::Bool,
        Datatype::Uint8 => TensorElementType::Uint8,
        Datatype::Uint16 => TensorElementType::Uint16,
        Datatype::Uint32 => TensorElementType::Uint32,
        Datatype::Uint64 => TensorElementType::Uint64,
        Datatype::Int8 => TensorElementType::Int8,
        Datatype::Int16 => TensorElementType::Int16,
        Datatype::Int32 => TensorElementType::Int32,
        Datatype::Int64 => TensorElementType::Int64,
        Datatype::Fp16 => TensorElementType::Float16,
        Datatype::Bf16 => TensorElementType::Bfloat16,
        Datatype::Fp32 => TensorElementType::Float32,
        Datatype::Fp64 => TensorElementType::Float64,
        Datatype::Bytes => TensorElementType::String,
    }
}

/// What ONNX Runtime takes.
pub enum Value<'a> {
    /// A tensor of ours, where it lies.
    Lent(Lent<'a>),
    /// A value of its own.
    Made(DynValue),
}

impl Value<'_> {
    /// Its address, for as long as it lives.
    pub fn ptr(&self) -> *const ort::sys::OrtValue {
        match self {
            Self::Lent(value) => value.ptr(),
            Self::Made(value) => value.ptr(),
        }
    }
}

/// The tensor as a value, which borrows its data.
pub fn to_value(tensor: &Tensor) -> Result<Value<'_>, ValueError> {
    let Some(strings) = tensor.as_strings() else { return lent::lend(tensor).map(Value::Lent) };
    let extents = tensor.shape().iter().map(|&extent| i64::try_from(extent));
    let extents: Vec<i64> = extents
        .collect::<Result<_, _>>()
        .map_err(|_| ValueError::Malformed(TensorError::Overflow(tensor.shape().to_vec())))?;
    self::strings(&extents[..], strings.iter()).map(Value::Made)
}

/// ONNX strings of a shape.
pub fn strings<'a>(
    extents: impl Into<ort::value::Shape>,
    elements: impl Iterator<Item = &'a [u8]>,
) -> Result<DynValue, ValueError> {
    let elements = elements
        .enumerate()
        .map(|(index, element)| match std::str::from_utf8(element) {
            Ok(text) if !text.contains('\0') => Ok(text.to_owned()),
            Ok(_) => Err(ValueError::NotText { index, why: "it has a NUL" }),
            Err(_) => Err(ValueError::NotText { index, why: "it is not UTF-8" }),
        })
        .collect::<Result<Vec<_>, _>>()?;
    Ok(ort::value::Tensor::from_string_array((extents.into(), &elements[..]))?.into_dyn())
}

/// An output as a tensor: one of fixed size keeps it, strings are copied.
pub fn from_value(
    value: Handle,
    session: &Arc<SharedSessionInner>,
    allocator: &Allocator,
) -> Result<Tensor, ValueError> {
    let value = match lent::take(value, session)? {
        Ok(tensor) => return Ok(tensor),
        Err(strings) => strings.into_value(allocator),
    };
    let (extents, strings) = value.try_extract_strings()?;
    let extents: Vec<u64> = extents.iter().map(|extent| extent.unsigned_abs()).collect();
    Tensor::bytes(extents, Strings::from_iter(strings)).map_err(ValueError::Malformed)
}
