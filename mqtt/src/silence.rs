//! When a silent connection is doubted so much that the broker is dialled a second time, and what the
//! answer to that says. Pure: no clock, no socket.
//!
//! Only who awaits something doubts. A dial that is answered at once says that the link was there all the
//! time: then the silence has another reason, and a second connection would not end it. One that is
//! answered after earlier ones were not says that the link is back.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

/// Silence while blocks are awaited, and while only an answer is, before the first dial.
const QUIET: Duration = Duration::from_millis(1_500);
const UNANSWERED: Duration = Duration::from_secs(5);
/// The longest silence before the first dial, whatever the link is used to.
const LONGEST_QUIET: Duration = Duration::from_secs(30);
/// Pauses between dials: a tenth of the silence, within these.
const PAUSES: (Duration, Duration) = (Duration::from_millis(400), Duration::from_secs(15));
/// A fleet sends no more dials a second than this, each device with its share of them.
const FLEET_DIALS: u32 = 10_000;
/// A fleet's devices that have seen the link return spread their new connections: so many a second.
const FLEET_PER_SECOND: u32 = 200;
/// A dial that is answered later than this was sent into nothing first: TCP sends it again after a second.
const AT_ONCE: Duration = Duration::from_millis(900);
/// A connection that took longer to make looked up a name or lost packets: that is no round trip of the link's.
const LONGEST_ROUND_TRIP: Duration = Duration::from_millis(1_500);
/// A connection that took another's place and brought fewer messages was not worth it: then patience doubles.
const WORTH: u32 = 8;
/// How long dialling rests when it was for nothing; it doubles.
const REST: Duration = Duration::from_secs(5);
const LONGEST_REST: Duration = Duration::from_secs(300);

/// What is awaited from the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Awaited {
    /// An acknowledgement, or the answer to a ping.
    Answer,
    /// What was asked for in bulk.
    Blocks,
}

/// What an answered dial says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The link was there all the time.
    There,
    /// The link was away and is back.
    Back,
}

#[derive(Debug)]
pub(crate) struct Silence {
    heard_at: Instant,
    awaited: Option<(Awaited, Instant)>,
    /// The usual time between two messages while some are awaited, and how far it strays.
    usual: (Duration, Duration),
    /// The first dial of this silence to each address.
    dials: Vec<(SocketAddr, Instant)>,
    next: Option<Instant>,
    /// Its turn in its fleet: so much later than others it dials first.
    turn: Duration,
    /// How often in this silence dialling was for nothing.
    vain: u32,
    /// Dials that are answered within this are answered at once.
    at_once: Duration,
    messages: u32,
    /// How many connections before this one, in a row, were not worth it.
    worthless: u32,
}

impl Silence {
    /// On a connection that is there since now, and took so long for each of its round trips at most.
    pub fn new(now: Instant, round_trip: Duration) -> Self {
        Self {
            heard_at: now,
            awaited: None,
            usual: Default::default(),
            dials: Vec::new(),
            next: None,
            turn: Duration::ZERO,
            vain: 0,
            at_once: AT_ONCE.max(round_trip.min(LONGEST_ROUND_TRIP) * 2),
            messages: 0,
            worthless: 0,
        }
    }

    /// The connection has taken the place of one with this silence.
    pub fn in_place_of(mut self, before: &Self) -> Self {
        self.usual = before.usual;
        self.worthless = if before.messages < WORTH { before.worthless + 1 } else { 0 };
        self
    }

    /// It is one of a fleet of so many, and has its turn there at `jitter` in 0..1.
    pub fn among(&mut self, fleet: u32, jitter: f64) {
        self.turn = share(fleet).mul_f64(jitter);
    }

    /// What is awaited now.
    pub fn awaits(&mut self, awaited: Option<Awaited>, now: Instant) {
        let since = self.awaited.map_or(now, |(_, since)| since);
        self.awaited = awaited.map(|awaited| (awaited, since));
        if awaited.is_none() {
            self.ends();
        }
    }

