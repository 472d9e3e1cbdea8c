//! Element types of ONNX Runtime and how their elements lie in a tensor of ours.
//!
//! Those of the protocol lie as they are. FLOAT8 of every kind is UINT8 with the same bits. UINT4, UINT2 and
//! FLOAT4E2M1 are UINT8, INT4 and INT2 are INT8, one to a byte, where ONNX Runtime packs them, the first in
//! the lowest bits; FLOAT4E2M1 is its four bits. A byte that is too large for its element is refused.

use ort::value::{DynTensor, DynValue, TensorElementType, ValueType};
use selvedge_package::tensor::Datatype;

use super::malformed;
use crate::session::raw;
use crate::session::values::{self, ValueError};
use crate::tensor::{Strings, Tensor};

/// An element type that can cross.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Element {
    of: TensorElementType,
    datatype: Datatype,
    /// Bits, of those that are smaller than a byte.
    bits: Option<u32>,
}

impl Element {
    /// The element type, where it can cross.
    pub fn of(of: TensorElementType) -> Option<Self> {
        use TensorElementType as T;
        let (datatype, bits) = match of {
            T::Float8E4M3FN | T::Float8E4M3FNUZ | T::Float8E5M2 | T::Float8E5M2FNUZ | T::Float8E8M0 => {
                (Datatype::Uint8, None)
            }
            T::Uint4 | T::Float4E2M1 => (Datatype::Uint8, Some(4)),
            T::Int4 => (Datatype::Int8, Some(4)),
            T::Uint2 => (Datatype::Uint8, Some(2)),
            T::Int2 => (Datatype::Int8, Some(2)),
            _ => (values::datatype(of)?, None),
        };
        Some(Self { of, datatype, bits })
    }

    /// The type of the tensors that stand for those of it.
    pub fn datatype(self) -> Datatype {
        self.datatype
    }

    /// Whether the protocol has a name for it.
    pub fn is_named(self) -> bool {
        values::datatype(self.of).is_some()
    }

    /// Refuses a tensor of another type.
    pub fn check(self, tensor: &Tensor) -> Result<(), ValueError> {
        if tensor.datatype() == self.datatype {
            return Ok(());
        }
        Err(malformed(format!("{} instead of {}", tensor.datatype(), self.datatype)))
    }

    /// A value of ONNX Runtime's own with a copy of the tensor.
    pub fn whole(self, tensor: &Tensor) -> Result<DynValue, ValueError> {
        self.check(tensor)?;
        self.part(tensor, 0, tensor.elements(), &extents(tensor.shape())?)
    }

    /// The same of `count` elements from `start`, which are there, and make `extents`.
    pub fn part(
        self,
        tensor: &Tensor,
        start: usize,
        count: usize,
        extents: &[i64],
    ) -> Result<DynValue, ValueError> {
        if let Some(strings) = tensor.as_strings() {
            let part = (start..start + count).map(|index| strings.get(index).unwrap_or_default());
            return values::strings(extents, part);
        }
        let size = self.datatype.size().unwrap_or(1);
        let bytes = tensor.as_fixed().unwrap_or_default();
        let bytes = bytes.get(start * size..(start + count) * size).unwrap_or_default();
        match self.bits {
            None => raw::tensor(self.of, extents, bytes),
            Some(bits) => raw::tensor(self.of, extents, &self.pack(bits, bytes)?),
        }
    }

    /// The tensor that stands for one of ONNX Runtime's.
    pub fn tensor(self, value: &DynValue) -> Result<Tensor, ValueError> {
        let ValueType::Tensor { ty, shape, .. } = value.dtype() else {
            return Err(ValueError::Kind(format!("a {}", value.dtype())));
        };
        if *ty != self.of {
            return Err(ValueError::Kind(format!("a tensor of {ty}")));
        }
        let extents: Vec<u64> = shape.iter().map(|extent| extent.unsigned_abs()).collect();
        if self.datatype == Datatype::Bytes {
            let strings = Strings::from_iter(value.try_extract_strings()?.1);
            return Tensor::bytes(extents, strings).map_err(ValueError::Malformed);
        }
        let bytes = raw::bytes(value)?;
        let bytes = match self.bits {
            None => bytes.to_vec(),
            Some(bits) => self.unpack(bits, bytes, shape.num_elements()),
        };
        Tensor::fixed(self.datatype, extents, bytes).map_err(ValueError::Malformed)
    }

