//! Values of ONNX Runtime by their bare handles: tensors of ours that it reads where they lie, and what a run gave.
//!
//! ort's own values tell everything about themselves when they are made, which costs more than a run of a small model.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::{Arc, OnceLock};

use ort::AsPointer as _;
use ort::memory::{Allocator, MemoryInfo};
use ort::session::SharedSessionInner;
use ort::sys;
use ort::value::{DynValue, TensorElementType};

use super::values::{self, ValueError};
use crate::tensor::{Buffer, Foreign, MAX_RANK, Shape, Tensor, TensorError};

/// A value that is ours to release.
#[derive(Debug)]
pub struct Handle(NonNull<sys::OrtValue>);

// SAFETY: ONNX Runtime ties a value to no thread, and only reads what is shared.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the value is alive, and nobody else has this handle of it.
        unsafe { (ort::api().ReleaseValue)(self.0.as_ptr()) };
    }
}

impl Handle {
    /// Takes over a value that ONNX Runtime has just made, and nobody else knows of. `None`: it made none.
    ///
    /// # Safety
    /// `value` is null, or alive and nobody else's.
    pub unsafe fn new(value: *mut sys::OrtValue) -> Option<Self> {
        NonNull::new(value).map(Self)
    }

    /// Its address, for as long as it lives.
    pub fn ptr(&self) -> *const sys::OrtValue {
        self.0.as_ptr()
    }

    /// Whether there is something in it: not so for an optional output that is empty.
    pub fn is_filled(&self) -> ort::Result<bool> {
        let mut filled: c_int = 0;
        // SAFETY: the value is alive, and the answer is written to a place of its type.
        unsafe { checked((ort::api().HasValue)(self.ptr(), &raw mut filled)) }?;
        Ok(filled != 0)
    }

    /// The same with all that ort knows of a value. `allocator` is that of the session which gave it.
    pub fn into_value(self, allocator: &Allocator) -> DynValue {
        let value = self.0;
        std::mem::forget(self);
        // SAFETY: the value is alive and was this handle's alone, which is gone. A tensor of it lies in the session's
        // own memory, since ONNX Runtime brings outputs to the processor; whoever keeps it keeps the session, too.
        unsafe { DynValue::from_ptr(value, Some(allocator)) }
    }
}

/// A value that reads what was lent to it.
#[derive(Debug)]
pub struct Lent<'a> {
    value: Handle,
    _data: PhantomData<&'a [u8]>,
}

impl Lent<'_> {
    /// Its address, for as long as it lives.
    pub fn ptr(&self) -> *const sys::OrtValue {
        self.value.ptr()
    }
}

/// A tensor of elements of fixed size, where it lies.
pub fn lend(tensor: &Tensor) -> Result<Lent<'_>, ValueError> {
    static MEMORY: OnceLock<MemoryInfo<'static>> = OnceLock::new();
    let element = values::element(tensor.datatype());
    let Some(bytes) = tensor.as_fixed().filter(|_| element != TensorElementType::String) else {
        return Err(ValueError::Kind(format!("a tensor of {} to be lent", tensor.datatype())));
    };
    assert!(
        bytes.is_empty() || bytes.as_ptr().addr().is_multiple_of(8),
        "a buffer is aligned for its elements"
    );
    let overflow = || ValueError::Malformed(TensorError::Overflow(tensor.shape().to_vec()));
    let rank = tensor.shape().len();
    let mut extents = Extents::of(rank);
    for (extent, &of) in extents.places().iter_mut().zip(tensor.shape()) {
        *extent = i64::try_from(of).map_err(|_| overflow())?;
    }
    let memory = MEMORY.get_or_init(MemoryInfo::default);
    let mut value = ptr::null_mut();
    // SAFETY: there are as many extents as `rank`, and as many bytes as they say, aligned (checked above). ONNX Runtime
    // copies the extents and only reads the bytes, which are borrowed for as long as the value lives. Every bit pattern
    // is a value of the integers and floats here, and a tensor of BOOL cannot be made of bytes other than 0 and 1.
    unsafe {
        checked((ort::api().CreateTensorWithDataAsOrtValue)(
            memory.ptr(),
            bytes.as_ptr().cast_mut().cast(),
            bytes.len(),
            extents.places().as_ptr(),
            rank,
            element.into(),
            &raw mut value,
        ))
    }?;
    // SAFETY: it has just been made, or is null.
    let value = unsafe { Handle::new(value) };
    let value = value.ok_or_else(|| ValueError::Kind("a value that was not made".to_owned()))?;
    Ok(Lent { value, _data: PhantomData })
}

