//! Tensors as bytes after the JSON of a request or an answer (the binary tensor data extension).
//!
//! Elements are little-endian, in row-major order; BOOL takes a byte, an element of BYTES its length
//! as a 32-bit number in front of it. Elements of fixed size stay where the body has them: what is not
//! aligned there is copied once.

use bytes::{Buf, Bytes};
use selvedge_package::tensor::Datatype;

use super::elements;
use super::refusal::Refusal;
use crate::tensor::{Strings, Tensor};

/// Bytes of the length in front of an element of BYTES.
const LENGTH: usize = size_of::<u32>();

/// What follows the JSON of a request and no tensor has taken yet.
#[derive(Debug)]
pub struct Following(Bytes);

impl Following {
    /// All that follows.
    pub fn new(bytes: Bytes) -> Self {
        Self(bytes)
    }

    /// The next `size` bytes, as a tensor of `shape` that may hold at most `limit` bytes.
    pub fn take(
        &mut self,
        datatype: Datatype,
        shape: &[u64],
        size: u64,
        limit: usize,
    ) -> Result<Tensor, String> {
        let left = self.0.len();
        match usize::try_from(size) {
            Ok(size) if size <= left => read(datatype, shape, self.0.split_to(size), limit),
            _ => Err(format!("`binary_data_size` is {size}, and {left} bytes are left in the body")),
        }
    }

    /// Bytes that no tensor has taken.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Nothing may be left.
    pub fn end(self) -> Result<(), Refusal> {
        match self.0.len() {
            0 => Ok(()),
            left => Err(Refusal::Left(left)),
        }
    }
}

/// A tensor of `shape` from exactly `bytes`, which may hold at most `limit` bytes.
pub fn read(datatype: Datatype, shape: &[u64], bytes: Bytes, limit: usize) -> Result<Tensor, String> {
    let count = elements::count(shape, datatype, limit)?;
    let Some(size) = datatype.size() else {
        let strings = strings(bytes, count, limit)?;
        return Tensor::bytes(shape, strings).map_err(|error| error.to_string());
    };
    // Within `limit`, as was counted.
    let expected = count * size;
    if expected != bytes.len() {
        let came = bytes.len();
        return Err(format!("shape {shape:?} of {datatype} takes {expected} bytes, and {came} came"));
    }
    Tensor::fixed(datatype, shape, bytes).map_err(|error| error.to_string())
}

fn strings(mut bytes: Bytes, count: usize, limit: usize) -> Result<Strings, String> {
    let came = bytes.len();
    let Some(text) = count.checked_mul(LENGTH).and_then(|lengths| came.checked_sub(lengths)) else {
        return Err(format!("{count} elements of BYTES take {LENGTH} bytes each at least, and {came} came"));
    };
    if text.saturating_add(count.saturating_mul(size_of::<usize>())) > limit {
        return Err(format!("larger than the package's limit of {limit} bytes"));
    }
    let (mut ends, mut packed) = (Vec::with_capacity(count), Vec::with_capacity(text));
    for index in 0..count {
        let length = bytes.try_get_u32_le().map(|length| length as usize);
        let Some(length) = length.ok().filter(|length| *length <= bytes.len()) else {
            return Err(format!(
                "element {index}: its length, or what it says, goes past the tensor's end (every element of \
                 BYTES has its length in front of it, 32 bits, little-endian)"
            ));
        };
        packed.extend_from_slice(&bytes[..length]);
        bytes.advance(length);
        ends.push(packed.len());
    }
    if !bytes.is_empty() {
        return Err(format!("{} bytes are left after its {count} elements", bytes.len()));
    }
    // The ends grow and the last one is the length, as every element appended to `packed`.
    Strings::packed(ends, packed).ok_or_else(|| "the elements are no BYTES tensor".to_owned())
}

/// Bytes that a tensor takes when it is written.
pub fn length(tensor: &Tensor) -> usize {
    tensor.byte_length() + tensor.as_strings().map_or(0, |strings| strings.len() * LENGTH)
}

/// Appends elements of BYTES, each behind its length. An element whose length has no 32 bits cannot be.
pub fn write(strings: &Strings, bytes: &mut Vec<u8>) -> Result<(), TooLong> {
    bytes.reserve(strings.byte_length() + strings.len() * LENGTH);
    for (index, element) in strings.iter().enumerate() {
        let length = u32::try_from(element.len()).map_err(|_| TooLong(index))?;
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(element);
    }
    Ok(())
}

