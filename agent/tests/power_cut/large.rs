//! A blob that is large enough for its chunks to be kept and made durable beside whoever receives them.

use std::path::Path;
use std::sync::Arc;

use selvedge_agent::store::{Partial, Put, Store, StoreError};
use selvedge_package::Digest;
use selvedge_package::chunks::{ChunkIndex, Indexed};

use super::disk::{CutDisk, Loss, Moment};
use super::{CHUNK, ROOT};

/// More than are kept by whoever receives them, and the last one short.
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

/// Flips a byte of a blob in `folder` that came in one go, or was `resumed` in the middle; whether that was
/// noticed at once, or when it was to be used. Either way only its chunk comes again.
fn flip(folder: &str, resumed: bool, offset: usize) -> &'static str {
    let (large, disk) = (large(), CutDisk::new());
    let (mut store, mut partial) = large.begin(&disk).unwrap();
    if resumed {
        for n in 0..large.index.len() / 2 {
            partial.take(n, large.chunk(n).to_vec()).unwrap();
        }
        partial.checkpoint().unwrap();
        drop((partial, store));
        (store, partial) = large.begin(&disk).unwrap();
    }
    large.fill(&mut partial).unwrap();
    let path = Path::new(ROOT).join(folder).join(large.digest.hex());
    let mut partial = Some(partial);
    if folder != "partial" {
        partial.take().unwrap().finish().unwrap();
    }
    disk.flip(&path, offset);
    let noticed = match partial.map(Partial::finish) {
        Some(Err(StoreError::Damaged { .. })) => "at once",
        Some(Ok(())) | None => {
            let used = store.check_blob(&large.digest);
            assert!(matches!(used, Err(StoreError::Damaged { .. })), "byte {offset}: {used:?}");
            "before use"
        }
        Some(Err(error)) => panic!("byte {offset}: {error}"),
    };
    assert!(!store.has(&large.digest).unwrap());
    let mut partial = store.partial(large.digest, large.index.clone()).unwrap();
    let missing: Vec<u32> = (0..large.index.len()).filter(|n| !partial.have(*n)).collect();
    assert_eq!(missing, [(offset / CHUNK) as u32]);
    large.fill(&mut partial).unwrap();
    partial.finish().unwrap();
    store.check_blob(&large.digest).unwrap();
    noticed
}

#[test]
fn a_byte_that_changes_on_disk_is_found_wherever_it_lies_and_only_its_chunk_comes_again() {
    let last = large().bytes.len() - 1;
    for offset in [0, last / 2, last] {
        // What came in one go was hashed as it came, and is hashed again by whoever uses it.
        assert_eq!(flip("partial", false, offset), "before use");
        assert_eq!(flip("blobs/sha256", false, offset), "before use");
        // What lay on the disk meanwhile is hashed when it is whole.
        assert_eq!(flip("partial", true, offset), "at once");
    }
}

#[test]
fn a_file_that_is_too_short_or_too_long_is_repaired() {
    let large = large();
    for change in [-1_i64, -70_000, 1, 70_000] {
        let disk = CutDisk::new();
        large.install(&disk).unwrap();
        let path = Path::new(ROOT).join("blobs/sha256").join(large.digest.hex());
        let size = large.bytes.len() as i64 + change;
        disk.resize(&path, usize::try_from(size).unwrap());
        let (store, partial) = large.begin(&disk).unwrap();
        drop(partial);
        assert!(matches!(store.check_blob(&large.digest), Err(StoreError::Damaged { .. })), "{change}");
        drop(store);
        large.install(&disk).unwrap_or_else(|error| panic!("{change}: {error}"));
    }
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
