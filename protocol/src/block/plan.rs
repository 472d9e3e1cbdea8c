//! The device's side: which blocks to ask for next, and when to ask again. Pure: time is in events.
//!
//! Blocks are asked for from the lowest missing chunk upwards, within a bounded number of open
//! chunks, so that whoever assembles them needs bounded memory. Silence mostly means that TCP stands
//! still, with everything that was sent in it: so a timeout asks for one block more, and only when that
//! has come, and nothing else for a while, is what was asked before it taken for lost. It is, too, when
//! the answers to two later requests have begun to arrive. Nothing here gives up, except that it counts
//! how often the other side said that it does not know the blob.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use selvedge_package::Digest;

use crate::message::Need;

use super::pace::{Pace, Sent};
use super::{LARGEST_BITMAP, Layout};

/// Chunks that may be incomplete at a time: what an assembler must have room for (1.5 MiB).
pub const OPEN_CHUNKS: usize = 24;

const LONGEST_PAUSE: Duration = Duration::from_secs(300);
const LONGEST_BACKOFF: Duration = Duration::from_secs(60);
/// A chunk may be spoiled this often in a row before asking again waits.
const SPOILED_FREELY: u32 = 2;

/// What happened to a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// There is a connection: what was asked before is lost, what was measured void.
    Connected,
    /// There is none: nothing is asked until the next one.
    Disconnected,
    /// A wanted block came and is kept.
    Block(u32),
    /// All blocks of a chunk came and its digest is right.
    Kept(u32),
    /// All blocks of a chunk came and its digest is wrong: they are wanted again.
    Spoiled(u32),
    /// The other side asks for patience.
    Busy(Duration),
    /// The other side does not know the blob.
    Unknown,
    /// The other side said something else: it is there, so what went unanswered is asked again now.
    Heard,
    /// Time has passed.
    Tick,
}

/// The plan of one transfer.
#[derive(Debug)]
pub struct Plan {
    transfer: u32,
    digest: Digest,
    layout: Layout,
    /// Every chunk below is kept.
    frontier: u32,
    /// Chunks at or above the frontier that are kept.
    kept: BTreeSet<u32>,
    /// Blocks held of open chunks, a bit each.
    open: BTreeMap<u32, u16>,
    asked: BTreeMap<u32, u64>,
    requests: VecDeque<Request>,
    next_request: u64,
    /// Blocks asked for more than once: their arrival measures nothing.
    again: BTreeSet<u32>,
    in_flight: u32,
    /// Whether one block is to be asked for, to see whether anybody answers.
    probe: bool,
    pace: Pace,
    connected: bool,
    paused_until: Option<Duration>,
    last_arrival: Duration,
    spoiled: u32,
    unknown: u32,
    jitter: u64,
}

#[derive(Debug)]
struct Request {
    id: u64,
    sent: Sent,
    deadline: Duration,
    patience: Duration,
    begun: bool,
    /// Whether it was sent to see whether anybody answers.
    probe: bool,
    /// Whether a later probe was answered: what does not come soon does not come.
    doubted: bool,
    outstanding: u32,
}

impl Plan {
    /// A plan for a blob of which `kept(chunk)` says what is there already. `seed` spreads the
    /// waiting times of a fleet. Not connected at first.
    pub fn new(transfer: u32, digest: Digest, layout: Layout, kept: impl Fn(u32) -> bool, seed: u64) -> Self {
        let mut plan = Self {
            transfer,
            digest,
            layout,
            frontier: 0,
            kept: (0..layout.chunks()).filter(|&chunk| kept(chunk)).collect(),
            open: BTreeMap::new(),
            asked: BTreeMap::new(),
            requests: VecDeque::new(),
            next_request: 0,
            again: BTreeSet::new(),
            in_flight: 0,
            probe: false,
            pace: Pace::new(),
            connected: false,
            paused_until: None,
            last_arrival: Duration::ZERO,
            spoiled: 0,
            unknown: 0,
            jitter: seed,
        };
        plan.advance();
        plan
    }

