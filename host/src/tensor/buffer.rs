//! Bytes of elements of fixed size: shared, aligned, copied when they are written to.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

/// Shared bytes, aligned for elements of any type and for vector instructions.
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
    /// The bytes, the same on every call.
    fn bytes(&self) -> &[u8];
}

/// Where the bytes of a tensor begin: a multiple of this. What elements need is 8. But ONNX Runtime's sums take what lies before the first multiple of 16 bytes by itself, and
/// come out otherwise in their last bits: the same numbers would have another answer in JSON than as bytes after a head
/// of some length. Memory from the allocator has it anyway.
pub const ALIGN: usize = 16;

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

    /// A part of the bytes that shares their memory.
    ///
    /// # Panics
    /// Where the range is not within them.
    pub fn view(&self, range: Range<usize>) -> Bytes {
        match &self.0 {
            Storage::Body(body) => body.slice(range),
            Storage::Plain(_) | Storage::Foreign(_) => Bytes::from_owner(self.clone()).slice(range),
        }
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

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unaligned_data_is_copied_and_the_rest_is_not() {
        let body = Bytes::from(vec![7; 64]);
        let start = body.as_ptr().align_offset(ALIGN);
        let same = Buffer::from(body.slice(start..start + 8));
        assert_eq!(same.as_ptr(), body[start..].as_ptr());
        let moved = Buffer::from(body.slice(start + 1..start + 9));
        assert!(aligned(&moved) && moved[..] == [7; 8]);
        assert_eq!(moved.view(2..4).as_ptr(), moved[2..].as_ptr());
        assert_eq!(same.view(2..4).as_ptr(), same[2..].as_ptr());
        for length in 0..32 {
            assert!(aligned(&Buffer::from(&vec![1; length][..])));
        }
    }
}
