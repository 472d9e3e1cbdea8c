//! Transfers over a link that loses, doubles, delays, reorders and changes what it carries, with a
//! registry that is busy or forgets, disconnections, other block sizes and restarts of the device.
//!
//! Time is simulated. Every run must end with the right bytes, and no wrong byte may ever have been
//! kept on the way.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::time::Duration;

use proptest::prelude::*;
use selvedge_package::Digest;
use selvedge_package::chunks::ChunkIndex;
use selvedge_protocol::block::{answer, block_frame, refusal_frame};
use selvedge_protocol::message::{Need, Refusal};

use super::{Action, Chunks, Failure, Transfers};
use crate::store::Put;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

fn blob(size: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(2 * seed + 1);
    let mut bytes: Vec<u8> = (0..size.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).collect();
    bytes.truncate(size);
    bytes
}

fn index(bytes: &[u8]) -> ChunkIndex {
    if bytes.len() as u64 <= selvedge_package::chunks::CHUNK {
        return ChunkIndex::without_index(Digest::of(bytes), bytes.len() as u64).unwrap();
    }
    let mut entries = Vec::new();
    for chunk in bytes.chunks(65_536) {
        entries.extend((chunk.len() as u32).to_le_bytes());
        entries.extend(Digest::of(chunk).as_bytes());
    }
    ChunkIndex::parse(&entries, bytes.len() as u64).unwrap()
}

/// A partial blob in memory that outlives its handle, as a file would.
#[derive(Clone)]
struct File {
    index: ChunkIndex,
    disk: Rc<RefCell<Disk>>,
}

#[derive(Default)]
struct Disk {
    bytes: Vec<u8>,
    have: Vec<bool>,
    /// What a restart finds again.
    saved: Vec<bool>,
    fail: bool,
}

impl File {
    fn new(truth: &[u8]) -> Self {
        let index = index(truth);
        let count = index.len() as usize;
        let disk = Disk {
            bytes: vec![0; truth.len()],
            have: vec![false; count],
            saved: vec![false; count],
            fail: false,
        };
        Self { index, disk: Rc::new(RefCell::new(disk)) }
    }

    fn restart(&self) {
        let mut disk = self.disk.borrow_mut();
        disk.have = disk.saved.clone();
    }
}

impl Chunks for File {
    type Error = &'static str;

    fn size(&self) -> u64 {
        self.index.size()
    }

    fn have(&self, n: u32) -> bool {
        self.disk.borrow().have[n as usize]
    }

    fn put(&mut self, n: u32, bytes: &[u8]) -> Result<Put, &'static str> {
        let mut disk = self.disk.borrow_mut();
        if disk.fail {
            return Err("no space left");
        }
        let Ok(chunk) = self.index.verify(n, bytes) else { return Ok(Put::Spoiled) };
        let start = chunk.offset as usize;
        disk.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        disk.have[n as usize] = true;
        Ok(Put::Kept)
    }

    fn checkpoint(&mut self) -> Result<(), &'static str> {
        let mut disk = self.disk.borrow_mut();
        disk.saved = disk.have.clone();
        Ok(())
    }
}

#[derive(Debug, Clone)]
struct Faults {
    seed: u64,
    loss: u64,
    double: u64,
    change: u64,
    busy: u64,
    delay: u64,
    spread: u64,
    cut: u64,
    restart: u64,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Parcel {
    Need(Vec<u8>),
    Frame(Vec<u8>),
    /// The link comes back with this packet limit.
    Up(u32),
    Cut,
}

struct World {
    random: Random,
    faults: Faults,
    now: Duration,
    order: u64,
    parcels: BinaryHeap<Reverse<(Duration, u64, Parcel)>>,
    up: bool,
    blobs: Vec<Vec<u8>>,
    answered: u64,
}

impl World {
    fn new(faults: Faults, blobs: Vec<Vec<u8>>) -> Self {
        Self {
            random: Random(faults.seed | 1),
            faults,
            now: ms(0),
            order: 0,
            parcels: BinaryHeap::new(),
            up: false,
            blobs,
            answered: 0,
        }
    }

    fn send(&mut self, parcel: Parcel) {
        let faulty = matches!(parcel, Parcel::Need(_) | Parcel::Frame(_));
        if faulty && (!self.up || self.random.percent(self.faults.loss)) {
            return;
        }
        let delay = self.faults.delay + self.random.below(self.faults.spread + 1);
        self.order += 1;
        self.parcels.push(Reverse((self.now + ms(delay), self.order, parcel)));
    }

    fn down(&mut self, mut frame: Vec<u8>) {
        if self.random.percent(self.faults.double) {
            self.send(Parcel::Frame(frame.clone()));
        }
        if self.random.percent(self.faults.change) {
            let at = self.random.below(frame.len() as u64) as usize;
            frame[at] ^= 1 << self.random.below(8);
        }
        self.send(Parcel::Frame(frame));
    }