/// An output of elements of fixed size as a tensor, which keeps it. The output back: it is one of strings.
pub fn take(value: Handle, session: &Arc<SharedSessionInner>) -> Result<Result<Tensor, Handle>, ValueError> {
    let (element, mut extents) = kind(&value)?;
    let element = TensorElementType::from(element);
    if element == TensorElementType::String {
        return Ok(Err(value));
    }
    let datatype = values::datatype(element);
    let Some((datatype, size)) = datatype.and_then(|datatype| Some((datatype, datatype.size()?))) else {
        return Err(ValueError::Kind(format!("a tensor of {element}")));
    };
    let shape = extents.shape();
    let overflow = || ValueError::Malformed(TensorError::Overflow(shape.to_vec()));
    let elements = shape.elements().map_err(ValueError::Malformed)?;
    let length = elements.checked_mul(size).ok_or_else(overflow)?;
    let data = if length == 0 { NonNull::<u128>::dangling().as_ptr().cast() } else { address(&value)? };
    let output = Output { data, length, _value: value, _session: session.clone() };
    Tensor::fixed(datatype, shape, Buffer::foreign(Arc::new(output))).map(Ok).map_err(ValueError::Malformed)
}

/// Element type of a tensor, and its extents.
fn kind(value: &Handle) -> Result<(sys::ONNXTensorElementDataType, Extents), ValueError> {
    struct Info(*mut sys::OrtTensorTypeAndShapeInfo);
    impl Drop for Info {
        fn drop(&mut self) {
            // SAFETY: ONNX Runtime made it for us; null is left alone.
            unsafe { (ort::api().ReleaseTensorTypeAndShapeInfo)(self.0) };
        }
    }
    let mut info = Info(ptr::null_mut());
    // SAFETY: the value is alive and has something in it; what is no tensor is an error.
    unsafe { checked((ort::api().GetTensorTypeAndShape)(value.ptr(), &raw mut info.0)) }?;
    let (mut element, mut rank) =
        (sys::ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED, 0);
    // SAFETY: the description is alive, and the answer, one of the types, is written to a place of its type.
    unsafe { checked((ort::api().GetTensorElementType)(info.0, &raw mut element)) }?;
    // SAFETY: as above, with a number.
    unsafe { checked((ort::api().GetDimensionsCount)(info.0, &raw mut rank)) }?;
    if rank > MAX_RANK {
        return Err(ValueError::Malformed(TensorError::Rank(rank)));
    }
    let mut extents = Extents::of(rank);
    // SAFETY: as above, and there are places for as many as `rank`.
    unsafe { checked((ort::api().GetDimensions)(info.0, extents.places().as_mut_ptr(), rank)) }?;
    Ok((element, extents))
}

/// Extents as ONNX Runtime has them, on the stack where they are few.
enum Extents {
    Few(usize, [i64; 8]),
    Many(Vec<i64>),
}

impl Extents {
    /// Places for as many.
    fn of(rank: usize) -> Self {
        let few = [0; 8];
        if rank <= few.len() { Self::Few(rank, few) } else { Self::Many(vec![0; rank]) }
    }

    fn places(&mut self) -> &mut [i64] {
        match self {
            Self::Few(rank, few) => &mut few[..*rank],
            Self::Many(many) => many,
        }
    }

    fn shape(&mut self) -> Shape {
        match self {
            Self::Few(rank, few) => Shape::from(&few.map(i64::unsigned_abs)[..*rank]),
            Self::Many(many) => many.iter().map(|extent| extent.unsigned_abs()).collect::<Vec<_>>().into(),
        }
    }
}

fn address(value: &Handle) -> Result<*const u8, ValueError> {
    let mut data = ptr::null_mut();
    // SAFETY: the value is alive, and ONNX Runtime only writes an address to `data`, or gives an error.
    unsafe { checked((ort::api().GetTensorMutableData)(value.ptr().cast_mut(), &raw mut data)) }?;
    if data.is_null() {
        return Err(ValueError::Kind("a tensor without data".to_owned()));
    }
    Ok(data.cast_const().cast())
}

/// What a call of ONNX Runtime says.
///
/// # Safety
/// The status comes from that call, and is used nowhere else.
unsafe fn checked(status: sys::OrtStatusPtr) -> ort::Result<()> {
    // SAFETY: as the caller says.
    unsafe { ort::Error::result_from_status(status) }
}

/// An output of ONNX Runtime and the session that its memory came from, dropped in this order.
struct Output {
    data: *const u8,
    length: usize,
    _value: Handle,
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
        // SAFETY: the tensor has so many elements of that size, in memory of the processor, to which ONNX Runtime
        // brings outputs of any provider; it is owned by `_value` or `_session` (an output that may be an input's
        // memory is copied instead), does not move when they do, and both live as long as `self`. Elements have no
        // padding. Without elements the address is not null and aligned, which is enough.
        unsafe { std::slice::from_raw_parts(self.data, self.length) }
    }
}
