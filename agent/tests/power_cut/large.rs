//! A blob that is large enough for its chunks to be kept, made durable and read back beside whoever receives
//! them.

use std::path::Path;
use std::sync::Arc;

use selvedge_agent::store::{Partial, Put, Store, StoreError};
use selvedge_package::Digest;
use selvedge_package::chunks::{ChunkIndex, Indexed};

use super::disk::{CutDisk, Loss, Moment};
use super::{CHUNK, ROOT};

/// More than are read back by one thread, and the last one short.
const CHUNKS: usize = 70;

struct Large {
    bytes: Vec<u8>,
    digest: Digest,
    index: ChunkIndex,
}

fn large() -> Large {
    let bytes: Vec<u8> = (0..(CHUNKS - 1) * CHUNK + 777).map(|n| (n * 31 + n / 977) as u8).collect();
    let indexed = Indexed::of(&bytes);
    let index = ChunkIndex::parse(&indexed.indexes[0].1, indexed.size).unwrap();
    Large { digest: indexed.digest, index, bytes }
}

impl Large {
    fn chunk(&self, n: u32) -> &[u8] {
        let from = n as usize * CHUNK;
        &self.bytes[from..(from + CHUNK).min(self.bytes.len())]
    }

    fn begin(&self, disk: &CutDisk) -> Result<(Store, Partial), StoreError> {
        let store = Store::open(Arc::new(disk.clone()), Path::new(ROOT))?;
        let mut partial = store.partial(self.digest, self.index.clone())?;
        partial.keep_beside(|| ());
        Ok((store, partial))
    }

    /// Gives it every chunk that it lacks, with checkpoints beside in between.
    fn fill(&self, partial: &mut Partial) -> Result<(), StoreError> {
        for n in (0..self.index.len()).filter(|n| !partial.have(*n)).collect::<Vec<_>>() {
            partial.take(n, self.chunk(n).to_vec())?;
            if n % 20 == 19 {
                partial.settled()?;
                partial.checkpoint_beside()?;
            }
        }
        partial.checkpoint()?;
        assert!(partial.settled()?.iter().all(|settled| settled.put == Put::Kept));
        assert!(partial.is_whole());
        Ok(())
    }

    fn fill_but_last(&self, partial: &mut Partial) -> Result<(), StoreError> {
        (0..self.index.len() - 1).try_for_each(|n| partial.take(n, self.chunk(n).to_vec()).map(drop))
    }

    fn install(&self, disk: &CutDisk) -> Result<(), StoreError> {
        let (store, mut partial) = self.begin(disk)?;
        self.fill(&mut partial)?;
        partial.finish()?;
        store.check_blob(&self.digest)
    }
}