/// An element of BYTES that has no binary form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("element {0} has more bytes than a binary answer can tell (4 GiB): ask for it in JSON")]
pub struct TooLong(pub usize);

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 1000;

    fn take(datatype: Datatype, shape: &[u64], bytes: &'static [u8]) -> Result<Tensor, String> {
        read(datatype, shape, Bytes::from_static(bytes), LIMIT)
    }

    #[test]
    fn elements_of_fixed_size_are_taken_as_they_are() {
        let tensor = take(Datatype::Fp32, &[2], &[0, 0, 0x80, 0x7f, 1, 2, 3, 4]).unwrap();
        assert_eq!(tensor.as_fixed(), Some(&[0, 0, 0x80, 0x7f, 1, 2, 3, 4][..]));
        assert!(take(Datatype::Fp64, &[], &[7; 8]).is_ok());
        assert!(take(Datatype::Int8, &[0, 5], &[]).is_ok());
        assert!(take(Datatype::Bool, &[2], &[0, 1]).is_ok());
        let check = |datatype, shape: &[u64], bytes, says: &str| {
            let error = take(datatype, shape, bytes).unwrap_err();
            assert!(error.contains(says), "{error}");
        };
        check(Datatype::Fp32, &[2], &[0; 7], "[2] of FP32 takes 8 bytes, and 7 came");
        check(Datatype::Fp32, &[0], &[0; 4], "takes 0 bytes, and 4 came");
        check(Datatype::Bool, &[2], &[1, 2], "byte 2 at element 1 is no BOOL");
        check(Datatype::Fp32, &[251], &[0; 1], "larger than the package's limit of 1000 bytes");
        check(Datatype::Fp32, &[u64::MAX, u64::MAX], &[], "larger than the package's limit");
        check(Datatype::Fp32, &[1; 65], &[0; 4], "65 dimensions");
    }

    #[test]
    fn an_aligned_body_is_not_copied() {
        let body = Bytes::from(vec![7; 64]);
        let start = body.as_ptr().align_offset(crate::tensor::ALIGN);
        let tensor = read(Datatype::Int64, &[2], body.slice(start..start + 16), LIMIT).unwrap();
        assert_eq!(tensor.as_fixed().unwrap().as_ptr(), body[start..].as_ptr());
    }

    #[test]
    fn elements_of_bytes_have_their_length_in_front() {
        let text = b"\x01\0\0\0a\0\0\0\0\x02\0\0\0\xff\0";
        let tensor = take(Datatype::Bytes, &[3], text).unwrap();
        let strings = tensor.as_strings().unwrap();
        assert_eq!(strings.iter().collect::<Vec<_>>(), [&b"a"[..], b"", b"\xff\0"]);
        let mut written = Vec::new();
        write(strings, &mut written).unwrap();
        assert_eq!((&written[..], length(&tensor)), (&text[..], text.len()));
        assert!(take(Datatype::Bytes, &[0], b"").is_ok());
        let check = |shape: &[u64], bytes, says: &str| {
            let error = take(Datatype::Bytes, shape, bytes).unwrap_err();
            assert!(error.contains(says), "{error}");
        };
        check(&[1], b"", "1 elements of BYTES take 4 bytes each at least, and 0 came");
        check(&[1], b"\0\0\0", "and 3 came");
        check(&[1], b"\x02\0\0\0a", "element 0: its length, or what it says, goes past");
        check(&[1], b"\xff\xff\xff\xffa", "element 0");
        check(&[2], b"\x03\0\0\0abc\0", "element 1");
        check(&[1], b"\x01\0\0\0ab", "1 bytes are left after its 1 elements");
        check(&[0], b"a", "1 bytes are left after its 0 elements");
        check(&[126], b"", "larger than the package's limit");
    }

    #[test]
    fn tensors_follow_each_other_to_the_end() {
        let mut following = Following::new(Bytes::from_static(b"abcde"));
        let mut take = |size| following.take(Datatype::Uint8, &[size], size, LIMIT);
        assert_eq!(take(2).unwrap().as_fixed(), Some(&b"ab"[..]));
        assert!(take(0).is_ok());
        assert_eq!(take(4).unwrap_err(), "`binary_data_size` is 4, and 3 bytes are left in the body");
        assert!(take(u64::MAX).is_err());
        assert_eq!(take(2).unwrap().as_fixed(), Some(&b"cd"[..]));
        assert_eq!(following.end(), Err(Refusal::Left(1)));
    }

    proptest::proptest! {
        #[test]
        fn bytes_from_anywhere_never_panic(bytes: Vec<u8>, count in 0_u64..6) {
            let bytes = Bytes::from(bytes);
            if let Ok(tensor) = read(Datatype::Bytes, &[count], bytes.clone(), LIMIT) {
                let mut written = Vec::new();
                write(tensor.as_strings().unwrap(), &mut written).unwrap();
                proptest::prop_assert_eq!(written, bytes);
            }
        }
    }
}
