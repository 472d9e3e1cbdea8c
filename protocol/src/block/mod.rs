//! Block transfer: the device pulls numbered blocks of a blob, the registry answers without state.
//!
//! `frame` is what travels on `dn/blk`, `answer` the registry's side of a request, `bucket` how much
//! it answers, `plan` decides what the device asks for and when, `pace` how much at a time. Nothing
//! here verifies bytes: a block is a part of a chunk, and a chunk counts only once its digest does.

mod answer;
mod bitmap;
mod bucket;
mod frame;
mod pace;
mod plan;

pub use answer::{Answer, NeedError, answer};
pub use bitmap::Bitmap;
pub use bucket::{Bucket, Rate, take_of_both};
pub use frame::{Frame, FrameError, HEADER, block_frame, header, refusal_frame};
pub use pace::{FIRST_WINDOW, LARGEST_WINDOW, Pace};
pub use plan::{Event, OPEN_CHUNKS, Plan};

/// Size of a chunk, the unit of verification: every chunk but a blob's last has it.
pub const CHUNK: u32 = 65_536;

/// Largest bitmap of a request in bytes: 4096 blocks.
pub const LARGEST_BITMAP: usize = 512;

/// Bytes that a packet has beyond the raw bytes of its block, at most: our header, the longest
/// topic, and MQTT's own.
pub const PACKET_OVERHEAD: u32 = 128;

/// A block's size: 4, 8, 16, 32 or 64 KiB, so that blocks divide chunks evenly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockSize(u32);

impl BlockSize {
    /// The smallest: 4 KiB.
    pub const SMALLEST: Self = Self(4096);
    /// The largest: 64 KiB.
    pub const LARGEST: Self = Self(CHUNK);
    /// What is used where the broker's limit allows it: on a link of 1 Mbit/s control traffic waits
    /// behind one such block for 0.13 s.
    pub const PREFERRED: Self = Self(16_384);

    /// A size that a request names; `None` if it is none of the five.
    pub const fn new(bytes: u32) -> Option<Self> {
        match bytes {
            4096 | 8192 | 16_384 | 32_768 | 65_536 => Some(Self(bytes)),
            _ => None,
        }
    }

    /// In bytes.
    pub const fn bytes(self) -> u32 {
        self.0
    }

    /// The size to use under a limit of `packet` bytes for a whole MQTT packet: the preferred one or
    /// the largest smaller one that fits; `None` if not even the smallest does.
    pub fn under(packet: u32) -> Option<Self> {
        [Self::PREFERRED.0, 8192, 4096].into_iter().find(|bytes| bytes + PACKET_OVERHEAD <= packet).map(Self)
    }
}

/// How a blob is cut into blocks and chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    size: u64,
    block: BlockSize,
    blocks: u32,
}

/// A part of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Number of the block or chunk.
    pub number: u32,
    /// Where it begins, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u32,
}

impl Layout {
    /// Of a blob of `size` bytes; `None` if it has more blocks than can be numbered.
    pub fn new(size: u64, block: BlockSize) -> Option<Self> {
        let blocks = u32::try_from(size.div_ceil(block.0.into())).ok()?;
        Some(Self { size, block, blocks })
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Number of chunks.
    pub fn chunks(&self) -> u32 {
        self.blocks.div_ceil(self.per_chunk())
    }

    /// Blocks in every chunk but the last.
    pub fn per_chunk(&self) -> u32 {
        CHUNK / self.block.0
    }

    /// Block size.
    pub fn block_size(&self) -> BlockSize {
        self.block
    }

    /// Size of the blob in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Where block `number` lies; `None` beyond the end.
    pub fn block(&self, number: u32) -> Option<Span> {
        self.span(number, self.block.0)
    }

    /// Where chunk `number` lies; `None` beyond the end.
    pub fn chunk(&self, number: u32) -> Option<Span> {
        self.span(number, CHUNK)
    }

    /// The numbers of the blocks of a chunk.
    pub fn blocks_of(&self, chunk: u32) -> std::ops::Range<u32> {
        let first = chunk.saturating_mul(self.per_chunk()).min(self.blocks);
        first..first.saturating_add(self.per_chunk()).min(self.blocks)
    }

    fn span(&self, number: u32, unit: u32) -> Option<Span> {
        let offset = u64::from(number) * u64::from(unit);
        let left = self.size.checked_sub(offset).filter(|&left| left > 0)?;
        let length = u32::try_from(left).unwrap_or(u32::MAX).min(unit);
        Some(Span { number, offset, length })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_chunks_cover_a_blob_exactly() {
        for size in [0, 1, 4095, 4096, 4097, 65_535, 65_536, 65_537, 1_000_000] {
            for block in [4096, 8192, 16_384, 32_768, 65_536] {
                let layout = Layout::new(size, BlockSize::new(block).unwrap()).unwrap();
                let mut end = 0;
                for chunk in 0..layout.chunks() {
                    let span = layout.chunk(chunk).unwrap();
                    assert_eq!(span.offset, end);
                    for number in layout.blocks_of(chunk) {
                        let block = layout.block(number).unwrap();
                        assert_eq!(block.offset, end);
                        end += u64::from(block.length);
                    }
                    assert_eq!(end, span.offset + u64::from(span.length));
                }
                assert_eq!(end, size);
                assert_eq!(layout.block(layout.blocks()), None);
                assert_eq!(layout.chunk(layout.chunks()), None);
                assert!(layout.blocks_of(u32::MAX).is_empty());
            }
        }
    }

    #[test]
    fn block_sizes_shrink_to_the_brokers_limit() {
        let under = |limit| BlockSize::under(limit).map(BlockSize::bytes);
        assert_eq!(under(u32::MAX), Some(16_384));
        assert_eq!(under(16_384 + 128), Some(16_384));
        assert_eq!(under(16_384), Some(8192));
        assert_eq!(under(5000), Some(4096));
        assert_eq!(under(4096), None);
        assert_eq!(Layout::new(u64::MAX, BlockSize::LARGEST), None);
    }
}
