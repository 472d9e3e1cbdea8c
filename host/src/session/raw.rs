//! Tensors of any element type by their bytes, in ONNX Runtime's own memory.
//!
//! `values` lends ONNX Runtime what we hold; this copies, for elements that Rust has no type for and for
//! values that are put together from others: what ONNX Runtime hands on from one of those to an output
//! is then its own.
#![allow(unsafe_code)]

use ort::AsPointer as _;
use ort::memory::Allocator;
use ort::session::Session;
use ort::sys;
use ort::value::{DynTensor, DynValue, TensorElementType, ValueType};

use super::kinds::Direction;
use super::values::ValueError;
use crate::tensor::TensorError;

/// Whether an input or output of a session is a sparse tensor. ort takes those for tensors like others.
pub fn is_sparse(session: &Session, direction: Direction, index: usize) -> Result<bool, ValueError> {
    let ask = match direction {
        Direction::Input => ort::api().SessionGetInputTypeInfo,
        Direction::Output => ort::api().SessionGetOutputTypeInfo,
    };
    let (mut info, mut kind) = (std::ptr::null_mut(), sys::ONNXType::ONNX_TYPE_UNKNOWN);
    // SAFETY: the session is alive; ONNX Runtime writes the address of a description, or gives an error, also where
    // there is none of this index.
    let status = unsafe { ask(session.ptr(), index, &raw mut info) };
    // SAFETY: the status came from the call above, and is taken over here.
    unsafe { ort::Error::result_from_status(status) }?;
    // SAFETY: the description is alive, and the answer, one of the kinds, is written to a place of its type.
    let status = unsafe { (ort::api().GetOnnxTypeFromTypeInfo)(info, &raw mut kind) };
    // SAFETY: the description came from the first call, belongs to nobody else, and is not used again.
    unsafe { (ort::api().ReleaseTypeInfo)(info) };
    // SAFETY: the status came from the call above, and is taken over here.
    unsafe { ort::Error::result_from_status(status) }?;
    Ok(kind == sys::ONNXType::ONNX_TYPE_SPARSETENSOR)
}

/// Bytes that ONNX Runtime keeps for `count` elements, those smaller than a byte packed; `None` for strings.
pub fn length(element: TensorElementType, count: usize) -> Option<usize> {
    match element {
        TensorElementType::Complex64 | TensorElementType::Complex128 => None,
        _ => element.byte_size(count),
    }
}

fn address(value: &DynValue) -> Result<*mut u8, ValueError> {
    let mut data = std::ptr::null_mut();
    // SAFETY: the value is alive, and ONNX Runtime only writes an address to `data`, or gives an error.
    let status = unsafe { (ort::api().GetTensorMutableData)(value.ptr().cast_mut(), &raw mut data) };
    // SAFETY: the status came from the call above, and is taken over here.
    unsafe { ort::Error::result_from_status(status) }?;
    Ok(data.cast())
}

/// A tensor that holds a copy of `bytes`, which are as ONNX Runtime keeps them. Not for strings.
pub fn tensor(element: TensorElementType, extents: &[i64], bytes: &[u8]) -> Result<DynValue, ValueError> {
    let count = count(extents)?;
    if length(element, count) != Some(bytes.len()) {
        return Err(ValueError::Kind(format!("a tensor of {element} of {} bytes", bytes.len())));
    }
    let extents = ort::value::Shape::new(extents.iter().copied());
    let value = DynTensor::new(&Allocator::default(), element, extents)?.into_dyn();
    if !bytes.is_empty() {
        let data = address(&value)?;
        // SAFETY: ONNX Runtime has just made this tensor of so many elements, of which nobody else knows
        // yet; `length` says how many bytes those have.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), data, bytes.len()) };
    }
    Ok(value)
}

/// The bytes of a tensor, as ONNX Runtime keeps them. Not for strings.
pub fn bytes(value: &DynValue) -> Result<&[u8], ValueError> {
    let ValueType::Tensor { ty, shape, .. } = value.dtype() else {
        return Err(ValueError::Kind(format!("a {}", value.dtype())));
    };
    let length = length(*ty, count(shape)?);
    let length = length.ok_or_else(|| ValueError::Kind(format!("a tensor of {ty}")))?;
    if length == 0 {
        return Ok(&[]);
    }
    let data = address(value)?;
    if data.is_null() {
        return Err(ValueError::Kind("a tensor without data".to_owned()));
    }
    // SAFETY: the tensor has so many elements of that type, in memory of the processor, to which ONNX Runtime brings
    // outputs of any provider (`run`); it lives as long as the value, and nothing writes to it meanwhile.
    Ok(unsafe { std::slice::from_raw_parts(data, length) })
}

fn count(extents: &[i64]) -> Result<usize, ValueError> {
    extents
        .iter()
        .filter(|&&extent| extent != 0)
        .try_fold(1_usize, |count, &extent| count.checked_mul(usize::try_from(extent).ok()?))
        .filter(|&count| count.checked_mul(16).is_some())
        .map(|count| if extents.contains(&0) { 0 } else { count })
        .ok_or_else(|| {
            let extents = extents.iter().map(|extent| extent.unsigned_abs()).collect();
            ValueError::Malformed(TensorError::Overflow(extents))
        })
}