    /// The transfer's number.
    pub fn transfer(&self) -> u32 {
        self.transfer
    }

    /// How the blob is cut.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Whether every chunk is kept.
    pub fn is_complete(&self) -> bool {
        self.frontier == self.layout.chunks()
    }

    /// How often in a row, with no block between, the blob was called unknown.
    pub fn unknown(&self) -> u32 {
        self.unknown
    }

    /// Lowers or raises the most bytes that may be in flight.
    pub fn set_ceiling(&mut self, bytes: u32) {
        self.pace.set_ceiling(bytes);
    }

    /// Whether block `number` is one to keep: inside the blob, of a chunk that is open or may be
    /// opened, and not held yet.
    pub fn wants(&self, number: u32) -> bool {
        if number >= self.layout.blocks() {
            return false;
        }
        let chunk = number / self.layout.per_chunk();
        if chunk < self.frontier || self.kept.contains(&chunk) {
            return false;
        }
        match self.open.get(&chunk) {
            Some(held) => held & self.bit(number) == 0,
            // Something late or never asked for must not take the room of what is asked for.
            None => self.window().any(|open| open == chunk),
        }
    }

    /// Whether all blocks of a chunk are held.
    pub fn is_whole(&self, chunk: u32) -> bool {
        let blocks = self.layout.blocks_of(chunk).len() as u32;
        self.open.get(&chunk).is_some_and(|held| held.count_ones() == blocks)
    }

    /// Takes note of an event.
    pub fn step(&mut self, at: Duration, event: Event) {
        match event {
            Event::Connected => {
                self.give_up_all();
                self.pace.reconnected();
                self.connected = true;
                self.paused_until = None;
            }
            Event::Disconnected => {
                self.give_up_all();
                self.connected = false;
            }
            Event::Block(number) => self.block(at, number),
            Event::Kept(chunk) => {
                self.spoiled = 0;
                self.close(chunk);
                self.kept.insert(chunk);
                self.advance();
            }
            Event::Spoiled(chunk) => {
                self.close(chunk);
                self.again.extend(self.layout.blocks_of(chunk));
                self.spoiled = self.spoiled.saturating_add(1);
                if self.spoiled > SPOILED_FREELY {
                    let doubled = 1u64 << (self.spoiled - SPOILED_FREELY).min(8);
                    self.pause(at, Duration::from_millis(500 * doubled).min(LONGEST_BACKOFF));
                }
            }
            Event::Busy(wait) => {
                self.give_up_all();
                self.pause(at, wait.clamp(Duration::from_millis(10), LONGEST_PAUSE));
            }
            Event::Unknown => {
                // Requests already under way get the same answer: it counts once.
                if !self.asked.is_empty() {
                    self.unknown = self.unknown.saturating_add(1);
                    self.give_up_all();
                    let doubled = 1u64 << self.unknown.min(6);
                    self.pause(at, Duration::from_millis(500 * doubled).min(LONGEST_BACKOFF));
                }
            }
            Event::Heard => {
                // Blocks may be behind what was heard: whether they are is asked.
                self.probe |= self.pace.hopeful() && !self.requests.is_empty();
            }
            Event::Tick => {}
        }
        self.expire(at);
    }

    /// Bytes that are asked for and have not come.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// The next request, if it is time for one. To be called after events, until it gives none.
    /// `blocks` is how many it may ask for at most; with none it waits.
    pub fn ask(&mut self, at: Duration, blocks: u32) -> Option<Need> {
        if blocks == 0
            || !self.connected
            || self.is_complete()
            || self.paused_until.is_some_and(|until| at < until)
        {
            return None;
        }
        self.paused_until = None;
        if std::mem::take(&mut self.probe)
            && let Some(number) = self.probe_block()
        {
            return Some(self.request(at, &[number], true));
        }
        if self.pace.draining(at, self.in_flight) || self.in_flight > self.pace.window() / 2 {
            return None;
        }
        let block = self.layout.block_size().bytes();
        let room = ((self.pace.window() - self.in_flight) / block).max(1).min(blocks);
        let wanted = self.choose(room as usize);
        (!wanted.is_empty()).then(|| self.request(at, &wanted, false))
    }

