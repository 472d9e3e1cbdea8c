//! Tensors as the host holds them: what requests bring, modules see as handles and models take.
//!
//! Elements of fixed size lie in one shared, 16-byte aligned buffer (little-endian, row-major), so
//! that cloning a tensor, handing it to a module and to ONNX Runtime copies nothing; writing to a
//! shared one copies it first. BYTES elements lie in one buffer of their own with offsets. A tensor
//! whose data does not have the length that its shape says cannot be made.

mod buffer;
mod shape;
mod strings;

use bytes::Bytes;
use selvedge_package::tensor::Datatype;

pub use self::buffer::{ALIGN, Buffer, Foreign};
pub use self::shape::{MAX_RANK, Shape};
pub use self::strings::Strings;

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

    /// A part of the bytes of elements of fixed size that shares their memory.
    pub fn view(&self, offset: u64, length: u64) -> Result<Bytes, TensorError> {
        let Data::Fixed(buffer) = &self.data else {
            return Err(TensorError::Kind { datatype: self.datatype, wanted: "elements of fixed size" });
        };
        Ok(buffer.view(range(offset, length, buffer.len())?))
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
        assert!(check(&[0, 1 << 40], 0) && check(&[1 << 20, 0, 1 << 20], 0));
        assert!(!check(&[0, u64::MAX, u64::MAX], 0) && !check(&[0, i64::MAX as u64], 0));
        assert!(!check(&[i64::MAX as u64, 0, 3], 0) && !check(&[0, 1 << 32, 1 << 32], 0));
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
    fn bytes_have_as_many_elements_as_the_shape() {
        assert!(Tensor::bytes([3], Strings::from_iter(["a", "", "b"])).is_ok());
        assert!(Tensor::bytes([2], Strings::from_iter(["a", "", "b"])).is_err());
    }
}
