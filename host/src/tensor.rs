//! Tensors as the host holds them: what requests bring, modules see as handles and models take.
//!
//! Elements of fixed size lie in one shared, 8-byte aligned buffer (little-endian, row-major), so
//! that cloning a tensor, handing it to a module and to ONNX Runtime copies nothing; writing to a
//! shared one copies it first. BYTES elements lie in one buffer of their own with offsets. A tensor
//! whose data does not have the length that its shape says cannot be made.

use std::sync::Arc;

use bytes::Bytes;
use selvedge_package::tensor::Datatype;

/// Most dimensions that a tensor may have.
pub const MAX_RANK: usize = 64;

/// A tensor: element type, extents (empty for a scalar) and data.
#[derive(Debug, Clone)]
pub struct Tensor {
    datatype: Datatype,
    shape: Shape,
    data: Data,
}

/// A tensor under its name.
#[derive(Debug, Clone)]
pub struct NamedTensor {
    /// The name that the package's manifest or the model gives it.
    pub name: String,
    /// The tensor.
    pub tensor: Tensor,
}

impl NamedTensor {
    /// Puts a name to a tensor.
    pub fn new(name: impl Into<String>, tensor: Tensor) -> Self {
        Self { name: name.into(), tensor }
    }
}

/// Elements of a tensor.
#[derive(Debug, Clone)]
pub enum Data {
    /// Elements of fixed size.
    Fixed(Buffer),
    /// Elements of BYTES.
    Bytes(Strings),
}

/// Why data is no tensor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// Too many dimensions.
    #[error("{0} dimensions: at most {MAX_RANK} are allowed")]
    Rank(usize),
    /// The product of the extents does not fit.
    #[error("shape {0:?} has more elements than can be addressed")]
    Overflow(Vec<u64>),
    /// Data too long or too short.
    #[error("shape {shape:?} of {datatype} takes {expected} {unit}, and {actual} came")]
    Length {
        /// Extents.
        shape: Vec<u64>,
        /// Element type.
        datatype: Datatype,
        /// What the shape asks for.
        expected: usize,
        /// What came.
        actual: usize,
        /// `bytes` or `elements`.
        unit: &'static str,
    },
    /// A BOOL byte that is neither 0 nor 1.
    #[error("byte {value} at element {index} is no BOOL: 0 and 1 are")]
    NotBool {
        /// Its place.
        index: usize,
        /// Its value.
        value: u8,
    },
    /// Elements of fixed size wanted where BYTES are, or the other way round.
    #[error("a tensor of {datatype} does not have {wanted}")]
    Kind {
        /// What it is.
        datatype: Datatype,
        /// What was wanted.
        wanted: &'static str,
    },
    /// A range outside of the data.
    #[error("{length} bytes from {offset} are outside of {size} bytes")]
    Range {
        /// First byte.
        offset: u64,
        /// How many.
        length: u64,
        /// How many there are.
        size: u64,
    },
}

impl Tensor {
    /// A tensor of elements of fixed size. `data` is little-endian and row-major; a BOOL is one
    /// byte of 0 or 1. Takes the buffer over without a copy where it is aligned.
    pub fn fixed(
        datatype: Datatype,
        shape: impl Into<Shape>,
        data: impl Into<Buffer>,
    ) -> Result<Self, TensorError> {
        let (shape, data) = (shape.into(), data.into());
        let Some(size) = datatype.size() else {
            return Err(TensorError::Kind { datatype, wanted: "elements of fixed size" });
        };
        let expected =
            shape.elements()?.checked_mul(size).ok_or_else(|| TensorError::Overflow(shape.to_vec()))?;
        if expected != data.len() {
            return Err(TensorError::Length {
                shape: shape.to_vec(),
                datatype,
                expected,
                actual: data.len(),
                unit: "bytes",
            });
        }
        if datatype == Datatype::Bool {
            check_bools(&data, 0)?;
        }
        Ok(Self { datatype, shape, data: Data::Fixed(data) })
    }

    /// A BYTES tensor.
    pub fn bytes(shape: impl Into<Shape>, elements: Strings) -> Result<Self, TensorError> {
        let shape = shape.into();
        let expected = shape.elements()?;
        if expected != elements.len() {
            return Err(TensorError::Length {
                shape: shape.to_vec(),
                datatype: Datatype::Bytes,
                expected,
                actual: elements.len(),
                unit: "elements",
            });
        }
        Ok(Self { datatype: Datatype::Bytes, shape, data: Data::Bytes(elements) })
    }

