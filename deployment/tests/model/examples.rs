//! Single histories, told step by step.

use std::collections::BTreeMap;

use selvedge_deployment::*;

use crate::moves::{name, release};

/// Feeds events that must all fit.
pub fn feed(mut state: State, events: impl IntoIterator<Item = Event>) -> State {
    for event in events {
        state = step(&state, event).unwrap().state;
    }
    state
}

fn died_of(suspects: Vec<selvedge_package::Digest>, now_ms: u64) -> Event {
    Event::HostDied { suspects, now_ms, within_ms: CRASH_WINDOW_MS }
}

/// From assigned to committed.
pub fn install(number: u8, sequence: u64) -> [Event; 5] {
    let (package, release) = (name(0), release(0, number));
    let digest = release.digest;
    [
        Event::desired(sequence, vec![(package.clone(), release)]),
        Event::Fetched { package: package.clone(), digest, rules: Rules::default() },
        Event::Begin { package: package.clone() },
        Event::Accepted { package: package.clone(), digest, cases: 1 },
        Event::Activated { package, digest, now_ms: 0 },
    ]
}

/// What does not fit into memory beside the old one takes its place, also after a restart, and the
/// old one is served again when it fails.
#[test]
fn a_tight_trial_stops_the_old_one_and_its_failure_brings_it_back() {
    let package = name(0);
    let (old, new) = (release(0, 1), release(0, 2));
    let digest = new.digest;
    let state = feed(State::default(), install(1, 1));
    let [desired, fetched, begin, accepted, _] = install(2, 2);
    let state = feed(state, [desired, fetched, begin.clone()]);
    assert_eq!(plan(&state)[0], Effect::Serve(package.clone(), old.clone()));

    let tight = Event::Tight { package: package.clone(), digest };
    let stepped = step(&state, tight.clone()).unwrap();
    assert_eq!(stepped.notes, [Note::StopsFirst(package.clone(), new.clone())]);
    let state = stepped.state;
    assert_eq!(plan(&state), [Effect::Load(package.clone(), new.clone())]);
    assert_eq!(step(&state, tight.clone()).unwrap().notes, [], "it is told once");

    let restarted = feed(state.clone(), [Event::Restarted]);
    assert_eq!(plan(&restarted)[0], Effect::Serve(package.clone(), old.clone()), "it answers meanwhile");
    assert_eq!(plan(&feed(restarted, [begin])), [Effect::Load(package.clone(), new.clone())]);

    let failed = Event::TrialFailed {
        package: package.clone(),
        digest,
        reason: "limit".into(),
        what: "memory".into(),
    };
    assert_eq!(plan(&feed(state.clone(), [failed])), [Effect::Serve(package.clone(), old)]);
    let opened = feed(state, [accepted]);
    assert!(step(&opened, tight.clone()).is_err(), "memory holds it, as is seen");
    assert!(step(&State::default(), tight).is_err());
}

