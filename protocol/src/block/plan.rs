//! The device's side: which blocks to ask for next, and when to ask again. Pure: time is in events.
//!
//! Blocks are asked for from the lowest missing chunk upwards, within a bounded number of open
//! chunks, so that whoever assembles them needs bounded memory. Silence mostly means that TCP stands
//! still, with everything that was sent in it: so a timeout asks for one block more, and only when that
//! has come, and nothing else for a while, is what was asked before it taken for lost. It is, too, when
//! several blocks of later requests, of whichever transfer, have come. Nothing here gives up, except that it counts
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
    /// There is a connection: what was asked before is lost.
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
    /// Blocks asked for more than once: their arrival measures nothing.
    again: BTreeSet<u32>,
    in_flight: u32,
    /// Whether one block is to be asked for, to see whether anybody answers.
    probe: bool,
    connected: bool,
    paused_until: Option<Duration>,
    spoiled: u32,
    unknown: u32,
    jitter: u64,
}

#[derive(Debug)]
struct Request {
    sent: Sent,
    deadline: Duration,
    patience: Duration,
    begun: bool,
    /// Whether it was sent to see whether anybody answers.
    probe: bool,
    outstanding: u32,
}

impl Request {
    /// It waits for as long as blocks keep coming: a slower link is no loss.
    fn expires(&self, pace: &Pace) -> Duration {
        let (deadline, patience) = match pace.doubted(self.sent) {
            Some(until) => (self.deadline.min(until), self.patience.min(pace.timeout(0, 0.0))),
            None => (self.deadline, self.patience),
        };
        deadline.max(pace.last_arrival() + patience)
    }
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
            again: BTreeSet::new(),
            in_flight: 0,
            probe: false,
            connected: false,
            paused_until: None,
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

