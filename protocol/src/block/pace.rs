//! How much may be in flight, and how long to wait for it. One pace is for all transfers of a device: they
//! share one link.
//!
//! The window is more than bandwidth × delay, both measured from our own requests: the best delivery
//! rate of the last seconds and the shortest round trip; and as much more as the link brings while it
//! stands still at times, as TCP does that repairs a loss: neither a request that comes late nor a block
//! that is waited for may leave the sender with nothing to send. While the rate still grows with the
//! window, that grows every round trip. A queue of our own making would lengthen the shortest round trip,
//! so when none has been as short for long, the pipe is drained and the round trip measured anew.

use std::time::Duration;

/// The window of a new link, and the smallest ever: 2 × 16 KiB.
pub const FIRST_WINDOW: u32 = 32_768;
/// The largest window: 1 MiB.
pub const LARGEST_WINDOW: u32 = 1024 * 1024;

const FIRST_TIMEOUT: Duration = Duration::from_secs(3);
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(250);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Each time the link stands still for a round trip, or for several where it loses packets.
const ROUND_TRIP_HOLDS: Duration = Duration::from_secs(30);
/// A round trip counts as no shorter in the window. On a fast link the shortest is a matter of luck:
/// what comes between the others is programs that wait for a processor, and a window of that length
/// would leave the link idle while they do. As much again in a queue delays nobody noticeably.
const SHORTEST_ROUND_TRIP: Duration = Duration::from_millis(20);
/// The window over bandwidth × delay: with one and a half two blocks would not become three; what is
/// on top waits in a queue and is lost with the connection.
const GAIN: f64 = 1.6;
/// Most bytes on top of that for times in which the link stands still: they are lost with the connection,
/// too, and what else is to be said waits behind them.
const STALL_BYTES: f64 = 98_304.0;
/// A request is for at least this part of the window: many small ones keep the sender busy while one of
/// them is repaired, and none costs much in itself.
const PART: u32 = 8;
/// Blocks asked for later that may come before one that is not lost: messages of QoS 0 may overtake a
/// few others. With a larger window half as many as that holds, and never more than that.
const OVERTAKEN: usize = 6;
const OVERTAKEN_MOST: usize = 64;

/// What a request was sent with; kept until its blocks have come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    pub at: Duration,
    /// Counts the requests of all transfers.
    pub order: u64,
    delivered: u64,
}

/// The pace of all transfers of a device.
#[derive(Debug)]
pub struct Pace {
    window: u32,
    delivered: u64,
    requests: u64,
    /// What transfers other than the one that is looked at have in flight, in bytes.
    others: u32,
    last_arrival: Duration,
    /// The shortest round trip, and when one was about as short.
    shortest: Option<(Duration, Duration)>,
    smoothed: Option<(Duration, Duration)>,
    /// How long nothing came lately although something could have.
    stall: Duration,
    rate: BestRate,
    /// Timeouts without anything arriving in between.
    silent: u32,
    /// Until then nobody else need ask whether anybody answers.
    quiet_until: Duration,
    /// The highest orders of requests that blocks have come of, one for each block, highest first.
    come: Vec<u64>,
    /// How many blocks of later requests show that one is lost.
    overtaken: usize,
    /// A probe was answered: what was asked before that order is there soon, or not at all.
    doubt: Option<(u64, Duration)>,
    drain: bool,
}

impl Default for Pace {
    fn default() -> Self {
        Self::new()
    }
}

impl Pace {
    /// Of a link of which nothing is known.
    pub fn new() -> Self {
        Self {
            window: FIRST_WINDOW,
            delivered: 0,
            requests: 0,
            others: 0,
            last_arrival: Duration::ZERO,
            shortest: None,
            smoothed: None,
            stall: Duration::ZERO,
            rate: BestRate::default(),
            silent: 0,
            quiet_until: Duration::ZERO,
            come: Vec::new(),
            overtaken: OVERTAKEN,
            doubt: None,
            drain: false,
        }
    }

    /// Bytes that may be in flight.
    pub fn window(&self) -> u32 {
        self.window
    }