/// New settings of what runs are tried like a release: what runs stays until they have passed, comes
/// back when they fail, and the release before it is kept to go back to.
#[test]
fn other_settings_are_a_trial() {
    let package = name(0);
    let state = feed(State::default(), install(1, 1).into_iter().chain(install(2, 2)));
    let old = release(0, 2);
    let digest = old.digest;
    let new = Release { settings: [("k".to_owned(), "v".to_owned())].into(), ..old.clone() };
    let desired =
        |sequence, release: &Release| Event::desired(sequence, vec![(package.clone(), release.clone())]);
    let begin = Event::Begin { package: package.clone() };
    let state = feed(state, [desired(3, &new)]);
    assert_eq!(plan(&state), [Effect::Serve(package.clone(), old.clone()), Effect::Begin(package.clone())]);
    let tried = feed(state.clone(), [begin]);
    assert_eq!(
        plan(&tried),
        [Effect::Serve(package.clone(), old.clone()), Effect::Load(package.clone(), new.clone())]
    );
    let failed = feed(
        tried.clone(),
        [Event::TrialFailed { package: package.clone(), digest, reason: "r".into(), what: "w".into() }],
    );
    assert_eq!(plan(&failed), [Effect::Serve(package.clone(), old.clone())]);
    assert_eq!(failed.slots[&package].failure.as_ref().unwrap().digest, digest);
    assert_eq!(feed(failed.clone(), [desired(4, &new)]).slots, failed.slots, "it is not tried again");

    let accepted = Event::Accepted { package: package.clone(), digest, cases: 1 };
    let activated = Event::Activated { package: package.clone(), digest, now_ms: 0 };
    let done = feed(tried.clone(), [accepted, activated]);
    let slot = &done.slots[&package];
    assert_eq!(slot.committed.as_ref().unwrap().release, new);
    assert_eq!(slot.previous.as_ref().unwrap().0, release(0, 1), "not itself");

    // They are taken back while they are tried; or the device lost a file of it meanwhile.
    assert_eq!(plan(&feed(tried.clone(), [desired(4, &old)])), [Effect::Serve(package.clone(), old.clone())]);
    let damaged = feed(tried, [Event::Damaged { package: package.clone(), digest }]);
    let fetched = Event::Fetched { package: package.clone(), digest, rules: Rules::default() };
    let repaired = feed(damaged, [fetched.clone(), fetched]);
    assert_eq!(plan(&repaired), [Effect::Serve(package.clone(), old), Effect::Begin(package)]);
}

/// Floors outlive what set them: the package that is uninstalled, the Director that is replaced, the
/// assignment that is refused. Nobody but a release can change them, and it only upwards.
#[test]
fn a_floor_survives_its_package_and_its_director() {
    let package = name(0);
    let state = feed(State::default(), install(4, 1));
    assert_eq!(state.floors[&package], 3);
    let state = feed(state, [Event::desired(2, Vec::new())]);
    assert_eq!((state.slots.len(), state.floors[&package]), (0, 3), "uninstalled");
    for (sequence, anew) in [(3, false), (1, true)] {
        let assignments = vec![(package.clone(), Release { min_release: 0, ..release(0, 2) })];
        let event = Event::Desired { sequence, assignments, unfit: BTreeMap::new(), anew };
        let refused = step(&state, event).unwrap();
        assert!(matches!(refused.notes[..], [Note::BelowFloor(_, _, 3)]), "{:?}", refused.notes);
        assert_eq!(refused.state.slots[&package].stage, Stage::Idle);
        assert_eq!(refused.state.slots[&package].failure.as_ref().unwrap().reason, "below-floor");
        assert_eq!(refused.state.floors[&package], 3);
        let again = feed(refused.state, install(3, sequence + 1));
        assert_eq!(again.slots[&package].committed.as_ref().unwrap().release.release, 3);
        assert_eq!(again.floors[&package], 3, "a lower `min-release` lowers nothing");
        // The release that answers is signed again with a stricter one.
        let stricter = Release { min_release: 9, ..release(0, 3) };
        let mut raised = feed(again, [Event::desired(sequence + 2, vec![(package.clone(), stricter)])]);
        assert_eq!(raised.floors[&package], 3, "it does not shut itself out");
        let four = Release { min_release: 4, ..release(0, 4) };
        raised = feed(raised, install(4, sequence + 3));
        raised = feed(raised, [Event::desired(sequence + 4, vec![(package.clone(), four)])]);
        assert_eq!(raised.floors[&package], 4);
    }
}