    /// A BYTES tensor of shape `[1]`.
    pub fn single(element: impl AsRef<[u8]>) -> Self {
        Self {
            datatype: Datatype::Bytes,
            shape: Shape::from([1]),
            data: Data::Bytes(Strings::from_iter([element])),
        }
    }

    /// Element type.
    pub fn datatype(&self) -> Datatype {
        self.datatype
    }

    /// Extents; empty for a scalar.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        match (&self.data, self.datatype.size()) {
            (Data::Fixed(buffer), Some(size)) => buffer.len() / size,
            (Data::Fixed(_), None) => 0,
            (Data::Bytes(strings), _) => strings.len(),
        }
    }

    /// The data, whatever its kind.
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// Bytes of elements of fixed size; `None` for BYTES.
    pub fn as_fixed(&self) -> Option<&[u8]> {
        match &self.data {
            Data::Fixed(buffer) => Some(buffer),
            Data::Bytes(_) => None,
        }
    }

    /// The elements of a BYTES tensor; `None` for others.
    pub fn as_strings(&self) -> Option<&Strings> {
        match &self.data {
            Data::Bytes(strings) => Some(strings),
            Data::Fixed(_) => None,
        }
    }

    /// Length of the elements together, in bytes.
    pub fn byte_length(&self) -> usize {
        match &self.data {
            Data::Fixed(buffer) => buffer.len(),
            Data::Bytes(strings) => strings.byte_length(),
        }
    }

    /// What the tensor costs in memory, offsets of BYTES included.
    pub fn footprint(&self) -> usize {
        match &self.data {
            Data::Fixed(buffer) => buffer.len(),
            Data::Bytes(strings) => strings.byte_length() + strings.len() * size_of::<usize>(),
        }
    }

    /// Overwrites elements of fixed size from byte `offset`; copies shared data first.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), TensorError> {
        let datatype = self.datatype;
        let Data::Fixed(buffer) = &mut self.data else {
            return Err(TensorError::Kind { datatype, wanted: "elements of fixed size" });
        };
        let range = range(offset, bytes.len() as u64, buffer.len())?;
        if datatype == Datatype::Bool {
            check_bools(bytes, range.start)?;
        }
        buffer.to_mut()[range].copy_from_slice(bytes);
        Ok(())
    }
}

/// The range of `length` bytes from `offset` within `size` bytes.
pub fn range(offset: u64, length: u64, size: usize) -> Result<std::ops::Range<usize>, TensorError> {
    match offset.checked_add(length) {
        // Both ends are at most `size`, which is a `usize`.
        Some(end) if end <= size as u64 => Ok(offset as usize..end as usize),
        _ => Err(TensorError::Range { offset, length, size: size as u64 }),
    }
}

fn check_bools(bytes: &[u8], start: usize) -> Result<(), TensorError> {
    match bytes.iter().position(|&byte| byte > 1) {
        Some(at) => Err(TensorError::NotBool { index: start + at, value: bytes[at] }),
        None => Ok(()),
    }
}

/// Extents, inline up to rank 4.
#[derive(Clone, PartialEq, Eq)]
pub struct Shape(Extents);

#[derive(Clone, PartialEq, Eq)]
enum Extents {
    Few(u8, [u64; 4]),
    Many(Box<[u64]>),
}

impl Shape {
    fn elements(&self) -> Result<usize, TensorError> {
        if self.len() > MAX_RANK {
            return Err(TensorError::Rank(self.len()));
        }
        // A zero extent makes the product zero whatever the others are, so they may not overflow
        // on the way there.
        if self.contains(&0) {
            return Ok(0);
        }
        self.iter()
            .try_fold(1_usize, |product, &extent| product.checked_mul(usize::try_from(extent).ok()?))
            .filter(|&product| isize::try_from(product).is_ok())
            .ok_or_else(|| TensorError::Overflow(self.to_vec()))
    }
}

impl std::ops::Deref for Shape {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        match &self.0 {
            Extents::Few(rank, extents) => &extents[..usize::from(*rank)],
            Extents::Many(extents) => extents,
        }
    }
}

impl std::fmt::Debug for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