    /// Says what transfers other than the one whose plan is called next have in flight, in bytes.
    pub fn set_others(&mut self, bytes: u32) {
        self.others = bytes;
    }

    /// There is another connection over the same link: what was measured still holds.
    pub fn resumed(&mut self) {
        self.silent = 0;
        self.quiet_until = Duration::ZERO;
        self.doubt = None;
        self.drain = false;
    }

    /// The link changed: what was measured holds no longer.
    pub fn reconnected(&mut self) {
        self.resumed();
        self.smoothed = None;
        self.shortest = None;
        self.stall = Duration::ZERO;
        self.forget();
    }

    /// Bytes that may be asked for when one transfer has so many in flight; none while that is too
    /// little for a request.
    pub(super) fn room(&mut self, at: Duration, in_flight: u32) -> Option<u32> {
        let all = self.others.saturating_add(in_flight);
        if self.draining(at, all) {
            return None;
        }
        let room = self.window.saturating_sub(all);
        (all == 0 || room >= self.window / PART).then_some(room)
    }

    /// Whether to let the pipe run dry before asking again.
    fn draining(&mut self, at: Duration, all: u32) -> bool {
        let stale = self.shortest.is_some_and(|(_, seen)| at.saturating_sub(seen) > ROUND_TRIP_HOLDS);
        if stale && self.window > FIRST_WINDOW {
            self.drain = true;
        } else if stale {
            // So small a window makes no queue to speak of.
            self.shortest = None;
        }
        if self.drain && all == 0 {
            self.drain = false;
            self.shortest = None;
        }
        self.drain
    }

    /// Whether nothing is in flight when one transfer has so much.
    pub(super) fn is_idle(&self, in_flight: u32) -> bool {
        in_flight == 0 && self.others == 0
    }

    pub(super) fn sent(&mut self, at: Duration) -> Sent {
        self.requests += 1;
        Sent { at, order: self.requests, delivered: self.delivered }
    }

    /// A block came that was not asked for, or not lately.
    pub(super) fn stray(&mut self, at: Duration, bytes: u32) {
        self.delivered += u64::from(bytes);
        self.silent = 0;
        self.quiet_until = Duration::ZERO;
        self.last_arrival = at;
    }

    /// A block came that `sent` asked for. `fresh`: nobody else did. `first`: the first of it.
    pub(super) fn arrived(&mut self, at: Duration, bytes: u32, sent: Sent, fresh: bool, first: bool) {
        let before = self.last_arrival;
        self.stray(at, bytes);
        let place = self.come.partition_point(|&order| order >= sent.order);
        self.come.insert(place, sent.order);
        self.come.truncate(OVERTAKEN_MOST);
        let half = (self.window / 2 / bytes.max(1)) as usize;
        self.overtaken = half.clamp(OVERTAKEN, OVERTAKEN_MOST);
        if !fresh {
            return;
        }
        let elapsed = at.saturating_sub(sent.at).max(Duration::from_micros(50));
        if first {
            self.round_trip(at, elapsed);
        }
        let rate = (self.delivered - sent.delivered) as f64 / elapsed.as_secs_f64();
        let holds = self.smoothed.map_or(FIRST_TIMEOUT, |(mean, _)| mean * 8);
        self.rate.sample(at, rate, holds.max(Duration::from_secs(1)));
        let Some((shortest, _)) = self.shortest else { return };
        let takes = Duration::from_secs_f64((f64::from(bytes) / self.rate.best().max(1.0)).min(60.0));
        let stood = at.saturating_sub(before.max(sent.at + shortest)).saturating_sub(takes);
        self.stall = (self.stall * 15 / 16).max(stood);
        let trip = shortest.max(SHORTEST_ROUND_TRIP).as_secs_f64();
        let stall = (self.stall * 2).min(shortest * 8).as_secs_f64();
        let product = self.rate.best() * GAIN * trip + (self.rate.best() * stall).min(STALL_BYTES);
        // Saturating: a float too large becomes u32::MAX.
        self.window = (product as u32).clamp(FIRST_WINDOW, LARGEST_WINDOW);
    }

