//! Transfers over a bad link: every run ends with the right bytes, and no wrong byte is ever kept.

use proptest::prelude::*;
use selvedge_package::Digest;
use selvedge_protocol::block::{answer, block_frame};
use selvedge_protocol::message::Need;

use super::simulation::{CALM, Faults, File, World, asked, blob, ms, run};
use super::{AT_ONCE, Action, Failure, Transfers};

fn faults() -> impl Strategy<Value = Faults> {
    let percent = |most: u64| 0..=most;
    (
        any::<u64>(),
        (percent(40), percent(40), percent(8), percent(15)),
        (0..400u64, 0..400u64),
        (prop_oneof![Just(0), 0..20u64], prop_oneof![Just(0), 0..10u64]),
    )
        .prop_map(|(seed, (loss, double, change, busy), (delay, spread), (cut, restart))| Faults {
            seed,
            loss,
            double,
            change,
            busy,
            delay,
            spread,
            cut,
            restart,
        })
}

fn size() -> impl Strategy<Value = usize> {
    let chunk = 65_536usize;
    prop_oneof![Just(0), Just(1), Just(chunk - 1), Just(chunk), Just(chunk + 1), 1..700_000usize]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn ends_with_the_right_bytes_whatever_the_link_does(
        faults in faults(),
        sizes in prop::collection::vec(size(), 1..5),
    ) {
        let blobs: Vec<Vec<u8>> =
            sizes.iter().enumerate().map(|(n, &size)| blob(size, n as u64 + 1)).collect();
        let mut distinct = blobs.clone();
        distinct.sort();
        distinct.dedup();
        let files: Vec<(Digest, File)> =
            distinct.iter().map(|blob| (Digest::of(blob), File::new(blob))).collect();
        let mut world = World::new(faults, blobs);
        let ended = run(&mut world, files.len(), |transfers, now, ended| {
            let done = |digest: &Digest| ended.iter().any(|action| {
                matches!(action, Action::Done { digest: other, .. } if other == digest)
            });
            let mut actions = Vec::new();
            for (digest, file) in files.iter().filter(|(digest, _)| !done(digest)) {
                file.restart();
                actions.extend(transfers.add(now, *digest, file.clone()));
            }
            actions
        });
        for action in ended {
            let Action::Done { digest, target } = action else { panic!("a transfer failed") };
            prop_assert_eq!(Digest::of(&target.disk.borrow().bytes), digest);
        }
    }

    #[test]
    fn a_pull_into_memory_gives_the_right_bytes_or_says_that_it_cannot(
        faults in faults(),
        size in 0..300_000usize,
    ) {
        let bytes = blob(size, 7);
        let digest = Digest::of(&bytes);
        let mut world = World::new(faults, vec![bytes.clone()]);
        let ended = run::<File>(&mut world, 1, |transfers, now, _| {
            transfers.pull(now, digest, size as u64).unwrap()
        });
        match &ended[0] {
            Action::Pulled { bytes: pulled, .. } => prop_assert_eq!(pulled, &bytes),
            // Without a list of chunks one changed block spoils all: it may take too many attempts.
            Action::Failed { why: Failure::Corrupt, .. } => prop_assert!(world.faults.change > 0),
            _ => prop_assert!(false, "neither pulled nor failed"),
        }
    }
}

#[test]
fn a_calm_link_carries_every_block_once() {
    let bytes = blob(5_000_000, 3);
    let file = File::new(&bytes);
    let mut world = World::new(CALM, vec![bytes.clone()]);
    let ended = run(&mut world, 1, |transfers, now, _| transfers.add(now, Digest::of(&bytes), file.clone()));
    assert!(matches!(ended[0], Action::Done { .. }));
    assert_eq!(world.answered, 5_000_000u64.div_ceil(16_384));
}

#[test]
fn what_is_there_is_not_fetched_again() {
    let bytes = blob(1_000_000, 3);
    let file = File::new(&bytes);
    {
        let mut disk = file.disk.borrow_mut();
        for n in [0usize, 1, 2, 3, 4, 5, 6, 9, 14] {
            let start = n * 65_536;
            disk.bytes[start..start + 65_536].copy_from_slice(&bytes[start..start + 65_536]);
            disk.saved[n] = true;
        }
    }
    file.restart();
    let mut world = World::new(CALM, vec![bytes.clone()]);
    let ended = run(&mut world, 1, |transfers, now, _| transfers.add(now, Digest::of(&bytes), file.clone()));
    assert!(matches!(ended[0], Action::Done { .. }));
    assert_eq!(file.disk.borrow().bytes, bytes);
    assert_eq!(world.answered, 1_000_000u64.div_ceil(16_384) - 9 * 4);
}

#[test]
fn a_byte_changed_in_flight_is_refused_and_its_chunk_fetched_again() {
    let bytes = blob(200_000, 3);
    let digest = Digest::of(&bytes);
    let file = File::new(&bytes);
    let mut transfers = Transfers::new(1);
    assert!(transfers.add(ms(0), digest, file.clone()).is_empty());
    let mut needs: Vec<Need> = asked(transfers.connected(ms(0), 131_072));
    let mut changed = 0;
    let mut done = false;
    let mut now = 0;
    while !done {
        assert!(!needs.is_empty(), "it must go on asking");
        for need in std::mem::take(&mut needs) {
            for span in answer(&need, 200_000).unwrap() {
                let start = span.offset as usize;
                let mut block = bytes[start..start + span.length as usize].to_vec();
                if span.number == 5 && changed == 0 {
                    block[77] ^= 1;
                    changed += 1;
                }
                now += 1;
                let frame = block_frame(need.transfer, span.number, &block).unwrap();
                let actions = transfers.frame(ms(now), &frame);
                done |= matches!(actions.last(), Some(Action::Done { .. }));
                needs.extend(asked(actions));
                let spoiled = transfers.progress().map(|p| p.spoiled).sum::<u64>();
                assert!(spoiled <= 1);
            }
        }
    }
    assert_eq!(changed, 1);
    assert_eq!(file.disk.borrow().bytes, bytes);
}

