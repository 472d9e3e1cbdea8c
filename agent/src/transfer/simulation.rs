//! A simulated registry and link for transfers: it loses, doubles, delays, reorders and changes what
//! it carries, is busy, breaks off and comes back with another packet limit; the device restarts.
//! Time is simulated.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::time::Duration;

use selvedge_package::Digest;
use selvedge_package::chunks::ChunkIndex;
use selvedge_protocol::block::{answer, block_frame, refusal_frame};
use selvedge_protocol::message::{Need, Refusal};

use super::{Action, Chunks, Transfers};
use crate::store::Put;

pub(super) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(super) struct Random(u64);

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

pub(super) fn blob(size: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(2 * seed + 1);
    let mut bytes: Vec<u8> = (0..size.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).collect();
    bytes.truncate(size);
    bytes
}

pub(super) fn index(bytes: &[u8]) -> ChunkIndex {
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
pub(super) struct File {
    pub(super) index: ChunkIndex,
    pub(super) disk: Rc<RefCell<Disk>>,
}

#[derive(Default)]
pub(super) struct Disk {
    pub(super) bytes: Vec<u8>,
    pub(super) have: Vec<bool>,
    /// What a restart finds again.
    pub(super) saved: Vec<bool>,
    pub(super) fail: bool,
}

impl File {
    pub(super) fn new(truth: &[u8]) -> Self {
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

    pub(super) fn restart(&self) {
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
pub(super) struct Faults {
    pub(super) seed: u64,
    pub(super) loss: u64,
    pub(super) double: u64,
    pub(super) change: u64,
    pub(super) busy: u64,
    pub(super) delay: u64,
    pub(super) spread: u64,
    pub(super) cut: u64,
    pub(super) restart: u64,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Parcel {
    Need(Vec<u8>),
    Frame(Vec<u8>),
    /// The link comes back with this packet limit.
    Up(u32),
    Cut,
}

pub(super) struct World {
    pub(super) random: Random,
    pub(super) faults: Faults,
    pub(super) now: Duration,
    pub(super) order: u64,
    pub(super) parcels: BinaryHeap<Reverse<(Duration, u64, Parcel)>>,
    pub(super) up: bool,
    pub(super) blobs: Vec<Vec<u8>>,
    pub(super) answered: u64,
}

impl World {
    pub(super) fn new(faults: Faults, blobs: Vec<Vec<u8>>) -> Self {
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
pub(super) fn run<C: Chunks>(
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

pub(super) const CALM: Faults =
    Faults { seed: 5, loss: 0, double: 0, change: 0, busy: 0, delay: 20, spread: 0, cut: 0, restart: 0 };

pub(super) fn asked<C: Chunks>(actions: Vec<Action<C>>) -> Vec<Need> {
    actions
        .into_iter()
        .filter_map(|action| match action {
            Action::Publish(need) => Some(need),
            _ => None,
        })
        .collect()
}