/// What the hardware cannot run is not begun, and said so; what is beside it goes its way.
#[test]
fn an_assignment_for_other_hardware_is_refused_alone() {
    let (first, second) = (name(0), name(1));
    let assignments = vec![(first.clone(), release(0, 1)), (second.clone(), release(1, 1))];
    let unfit: BTreeMap<_, _> = [(first.clone(), "it is for aarch64".to_owned())].into();
    let event = Event::Desired { sequence: 1, assignments, unfit, anew: false };
    let taken = step(&State::default(), event.clone()).unwrap();
    assert!(matches!(&taken.notes[..], [Note::Unfit(name, _, why)] if *name == first && why.contains("64")));
    assert_eq!(plan(&taken.state), [Effect::Fetch(second, release(1, 1))]);
    assert_eq!(taken.state.slots[&first].failure.as_ref().unwrap().reason, "wrong-hardware");
    assert_eq!(step(&taken.state, event).unwrap().notes, [], "it is told once");
}

/// Three crashes within the hour end the service; three over the years do not.
#[test]
fn only_crashes_that_come_together_quarantine() {
    let (package, digest) = (name(0), release(0, 1).digest);
    let state = feed(State::default(), install(1, 1));
    let health_within = |within_ms, times: [u64; 3]| {
        let mut state = state.clone();
        for now_ms in times {
            let died = Event::HostDied { suspects: vec![digest], now_ms, within_ms };
            state = step(&state, died).unwrap().state;
        }
        state.slots[&package].committed.as_ref().unwrap().health
    };
    let health_after = |times| health_within(CRASH_WINDOW_MS, times);
    assert_eq!(health_after([10, 20, CRASH_WINDOW_MS]), Health::Quarantined);
    let apart = CRASH_WINDOW_MS + 1;
    assert!(matches!(health_after([10, 10 + apart, 10 + 2 * apart]), Health::Sound { crashes: 1, .. }));
    // Where a load alone may take so long, they are together.
    assert_eq!(health_within(2 * apart, [10, 10 + apart, 10 + 2 * apart]), Health::Quarantined);
    // Time before the first one: the device was started anew in between.
    assert!(matches!(health_after([1000, 2000, 5]), Health::Sound { crashes: 1, .. }));
}

/// From assigned to the middle of a probation.
fn on_probation(state: State, number: u8, sequence: u64, rules: Rules) -> State {
    let [desired, _, begin, accepted, activated] = install(number, sequence);
    let digest = release(0, number).digest;
    feed(state, [desired, Event::Fetched { package: name(0), digest, rules }, begin, accepted, activated])
}

fn proved(number: u8, measured: Measured, now_ms: u64) -> Event {
    Event::Proved { package: name(0), digest: release(0, number).digest, measured, now_ms }
}

/// Shares and latencies are judged from the tenth request on or at the end, memory at once.
#[test]
fn a_budget_is_judged_when_there_is_enough_to_judge() {
    let budget = Budget { failures_percent: 20, latency_ms: 100, memory_mib: 1 };
    let rules = Rules { probation_ms: 1000, probation_requests: 50, budget, ..Rules::default() };
    let state = on_probation(feed(State::default(), install(1, 1)), 2, 2, rules);
    let reason = |requests, failures, latency_ms, memory, now_ms| {
        let measured = Measured { requests, failures, latency_ms, memory };
        let slot = feed(state.clone(), [proved(2, measured, now_ms)]).slots.remove(&name(0)).unwrap();
        let committed = slot.committed.unwrap().release.release;
        slot.failure.map_or(format!("{committed} {}", slot.stage.word().unwrap_or("idle")), |f| f.reason)
    };
    assert_eq!(reason(5, 4, 1, 0, 10), "1 trial", "too few to judge");
    assert_eq!(reason(7, 3, 1, 0, 10), "probation-failures");
    assert_eq!(reason(8, 2, 100, 1 << 20, 10), "1 trial", "just within");
    assert_eq!(reason(9, 0, 101, 0, 10), "1 trial");
    assert_eq!(reason(10, 0, 101, 0, 10), "probation-latency");
    assert_eq!(reason(0, 0, 0, (1 << 20) + 1, 10), "probation-memory");
    assert_eq!(reason(0, 0, 0, 0, 1000), "2 idle", "nobody asked: time alone");
    assert_eq!(reason(50, 0, 100, 0, 10), "2 idle", "requests");
    assert_eq!(reason(1, 1, 1, 0, 1000), "probation-failures", "at the end even two are enough");
    assert_eq!(reason(1, 0, 101, 0, 1000), "probation-latency");
    let any = Rules { budget: Budget { failures_percent: 100, ..Budget::default() }, ..rules };
    let state = on_probation(feed(State::default(), install(1, 1)), 2, 2, any);
    let measured = Measured { requests: 0, failures: 99, latency_ms: 9999, memory: u64::MAX };
    assert_eq!(feed(state, [proved(2, measured, 1000)]).slots[&name(0)].stage, Stage::Idle, "no budget");
}

