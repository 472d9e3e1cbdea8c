//! How much may be in flight, and how long to wait for it.
//!
//! The window is twice bandwidth × delay, both measured from our own requests: the best delivery
//! rate of the last seconds and the shortest round trip; and as much more as the link brings while it
//! stands still at times, as TCP does that repairs a loss. While the rate still grows with the
//! window, that doubles it every round trip. A queue of our own making would lengthen the shortest
//! round trip, so from time to time the pipe is drained and the round trip measured anew.

use std::time::Duration;

/// The window of a new transfer, and the smallest ever: 2 × 16 KiB.
pub const FIRST_WINDOW: u32 = 32_768;
/// The largest window: 1 MiB.
pub const LARGEST_WINDOW: u32 = 1024 * 1024;

const FIRST_TIMEOUT: Duration = Duration::from_secs(3);
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(250);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(60);
const ROUND_TRIP_HOLDS: Duration = Duration::from_secs(15);
/// A round trip counts as no shorter in the window. On a fast link the shortest is a matter of luck:
/// what comes between the others is programs that wait for a processor, and a window of that length
/// would leave the link idle while they do. As much again in a queue delays nobody noticeably.
const SHORTEST_ROUND_TRIP: Duration = Duration::from_millis(20);

/// What a request was sent with; kept until its blocks have come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    pub at: Duration,
    delivered: u64,
}

#[derive(Debug)]
pub(super) struct Pace {
    ceiling: u32,
    window: u32,
    delivered: u64,
    shortest: Option<(Duration, Duration)>,
    smoothed: Option<(Duration, Duration)>,
    /// How far round trips are from their mean, as far as that was seen.
    wobble: Duration,
    rate: BestRate,
    /// Timeouts without anything arriving in between.
    silent: u32,
    drain: bool,
}

impl Pace {
    pub fn new() -> Self {
        Self {
            ceiling: LARGEST_WINDOW,
            window: FIRST_WINDOW,
            delivered: 0,
            shortest: None,
            smoothed: None,
            wobble: Duration::ZERO,
            rate: BestRate::default(),
            silent: 0,
            drain: false,
        }
    }

    /// Bytes that may be in flight.
    pub fn window(&self) -> u32 {
        self.window
    }

    /// Lowers or raises the most that the window may become.
    pub fn set_ceiling(&mut self, bytes: u32) {
        self.ceiling = bytes.clamp(FIRST_WINDOW, LARGEST_WINDOW);
        self.window = self.window.min(self.ceiling);
    }

    /// Whether to let the pipe run dry before asking again.
    pub fn draining(&mut self, at: Duration, in_flight: u32) -> bool {
        let stale = self.shortest.is_some_and(|(_, seen)| at.saturating_sub(seen) > ROUND_TRIP_HOLDS);
        if stale && self.window > FIRST_WINDOW {
            self.drain = true;
        } else if stale {
            // So small a window makes no queue to speak of.
            self.shortest = None;
        }
        if self.drain && in_flight == 0 {
            self.drain = false;
            self.shortest = None;
        }
        self.drain
    }

    pub fn sent(&self, at: Duration) -> Sent {
        Sent { at, delivered: self.delivered }
    }

    /// A block came. `sample`: the request that it answers, unless it may answer two.
    pub fn arrived(&mut self, at: Duration, bytes: u32, sample: Option<Sent>, first: bool) {
        self.delivered += u64::from(bytes);
        self.silent = 0;
        let Some(sent) = sample else { return };
        let elapsed = at.saturating_sub(sent.at).max(Duration::from_micros(50));
        if first {
            self.round_trip(at, elapsed);
        }
        let rate = (self.delivered - sent.delivered) as f64 / elapsed.as_secs_f64();
        let holds = self.smoothed.map_or(FIRST_TIMEOUT, |(mean, _)| mean * 8);
        self.rate.sample(at, rate, holds.max(Duration::from_secs(1)));
        if let Some((shortest, _)) = self.shortest {
            let trip = shortest.max(SHORTEST_ROUND_TRIP).as_secs_f64();
            let product = self.rate.best() * (2.0 * trip + self.stall(shortest));
            // Saturating: a float too large becomes u32::MAX.
            self.window = (product as u32).clamp(FIRST_WINDOW, self.ceiling);
        }
    }

    /// Nothing came in time. The link may just stand still: what it can do is not forgotten for that.
    pub fn timed_out(&mut self) {
        self.silent = self.silent.saturating_add(1);
    }

    /// What was asked for is lost on a link that works: it was too much, perhaps.
    pub fn lost(&mut self) {
        self.forget();
    }

