//! Elements of BYTES: any bytes, of any length, packed.

use std::sync::Arc;

use bytes::Bytes;

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

    /// A part of one element that shares its memory: `length` bytes from `offset`, cut at the element's end.
    /// `None` where there is no such element, or it ends before `offset`.
    pub fn view(&self, index: usize, offset: usize, length: usize) -> Option<Bytes> {
        let element = self.get(index)?;
        let length = length.min(element.len().checked_sub(offset)?);
        let end = self.0.ends[index];
        let start = end - element.len() + offset;
        Some(Bytes::from_owner(Whole(Arc::clone(&self.0))).slice(start..start + length))
    }

    /// All, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|index| self.get(index).unwrap_or_default())
    }
}

/// What a view keeps alive.
struct Whole(Arc<Packed>);

impl AsRef<[u8]> for Whole {
    fn as_ref(&self) -> &[u8] {
        &self.0.bytes
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
    fn strings_keep_their_order_and_their_empties() {
        let strings = Strings::from_iter(["a", "", "bcd"]);
        assert_eq!(strings.iter().collect::<Vec<_>>(), [&b"a"[..], b"", b"bcd"]);
        assert_eq!((strings.len(), strings.byte_length()), (3, 4));
        assert_eq!(strings.get(3), None);
        let view = |index, offset, length| strings.view(index, offset, length).map(|view| view.to_vec());
        assert_eq!(view(2, 1, 9), Some(b"cd".to_vec()));
        assert_eq!(view(2, 0, 2), Some(b"bc".to_vec()));
        assert_eq!(view(1, 0, 2), Some(Vec::new()));
        assert_eq!(view(0, 1, 2), Some(Vec::new()));
        assert_eq!((view(0, 2, 0), view(3, 0, 0)), (None, None));
        assert_eq!(Strings::packed(vec![1, 1, 4], b"abcd".to_vec()).unwrap().get(2), Some(&b"bcd"[..]));
        for bad in [&[][..], &[3], &[5], &[3, 2, 4]] {
            assert!(Strings::packed(bad.to_vec(), b"abcd".to_vec()).is_none(), "{bad:?}");
        }
    }
}