impl From<&[u64]> for Shape {
    fn from(extents: &[u64]) -> Self {
        if extents.len() <= 4 {
            let mut few = [0; 4];
            few[..extents.len()].copy_from_slice(extents);
            Self(Extents::Few(extents.len() as u8, few))
        } else {
            Self(Extents::Many(extents.into()))
        }
    }
}

impl From<Vec<u64>> for Shape {
    fn from(extents: Vec<u64>) -> Self {
        Self::from(&extents[..])
    }
}

impl<const N: usize> From<[u64; N]> for Shape {
    fn from(extents: [u64; N]) -> Self {
        Self::from(&extents[..])
    }
}

/// Shared bytes, aligned for elements of up to 8 bytes.
#[derive(Clone)]
pub struct Buffer(Storage);

#[derive(Clone)]
enum Storage {
    Plain(Arc<Vec<u8>>),
    Body(Bytes),
    Foreign(Arc<dyn Foreign>),
}

/// Memory that something else owns: an output of ONNX Runtime.
pub trait Foreign: Send + Sync {
    /// The bytes, aligned for elements of up to 8 bytes, the same on every call.
    fn bytes(&self) -> &[u8];
}

const ALIGN: usize = 8;

fn aligned(bytes: &[u8]) -> bool {
    bytes.as_ptr().addr().is_multiple_of(ALIGN)
}

/// A copy at an aligned address.
fn align(bytes: &[u8]) -> Storage {
    // The allocator aligns anything of this size; `with_capacity` may not for the tiny ones, where
    // a few bytes are skipped instead.
    let mut copy = Vec::with_capacity(bytes.len().max(16));
    copy.extend_from_slice(bytes);
    if aligned(&copy) {
        return Storage::Plain(Arc::new(copy));
    }
    let mut copy = vec![0; bytes.len() + ALIGN];
    let skip = copy.as_ptr().align_offset(ALIGN);
    copy[skip..skip + bytes.len()].copy_from_slice(bytes);
    Storage::Body(Bytes::from(copy).slice(skip..skip + bytes.len()))
}

impl Buffer {
    /// Wraps memory that something else owns.
    pub fn foreign(memory: Arc<dyn Foreign>) -> Self {
        if aligned(memory.bytes()) { Self(Storage::Foreign(memory)) } else { Self(align(memory.bytes())) }
    }

    /// The bytes for writing; a shared buffer is copied first.
    pub fn to_mut(&mut self) -> &mut [u8] {
        // Weak references are never made, so a count of one is exclusive.
        let own = matches!(&self.0, Storage::Plain(plain) if Arc::strong_count(plain) == 1);
        if !own {
            let mut copy = Vec::with_capacity(self.len().max(16));
            copy.extend_from_slice(self);
            self.0 = Storage::Plain(Arc::new(copy));
        }
        match &mut self.0 {
            Storage::Plain(plain) => Arc::make_mut(plain).as_mut_slice(),
            Storage::Body(_) | Storage::Foreign(_) => unreachable!("made plain above"),
        }
    }
}

impl std::ops::Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Storage::Plain(plain) => plain,
            Storage::Body(body) => body,
            Storage::Foreign(memory) => memory.bytes(),
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        if aligned(&bytes) { Self(Storage::Plain(Arc::new(bytes))) } else { Self(align(&bytes)) }
    }
}

impl From<Bytes> for Buffer {
    fn from(bytes: Bytes) -> Self {
        if aligned(&bytes) { Self(Storage::Body(bytes)) } else { Self(align(&bytes)) }
    }
}

impl From<&[u8]> for Buffer {
    fn from(bytes: &[u8]) -> Self {
        Self(align(bytes))
    }
}

macro_rules! from_elements {
    ($($element:ty),*) => {$(
        impl From<&[$element]> for Buffer {
            /// Little-endian, as the protocol and ONNX Runtime have them.
            fn from(elements: &[$element]) -> Self {
                elements.iter().flat_map(|element| element.to_le_bytes()).collect::<Vec<u8>>().into()
            }
        }
    )*};
}
from_elements!(u16, u32, u64, i8, i16, i32, i64, f32, f64);

/// The elements of a BYTES tensor, in one shared buffer.
#[derive(Clone, Default)]
pub struct Strings(Arc<Packed>);

#[derive(Default)]
struct Packed {
    /// End of each element in `bytes`.
    ends: Vec<usize>,
    bytes: Vec<u8>,
}

