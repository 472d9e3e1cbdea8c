//! A transfer over TCP that loses packets: it stands still and then brings much at once, and it only has
//! its speed while there is something to send. A pull must bring nearly what a plain download brings, and
//! must not ask again for what merely waits in TCP.
//!
//! The TCP here is a sender with selective acknowledgements, slow start, a window that shrinks to 0.7 at a
//! loss and grows as CUBIC does, and a retransmission timeout. Time is simulated; seeds are fixed.

#![allow(clippy::unwrap_used)]

mod alone;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

use selvedge_package::Digest;
use selvedge_protocol::block::{BlockSize, Event, HEADER, Layout, Plan, answer};

use alone::Alone;

const SEGMENT: u64 = 1448;
const HEADERS: u64 = 52;

#[derive(Clone, Copy)]
struct Path {
    /// Bytes a second.
    rate: f64,
    /// There and back.
    delay: Duration,
    /// Of a hundred segments.
    loss: u64,
    /// Bytes that wait before the link at most.
    queue: u64,
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

struct Sent {
    at: Duration,
    length: u64,
    /// Acknowledgements of what was sent after it.
    passed: u32,
    lost: bool,
}

/// One direction of a connection, broker to device.
struct Tcp {
    path: Path,
    random: Random,
    /// Bytes that the application has written, and how many were sent once.
    written: u64,
    next: u64,
    flight: BTreeMap<u64, Sent>,
    window: f64,
    threshold: f64,
    recovery: u64,
    /// CUBIC: when the window was last cut, and from what.
    cut: (Duration, f64),
    round_trip: Option<(Duration, Duration)>,
    backoff: u32,
    free: Duration,
    /// Arrivals at the receiver and acknowledgements at the sender, by time.
    arrivals: BinaryHeap<Reverse<(Duration, u64, u64)>>,
    acks: BinaryHeap<Reverse<(Duration, u64, Duration)>>,
    /// Received beyond what is in order.
    early: BTreeMap<u64, u64>,
    delivered: u64,
}

impl Tcp {
    fn new(path: Path, seed: u64) -> Self {
        Self {
            path,
            random: Random(seed * 2 + 1),
            written: 0,
            next: 0,
            flight: BTreeMap::new(),
            window: 10.0,
            threshold: f64::MAX,
            recovery: 0,
            cut: (Duration::ZERO, 0.0),
            round_trip: None,
            backoff: 0,
            free: Duration::ZERO,
            arrivals: BinaryHeap::new(),
            acks: BinaryHeap::new(),
            early: BTreeMap::new(),
            delivered: 0,
        }
    }

    fn timeout(&self) -> Duration {
        let base = self.round_trip.map_or(Duration::from_secs(1), |(mean, deviation)| mean + deviation * 4);
        (base.max(Duration::from_millis(200)) * (1 << self.backoff.min(6))).min(Duration::from_secs(60))
    }

    fn oldest(&self) -> Option<Duration> {
        self.flight.values().filter(|sent| !sent.lost).map(|sent| sent.at).min()
    }

    fn wakes_at(&self) -> Option<Duration> {
        let arrival = self.arrivals.peek().map(|Reverse((at, ..))| *at);
        let ack = self.acks.peek().map(|Reverse((at, ..))| *at);
        let timeout = self.oldest().map(|at| at + self.timeout());
        [arrival, ack, timeout].into_iter().flatten().min()
    }

    fn transmit(&mut self, now: Duration, seq: u64, length: u64) {
        self.flight.insert(seq, Sent { at: now, length, passed: 0, lost: false });
        let bytes = length + HEADERS;
        let waits = (self.free.saturating_sub(now).as_secs_f64() * self.path.rate) as u64;
        if waits + bytes > self.path.queue {
            return;
        }
        self.free = self.free.max(now) + Duration::from_secs_f64(bytes as f64 / self.path.rate);
        if self.random.below(100) >= self.path.loss {
            self.arrivals.push(Reverse((self.free + self.path.delay / 2, seq, length)));
        }
    }

    /// Sends what the window allows: lost segments first.
    fn pump(&mut self, now: Duration) {
        loop {
            let in_flight = self.flight.values().filter(|sent| !sent.lost).count();
            if in_flight as f64 >= self.window {
                return;
            }
            let lost = self.flight.iter().find(|(_, sent)| sent.lost).map(|(seq, sent)| (*seq, sent.length));
            if let Some((seq, length)) = lost {
                self.transmit(now, seq, length);
            } else if self.next < self.written {
                let length = SEGMENT.min(self.written - self.next);
                let seq = self.next;
                self.next += length;
                self.transmit(now, seq, length);
            } else {
                return;
            }
        }
    }

    /// Everything that happens until then.
    fn run(&mut self, now: Duration) {
        while let Some(&Reverse((at, seq, length))) = self.arrivals.peek()
            && at <= now
        {
            self.arrivals.pop();
            self.early.insert(seq, length);
            while let Some(length) = self.early.remove(&self.delivered) {
                self.delivered += length;
            }
            self.early.retain(|seq, _| *seq > self.delivered);
            let sent = self.flight.get(&seq).map_or(at, |sent| sent.at);
            self.acks.push(Reverse((at + self.path.delay / 2, seq, sent)));
        }
        while let Some(&Reverse((at, seq, sent_at))) = self.acks.peek()
            && at <= now
        {
            self.acks.pop();
            self.acknowledged(at, seq, sent_at);
        }
        if let Some(oldest) = self.oldest()
            && now >= oldest + self.timeout()
        {
            self.backoff += 1;
            self.threshold = (self.window / 2.0).max(2.0);
            self.window = 1.0;
            self.recovery = self.next;
            self.flight.values_mut().for_each(|sent| sent.lost = true);
        }
        self.pump(now);
    }