    /// Whether nothing came for so long that waiting has grown; from now on it has not.
    pub fn hopeful(&mut self) -> bool {
        std::mem::take(&mut self.silent) > 0
    }

    /// The link changed: what was measured holds no longer.
    pub fn reconnected(&mut self) {
        self.silent = 0;
        self.smoothed = None;
        self.shortest = None;
        self.wobble = Duration::ZERO;
        self.forget();
    }

    /// How long to wait for blocks when `in_flight` bytes are under way. `jitter` in 0..1.
    pub fn timeout(&self, in_flight: u32, jitter: f64) -> Duration {
        let base = self.smoothed.map_or(FIRST_TIMEOUT, |(mean, deviation)| mean + deviation * 4);
        let queue = match self.rate.best() {
            rate if rate > 1.0 => Duration::from_secs_f64((f64::from(in_flight) / rate).min(60.0)),
            _ => Duration::ZERO,
        };
        let doubled = (base.max(SHORTEST_TIMEOUT) + queue)
            .saturating_mul(1 << self.silent.min(12))
            .min(LONGEST_TIMEOUT);
        doubled.mul_f64(1.0 + 0.25 * jitter).min(LONGEST_TIMEOUT)
    }

    fn round_trip(&mut self, at: Duration, elapsed: Duration) {
        if self.shortest.is_none_or(|(shortest, _)| elapsed <= shortest) {
            self.shortest = Some((elapsed, at));
        }
        if let Some((mean, _)) = self.smoothed {
            self.wobble = self.wobble * 3 / 4 + mean.abs_diff(elapsed) / 4;
        }
        self.smoothed = Some(match self.smoothed {
            None => (elapsed, elapsed / 2),
            Some((mean, deviation)) => {
                (mean * 7 / 8 + elapsed / 8, deviation * 3 / 4 + mean.abs_diff(elapsed) / 4)
            }
        });
    }

    /// How long nothing comes at times although the link works, in seconds: TCP repairs losses in order.
    /// What is to be sent must not run out meanwhile.
    fn stall(&self, shortest: Duration) -> f64 {
        (self.wobble * 2).min(shortest * 4).as_secs_f64()
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

    /// A link of `rate` bytes a second and `delay` there and back; half windows are asked for.
    fn run(pace: &mut Pace, from: Duration, rate: f64, delay: Duration, blocks: u32) -> Duration {
        const BLOCK: u32 = 16_384;
        let mut flight: std::collections::VecDeque<(Duration, Sent, bool)> = Default::default();
        let (mut at, mut free) = (from, from);
        for _ in 0..blocks {
            let in_flight = flight.len() as u32 * BLOCK;
            if !pace.draining(at, in_flight) && in_flight <= pace.window() / 2 {
                let sent = pace.sent(at);
                for index in 0..((pace.window() - in_flight) / BLOCK).max(1) {
                    free = free.max(at + delay) + Duration::from_secs_f64(f64::from(BLOCK) / rate);
                    flight.push_back((free, sent, index == 0));
                }
            }
            let Some((arrival, sent, first)) = flight.pop_front() else {
                continue;
            };
            at = at.max(arrival);
            pace.arrived(at, BLOCK, Some(sent), first);
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
        let at_slow = run(&mut pace, at, 1e6, ms(500), 200);
        let end = run(&mut pace, at_slow, 1e6, ms(500), 2000);
        let ideal = 2000.0 * 16_384.0 / 1e6;
        let took = (end - at_slow).as_secs_f64();
        assert!(took < ideal / 0.8, "{took} against {ideal}");
    }

    #[test]
    fn silence_doubles_the_timeout_up_to_a_minute_and_shrinks_the_window() {
        let mut pace = Pace::new();
        run(&mut pace, ms(0), 4e6, ms(40), 500);
        assert!(pace.window() > FIRST_WINDOW);
        let mut last = pace.timeout(FIRST_WINDOW, 0.0);
        assert!(last < Duration::from_secs(1));
        for _ in 0..30 {
            pace.timed_out();
            pace.lost();
            let next = pace.timeout(FIRST_WINDOW, 0.0);
            assert!(next >= last && next <= LONGEST_TIMEOUT);
            last = next;
        }
        assert_eq!(last, LONGEST_TIMEOUT);
        assert_eq!(pace.window(), FIRST_WINDOW);
        pace.arrived(ms(0), 1, None, false);
        assert!(pace.timeout(FIRST_WINDOW, 1.0) < Duration::from_secs(1));
    }
}
