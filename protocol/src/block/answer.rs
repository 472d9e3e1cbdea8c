//! The registry's side: which blocks a request asks for. No state between requests.

use crate::message::Need;

use super::{BlockSize, LARGEST_BITMAP, LARGEST_WINDOW, Layout, Span};

/// A request that is not answered, since it does not fit the blob or the protocol's limits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NeedError {
    /// A block size that is none of the five.
    #[error("{0} is not a block size")]
    BlockSize(u32),
    /// The bitmap is larger than [`LARGEST_BITMAP`].
    #[error("a bitmap of {0} bytes is larger than {LARGEST_BITMAP}")]
    Bitmap(usize),
    /// It asks for blocks beyond the blob's end.
    #[error("block {number} is beyond the blob's {blocks} blocks")]
    Beyond {
        /// The block.
        number: u64,
        /// How many the blob has.
        blocks: u32,
    },
    /// The blob has more blocks than can be numbered.
    #[error("a blob of {0} bytes has more blocks than can be numbered")]
    Blob(u64),
}

/// The blocks of one answer, lowest first.
#[derive(Debug, Clone)]
pub struct Answer<'a> {
    layout: Layout,
    first: u32,
    missing: &'a [u8],
    next: u32,
    left: u32,
}

/// The blocks to send for `need` of a blob of `size` bytes: at most what it counts, and never more
/// than the largest window, whatever it counts.
pub fn answer(need: &Need, size: u64) -> Result<Answer<'_>, NeedError> {
    let block = BlockSize::new(need.block).ok_or(NeedError::BlockSize(need.block))?;
    let layout = Layout::new(size, block).ok_or(NeedError::Blob(size))?;
    if need.missing.len() > LARGEST_BITMAP {
        return Err(NeedError::Bitmap(need.missing.len()));
    }
    let last = need.missing.iter().rposition(|&byte| byte != 0).map(|index| {
        let highest = 7 - need.missing[index].leading_zeros() as u64;
        u64::from(need.first) + index as u64 * 8 + highest
    });
    if let Some(number) = last.filter(|&number| number >= u64::from(layout.blocks())) {
        return Err(NeedError::Beyond { number, blocks: layout.blocks() });
    }
    Ok(Answer {
        layout,
        first: need.first,
        missing: &need.missing,
        next: 0,
        left: need.count.min(LARGEST_WINDOW / block.bytes()),
    })
}

impl Iterator for Answer<'_> {
    type Item = Span;

    fn next(&mut self) -> Option<Span> {
        while self.left > 0 {
            let bit = self.next;
            let byte = *self.missing.get(bit as usize / 8)?;
            self.next += 1;
            if byte & (1 << (bit % 8)) != 0 {
                self.left -= 1;
                return self.layout.block(self.first.checked_add(bit)?);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_package::Digest;

    fn need(block: u32, first: u32, missing: &[u8], count: u32) -> Need {
        Need { transfer: 1, digest: Digest::of(b""), block, first, missing: missing.to_vec(), count }
    }

    fn numbers(need: &Need, size: u64) -> Vec<(u32, u64, u32)> {
        let spans = answer(need, size).unwrap();
        spans.map(|span| (span.number, span.offset, span.length)).collect()
    }

    #[test]
    fn answers_the_bits_that_are_set_up_to_the_count() {
        let asked = need(4096, 2, &[0b101, 1], 10);
        let offsets = [(2, 8192, 4096), (4, 16_384, 4096), (10, 40_960, 5)];
        assert_eq!(numbers(&asked, 40_965), offsets);
        assert_eq!(numbers(&need(4096, 2, &[0b101, 1], 2), 40_965), offsets[..2]);
        assert_eq!(numbers(&need(4096, 0, &[], 5), 40_965), []);
        assert_eq!(numbers(&need(4096, u32::MAX, &[0, 0], 5), 0), []);
    }

    #[test]
    fn never_sends_more_than_a_window() {
        let all = need(65_536, 0, &[0xff; 512], u32::MAX);
        assert_eq!(answer(&all, 4096 * 65_536).unwrap().count(), 16);
    }

    #[test]
    fn refuses_what_does_not_fit() {
        let refused = |need: &Need, size| answer(need, size).unwrap_err();
        assert_eq!(refused(&need(1000, 0, &[1], 1), 10), NeedError::BlockSize(1000));
        assert_eq!(refused(&need(4096, 0, &[0; 513], 1), 10), NeedError::Bitmap(513));
        let beyond = NeedError::Beyond { number: 1, blocks: 1 };
        assert_eq!(refused(&need(4096, 0, &[2], 1), 10), beyond);
        assert!(answer(&need(4096, u32::MAX, &[0xff; 512], 1), u64::from(u32::MAX)).is_err());
        assert_eq!(refused(&need(4096, 0, &[1], 1), u64::MAX), NeedError::Blob(u64::MAX));
    }
}