#[test]
fn a_registry_that_does_not_have_it_ends_the_transfer_after_some_patience() {
    let bytes = blob(100_000, 3);
    let mut world = World::new(CALM, Vec::new());
    let file = File::new(&bytes);
    let ended = run(&mut world, 1, |transfers, now, _| transfers.add(now, Digest::of(&bytes), file.clone()));
    assert!(matches!(ended[0], Action::Failed { why: Failure::Unknown, target: Some(_), .. }));
    assert!(world.now > ms(2000), "it waited in between: {:?}", world.now);
}

#[test]
fn a_full_disk_ends_the_transfer_and_says_so() {
    let bytes = blob(100_000, 3);
    let file = File::new(&bytes);
    file.disk.borrow_mut().fail = true;
    let mut world = World::new(CALM, vec![bytes.clone()]);
    let ended = run(&mut world, 1, |transfers, now, _| transfers.add(now, Digest::of(&bytes), file.clone()));
    assert!(matches!(ended[0], Action::Failed { why: Failure::Keep("no space left"), .. }));
}

#[test]
fn garbage_and_other_transfers_frames_change_nothing() {
    let bytes = blob(100_000, 3);
    let file = File::new(&bytes);
    let mut transfers = Transfers::new(1);
    transfers.add(ms(0), Digest::of(&bytes), file);
    let need = asked(transfers.connected(ms(0), 131_072)).remove(0);
    let other = block_frame(need.transfer.wrapping_add(9), 0, &bytes[..16_384]).unwrap();
    let beyond = block_frame(need.transfer, 7, &bytes[..16_384]).unwrap();
    let short = block_frame(need.transfer, 0, &bytes[..100]).unwrap();
    for payload in [&b""[..], b"\x01", &[0xff; 5000], &other, &beyond, &short] {
        assert!(transfers.frame(ms(1), payload).is_empty());
    }
    assert_eq!(transfers.progress().next().map(|p| p.bytes), Some(0));
}

#[test]
fn cancelling_gives_the_destination_back_and_starts_the_next() {
    let blobs: Vec<Vec<u8>> = (0..5).map(|n| blob(100_000, n + 1)).collect();
    let mut transfers = Transfers::new(1);
    transfers.connected(ms(0), 131_072);
    for bytes in &blobs {
        transfers.add(ms(0), Digest::of(bytes), File::new(bytes));
    }
    assert_eq!(transfers.progress().count(), AT_ONCE);
    let (target, actions) = transfers.cancel(ms(1), &Digest::of(&blobs[0]));
    assert!(target.is_some());
    assert!(!asked(actions).is_empty(), "what it had in flight is others' now");
    assert!(transfers.progress().any(|progress| progress.digest == Digest::of(&blobs[3])));
    assert!(!transfers.contains(&Digest::of(&blobs[0])));
    let (target, _) = transfers.cancel(ms(1), &Digest::of(&blobs[4]));
    assert!(target.is_some());
    assert!(transfers.cancel(ms(1), &Digest::of(b"other")).0.is_none());
}

#[test]
fn all_share_one_window_and_a_desired_state_comes_before_them() {
    let blobs: Vec<Vec<u8>> = (0..3).map(|n| blob(100_000, n + 1)).collect();
    let mut transfers = Transfers::new(1);
    for bytes in &blobs {
        transfers.add(ms(0), Digest::of(bytes), File::new(bytes));
    }
    let needs = asked(transfers.connected(ms(0), 131_072));
    assert_eq!(needs.iter().map(|need| need.count).sum::<u32>(), 2, "{needs:?}");
    // A block makes room for one; the desired state has nothing in flight and is asked for first.
    let state = blob(50_000, 9);
    assert!(asked(transfers.pull(ms(1), Digest::of(&state), 50_000).unwrap()).is_empty());
    let frame = block_frame(needs[0].transfer, 0, &blobs[0][..16_384]).unwrap();
    let next = asked(transfers.frame(ms(50), &frame));
    assert_eq!(next.first().map(|need| need.digest), Some(Digest::of(&state)));
    // Whoever finds no room waits for the others, and does not ask to be woken at once.
    assert!(transfers.wake_at() > Some(ms(50)), "{:?}", transfers.wake_at());
}

/// Blocks that the registry sent, over blocks that were needed.
fn cost(faults: &Faults, size: usize) -> f64 {
    let bytes = blob(size, 3);
    let file = File::new(&bytes);
    let mut world = World::new(faults.clone(), vec![bytes.clone()]);
    run(&mut world, 1, |transfers, now, _| {
        file.restart();
        transfers.add(now, Digest::of(&bytes), file.clone())
    });
    world.answered as f64 / (size as f64 / 16_384.0).ceil()
}

#[test]
fn few_blocks_are_sent_twice() {
    for (loss, spread) in [(0, 100), (2, 20)] {
        let mean = (0..8)
            .map(|seed| cost(&Faults { seed, loss, spread, delay: 150, ..CALM }, 2_000_000))
            .sum::<f64>()
            / 8.0;
        assert!(mean < 1.05, "{loss} % lost, {spread} ms of disorder: {mean} times as many blocks");
    }
}