    fn acknowledged(&mut self, at: Duration, seq: u64, sent_at: Duration) {
        if self.flight.remove(&seq).is_none() {
            return;
        }
        self.backoff = 0;
        let sample = at.saturating_sub(sent_at);
        self.round_trip = Some(match self.round_trip {
            None => (sample, sample / 2),
            Some((mean, deviation)) => {
                (mean * 7 / 8 + sample / 8, deviation * 3 / 4 + mean.abs_diff(sample) / 4)
            }
        });
        if self.window < self.threshold {
            self.window += 1.0;
        } else {
            let (cut, from) = self.cut;
            let k = (from * 0.3 / 0.4).cbrt();
            let cubic = 0.4 * (at.saturating_sub(cut).as_secs_f64() - k).powi(3) + from;
            let grown = ((cubic - self.window) / self.window).clamp(0.01, 0.5);
            self.window += grown.max(1.0 / self.window * 0.5);
        }
        let recovery = self.recovery;
        let mut fresh_loss = false;
        for (other, sent) in self.flight.iter_mut().filter(|(_, sent)| sent.at <= sent_at && !sent.lost) {
            sent.passed += 1;
            if sent.passed >= 3 {
                sent.lost = true;
                fresh_loss |= *other >= recovery;
            }
        }
        if fresh_loss {
            self.cut = (at, self.window);
            self.window = (self.window * 0.7).max(2.0);
            self.threshold = self.window;
            self.recovery = self.next;
        }
    }
}

/// How long so many bytes take when all of them are written at once.
fn download(path: Path, seed: u64, size: u64) -> Duration {
    let mut tcp = Tcp::new(path, seed);
    tcp.written = size;
    let mut now = path.delay / 2;
    tcp.run(now);
    while tcp.delivered < size {
        now = now.max(tcp.wakes_at().unwrap());
        tcp.run(now);
    }
    now
}

/// How long a pull takes, and how many blocks were sent for each that is needed.
fn pull(path: Path, seed: u64, size: u64) -> (Duration, f64) {
    let layout = Layout::new(size, BlockSize::PREFERRED).unwrap();
    let mut plan = Alone::new(Plan::new(1, Digest::of(b"x"), layout, |_| false, seed));
    let mut tcp = Tcp::new(path, seed);
    let mut random = Random(seed * 2 + 7);
    let mut needs = VecDeque::new();
    // Where in the stream a block ends, and which.
    let mut blocks: VecDeque<(u64, u32)> = VecDeque::new();
    let mut now = Duration::ZERO;
    let mut sent = 0u64;
    let mut reaches = Duration::ZERO;
    plan.step(now, Event::Connected);
    while !plan.is_complete() {
        while let Some(need) = plan.ask(now, u32::MAX) {
            // The way up loses packets, too; nothing overtakes.
            let lost = random.below(100) < path.loss;
            let late = if lost { path.delay + Duration::from_millis(200) } else { Duration::ZERO };
            reaches = reaches.max(now + path.delay / 2 + late);
            needs.push_back((reaches, need));
        }
        let arrives = needs.front().map(|(at, _)| *at);
        let next = [arrives, tcp.wakes_at(), plan.wake_at()].into_iter().flatten().min().unwrap();
        now = now.max(next);
        while let Some((_, need)) =
            needs.pop_front_if(|(at, _): &mut (Duration, selvedge_protocol::message::Need)| *at <= now)
        {
            for span in answer(&need, size).unwrap() {
                tcp.written += u64::from(span.length) + HEADER as u64 + 40;
                blocks.push_back((tcp.written, span.number));
                sent += 1;
            }
        }
        tcp.run(now);
        while let Some((_, number)) = blocks.pop_front_if(|(end, _)| *end <= tcp.delivered) {
            plan.step(now, Event::Block(number));
            let chunk = number / layout.per_chunk();
            if plan.is_whole(chunk) {
                plan.step(now, Event::Kept(chunk));
            }
        }
        plan.step(now, Event::Tick);
    }
    (now, sent as f64 / f64::from(layout.blocks()))
}

fn compare(path: Path, size: u64) -> (f64, f64) {
    let (mut plain, mut pulled, mut blocks) = (0.0, 0.0, 0.0);
    let seeds = 6;
    for seed in 1..=seeds {
        plain += download(path, seed, size).as_secs_f64();
        let (took, sent) = pull(path, seed, size);
        pulled += took.as_secs_f64();
        blocks += sent / seeds as f64;
    }
    println!(
        "{} kB/s, {:?}, {} %: a download {:.0} kB/s, a pull {:.2} of it, {blocks:.3} of the blocks",
        path.rate / 1e3,
        path.delay,
        path.loss,
        (size * seeds) as f64 / plain / 1e3,
        plain / pulled
    );
    (plain / pulled, blocks)
}

#[test]
fn a_pull_brings_what_a_download_brings() {
    let ms = Duration::from_millis;
    let paths = [
        Path { rate: 125e3, delay: ms(300), loss: 0, queue: 100_000 },
        Path { rate: 125e3, delay: ms(300), loss: 2, queue: 100_000 },
        Path { rate: 1e6, delay: ms(80), loss: 1, queue: 200_000 },
        Path { rate: 4e6, delay: ms(40), loss: 0, queue: 400_000 },
        Path { rate: 30e3, delay: ms(600), loss: 3, queue: 50_000 },
    ];
    for path in paths {
        let (share, blocks) = compare(path, 2_000_000);
        assert!(share >= 0.9, "only {share:.2} of a download");
        assert!(blocks < 1.05, "{blocks:.3} times as many blocks as there are");
    }
}