    /// Whether a request is lost: enough has come of what was asked later.
    pub(super) fn is_overtaken(&self, sent: Sent) -> bool {
        self.come.get(self.overtaken - 1).is_some_and(|&order| order > sent.order)
    }

    /// The answer to a probe came.
    pub(super) fn answered(&mut self, at: Duration, probe: Sent) {
        self.doubt = Some((probe.order, at + self.timeout(0, 0.0)));
    }

    /// When a request is lost unless something comes, since a later probe was answered.
    pub(super) fn doubted(&self, sent: Sent) -> Option<Duration> {
        self.doubt.filter(|(order, _)| sent.order < *order).map(|(_, until)| until)
    }

    /// Nothing came in time; whether it is to be asked if anybody answers. The link may just stand still:
    /// what it can do is not forgotten for that.
    pub(super) fn timed_out(&mut self, at: Duration, in_flight: u32, jitter: f64) -> bool {
        if at < self.quiet_until {
            return false;
        }
        self.silent = self.silent.saturating_add(1);
        self.quiet_until = at + self.timeout(in_flight, jitter);
        true
    }

    /// Until when nobody need ask whether anybody answers.
    pub(super) fn quiet_until(&self) -> Duration {
        self.quiet_until
    }

    /// When the last block came.
    pub(super) fn last_arrival(&self) -> Duration {
        self.last_arrival
    }

    /// What was asked for is lost on a link that works: it was too much, perhaps.
    pub(super) fn lost(&mut self) {
        self.forget();
    }

    /// Whether nothing came for so long that waiting has grown; from now on it has not.
    pub(super) fn hopeful(&mut self) -> bool {
        self.quiet_until = Duration::ZERO;
        std::mem::take(&mut self.silent) > 0
    }

    /// How long to wait for blocks when one transfer has `in_flight` bytes under way. `jitter` in 0..1.
    pub(super) fn timeout(&self, in_flight: u32, jitter: f64) -> Duration {
        let base = self.smoothed.map_or(FIRST_TIMEOUT, |(mean, deviation)| mean + deviation * 4);
        let all = f64::from(in_flight) + f64::from(if in_flight > 0 { self.others } else { 0 });
        let queue = match self.rate.best() {
            rate if rate > 1.0 => Duration::from_secs_f64((all / rate).min(60.0)),
            _ => Duration::ZERO,
        };
        let doubled = (base.max(SHORTEST_TIMEOUT) + queue)
            .saturating_mul(1 << self.silent.min(12))
            .min(LONGEST_TIMEOUT);
        doubled.mul_f64(1.0 + 0.25 * jitter).min(LONGEST_TIMEOUT)
    }

    fn round_trip(&mut self, at: Duration, elapsed: Duration) {
        self.shortest = match self.shortest {
            Some((shortest, _)) if elapsed <= shortest * 5 / 4 => Some((shortest.min(elapsed), at)),
            Some(known) => Some(known),
            None => Some((elapsed, at)),
        };
        self.smoothed = Some(match self.smoothed {
            None => (elapsed, elapsed / 2),
            Some((mean, deviation)) => {
                (mean * 7 / 8 + elapsed / 8, deviation * 3 / 4 + mean.abs_diff(elapsed) / 4)
            }
        });
    }

    fn forget(&mut self) {
        self.rate = BestRate::default();
        self.window = FIRST_WINDOW;
        self.drain = false;
    }
}

/// The best delivery rate of this span of time and the one before, in bytes a second.
#[derive(Debug, Default)]
struct BestRate {
    now: f64,
    before: f64,
    since: Duration,
}

impl BestRate {
    fn best(&self) -> f64 {
        self.now.max(self.before)
    }