    /// Something has come; `message`: one that may have been awaited in bulk.
    pub fn heard(&mut self, message: bool, now: Instant) {
        self.messages = self.messages.saturating_add(message.into());
        if let Some((Awaited::Blocks, since)) = self.awaited
            && message
            // A cut is no habit of the link's.
            && !self.dials.iter().any(|&(_, at)| now > at + self.at_once)
        {
            let gap = now.saturating_duration_since(since.max(self.heard_at)).min(LONGEST_QUIET);
            let (mean, stray) = &mut self.usual;
            *stray = *stray * 3 / 4 + mean.abs_diff(gap) / 4;
            *mean = *mean * 7 / 8 + gap / 8;
        }
        self.heard_at = now;
        self.ends();
    }

    fn ends(&mut self) {
        self.dials.clear();
        self.next = None;
        self.vain = 0;
    }

    /// When to dial, if nothing comes before.
    pub fn dial_at(&self) -> Option<Instant> {
        let (awaited, since) = self.awaited?;
        let shortest = match awaited {
            Awaited::Blocks => QUIET,
            Awaited::Answer => UNANSWERED,
        };
        let shortest = (shortest * (1 << self.worthless.min(6))).min(LONGEST_QUIET);
        let (mean, stray) = self.usual;
        let quiet = (mean + stray * 4).clamp(shortest, LONGEST_QUIET);
        Some(self.next.unwrap_or(since.max(self.heard_at) + quiet + self.turn))
    }

    /// The broker is dialled at `address`. `fleet`: how many may do so at once; `jitter` in 0..1.
    pub fn dialled(&mut self, address: SocketAddr, fleet: u32, jitter: f64, now: Instant) {
        if !self.dials.iter().any(|&(other, _)| other == address) {
            self.dials.push((address, now));
        }
        let (shortest, longest) = PAUSES;
        let silent = now.saturating_duration_since(self.heard_at);
        let pause = (silent / 10).clamp(shortest, longest).max(share(fleet));
        self.next = Some(now + about(pause, jitter));
    }

    /// The dial was answered at `address`.
    pub fn answered(&mut self, address: SocketAddr, jitter: f64, now: Instant) -> Verdict {
        let first = self.dials.iter().find(|&&(other, _)| other == address);
        if first.is_some_and(|&(_, at)| now > at + self.at_once) {
            return Verdict::Back;
        }
        self.in_vain(jitter, now);
        Verdict::There
    }

    /// Dialling was for nothing: it rests.
    pub fn in_vain(&mut self, jitter: f64, now: Instant) {
        self.dials.clear();
        self.next = Some(now + about((REST * (1 << self.vain.min(10))).min(LONGEST_REST), jitter));
        self.vain += 1;
    }
}

/// One dial of each device of a fleet takes so long at the rate that a broker can bear.
fn share(fleet: u32) -> Duration {
    Duration::from_secs(1) * fleet / FLEET_DIALS
}

fn about(pause: Duration, jitter: f64) -> Duration {
    pause.mul_f64(0.75 + 0.5 * jitter)
}