    /// Asks for these, lowest first.
    fn request(&mut self, at: Duration, wanted: &[u32], probe: bool) -> Need {
        let (first, last) = (wanted.first().copied().unwrap_or(0), wanted.last().copied().unwrap_or(0));
        let mut missing = vec![0; (last - first) as usize / 8 + 1];
        for &number in wanted {
            missing[(number - first) as usize / 8] |= 1 << ((number - first) % 8);
        }
        self.note_request(at, wanted, probe);
        Need {
            transfer: self.transfer,
            digest: self.digest,
            block: self.layout.block_size().bytes(),
            first,
            missing,
            count: wanted.len() as u32,
        }
    }

    /// When to send a [`Event::Tick`] and ask again, if nothing else happens before.
    pub fn wake_at(&self) -> Option<Duration> {
        if !self.connected || self.is_complete() {
            return None;
        }
        let expiry = self.requests.iter().map(|request| self.expires(request)).min();
        match (self.paused_until, expiry) {
            (Some(pause), Some(expiry)) => Some(pause.min(expiry)),
            (pause, expiry) => Some(pause.or(expiry).unwrap_or(Duration::ZERO)),
        }
    }

    fn block(&mut self, at: Duration, number: u32) {
        if !self.wants(number) {
            return;
        }
        let bit = self.bit(number);
        *self.open.entry(number / self.layout.per_chunk()).or_default() |= bit;
        self.unknown = 0;
        self.last_arrival = at;
        let length = self.length(number);
        let Some(id) = self.asked.remove(&number) else {
            self.pace.arrived(at, length, None, false);
            return;
        };
        self.in_flight -= length;
        let fresh = !self.again.contains(&number);
        let Some(index) = self.requests.iter().position(|request| request.id == id) else {
            return;
        };
        let request = &mut self.requests[index];
        let first = !std::mem::replace(&mut request.begun, true);
        request.outstanding -= 1;
        let sample = fresh.then_some(request.sent);
        self.pace.arrived(at, length, sample, first);
        if request.probe {
            // Somebody answers. What was asked before is there soon, or not at all.
            let grace = self.pace.timeout(0, 0.0);
            for older in self.requests.iter_mut().filter(|older| older.id < id) {
                older.doubted = true;
                older.deadline = older.deadline.min(at + grace);
                older.patience = older.patience.min(grace);
            }
        } else {
            // Answers keep their order on almost every way: two requests further on, it is lost.
            self.give_up(|request| request.id + 2 <= id);
        }
        self.requests.retain(|request| request.outstanding > 0);
    }

    fn expire(&mut self, at: Duration) {
        let late: BTreeSet<u64> = self
            .requests
            .iter()
            .filter(|request| self.expires(request) <= at)
            .map(|request| request.id)
            .collect();
        if late.is_empty() {
            return;
        }
        let lost = |request: &Request| request.doubted && late.contains(&request.id);
        if self.requests.iter().any(lost) {
            self.give_up(lost);
            self.pace.lost();
        }
        if self.requests.iter().any(|request| late.contains(&request.id)) {
            self.pace.timed_out();
            let jitter = self.random();
            let again = at + self.pace.timeout(self.in_flight, jitter);
            for request in &mut self.requests {
                request.deadline = request.deadline.max(again);
            }
            self.probe = true;
        }
    }

    /// A block whose answer shows that somebody answers: one never asked for. Where there is none, the
    /// last that was asked for: where its first answer comes, all before it have come.
    fn probe_block(&mut self) -> Option<u32> {
        let fresh = self.window().flat_map(|chunk| self.layout.blocks_of(chunk)).find(|&number| {
            let held = self.open.get(&(number / self.layout.per_chunk())).copied().unwrap_or(0);
            held & self.bit(number) == 0 && !self.asked.contains_key(&number) && !self.again.contains(&number)
        });
        if fresh.is_some() {
            return fresh;
        }
        let (&number, &id) = self.asked.iter().next_back()?;
        self.asked.remove(&number);
        self.in_flight -= self.length(number);
        self.again.insert(number);
        for request in self.requests.iter_mut().filter(|request| request.id == id) {
            request.outstanding -= 1;
        }
        self.requests.retain(|request| request.outstanding > 0);
        Some(number)
    }

