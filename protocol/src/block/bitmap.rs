//! A bitmap as requests and journals hold it: lowest bit of the first byte first.

/// Bits by number; those never set are clear, so it may be shorter than what it describes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bitmap(Vec<u8>);

impl Bitmap {
    /// From stored bytes.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Whether bit `number` is set.
    pub fn has(&self, number: u32) -> bool {
        self.0.get(number as usize / 8).is_some_and(|byte| byte & (1 << (number % 8)) != 0)
    }

    /// Sets bit `number`, growing as needed.
    pub fn set(&mut self, number: u32) {
        let index = number as usize / 8;
        if self.0.len() <= index {
            self.0.resize(index + 1, 0);
        }
        self.0[index] |= 1 << (number % 8);
    }

    /// Clears bit `number`.
    pub fn clear(&mut self, number: u32) {
        if let Some(byte) = self.0.get_mut(number as usize / 8) {
            *byte &= !(1 << (number % 8));
        }
    }

    /// How many bits are set.
    pub fn count(&self) -> u32 {
        self.0.iter().map(|byte| byte.count_ones()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_what_was_set() {
        let mut bitmap = Bitmap::default();
        for number in [0, 7, 8, 100] {
            assert!(!bitmap.has(number));
            bitmap.set(number);
            assert!(bitmap.has(number));
        }
        assert_eq!(bitmap.count(), 4);
        assert_eq!(bitmap.as_bytes()[..2], [0b1000_0001, 1]);
        bitmap.clear(7);
        bitmap.clear(70_000);
        assert_eq!(bitmap.count(), 3);
        assert!(!bitmap.has(u32::MAX));
    }
}