/// How long to wait with a new connection when the link is back, so that a fleet does not come at once:
/// most find that their old connection speaks meanwhile.
pub(crate) fn spread(fleet: u32, jitter: f64) -> Duration {
    (Duration::from_secs(1) * fleet / FLEET_PER_SECOND).min(LONGEST_REST).mul_f64(jitter)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> SocketAddr {
        ([192, 0, 2, last], 8883).into()
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Dials from `from` on, each time when it is due, until `until`; how often, and when last.
    fn dial(silence: &mut Silence, fleet: u32, until: Instant) -> (u32, Option<Instant>) {
        let (mut dials, mut last) = (0, None);
        while let Some(at) = silence.dial_at().filter(|&at| at <= until) {
            silence.dialled(address(1), fleet, 0.5, at);
            (dials, last) = (dials + 1, Some(at));
        }
        (dials, last)
    }

    #[test]
    fn who_awaits_nothing_never_dials() {
        let start = Instant::now();
        let mut silence = Silence::new(start, ms(1));
        assert_eq!(silence.dial_at(), None);
        silence.awaits(Some(Awaited::Blocks), start + ms(500));
        assert_eq!(silence.dial_at(), Some(start + ms(2000)));
        silence.dialled(address(1), 1, 0.5, start + ms(2000));
        silence.awaits(None, start + ms(2100));
        assert_eq!(silence.dial_at(), None);
        // What is awaited later is awaited from then on.
        silence.awaits(Some(Awaited::Answer), start + ms(90_000));
        assert_eq!(silence.dial_at(), Some(start + ms(95_000)));
        silence.awaits(Some(Awaited::Blocks), start + ms(91_000));
        assert_eq!(silence.dial_at(), Some(start + ms(91_500)));
    }

    #[test]
    fn dials_go_on_through_a_cut_and_grow_rare_and_their_answer_says_that_it_is_over() {
        let start = Instant::now();
        let mut silence = Silence::new(start, ms(100));
        silence.awaits(Some(Awaited::Blocks), start);
        let (dials, last) = dial(&mut silence, 1, start + ms(5000));
        assert!((8..=10).contains(&dials), "{dials}");
        let last = last.unwrap();
        assert_eq!(silence.answered(address(1), 0.5, last + ms(300)), Verdict::Back);
        assert!(silence.dial_at().unwrap() - last <= ms(500));
        // Of an address that was dialled only now nothing is known.
        let mut other = Silence::new(start, ms(100));
        other.awaits(Some(Awaited::Blocks), start);
        dial(&mut other, 1, start + ms(5000));
        other.dialled(address(2), 1, 0.5, start + ms(5100));
        assert_eq!(other.answered(address(2), 0.5, start + ms(5400)), Verdict::There);
        // Ten minutes of it.
        let (dials, _) = dial(&mut silence, 1, start + ms(600_000));
        assert!(dials < 80, "{dials}");
        // Each of a large fleet takes its share of what a broker can bear.
        let mut one_of_many = Silence::new(start, ms(100));
        one_of_many.awaits(Some(Awaited::Blocks), start);
        let (dials, _) = dial(&mut one_of_many, 40_000, start + ms(21_500));
        assert_eq!(dials, 6, "one in four seconds");
    }

    #[test]
    fn an_answer_at_once_says_that_the_link_was_there_and_ends_the_dialling_for_longer_each_time() {
        let start = Instant::now();
        let mut silence = Silence::new(start, ms(100));
        silence.awaits(Some(Awaited::Blocks), start);
        let (mut dials, mut now) = (0, start);
        while let Some(at) = silence.dial_at().filter(|&at| at < start + Duration::from_secs(3600)) {
            now = at;
            silence.dialled(address(1), 1, 0.5, now);
            assert_eq!(silence.answered(address(1), 0.5, now + ms(200)), Verdict::There);
            dials += 1;
        }
        assert!(dials < 20, "{dials} in an hour");
        // On a link with long round trips that is still at once.
        let mut long = Silence::new(start, ms(1500));
        long.awaits(Some(Awaited::Blocks), start);
        long.dialled(address(1), 1, 0.5, start + ms(2000));
        assert_eq!(long.answered(address(1), 0.5, start + ms(4500)), Verdict::There);
        silence.heard(true, now + ms(300));
        assert!(silence.dial_at().unwrap() <= now + ms(300) + LONGEST_QUIET);
    }

    #[test]
    fn what_a_link_is_used_to_is_learned_and_a_cut_is_not() {
        let start = Instant::now();
        let mut silence = Silence::new(start, ms(100));
        silence.awaits(Some(Awaited::Blocks), start);
        let mut now = start;
        let gap = |silence: &Silence, now| silence.dial_at().unwrap() - now;
        for _ in 0..20 {
            now += ms(3200);
            silence.heard(true, now);
        }
        assert!(gap(&silence, now) > ms(3200), "{:?}", gap(&silence, now));
        for _ in 0..40 {
            now += ms(100);
            silence.heard(true, now);
        }
        assert_eq!(gap(&silence, now), QUIET);
        // A cut of a minute, with dials that nobody answers.
        dial(&mut silence, 1, now + ms(60_000));
        now += ms(60_000);
        silence.heard(true, now);
        assert_eq!(gap(&silence, now), QUIET);
    }

    #[test]
    fn connections_that_bring_nothing_are_changed_ever_more_rarely() {
        let start = Instant::now();
        let quiet = |silence: &mut Silence| {
            silence.awaits(Some(Awaited::Blocks), start);
            silence.dial_at().unwrap() - start
        };
        let mut silence = Silence::new(start, ms(100));
        let mut quiets = Vec::new();
        for _ in 0..12 {
            silence = Silence::new(start, ms(100)).in_place_of(&silence);
            quiets.push(quiet(&mut silence));
        }
        assert_eq!((quiets[0], quiets[1], quiets[11]), (2 * QUIET, 4 * QUIET, LONGEST_QUIET));
        for _ in 0..WORTH {
            silence.heard(true, start);
        }
        let mut next = Silence::new(start, ms(100)).in_place_of(&silence);
        assert_eq!(quiet(&mut next), QUIET);
    }

    #[test]
    fn a_connection_that_was_long_in_the_making_is_not_deaf_for_that() {
        let start = Instant::now();
        let mut silence = Silence::new(start, ms(20_000));
        silence.awaits(Some(Awaited::Blocks), start);
        let mut now = start;
        for _ in 0..10 {
            dial(&mut silence, 1, now + ms(6000));
            now += ms(6000);
            silence.heard(true, now);
            assert_eq!(silence.dial_at(), Some(now + QUIET), "a cut is no habit");
        }
        let (_, last) = dial(&mut silence, 1, now + ms(6000));
        assert_eq!(silence.answered(address(1), 0.5, last.unwrap() + ms(300)), Verdict::Back);
    }

    /// The most dials of a fleet within any second when its broker falls silent, `answered` or not.
    fn busiest_second(fleet: u32, answered: bool) -> usize {
        let (start, mut dials) = (Instant::now(), Vec::new());
        for _ in 0..fleet {
            let mut silence = Silence::new(start, ms(100));
            silence.among(fleet, rand::random());
            silence.awaits(Some(Awaited::Blocks), start);
            while let Some(at) = silence.dial_at().filter(|&at| at < start + ms(40_000)) {
                dials.push(at);
                silence.dialled(address(1), fleet, rand::random(), at);
                if answered {
                    silence.answered(address(1), rand::random(), at + ms(1));
                }
            }
        }
        dials.sort();
        let within = |at: Instant| dials.partition_point(|&other| other < at + ms(1000));
        dials.iter().enumerate().map(|(nth, &at)| within(at) - nth).max().unwrap()
    }

    #[test]
    fn a_fleet_whose_broker_stalls_does_not_dial_in_one_instant() {
        let most = FLEET_DIALS as usize * 5 / 4;
        for answered in [true, false] {
            let busiest = busiest_second(30_000, answered);
            assert!((1000..most).contains(&busiest), "{busiest}");
        }
        let mut silence = Silence::new(Instant::now(), ms(100));
        let now = Instant::now();
        silence.awaits(Some(Awaited::Blocks), now);
        silence.in_vain(0.0, now);
        let early = silence.dial_at().unwrap();
        silence.ends();
        silence.in_vain(1.0, now);
        assert!(silence.dial_at().unwrap() - early >= REST / 3, "rests differ too");
    }

    #[test]
    fn a_fleet_comes_at_its_usual_rate() {
        assert_eq!(spread(20_000, 1.0), Duration::from_secs(100));
        assert!(spread(1, 1.0) < ms(10) && spread(u32::MAX, 1.0) <= LONGEST_REST);
    }
}