impl Strings {
    /// From the end of each element and all bytes; `None` where the ends do not grow up to the last.
    pub fn packed(ends: Vec<usize>, bytes: Vec<u8>) -> Option<Self> {
        let fits = ends.is_sorted() && ends.last().copied().unwrap_or(0) == bytes.len();
        fits.then(|| Self(Arc::new(Packed { ends, bytes })))
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.0.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.ends.is_empty()
    }

    /// Length of all together, in bytes.
    pub fn byte_length(&self) -> usize {
        self.0.bytes.len()
    }

    /// One element.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.0.ends.get(index)?;
        let start = if index == 0 { 0 } else { self.0.ends[index - 1] };
        Some(&self.0.bytes[start..end])
    }

    /// All, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|index| self.get(index).unwrap_or_default())
    }
}

impl<T: AsRef<[u8]>> FromIterator<T> for Strings {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        let mut packed = Packed::default();
        for element in elements {
            packed.bytes.extend_from_slice(element.as_ref());
            packed.ends.push(packed.bytes.len());
        }
        Self(Arc::new(packed))
    }
}

impl std::fmt::Debug for Strings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} elements of {} bytes", self.len(), self.byte_length())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_must_have_the_length_of_the_shape() {
        let check =
            |shape: &[u64], bytes: usize| Tensor::fixed(Datatype::Fp32, shape, vec![0; bytes]).is_ok();
        assert!(check(&[], 4));
        assert!(check(&[2, 3], 24));
        assert!(check(&[1, 2, 3, 1, 1, 1], 24));
        assert!(check(&[0, u64::MAX, u64::MAX], 0));
        assert!(!check(&[2, 3], 23));
        assert!(!check(&[2, 3], 25));
        assert!(!check(&[u64::MAX, u64::MAX], 0));
        assert!(!check(&[1 << 62, 4], 0));
        assert!(!check(&[1; MAX_RANK + 1], 4));
    }

    #[test]
    fn a_bool_is_zero_or_one() {
        assert!(Tensor::fixed(Datatype::Bool, [2], vec![0, 1]).is_ok());
        assert_eq!(
            Tensor::fixed(Datatype::Bool, [2], vec![0, 2]).map(|_| ()),
            Err(TensorError::NotBool { index: 1, value: 2 })
        );
        let mut tensor = Tensor::fixed(Datatype::Bool, [2], vec![0, 1]).unwrap();
        assert!(tensor.write(1, &[7]).is_err());
    }

    #[test]
    fn unaligned_data_is_copied_and_the_rest_is_not() {
        let body = Bytes::from(vec![7; 64]);
        let start = body.as_ptr().align_offset(ALIGN);
        let same = Buffer::from(body.slice(start..start + 8));
        assert_eq!(same.as_ptr(), body[start..].as_ptr());
        let moved = Buffer::from(body.slice(start + 1..start + 9));
        assert!(aligned(&moved) && moved[..] == [7; 8]);
        for length in 0..32 {
            assert!(aligned(&Buffer::from(&vec![1; length][..])));
        }
    }

    #[test]
    fn writing_to_a_shared_tensor_leaves_the_other_as_it_was() {
        let first = Tensor::fixed(Datatype::Uint8, [4], vec![1, 2, 3, 4]).unwrap();
        let mut second = first.clone();
        second.write(1, &[9, 9]).unwrap();
        assert_eq!(first.as_fixed(), Some(&[1, 2, 3, 4][..]));
        assert_eq!(second.as_fixed(), Some(&[1, 9, 9, 4][..]));
        assert!(second.write(3, &[0, 0]).is_err());
        assert!(second.write(u64::MAX, &[0, 0]).is_err());
    }

    #[test]
    fn strings_keep_their_order_and_their_empties() {
        let strings = Strings::from_iter(["a", "", "bcd"]);
        assert_eq!(strings.iter().collect::<Vec<_>>(), [&b"a"[..], b"", b"bcd"]);
        assert_eq!((strings.len(), strings.byte_length()), (3, 4));
        assert_eq!(strings.get(3), None);
        assert!(Tensor::bytes([2], strings).is_err());
        assert_eq!(Strings::packed(vec![1, 1, 4], b"abcd".to_vec()).unwrap().get(2), Some(&b"bcd"[..]));
        for bad in [&[][..], &[3], &[5], &[3, 2, 4]] {
            assert!(Strings::packed(bad.to_vec(), b"abcd".to_vec()).is_none(), "{bad:?}");
        }
    }
}
