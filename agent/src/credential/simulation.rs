//! The machine against brokers that take one credential, another, both or none, through kills at every
//! step: it never ends without what it had, and comes to show one that works.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use serde_bytes::ByteBuf;

const DAY: Duration = Duration::from_secs(86_400);

fn at(days: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + days * 86_400).unwrap()
}

fn credential(name: u8, from: i64, days: i64, origin: Origin) -> Credential {
    Credential {
        chain: vec![ByteBuf::from(vec![name])],
        key: ByteBuf::from(vec![name]),
        not_before: at(from),
        not_after: at(from + days),
        origin,
    }
}

fn name(credential: &Credential) -> u8 {
    credential.key[0]
}

/// A device, its disk, and the authority and broker that the test plays.
struct World {
    machine: Machine,
    disk: Kept,
    /// Credentials that the broker takes.
    taken: BTreeSet<u8>,
    made: u8,
    now: i64,
    clock: Duration,
    started: Duration,
    connects: usize,
}

impl World {
    fn new() -> Self {
        let kept = Kept { proven: Some(credential(0, 0, 30, Origin::Enrolment)), next: None, request: None };
        Self {
            machine: Machine::start(kept.clone()),
            disk: kept,
            taken: [0].into(),
            made: 0,
            now: 1,
            clock: DAY,
            started: DAY,
            connects: 0,
        }
    }

    fn feed(&mut self, event: Event) {
        let mut todo = std::collections::VecDeque::from(self.machine.step(event));
        while let Some(effect) = todo.pop_front() {
            match effect {
                Effect::Keep => self.disk = self.machine.kept().clone(),
                Effect::MakeRequest => {
                    self.made += 1;
                    let request =
                        Request { key: ByteBuf::from(vec![self.made]), csr: ByteBuf::from(vec![self.made]) };
                    todo.extend(self.machine.step(Event::Made(request)));
                }
                Effect::Connect => self.connects += 1,
            }
        }
    }

    fn tick(&mut self) {
        let (now, ran) = (at(self.now), self.clock - self.started);
        self.feed(Event::Tick { at: self.clock, now, ran });
    }

    /// The agent is killed and started: what is not on disk is gone.
    fn kill(&mut self) {
        self.machine = Machine::start(self.disk.clone());
        self.started = self.clock;
    }

    /// One attempt to connect, and all that a connection brings.
    fn attempt(&mut self) -> bool {
        self.attempt_at(self.now)
    }

    /// The same, where the authority dates what it issues by another day than the device's.
    fn attempt_at(&mut self, day: i64) -> bool {
        self.clock += Duration::from_secs(30);
        let shown = self.machine.shown().filter(|shown| !shown.has_expired(at(self.now)));
        let works = shown.is_some_and(|shown| self.taken.contains(&name(shown)));
        if works {
            self.feed(Event::Proven);
            self.tick();
            if let Some(request) = self.machine.kept().request.clone() {
                let issued = credential(request.key[0], day, 365, Origin::Issued);
                self.feed(Event::Certificate(issued));
            }
        } else {
            self.feed(Event::Missed { at: self.clock, now: at(self.now) });
            self.tick();
        }
        works
    }

    fn has(&self, wanted: u8) -> bool {
        [&self.disk.proven, &self.disk.next].into_iter().flatten().any(|found| name(found) == wanted)
    }
}

#[test]
fn the_first_connection_brings_the_devices_own_certificate_and_it_is_renewed() {
    let mut world = World::new();
    world.taken.extend(1..=9);
    assert!(world.attempt());
    assert_eq!((world.machine.using(), name(world.machine.shown().unwrap())), (Using::Next, 1));
    assert!(world.has(0), "the old one is kept until the new one has worked");
    assert!(world.attempt());
    assert!(world.has(1) && !world.has(0), "then it goes");
    assert_eq!(world.machine.kept().request, None);
    assert_eq!(world.connects, 1);

    // Nothing for two thirds of a year, by the date; then another, and so on.
    world.now += 242;
    world.clock += DAY;
    world.attempt();
    assert_eq!(world.machine.kept().request, None, "not before its time");
    world.now += 2;
    world.attempt();
    world.attempt();
    assert!(world.has(2) && !world.has(1));

    // Nobody knows the time: it ages by the time that the agent runs.
    world.clock += DAY * 244;
    world.attempt();
    assert!(world.has(3), "{:?}", world.disk);
}

