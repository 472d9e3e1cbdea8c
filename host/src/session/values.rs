//! Tensors to ONNX Runtime's values and back.
//!
//! Elements of fixed size cross without a copy in both directions. BYTES become ONNX strings here and
//! only here; what cannot be one (not UTF-8, or with a NUL) is refused. What is no tensor of the protocol's
//! types crosses by the rules of `kinds`.
#![allow(unsafe_code)]

use std::sync::Arc;

use half::{bf16, f16};
use ort::session::{SessionInputValue, SharedSessionInner};
use ort::value::{DynValue, PrimitiveTensorElementType, TensorElementType, TensorRef, ValueType};
use selvedge_package::tensor::Datatype;

use crate::tensor::{Buffer, Foreign, MAX_RANK, Shape, Strings, Tensor, TensorError};

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

/// The tensor as a value that borrows its data.
pub fn to_value(tensor: &Tensor) -> Result<SessionInputValue<'_>, ValueError> {
    if tensor.shape().iter().any(|&extent| i64::try_from(extent).is_err()) {
        return Err(ValueError::Malformed(TensorError::Overflow(tensor.shape().to_vec())));
    }
    let extents = ort::value::Shape::new(tensor.shape().iter().map(|extent| extent.cast_signed()));
    if let Some(strings) = tensor.as_strings() {
        return Ok(SessionInputValue::from(self::strings(extents, strings.iter())?));
    }
    let bytes = tensor.as_fixed().unwrap_or_default();
    match tensor.datatype() {
        Datatype::Bool => value::<bool>(extents, bytes),
        Datatype::Uint8 => value::<u8>(extents, bytes),
        Datatype::Uint16 => value::<u16>(extents, bytes),
        Datatype::Uint32 => value::<u32>(extents, bytes),
        Datatype::Uint64 => value::<u64>(extents, bytes),
        Datatype::Int8 => value::<i8>(extents, bytes),
        Datatype::Int16 => value::<i16>(extents, bytes),
        Datatype::Int32 => value::<i32>(extents, bytes),
        Datatype::Int64 => value::<i64>(extents, bytes),
        Datatype::Fp16 => value::<f16>(extents, bytes),
        Datatype::Bf16 => value::<bf16>(extents, bytes),
        Datatype::Fp32 => value::<f32>(extents, bytes),
        Datatype::Fp64 => value::<f64>(extents, bytes),
        Datatype::Bytes => Err(ValueError::Kind("a tensor of BYTES without elements".to_owned())),
    }
}

fn value<'a, T: PrimitiveTensorElementType + std::fmt::Debug + Clone + 'static>(
    extents: ort::value::Shape,
    bytes: &'a [u8],
) -> Result<SessionInputValue<'a>, ValueError> {
    let elements: &'a [T] = if bytes.is_empty() {
        &[]
    } else {
        assert!(bytes.as_ptr().cast::<T>().is_aligned(), "a buffer is aligned for every element type");
        // SAFETY: the address is aligned (checked above) and the length is rounded down to whole
        // elements. Every bit pattern is a value of the integers and floats here, and a tensor of
        // BOOL cannot be made of bytes other than 0 and 1. The borrow lives as long as the bytes.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>()) }
    };
    Ok(SessionInputValue::from(TensorRef::from_array_view((extents, elements))?))
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

/// An output as a tensor, which keeps it.
pub fn from_value(value: DynValue, session: &Arc<SharedSessionInner>) -> Result<Tensor, ValueError> {
    let ValueType::Tensor { ty, shape, .. } = value.dtype() else {
        return Err(ValueError::Kind(format!("a {}", value.dtype())));
    };
    let Some(datatype) = datatype(*ty) else {
        return Err(ValueError::Kind(format!("a tensor of {ty}")));
    };
    let mut extents = [0_u64; MAX_RANK];
    let Some(extents) = extents.get_mut(..shape.len()) else {
        return Err(ValueError::Malformed(TensorError::Rank(shape.len())));
    };
    for (extent, &of) in extents.iter_mut().zip(shape.iter()) {
        *extent = of.unsigned_abs();
    }
    let extents = Shape::from(&*extents);
    match datatype {
        Datatype::Bytes => {
            let strings = Strings::from_iter(value.try_extract_strings()?.1);
            return Tensor::bytes(extents, strings).map_err(ValueError::Malformed);
        }
        Datatype::Bool => foreign::<bool>(value, session),
        Datatype::Uint8 => foreign::<u8>(value, session),
        Datatype::Uint16 => foreign::<u16>(value, session),
        Datatype::Uint32 => foreign::<u32>(value, session),
        Datatype::Uint64 => foreign::<u64>(value, session),
        Datatype::Int8 => foreign::<i8>(value, session),
        Datatype::Int16 => foreign::<i16>(value, session),
        Datatype::Int32 => foreign::<i32>(value, session),
        Datatype::Int64 => foreign::<i64>(value, session),
        Datatype::Fp16 => foreign::<f16>(value, session),
        Datatype::Bf16 => foreign::<bf16>(value, session),
        Datatype::Fp32 => foreign::<f32>(value, session),
        Datatype::Fp64 => foreign::<f64>(value, session),
    }
    .and_then(|buffer| Tensor::fixed(datatype, extents, buffer).map_err(ValueError::Malformed))
}

fn foreign<T: PrimitiveTensorElementType>(
    value: DynValue,
    session: &Arc<SharedSessionInner>,
) -> Result<Buffer, ValueError> {
    let elements = value.try_extract_tensor::<T>()?.1;
    let (data, length) = (elements.as_ptr().cast(), size_of_val(elements));
    Ok(Buffer::foreign(Arc::new(Output { data, length, _value: value, _session: session.clone() })))
}

/// An output of ONNX Runtime and the session that its memory came from, dropped in this order.
struct Output {
    data: *const u8,
    length: usize,
    _value: DynValue,
    _session: Arc<SharedSessionInner>,
}

// SAFETY: the memory belongs to `_value`, which is `Send` and `Sync` itself, or to `_session`, and nothing writes
// to an output after its run is over. Outputs that may be an input's memory never come here: they are copied
// (`Outlet::copied`).
unsafe impl Send for Output {}
// SAFETY: as above; only reads are possible through a shared reference.
unsafe impl Sync for Output {}

impl Foreign for Output {
    fn bytes(&self) -> &[u8] {
        // SAFETY: pointer and length were those of a slice that `_value` or `_session` owns (an output that may
        // be an input's memory is copied instead), which does not move when they do, and both live as long as
        // `self`. Elements have no padding.
        unsafe { std::slice::from_raw_parts(self.data, self.length) }
    }
}