    /// Takes note of an event. After any event of one transfer, all that share its pace want a
    /// [`Event::Tick`]: it may have shown that something of theirs is lost.
    pub fn step(&mut self, at: Duration, event: Event, pace: &mut Pace) {
        match event {
            Event::Connected => {
                self.give_up_all();
                self.connected = true;
                self.paused_until = None;
            }
            Event::Disconnected => {
                self.give_up_all();
                self.connected = false;
            }
            Event::Block(number) => self.block(at, number, pace),
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
                self.probe |= !self.requests.is_empty() && pace.hopeful();
            }
            Event::Tick => {}
        }
        self.expire(at, pace);
    }

    /// Bytes that are asked for and have not come.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// The next request, if it is time for one. To be called after events, until it gives none.
    /// `blocks` is how many it may ask for at most; with none it waits.
    pub fn ask(&mut self, at: Duration, blocks: u32, pace: &mut Pace) -> Option<Need> {
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
            return Some(self.request(at, &[number], true, pace));
        }
        let mut room = pace.room(at, self.in_flight)? / self.layout.block_size().bytes();
        if pace.is_idle(self.in_flight) {
            // Blocks may be larger than a window.
            room = room.max(1);
        }
        let wanted = self.choose(room.min(blocks) as usize);
        (!wanted.is_empty()).then(|| self.request(at, &wanted, false, pace))
    }

    /// Asks for these, lowest first.
    fn request(&mut self, at: Duration, wanted: &[u32], probe: bool, pace: &mut Pace) -> Need {
        let (first, last) = (wanted.first().copied().unwrap_or(0), wanted.last().copied().unwrap_or(0));
        let mut missing = vec![0; (last - first) as usize / 8 + 1];
        for &number in wanted {
            missing[(number - first) as usize / 8] |= 1 << ((number - first) % 8);
        }
        self.note_request(at, wanted, probe, pace);
        Need {
            transfer: self.transfer,
            digest: self.digest,
            block: self.layout.block_size().bytes(),
            first,
            missing,
            count: wanted.len() as u32,
        }
    }

    /// When to send a [`Event::Tick`] and ask again, if nothing else happens before. `others`: whether other
    /// transfers have something in flight. Then whoever has nothing may find no room, and waits for theirs.
    pub fn wake_at(&self, pace: &Pace, others: bool) -> Option<Duration> {
        if !self.connected || self.is_complete() {
            return None;
        }
        let expiry = self.requests.iter().map(|request| request.expires(pace)).min();
        match (self.paused_until, expiry) {
            (Some(pause), Some(expiry)) => Some(pause.min(expiry)),
            (None, None) if others => None,
            (pause, expiry) => Some(pause.or(expiry).unwrap_or(Duration::ZERO)),
        }
    }

    fn block(&mut self, at: Duration, number: u32, pace: &mut Pace) {
        if !self.wants(number) {
            return;
        }
        let bit = self.bit(number);
        *self.open.entry(number / self.layout.per_chunk()).or_default() |= bit;
        self.unknown = 0;
        let length = self.length(number);
        let Some(id) = self.asked.remove(&number) else {
            pace.stray(at, length);
            return;
        };
        self.in_flight -= length;
        let fresh = !self.again.contains(&number);
        let Some(index) = self.requests.iter().position(|request| request.sent.order == id) else {
            return;
        };
        let request = &mut self.requests[index];
        let first = !std::mem::replace(&mut request.begun, true);
        request.outstanding -= 1;
        pace.arrived(at, length, request.sent, fresh, first);
        if request.probe {
            pace.answered(at, request.sent);
        }
        self.requests.retain(|request| request.outstanding > 0);
    }

    fn expire(&mut self, at: Duration, pace: &mut Pace) {
        // Answers keep their order on almost every way.
        if self.requests.iter().any(|request| pace.is_overtaken(request.sent)) {
            self.give_up(|request| pace.is_overtaken(request.sent));
        }
        let is_late = |request: &Request, pace: &Pace| request.expires(pace) <= at;
        let is_lost =
            |request: &Request, pace: &Pace| pace.doubted(request.sent).is_some() && is_late(request, pace);
        if self.requests.iter().any(|request| is_lost(request, pace)) {
            self.give_up(|request| is_lost(request, pace));
            pace.lost();
        }
        if self.requests.iter().any(|request| is_late(request, pace)) {
            let jitter = self.random();
            self.probe |= pace.timed_out(at, self.in_flight, jitter);
            for request in &mut self.requests {
                request.deadline = request.deadline.max(pace.quiet_until());
            }
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
        for request in self.requests.iter_mut().filter(|request| request.sent.order == id) {
            request.outstanding -= 1;
        }
        self.requests.retain(|request| request.outstanding > 0);
        Some(number)
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

    fn note_request(&mut self, at: Duration, wanted: &[u32], probe: bool, pace: &mut Pace) {
        let sent = pace.sent(at);
        for &number in wanted {
            self.asked.insert(number, sent.order);
            self.in_flight += self.length(number);
        }
        let jitter = self.random();
        let patience = pace.timeout(0, jitter);
        self.requests.push_back(Request {
            sent,
            deadline: (at + pace.timeout(self.in_flight, jitter)).max(pace.quiet_until()),
            patience,
            begun: false,
            probe,
            outstanding: wanted.len() as u32,
        });
    }

    fn give_up(&mut self, lost: impl Fn(&Request) -> bool) {
        let ids: BTreeSet<u64> =
            self.requests.iter().filter(|request| lost(request)).map(|request| request.sent.order).collect();
        let numbers: Vec<u32> =
            self.asked.iter().filter(|(_, id)| ids.contains(id)).map(|(&number, _)| number).collect();
        for number in numbers {
            self.asked.remove(&number);
            self.in_flight -= self.length(number);
            self.again.insert(number);
        }
        self.requests.retain(|request| !ids.contains(&request.sent.order));
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
            request.outstanding = asked.get(&request.sent.order).copied().unwrap_or(0);
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