#[test]
fn a_cut_costs_no_more_than_the_last_chunks_and_never_makes_a_bitmap_lie() {
    let large = large();
    let mut points = 0;
    for (moment, loss) in [(Moment::Middle, Loss::Some(7)), (Moment::After, Loss::Everything)] {
        for operation in (0..).step_by(3) {
            let disk = CutDisk::new();
            disk.cut_at(operation, moment);
            let result = large.install(&disk);
            if !disk.is_dead() {
                result.unwrap();
                break;
            }
            points += 1;
            let what = format!("operation {operation}, {moment:?}");
            let disk = disk.restart(loss);
            let (store, mut partial) = large.begin(&disk).unwrap_or_else(|error| panic!("{what}: {error}"));
            if store.has(&large.digest).unwrap() {
                store.check_blob(&large.digest).unwrap_or_else(|error| panic!("{what}: {error}"));
                continue;
            }
            large.fill(&mut partial).unwrap_or_else(|error| panic!("{what}: {error}"));
            // A chunk that the bitmap names and the file does not have would be found here.
            partial.finish().unwrap_or_else(|error| panic!("{what}: {error}"));
            store.check_blob(&large.digest).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
    }
    assert!(points > 50, "only {points} cut points");
}

#[test]
fn a_byte_that_changes_on_disk_is_found_wherever_it_lies_and_only_its_chunk_comes_again() {
    let large = large();
    for offset in [0, large.bytes.len() / 2, large.bytes.len() - 1] {
        let disk = CutDisk::new();
        let (store, mut partial) = large.begin(&disk).unwrap();
        large.fill(&mut partial).unwrap();
        disk.flip(&Path::new(ROOT).join("partial").join(large.digest.hex()), offset);
        assert!(matches!(partial.finish(), Err(StoreError::Damaged { .. })), "byte {offset}");
        assert!(!store.has(&large.digest).unwrap());
        let mut partial = store.partial(large.digest, large.index.clone()).unwrap();
        let missing: Vec<u32> = (0..large.index.len()).filter(|n| !partial.have(*n)).collect();
        assert_eq!(missing, [(offset / CHUNK) as u32]);
        large.fill(&mut partial).unwrap();
        partial.finish().unwrap();
        store.check_blob(&large.digest).unwrap();
    }
}

#[test]
fn a_file_of_another_length_than_it_had_is_made_right() {
    let large = large();
    let half = large.index.len() / 2;
    for change in [-1_i64, -70_000, 1, 70_000, 5_000_000] {
        let disk = CutDisk::new();
        let (store, mut partial) = large.begin(&disk).unwrap();
        for n in 0..half {
            partial.take(n, large.chunk(n).to_vec()).unwrap();
        }
        partial.checkpoint().unwrap();
        drop((partial, store));
        let path = Path::new(ROOT).join("partial").join(large.digest.hex());
        let size = i64::from(half) * CHUNK as i64 + change;
        disk.resize(&path, usize::try_from(size).unwrap());
        let (_, partial) = large.begin(&disk).unwrap();
        let have = (0..large.index.len()).filter(|n| partial.have(*n)).count();
        // A file that is longer than the blob was never a part of it.
        let whole = size.min(i64::from(half) * CHUNK as i64) / CHUNK as i64;
        let right = if size > large.bytes.len() as i64 { 0 } else { whole };
        assert_eq!(have as i64, right, "{change}");
        drop(partial);
        large.install(&disk).unwrap_or_else(|error| panic!("{change}: {error}"));
    }
}

#[test]
fn a_blob_is_not_finished_after_a_sync_that_failed() {
    let large = large();
    let disk = CutDisk::new();
    let (store, mut partial) = large.begin(&disk).unwrap();
    large.fill_but_last(&mut partial).unwrap();
    disk.fail_next_sync();
    assert!(partial.checkpoint().is_err());
    // Nobody says again that something is not on the disk: it must not count as if it were.
    let last = large.index.len() - 1;
    partial.take(last, large.chunk(last).to_vec()).unwrap();
    assert!(matches!(partial.finish(), Err(StoreError::Io { .. })));
    assert!(!store.has(&large.digest).unwrap());
    drop(store);
    large.install(&disk).unwrap();
}

#[test]
fn what_is_wrong_or_out_of_order_is_judged_beside_as_it_is_here() {
    let large = large();
    let disk = CutDisk::new();
    let (store, mut partial) = large.begin(&disk).unwrap();
    let mut judged = Vec::new();
    for (n, bytes) in [(1, large.chunk(1)), (0, large.chunk(1)), (2, &[]), (0, large.chunk(0))] {
        let (put, bytes) = partial.take(n, bytes.to_vec()).unwrap();
        judged.extend((put != Put::Later).then_some((n, put)));
        assert!(put == Put::Later || !bytes.is_empty() || n == 2);
    }
    partial.keep_here().unwrap();
    judged.extend(partial.settled().unwrap().into_iter().map(|settled| (settled.chunk, settled.put)));
    assert_eq!(judged, [(1, Put::Kept), (0, Put::Spoiled), (2, Put::Spoiled), (0, Put::Kept)]);
    assert_eq!(partial.bytes(), 2 * CHUNK as u64);
    assert_eq!(partial.take(0, large.chunk(0).to_vec()).unwrap().0, Put::Known);
    large.fill(&mut partial).unwrap();
    partial.finish().unwrap();
    store.check_blob(&large.digest).unwrap();
}

#[test]
fn an_index_that_contradicts_the_whole_is_found_out() {
    let mut large = large();
    large.digest = Digest::of(b"something else");
    let disk = CutDisk::new();
    let (store, mut partial) = large.begin(&disk).unwrap();
    large.fill(&mut partial).unwrap();
    assert!(matches!(partial.finish(), Err(StoreError::Contradicted { .. })));
    assert!(!store.has(&large.digest).unwrap());
}
