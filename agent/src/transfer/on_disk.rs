//! Transfers into the device's own store: interrupted, and with bytes that change on disk.

use std::sync::Arc;

use selvedge_package::Digest;

use super::simulation::{CALM, World, asked, blob, index, ms, run};
use super::{Action, Transfers};
use crate::store::{Partial, RealDisk, Store, StoreError};
use selvedge_protocol::block::{answer, block_frame};

const SIZE: usize = 1_500_000;

fn store(root: &std::path::Path) -> Store {
    Store::open(Arc::new(RealDisk), root).unwrap()
}

fn fetch(store: &Store, bytes: &[u8]) -> (Partial, u64) {
    let mut world = World::new(CALM, vec![bytes.to_vec()]);
    let mut ended = run(&mut world, 1, |transfers, now, _| {
        let partial = store.partial(Digest::of(bytes), index(bytes)).unwrap();
        transfers.add(now, Digest::of(bytes), partial)
    });
    match ended.remove(0) {
        Action::Done { target, .. } => (target, world.answered),
        _ => panic!("the transfer failed"),
    }
}

#[test]
fn a_killed_transfer_fetches_nothing_twice() {
    let root = tempfile::tempdir().unwrap();
    let bytes = blob(SIZE, 3);
    let digest = Digest::of(&bytes);
    {
        let store = store(root.path());
        let mut transfers = Transfers::new(1);
        transfers.connected(ms(0), 131_072);
        let partial = store.partial(digest, index(&bytes)).unwrap();
        let mut needs = asked(transfers.add(ms(0), digest, partial));
        // Ten chunks, then the program is gone: no checkpoint, no goodbye.
        while transfers.progress().next().map(|progress| progress.bytes) < Some(655_360) {
            let need = needs.remove(0);
            for span in answer(&need, SIZE as u64).unwrap() {
                let start = span.offset as usize;
                let block = &bytes[start..start + span.length as usize];
                let frame = block_frame(need.transfer, span.number, block).unwrap();
                needs.extend(asked(transfers.frame(ms(1), &frame)));
            }
        }
    }
    let store = store(root.path());
    let (partial, answered) = fetch(&store, &bytes);
    partial.finish().unwrap();
    assert!(answered <= (SIZE as u64 - 655_360).div_ceil(16_384), "{answered} blocks");
    assert_eq!(store.read_small(&digest, SIZE as u64).unwrap(), bytes);
}

#[test]
fn bytes_that_change_on_disk_are_found_and_fetched_again() {
    let root = tempfile::tempdir().unwrap();
    let bytes = blob(SIZE, 3);
    let digest = Digest::of(&bytes);
    let store = store(root.path());
    let (mut partial, _) = fetch(&store, &bytes);
    partial.checkpoint().unwrap();
    let file = root.path().join("partial").join(digest.hex());
    let mut there = std::fs::read(&file).unwrap();
    there[777_777] ^= 1;
    std::fs::write(&file, there).unwrap();
    assert!(matches!(partial.finish(), Err(StoreError::Damaged { .. })));
    let (partial, answered) = fetch(&store, &bytes);
    partial.finish().unwrap();
    assert_eq!(answered, 4, "one chunk");
    assert_eq!(store.read_small(&digest, SIZE as u64).unwrap(), bytes);
}
