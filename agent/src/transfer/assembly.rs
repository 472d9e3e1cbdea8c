//! Blocks on their way to becoming chunks, in memory.
//!
//! At most [`OPEN_CHUNKS`] chunks are held at a time (1.5 MiB); the plan asks for no others. The memory of
//! one that is done with serves the next.

use std::collections::BTreeMap;

use selvedge_protocol::block::{Layout, OPEN_CHUNKS, Span};

#[derive(Debug, Default)]
pub(super) struct Assembly {
    open: BTreeMap<u32, Vec<u8>>,
    spare: Vec<Vec<u8>>,
}

/// Chunks whose memory is kept: as many as come while others are being kept.
const SPARE: usize = 4;

impl Assembly {
    /// Puts a block into its chunk. `false` if there is no room for that chunk.
    pub fn put(&mut self, layout: &Layout, block: Span, bytes: &[u8]) -> bool {
        debug_assert_eq!(bytes.len(), block.length as usize, "checked by the caller");
        let number = block.number / layout.per_chunk();
        let Some(chunk) = layout.chunk(number) else { return false };
        if !self.open.contains_key(&number) && self.open.len() >= OPEN_CHUNKS {
            return false;
        }
        let buffer = self.open.entry(number).or_insert_with(|| {
            let mut buffer = self.spare.pop().unwrap_or_default();
            buffer.resize(chunk.length as usize, 0);
            buffer
        });
        let start = (block.offset - chunk.offset) as usize;
        buffer[start..start + bytes.len()].copy_from_slice(bytes);
        true
    }

    /// The bytes of a chunk, of which all blocks were put.
    pub fn take(&mut self, chunk: u32) -> Option<Vec<u8>> {
        self.open.remove(&chunk)
    }

    /// Takes the memory of a chunk that is done with. Every byte of it is written anew before it is taken
    /// again, since a chunk is taken when all its blocks are there.
    pub fn give_back(&mut self, bytes: Vec<u8>) {
        if self.spare.len() < SPARE {
            self.spare.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_protocol::block::BlockSize;

    #[test]
    fn blocks_become_a_chunk_and_memory_is_bounded() {
        let layout = Layout::new(10_000_000, BlockSize::LARGEST).unwrap();
        let small = Layout::new(70_000, BlockSize::new(32_768).unwrap()).unwrap();
        let mut assembly = Assembly::default();
        let bytes: Vec<u8> = (0..70_000u32).map(|n| n as u8).collect();
        for number in [2, 1, 0] {
            let block = small.block(number).unwrap();
            let start = block.offset as usize;
            assert!(assembly.put(&small, block, &bytes[start..start + block.length as usize]));
        }
        assert_eq!(assembly.take(1).unwrap(), bytes[65_536..]);
        let chunk = assembly.take(0).unwrap();
        assert_eq!(chunk, bytes[..65_536]);
        assembly.give_back(chunk);
        let last = small.block(2).unwrap();
        assert!(assembly.put(&small, last, &[7; 70_000 - 65_536]));
        assert_eq!(assembly.take(1).unwrap(), [7; 70_000 - 65_536], "no longer than it is");
        assert_eq!(assembly.take(0), None);
        let taken = (0..100)
            .filter(|&number| assembly.put(&layout, layout.block(number).unwrap(), &[0; 65_536]))
            .count();
        assert_eq!(taken, OPEN_CHUNKS);
    }
}
