//! Chunk indexes: the signed list by which blobs are verified piece by piece. Input: the blob's size in
//! eight bytes, then the index; or a blob, whose own index is made and changed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use selvedge_package::Digest;
use selvedge_package::chunks::{ChunkIndex, ChunkIndexer, Indexed, chunk_count, index_size};

fuzz_target!(|bytes: &[u8]| {
    let Some((size, index)) = bytes.split_at_checked(8) else {
        return;
    };
    let size = u64::from_le_bytes(size.try_into().unwrap());
    for size in [size, index.len() as u64 / 36 * 65536, size % (64 << 20)] {
        if let Ok(read) = ChunkIndex::parse(index, size) {
            assert_eq!(u64::from(read.len()), chunk_count(size));
            assert_eq!(read.chunks().map(|chunk| u64::from(chunk.length)).sum::<u64>(), size);
            assert!(read.verify(read.len(), index).is_err());
            let _ = read.verify(0, index);
        }
        let _ = ChunkIndex::without_index(Digest::of(index), size);
        let _ = index_size(size);
    }
    // However it passes by, a blob has one index.
    let mut indexer = ChunkIndexer::new();
    let (first, rest) = bytes.split_at(bytes.len() / 3);
    indexer.update(first);
    indexer.update(rest);
    let made = indexer.finish();
    assert_eq!(made, Indexed::of(bytes));
    assert_eq!((made.size, made.digest), (bytes.len() as u64, Digest::of(bytes)));
});