/// A device that is switched off every night gets to the end of a probation of a week; one that is reset
/// every few minutes gives the release up.
#[test]
fn a_probation_goes_on_after_a_night() {
    let hour = 3_600_000;
    let rules = Rules { probation_ms: 7 * 24 * hour, ..Rules::default() };
    let mut state = on_probation(feed(State::default(), install(1, 1)), 2, 2, rules);
    let [_, _, begin, accepted, activated] = install(2, 2);
    let mut days = 0;
    while state.slots[&name(0)].committed.as_ref().unwrap().release.release == 1 {
        days += 1;
        assert!(days < 20, "{state:?}");
        for now in 1..=12 {
            state = step(&state, proved(2, Measured::default(), now * hour)).map_or(state, |s| s.state);
        }
        let died = died_of(Vec::new(), 0);
        state = feed(state, [Event::Stopping { now_ms: 12 * hour }, Event::Restarted, died]);
        for event in [begin.clone(), accepted.clone(), activated.clone()] {
            state = step(&state, event).map_or(state, |s| s.state);
        }
    }
    assert_eq!(days, 14, "twelve hours a day");

    let mut state = on_probation(feed(State::default(), install(1, 1)), 2, 2, rules);
    let mut resets = 0;
    while state.slots[&name(0)].failure.is_none() {
        resets += 1;
        assert!(resets < 20, "{state:?}");
        let died = died_of(Vec::new(), 0);
        state = feed(state, [Event::Stopping { now_ms: hour / 10 }, Event::Restarted, died]);
        for event in [begin.clone(), accepted.clone(), activated.clone()] {
            state = step(&state, event).map_or(state, |s| s.state);
        }
    }
    assert_eq!(resets, MAX_ATTEMPTS);
}

/// An assignment that is refused ends what was on its way, and the one before it can come back.
#[test]
fn a_refused_assignment_ends_what_was_on_its_way() {
    let package = name(0);
    let state = feed(State::default(), install(4, 1));
    let fetching = feed(state, [Event::desired(2, vec![(package.clone(), release(0, 5))])]);
    assert_eq!(plan(&fetching).len(), 2);
    let refused = feed(fetching, [Event::desired(3, vec![(package.clone(), release(0, 2))])]);
    assert_eq!(plan(&refused), [Effect::Serve(package.clone(), release(0, 4))]);
    let again = feed(refused, [Event::desired(4, vec![(package.clone(), release(0, 5))])]);
    assert_eq!(plan(&again)[1], Effect::Fetch(package.clone(), release(0, 5)));
}