    fn sample(&mut self, at: Duration, rate: f64, holds: Duration) {
        if at.saturating_sub(self.since) > holds {
            self.before = self.now;
            self.now = 0.0;
            self.since = at;
        }
        self.now = self.now.max(rate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// A link of `rate` bytes a second and `delay` there and back; what there is room for is asked for.
    fn run(pace: &mut Pace, from: Duration, rate: f64, delay: Duration, blocks: u32) -> Duration {
        const BLOCK: u32 = 16_384;
        let mut flight: std::collections::VecDeque<(Duration, Sent, bool)> = Default::default();
        let (mut at, mut free) = (from, from);
        for _ in 0..blocks {
            let in_flight = flight.len() as u32 * BLOCK;
            if let Some(room) = pace.room(at, in_flight) {
                let sent = pace.sent(at);
                for index in 0..(room / BLOCK).max(u32::from(in_flight == 0)) {
                    free = free.max(at + delay) + Duration::from_secs_f64(f64::from(BLOCK) / rate);
                    flight.push_back((free, sent, index == 0));
                }
            }
            let Some((arrival, sent, first)) = flight.pop_front() else {
                continue;
            };
            at = at.max(arrival);
            pace.arrived(at, BLOCK, sent, true, first);
        }
        at
    }

    #[test]
    fn the_window_finds_bandwidth_times_delay_and_keeps_the_link_busy() {
        for (rate, delay) in [(125e3, ms(300)), (4e6, ms(40)), (1e6, ms(5))] {
            let mut pace = Pace::new();
            let blocks = 2000;
            let took = run(&mut pace, ms(0), rate, delay, blocks);
            let ideal = f64::from(blocks) * 16_384.0 / rate;
            assert!(took.as_secs_f64() < ideal / 0.93, "{rate}: {took:?}, ideal {ideal}");
            let product = rate * delay.as_secs_f64() + 16_384.0;
            assert!(f64::from(pace.window()) < 3.0 * product + 32_768.0, "{rate}: {}", pace.window());
        }
    }

    #[test]
    fn a_lucky_round_trip_makes_no_small_window_of_a_fast_link() {
        let mut pace = Pace::new();
        let at = run(&mut pace, ms(0), 50e6, Duration::from_micros(200), 500);
        // Now everyone waits for a processor: the same link, and 5 ms till an answer comes.
        run(&mut pace, at, 50e6, ms(5), 500);
        assert_eq!(pace.window(), LARGEST_WINDOW);
        // What is slow gets no queue from it.
        let mut slow = Pace::new();
        run(&mut slow, ms(0), 125e3, ms(10), 500);
        assert!(slow.window() < FIRST_WINDOW + 8192, "{}", slow.window());
    }

    #[test]
    fn a_longer_delay_is_learned() {
        let mut pace = Pace::new();
        let at = run(&mut pace, ms(0), 1e6, ms(20), 2000);
        // Within a minute: it is as fast as ever after that.
        let at_slow = run(&mut pace, at, 1e6, ms(500), 6000);
        let end = run(&mut pace, at_slow, 1e6, ms(500), 2000);
        let ideal = 2000.0 * 16_384.0 / 1e6;
        let took = (end - at_slow).as_secs_f64();
        assert!(took < ideal / 0.8, "{took} against {ideal}");
    }

    #[test]
    fn another_connection_over_the_same_link_starts_with_its_window() {
        let mut pace = Pace::new();
        run(&mut pace, ms(0), 4e6, ms(40), 500);
        let window = pace.window();
        assert!(window > FIRST_WINDOW);
        pace.resumed();
        assert_eq!(pace.window(), window);
        pace.reconnected();
        assert_eq!(pace.window(), FIRST_WINDOW);
    }

    #[test]
    fn silence_doubles_the_timeout_up_to_a_minute_and_shrinks_the_window() {
        let mut pace = Pace::new();
        run(&mut pace, ms(0), 4e6, ms(40), 500);
        assert!(pace.window() > FIRST_WINDOW);
        let mut last = pace.timeout(FIRST_WINDOW, 0.0);
        assert!(last < Duration::from_secs(1));
        for _ in 0..30 {
            pace.timed_out(pace.quiet_until(), FIRST_WINDOW, 0.0);
            pace.lost();
            let next = pace.timeout(FIRST_WINDOW, 0.0);
            assert!(next >= last && next <= LONGEST_TIMEOUT);
            last = next;
        }
        assert_eq!(last, LONGEST_TIMEOUT);
        assert_eq!(pace.window(), FIRST_WINDOW);
        pace.stray(ms(0), 1);
        assert!(pace.timeout(FIRST_WINDOW, 1.0) < Duration::from_secs(1));
    }
}