    /// The registry: no state but the blobs.
    fn answer(&mut self, need: &[u8]) {
        let Ok(need) = ciborium::from_reader::<Need, _>(need) else { return };
        let blob = self.blobs.iter().find(|blob| Digest::of(blob) == need.digest).cloned();
        let refusal = if self.random.percent(self.faults.busy) {
            Some(Refusal::Busy { retry_after_ms: self.random.below(2000) as u32 })
        } else if blob.is_none() {
            Some(Refusal::Unknown)
        } else {
            None
        };
        if let Some(refusal) = refusal {
            let frame = refusal_frame(need.transfer, &refusal).unwrap();
            return self.down(frame);
        }
        let blob = blob.unwrap();
        for span in answer(&need, blob.len() as u64).unwrap() {
            let start = span.offset as usize;
            let bytes = &blob[start..start + span.length as usize];
            self.answered += 1;
            self.down(block_frame(need.transfer, span.number, bytes).unwrap());
        }
    }

    fn perform<C: Chunks>(&mut self, actions: Vec<Action<C>>, ended: &mut Vec<Action<C>>) {
        for action in actions {
            match action {
                Action::Publish(need) => {
                    let mut bytes = Vec::new();
                    ciborium::into_writer(&need, &mut bytes).unwrap();
                    self.send(Parcel::Need(bytes));
                }
                other => ended.push(other),
            }
        }
    }
}

/// Runs until `wanted` transfers have ended. `start` fills a new `Transfers`, also after restarts.
fn run<C: Chunks>(
    world: &mut World,
    wanted: usize,
    mut start: impl FnMut(&mut Transfers<C>, Duration, &[Action<C>]) -> Vec<Action<C>>,
) -> Vec<Action<C>> {
    let mut ended = Vec::new();
    let mut transfers = Transfers::new(world.faults.seed);
    let actions = start(&mut transfers, world.now, &ended);
    world.perform(actions, &mut ended);
    world.send(Parcel::Up(131_072));
    let mut steps = 0u64;
    while ended.len() < wanted {
        steps += 1;
        assert!(steps < 3_000_000, "no end after {:?}, {:?}", world.now, world.faults);
        let arrives = world.parcels.peek().map(|Reverse((at, _, _))| *at);
        let wakes = transfers.wake_at();
        let next = [arrives, wakes].into_iter().flatten().min();
        let next = next.expect("something must be on its way, or a time to wake up");
        world.now = world.now.max(next);
        assert!(world.now < Duration::from_secs(24 * 3600), "too slow: {:?}", world.faults);
        let now = world.now;
        if arrives != Some(next) {
            let actions = transfers.tick(now);
            world.perform(actions, &mut ended);
            continue;
        }
        let Some(Reverse((_, _, parcel))) = world.parcels.pop() else { continue };
        let actions = match parcel {
            Parcel::Need(need) => {
                world.answer(&need);
                continue;
            }
            Parcel::Frame(_) if !world.up => continue,
            Parcel::Frame(frame) => transfers.frame(now, &frame),
            Parcel::Up(limit) => {
                world.up = true;
                transfers.connected(now, limit)
            }
            Parcel::Cut => {
                world.up = false;
                let limit = [131_072, 16_384, 9000, 5000][world.random.below(4) as usize];
                world.send(Parcel::Up(limit));
                transfers.disconnected(now)
            }
        };
        world.perform(actions, &mut ended);
        if world.up && world.random.below(1000) < world.faults.cut {
            world.send(Parcel::Cut);
        }
        if world.random.below(1000) < world.faults.restart {
            transfers = Transfers::new(world.random.next());
            let actions = start(&mut transfers, now, &ended);
            world.perform(actions, &mut ended);
            if world.up {
                let actions = transfers.connected(now, 131_072);
                world.perform(actions, &mut ended);
            }
        }
    }
    ended
}

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

const CALM: Faults =
    Faults { seed: 5, loss: 0, double: 0, change: 0, busy: 0, delay: 20, spread: 0, cut: 0, restart: 0 };

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

fn asked<C: Chunks>(actions: Vec<Action<C>>) -> Vec<Need> {
    actions
        .into_iter()
        .filter_map(|action| match action {
            Action::Publish(need) => Some(need),
            _ => None,
        })
        .collect()
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
    let blobs: Vec<Vec<u8>> = (0..4).map(|n| blob(100_000, n + 1)).collect();
    let mut transfers = Transfers::new(1);
    transfers.connected(ms(0), 131_072);
    for bytes in &blobs {
        transfers.add(ms(0), Digest::of(bytes), File::new(bytes));
    }
    assert_eq!(transfers.progress().count(), 2);
    let (target, actions) = transfers.cancel(ms(1), &Digest::of(&blobs[0]));
    assert!(target.is_some());
    let asked = asked(actions);
    assert!(asked.iter().any(|need| need.digest == Digest::of(&blobs[2])));
    assert!(!transfers.contains(&Digest::of(&blobs[0])));
    let (target, _) = transfers.cancel(ms(1), &Digest::of(&blobs[3]));
    assert!(target.is_some());
    assert!(transfers.cancel(ms(1), &Digest::of(b"other")).0.is_none());
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