/// What cannot be repaired is given up with a reason, and the release before it takes over.
#[test]
fn a_repair_that_cannot_be_falls_back() {
    let package = name(0);
    let digest = release(0, 2).digest;
    let state = feed(State::default(), install(1, 1).into_iter().chain(install(2, 2)));
    let damaged = feed(state, [Event::Damaged { package: package.clone(), digest }]);
    assert_eq!(plan(&damaged), [Effect::Fetch(package.clone(), release(0, 2))]);
    let unusable =
        Event::Unusable { package: package.clone(), digest, reason: "blob-damaged".into(), what: "w".into() };
    let stepped = step(&damaged, unusable).unwrap();
    assert_eq!(stepped.notes, [Note::Quarantined(package.clone())]);
    assert_eq!(plan(&stepped.state), [Effect::Begin(package.clone())]);
    let slot = &stepped.state.slots[&package];
    assert_eq!(slot.stage.release(), Some(&release(0, 1)));
    assert_eq!(slot.failure.as_ref().unwrap().reason, "blob-damaged");
    // Nothing is left after that one: the device waits for the next assignment, and does nothing.
    let [_, _, begin, ..] = install(1, 1);
    let failed = Event::TrialFailed {
        package: package.clone(),
        digest: release(0, 1).digest,
        reason: "r".into(),
        what: "w".into(),
    };
    assert_eq!(plan(&feed(stepped.state, [begin, failed])), []);
}

/// What the host has ended for is opened after everything else.
#[test]
fn what_was_named_for_a_crash_is_served_last() {
    let (first, second) = (name(0), name(1));
    let both = vec![(first.clone(), release(0, 1)), (second.clone(), release(1, 1))];
    let mut state = feed(State::default(), [Event::desired(1, both)]);
    for package in 0..2 {
        let (package, digest) = (name(package), release(package, 1).digest);
        state = feed(
            state,
            [
                Event::Fetched { package: package.clone(), digest, rules: Rules::default() },
                Event::Begin { package: package.clone() },
                Event::Accepted { package: package.clone(), digest, cases: 1 },
                Event::Activated { package, digest, now_ms: 0 },
            ],
        );
    }
    assert_eq!(plan(&state)[0], Effect::Serve(first.clone(), release(0, 1)));
    let state = feed(state, [died_of(vec![release(0, 1).digest], 0)]);
    assert_eq!(plan(&state)[1], Effect::Serve(first, release(0, 1)));
}

/// What is noted of a probation outlives a death that nobody announced, and an end in order forgives one
/// start, not all of them.
#[test]
fn a_cut_probation_keeps_its_eighths_and_one_forgiven_start() {
    let rules = Rules { probation_ms: 6400, ..Rules::default() };
    let [_, _, begin, accepted, activated] = install(2, 2);
    let again = |state, now_ms| {
        let died = died_of(Vec::new(), now_ms);
        feed(state, [died, begin.clone(), accepted.clone(), activated.clone()])
    };
    let state = on_probation(feed(State::default(), install(1, 1)), 2, 2, rules);
    let noted = feed(state, [proved(2, Measured::default(), 799), proved(2, Measured::default(), 801)]);
    let third = again(again(noted, 802), 0);
    let stage = |state: &State| match &state.slots[&name(0)].stage {
        Stage::Trial { attempt, phase: Phase::Probation { until_ms }, .. } => (*attempt, *until_ms),
        stage => panic!("{stage:?}"),
    };
    assert_eq!(stage(&third), (3, 6400 - 801));
    assert_eq!(stage(&feed(third.clone(), [Event::Stopping { now_ms: 99 }])), (3, 5599), "no headway");
    assert_eq!(stage(&feed(third, [Event::Stopping { now_ms: 100 }])), (2, 5599));
}

/// The release before is below the floor that the one after it has set: it does not come back.
#[test]
fn nothing_below_the_floor_takes_over() {
    let state = feed(State::default(), install(2, 1).into_iter().chain(install(4, 2)));
    assert_eq!(state.slots[&name(0)].previous.as_ref().unwrap().0, release(0, 2));
    let died = || died_of(vec![release(0, 4).digest], 0);
    let quarantined = feed(state, (0..MAX_CRASHES).map(|_| died()));
    assert_eq!(quarantined.slots[&name(0)].committed.as_ref().unwrap().health, Health::Quarantined);
    assert_eq!(plan(&quarantined), []);
}