    /// A request waits for as long as blocks keep coming: a slower link is no loss.
    fn expires(&self, request: &Request) -> Duration {
        request.deadline.max(self.last_arrival + request.patience)
    }

    fn choose(&self, room: usize) -> Vec<u32> {
        let mut wanted: Vec<u32> = Vec::new();
        for chunk in self.window() {
            let held = self.open.get(&chunk).copied().unwrap_or(0);
            for number in self.layout.blocks_of(chunk) {
                if held & self.bit(number) != 0 || self.asked.contains_key(&number) {
                    continue;
                }
                let first = *wanted.first().unwrap_or(&number);
                if wanted.len() == room || (number - first) as usize >= LARGEST_BITMAP * 8 {
                    return wanted;
                }
                wanted.push(number);
            }
        }
        wanted
    }

    fn note_request(&mut self, at: Duration, wanted: &[u32], probe: bool) {
        let id = self.next_request;
        self.next_request += 1;
        let sent = self.pace.sent(at);
        for &number in wanted {
            self.asked.insert(number, id);
            self.in_flight += self.length(number);
        }
        let jitter = self.random();
        let patience = self.pace.timeout(0, jitter);
        self.requests.push_back(Request {
            id,
            sent,
            deadline: at + self.pace.timeout(self.in_flight, jitter),
            patience,
            begun: false,
            probe,
            doubted: false,
            outstanding: wanted.len() as u32,
        });
    }

    fn give_up(&mut self, lost: impl Fn(&Request) -> bool) {
        let ids: BTreeSet<u64> =
            self.requests.iter().filter(|request| lost(request)).map(|request| request.id).collect();
        let numbers: Vec<u32> =
            self.asked.iter().filter(|(_, id)| ids.contains(id)).map(|(&number, _)| number).collect();
        for number in numbers {
            self.asked.remove(&number);
            self.in_flight -= self.length(number);
            self.again.insert(number);
        }
        self.requests.retain(|request| !ids.contains(&request.id));
    }

    fn give_up_all(&mut self) {
        self.give_up(|_| true);
    }

    fn close(&mut self, chunk: u32) {
        self.open.remove(&chunk);
        for number in self.layout.blocks_of(chunk) {
            self.again.remove(&number);
            if self.asked.remove(&number).is_some() {
                self.in_flight -= self.length(number);
            }
        }
        let asked: BTreeMap<u64, u32> = self.asked.values().fold(BTreeMap::new(), |mut all, &id| {
            *all.entry(id).or_default() += 1;
            all
        });
        for request in &mut self.requests {
            request.outstanding = asked.get(&request.id).copied().unwrap_or(0);
        }
        self.requests.retain(|request| request.outstanding > 0);
    }

    /// The chunks that may be open: the lowest that are missing.
    fn window(&self) -> impl Iterator<Item = u32> {
        (self.frontier..self.layout.chunks()).filter(|chunk| !self.kept.contains(chunk)).take(OPEN_CHUNKS)
    }

    fn advance(&mut self) {
        while self.kept.remove(&self.frontier) {
            self.frontier += 1;
        }
    }

    fn pause(&mut self, at: Duration, wait: Duration) {
        let until = at + wait.mul_f64(1.0 + 0.25 * self.random());
        self.paused_until = Some(self.paused_until.map_or(until, |earlier| earlier.max(until)));
    }

    fn bit(&self, number: u32) -> u16 {
        1 << (number % self.layout.per_chunk())
    }

    fn length(&self, number: u32) -> u32 {
        self.layout.block(number).map_or(0, |span| span.length)
    }

    /// SplitMix64: spreads waiting times, keeps no secret. In 0..1.
    fn random(&mut self) -> f64 {
        self.jitter = self.jitter.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.jitter;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) as f64 / u64::MAX as f64
    }
}