    fn pack(self, bits: u32, bytes: &[u8]) -> Result<Vec<u8>, ValueError> {
        let fits = |byte: u8| match self.datatype {
            Datatype::Int8 => byte.cast_signed() >> (bits - 1) == byte.cast_signed() >> 7,
            _ => byte >> bits == 0,
        };
        if let Some(at) = bytes.iter().position(|&byte| !fits(byte)) {
            let value = match self.datatype {
                Datatype::Int8 => i16::from(bytes[at].cast_signed()),
                _ => i16::from(bytes[at]),
            };
            return Err(malformed(format!("element {at}: {value} does not fit {}", self.of)));
        }
        let (each, mask) = (8 / bits as usize, (1_u8 << bits) - 1);
        let packed = bytes.chunks(each);
        Ok(packed.map(|few| few.iter().rev().fold(0, |byte, &one| byte << bits | (one & mask))).collect())
    }

    fn unpack(self, bits: u32, bytes: &[u8], count: usize) -> Vec<u8> {
        let (each, rest) = (8 / bits as usize, 8 - bits);
        let one = |index: usize| {
            let byte = bytes.get(index / each).copied().unwrap_or_default();
            let high = byte << (rest - bits * (index % each) as u32);
            match self.datatype {
                Datatype::Int8 => (high.cast_signed() >> rest).cast_unsigned(),
                _ => high >> rest,
            }
        };
        (0..count).map(one).collect()
    }
}

/// Extents as ONNX Runtime has them.
pub fn extents(shape: &[u64]) -> Result<Vec<i64>, ValueError> {
    let extents = shape.iter().map(|&extent| i64::try_from(extent));
    extents
        .collect::<Result<_, _>>()
        .map_err(|_| ValueError::Malformed(crate::tensor::TensorError::Overflow(shape.to_vec())))
}

/// As a tensor that sequences and maps are made of.
pub fn part_of(value: DynValue) -> Result<DynTensor, ValueError> {
    Ok(value.downcast()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(of: TensorElementType, bytes: &[u8], packed: &[u8]) {
        let element = Element::of(of).unwrap();
        let bits = element.bits.unwrap();
        assert_eq!(element.pack(bits, bytes).unwrap(), packed);
        assert_eq!(element.unpack(bits, packed, bytes.len()), bytes);
    }

    #[test]
    fn elements_smaller_than_a_byte_are_packed_from_the_lowest_bits() {
        check(TensorElementType::Uint4, &[1, 2, 15], &[0x21, 0x0f]);
        check(TensorElementType::Int4, &[0xff, 7, 0xf8], &[0x7f, 0x08]);
        check(TensorElementType::Float4E2M1, &[0, 9], &[0x90]);
        check(TensorElementType::Uint2, &[0, 1, 2, 3, 3], &[0b1110_0100, 3]);
        check(TensorElementType::Int2, &[0, 1, 0xfe, 0xff, 0xff], &[0b1110_0100, 3]);
        check(TensorElementType::Uint4, &[], &[]);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_its_place() {
        for (of, bytes, says) in [
            (TensorElementType::Uint4, [15, 16], "element 1: 16 does not fit u4"),
            (TensorElementType::Int4, [7, 8], "element 1: 8 does not fit i4"),
            (TensorElementType::Int4, [0xf8, 0xf7], "element 1: -9 does not fit i4"),
            (TensorElementType::Uint2, [4, 0], "element 0: 4 does not fit u2"),
            (TensorElementType::Int2, [2, 0], "element 0: 2 does not fit i2"),
            (TensorElementType::Int2, [0xfd, 0], "element 0: -3 does not fit i2"),
        ] {
            let element = Element::of(of).unwrap();
            let error = element.pack(element.bits.unwrap(), &bytes).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
