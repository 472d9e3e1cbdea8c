//! Which chunks of a blob are here.

/// A set of chunk numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bitmap {
    pub(super) bits: Vec<u8>,
    len: u32,
}

impl Bitmap {
    /// A bitmap of `len` chunks, none in it.
    pub fn new(len: u32) -> Self {
        Self { bits: vec![0; (len as usize).div_ceil(8)], len }
    }

    pub(super) fn from_bits(bits: &[u8], len: u32) -> Self {
        let mut bitmap = Self::new(len);
        if bits.len() == bitmap.bits.len() {
            bitmap.bits.copy_from_slice(bits);
        }
        bitmap
    }

    /// Whether chunk `n` is in it.
    pub fn has(&self, n: u32) -> bool {
        n < self.len && self.bits[n as usize / 8] & (1 << (n % 8)) != 0
    }

    pub(super) fn set(&mut self, n: u32) {
        self.bits[n as usize / 8] |= 1 << (n % 8);
    }

    pub(super) fn clear(&mut self, n: u32) {
        self.bits[n as usize / 8] &= !(1 << (n % 8));
    }

    /// How many chunks there are.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there are none at all, as in an empty blob.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether every chunk is in it.
    pub fn is_full(&self) -> bool {
        (0..self.len).all(|n| self.has(n))
    }
}