/// A device that runs for years asks as often as its certificates' lives say: without a clock that tells
/// the time, with one, and with one that is so wrong that every certificate is due when it comes.
#[test]
fn in_a_long_run_none_is_asked_for_before_its_time() {
    // One that has just come is used for an hour, however wrong the clock is.
    for (clock, most) in [("none", 16), ("right", 16), ("ahead", 3650)] {
        let mut world = World::new();
        world.taken.extend(1..=255);
        world.attempt();
        world.attempt();
        let mut asked = 0;
        for day in 1..3650 {
            world.clock += DAY;
            world.now = match clock {
                "none" => 1,
                "right" => day,
                _ => day + 300,
            };
            for _ in 0..5 {
                world.made = 0;
                world.attempt_at(day);
                asked += usize::from(world.made);
            }
        }
        assert!((10..=most).contains(&asked), "{clock}: {asked} certificates in ten years");
    }
}

#[test]
fn a_new_certificate_that_does_not_work_costs_nothing_but_attempts() {
    let mut world = World::new();
    world.attempt();
    // The broker takes the old one only: within minutes it is shown again.
    let answered = (0..20).filter(|_| world.attempt()).count();
    assert!(answered >= 10, "{answered} of 20 attempts with the one that works");
    // It is tried a few times more, ever more rarely, and then another one is asked for.
    let (mut attempts, mut answered) = (0, 0);
    while world.made < 2 {
        answered += usize::from(world.attempt());
        attempts += 1;
        assert!(attempts < 10_000 && world.has(0));
    }
    assert!(answered * 2 > attempts, "{answered} of {attempts}");
    world.taken.extend(2..=9);
    while !world.attempt() || world.has(0) {
        assert!(world.has(0) || world.has(2));
    }
}

#[test]
fn what_is_over_is_not_gone_back_to() {
    let mut world = World::new();
    world.attempt();
    world.now = 31;
    let shown: BTreeSet<u8> = (0..50)
        .map(|_| {
            world.attempt();
            name(world.machine.shown().unwrap())
        })
        .collect();
    assert_eq!(shown, [1].into(), "the old one is over: only the new one has a future");
    world.taken.insert(1);
    assert!(world.attempt());
}

/// Every state that can be on disk at a kill, from every step of a life: started from it, the device
/// comes to show a credential that the broker takes, where it has one.
#[test]
fn a_kill_at_any_step_loses_nothing() {
    for killed_at in 0..60 {
        for broken in [false, true] {
            let mut world = World::new();
            world.taken.extend(if broken { 2..=9 } else { 1..=9 });
            for step in 0..300 {
                if step == killed_at {
                    world.kill();
                }
                if step == 200 {
                    world.now += 250;
                    world.clock += DAY * 250;
                }
                let before = world.disk.clone();
                world.attempt();
                let had = [&before.proven, &before.next].into_iter().flatten();
                let kept: Vec<u8> = had.map(name).filter(|name| world.taken.contains(name)).collect();
                let shown = [&world.disk.proven, &world.disk.next].into_iter().flatten().map(name);
                assert!(
                    kept.is_empty() || shown.into_iter().any(|name| world.taken.contains(&name)),
                    "step {step}: nothing is left that works"
                );
            }
            let last = world.machine.shown().unwrap();
            assert!(world.taken.contains(&name(last)) && last.origin == Origin::Issued, "{last:?}");
        }
    }
}

#[test]
fn only_the_key_that_was_asked_for_gets_a_certificate() {
    let mut world = World::new();
    world.feed(Event::Certificate(credential(7, 0, 365, Origin::Issued)));
    assert!(world.machine.kept().next.is_none(), "nobody asked");
    world.tick();
    assert!(world.machine.kept().request.is_some());
    world.feed(Event::Certificate(credential(7, 0, 365, Origin::Issued)));
    assert!(world.machine.kept().next.is_none(), "for another key");
    world.feed(Event::Certificate(credential(1, 0, 365, Origin::Issued)));
    assert!(world.machine.kept().next.is_some());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens in whatever order: a credential that was proven stays until another one is, and
    /// what is shown is one that is kept.
    #[test]
    fn nothing_proven_is_lost(steps in proptest::collection::vec((0u8..7, any::<u8>()), 1..80)) {
        let mut world = World::new();
        for (what, with) in steps {
            let proven = world.disk.proven.clone().unwrap();
            match what {
                0 => { world.attempt(); }
                1 => world.kill(),
                2 => { world.taken = (0..10).filter(|n| with & (1 << (n % 8)) != 0).collect(); }
                3 => { world.now += i64::from(with); world.clock += Duration::from_secs(u64::from(with) * 60); }
                4 => world.feed(Event::Missed { at: world.clock, now: at(world.now) }),
                5 => world.feed(Event::Certificate(credential(with % 10, world.now, 365, Origin::Issued))),
                _ => world.tick(),
            }
            let now = world.disk.proven.clone().unwrap();
            prop_assert!(now == proven || world.taken.contains(&name(&now)), "{proven:?} was lost for {now:?}");
            prop_assert!(world.machine.shown().is_some());
            prop_assert_eq!(&world.disk, world.machine.kept(), "what is kept is written down");
        }
    }
}
