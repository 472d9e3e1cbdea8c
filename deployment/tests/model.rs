//! The state machine under random events: invariants hold after every step, whatever comes.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use proptest::prelude::*;
use selvedge_deployment::*;
use selvedge_package::{Digest, PackageName};

const NAMES: [&str; 2] = ["file-type", "vad"];

/// What a driver would do next, in terms of the current state, or noise of any kind.
#[derive(Debug, Clone)]
enum Move {
    /// A desired state with these releases (0 and 6: not assigned; from 6 on with settings), newer by so
    /// much; bits: 1 the Director's keys were changed, 2 and 4 the device's hardware cannot run it.
    Desired([u8; 2], u8, u8),
    /// Answer effect number n of the plan with outcome m.
    Answer(usize, u8),
    /// An event about release r of package p that nobody asked for.
    Noise(usize, u8, u8),
    HostDied(Option<u8>),
    Restarted,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        2 => (any::<[u8; 2]>(), 0u8..3, any::<u8>(), any::<bool>())
            .prop_map(|(r, d, bits, odd)| Move::Desired(r.map(|r| r % 12), d, if odd { bits % 8 } else { 0 })),
        8 => (0usize..4, 0u8..10).prop_map(|(n, m)| Move::Answer(n, m)),
        2 => (0usize..2, 1u8..6, 0u8..9).prop_map(|(p, r, k)| Move::Noise(p, r, k)),
        1 => proptest::option::of(1u8..6).prop_map(Move::HostDied),
        1 => Just(Move::Restarted),
    ];
    proptest::collection::vec(one, 1..60)
}

fn name(n: usize) -> PackageName {
    NAMES[n].parse().unwrap()
}

fn release(package: usize, number: u8) -> Release {
    Release {
        digest: Digest::of(&[package as u8, number]),
        length: 100,
        release: u64::from(number),
        // Release 4 shuts out what is below 3.
        min_release: if number == 4 { 3 } else { 0 },
        settings: BTreeMap::new(),
    }
}

/// What a desired state assigns: from 6 on the same releases with settings.
fn assigned(package: usize, number: u8) -> Option<(PackageName, Release)> {
    let (number, with) = (number % 6, number >= 6);
    let settings = with.then(|| ("k".to_owned(), "v".to_owned())).into_iter().collect();
    (number > 0).then(|| (name(package), Release { settings, ..release(package, number) }))
}

fn rules(number: u8) -> Rules {
    Rules {
        swap: if number.is_multiple_of(2) { Swap::Handover } else { Swap::StopFirst },
        probation_ms: if number.is_multiple_of(3) { 1000 } else { 0 },
        probation_requests: 5,
    }
}

fn answer(effect: &Effect, outcome: u8) -> Event {
    let bad = outcome < 3;
    match effect.clone() {
        Effect::Fetch(package, release) if bad => Event::Unusable {
            package,
            digest: release.digest,
            reason: "bad-manifest".into(),
            what: "x".repeat(5000),
        },
        Effect::Fetch(package, release) => {
            Event::Fetched { package, digest: release.digest, rules: rules(release.release as u8) }
        }
        Effect::Begin(package) => Event::Begin { package },
        Effect::Load(package, release) => match outcome {
            0 | 1 => Event::TrialFailed {
                package,
                digest: release.digest,
                reason: "acceptance".into(),
                what: "case `a`".into(),
            },
            2 => Event::Damaged { package, digest: release.digest },
            3 => Event::Accepted { package, digest: release.digest, cases: 0 },
            4 => Event::Tight { package, digest: release.digest },
            _ => Event::Accepted { package, digest: release.digest, cases: 2 },
        },
        Effect::Activate(package, release) => {
            Event::Activated { package, digest: release.digest, now_ms: 10 }
        }
        Effect::Watch(package, digest) if bad => {
            Event::TrialFailed { package, digest, reason: "budget".into(), what: "slow".into() }
        }
        Effect::Watch(package, digest) => Event::Proved {
            package,
            digest,
            requests: u64::from(outcome),
            now_ms: 10 + 150 * u64::from(outcome),
        },
        Effect::Serve(package, release) if bad => Event::Damaged { package, digest: release.digest },
        Effect::Serve(..) => Event::HostDied { suspects: vec![], now_ms: 0 },
    }
}

fn noise(package: usize, number: u8, kind: u8) -> Event {
    let digest = release(package, number).digest;
    let package = name(package);
    match kind {
        0 => Event::Fetched { package, digest, rules: rules(number) },
        1 => Event::Accepted { package, digest, cases: 1 },
        2 => Event::Activated { package, digest, now_ms: 5 },
        3 => Event::Proved { package, digest, requests: 100, now_ms: u64::MAX },
        4 => Event::TrialFailed { package, digest, reason: "r".into(), what: "ä".repeat(3000) },
        5 => Event::Damaged { package, digest },
        6 => Event::Begin { package },
        7 => Event::Tight { package, digest },
        _ => Event::Unusable { package, digest, reason: "r".into(), what: String::new() },
    }
}

fn event(state: &State, step: &Move) -> Option<Event> {
    Some(match step {
        Move::Desired(releases, newer, bits) => Event::Desired {
            sequence: (state.desired + u64::from(*newer)).saturating_sub(1),
            assignments: (0..2).filter_map(|n| assigned(n, releases[n])).collect(),
            unfit: (0..2).filter(|n| bits & (2 << n) != 0).map(|n| (name(n), "arm".to_owned())).collect(),
            anew: bits & 1 != 0,
        },
        Move::Answer(n, outcome) => answer(plan(state).get(*n)?, *outcome),
        Move::Noise(package, number, kind) => noise(*package, *number, *kind),
        Move::HostDied(number) => Event::HostDied {
            suspects: number.map(|r| release(0, r).digest).into_iter().collect(),
            now_ms: 0,
        },
        Move::Restarted => Event::Restarted,
    })
}

/// What must hold of every state.
fn check_state(state: &State) {
    let plan = plan(state);
    for (name, slot) in &state.slots {
        let active = plan
            .iter()
            .filter(|effect| match effect {
                Effect::Serve(n, _) | Effect::Activate(n, _) | Effect::Watch(n, _) => n == name,
                _ => false,
            })
            .count();
        assert!(active <= 1, "two releases of {name} are active: {plan:?}");
        if let Some(committed) = &slot.committed {
            assert!(
                committed.release.release >= state.floors.get(name).copied().unwrap_or(0),
                "{name} is below its floor"
            );
        }
        if let Stage::Trial { attempt, .. } = slot.stage {
            assert!((1..=MAX_ATTEMPTS).contains(&attempt));
        }
        if let Some(failure) = &slot.failure {
            assert!(failure.what.len() <= Failure::LONGEST);
        }
    }
    let stored = stored(state);
    for effect in &plan {
        if let Effect::Serve(name, r) | Effect::Load(name, r) | Effect::Activate(name, r) = effect {
            assert!(
                loadable(state).contains(&(name.clone(), r.digest)),
                "{effect:?} would be unloaded at once"
            );
            assert!(stored.contains(&r.digest), "{effect:?} would be collected");
        }
    }
}

/// What must hold between a state and its successor.
fn check_step(before: &State, event: &Event, after: &Step) {
    let after = &after.state;
    let anew = matches!(event, Event::Desired { anew: true, .. });
    assert!(after.generation >= before.generation && (anew || after.desired >= before.desired));
    if let Event::Desired { assignments, unfit, sequence, .. } = event {
        assert_eq!(after.desired, *sequence);
        for (name, release) in assignments {
            let (had, has) = (before.slots.get(name), &after.slots[name]);
            // What is below the floor, or for other hardware, is neither wanted nor begun.
            if release.release < before.floors.get(name).copied().unwrap_or(0) || unfit.contains_key(name) {
                assert_eq!(has.wanted, had.and_then(|had| had.wanted.clone()));
                assert_eq!(has.stage, had.map(|had| had.stage.clone()).unwrap_or_default());
            }
        }
    }
    for (name, floor) in &before.floors {
        assert!(after.floors.get(name) >= Some(floor), "the floor of {name} fell");
    }
    for (name, slot) in &before.slots {
        let removed = matches!(event, Event::Desired { assignments, .. }
            if !assignments.iter().any(|(n, _)| n == name));
        if slot.committed.is_some() && !removed {
            assert!(after.slots[name].committed.is_some(), "{name} lost its committed release by {event:?}");
        }
        // Other settings are no other release, but they are tried before they are committed.
        let settings = |slot: &Slot| match &slot.committed {
            Some(committed) if matches!(committed.health, Health::Sound { .. }) => {
                Some((committed.release.digest, committed.release.settings.clone()))
            }
            _ => None,
        };
        if let (Some(had), Some(has)) = (settings(slot), after.slots.get(name).and_then(settings))
            && had != has
        {
            let tried = |phase: &Phase| *phase != Phase::Loading;
            assert!(
                matches!(&slot.stage, Stage::Trial { phase, release, .. }
                    if tried(phase) && release.settings == has.1),
                "{name} runs with settings that were not tried, by {event:?}"
            );
        }
        if let (Event::Tight { package, .. }, Some(Stage::Trial { release, rules, .. })) =
            (event, after.slots.get(name).map(|slot| &slot.stage))
            && package == name
        {
            assert_eq!(rules.swap, Swap::StopFirst);
            let open = loadable(after).into_iter().filter(|(n, _)| n == name);
            assert_eq!(open.collect::<Vec<_>>(), [(name.clone(), release.digest)], "two are open together");
        }
        // Only a trial whose cases passed becomes committed.
        if let Some(slot_after) = after.slots.get(name) {
            let digest = |slot: &Slot| slot.committed.as_ref().map(|c| c.release.digest);
            if digest(slot) != digest(slot_after) && digest(slot_after).is_some() {
                assert!(
                    matches!(&slot.stage, Stage::Trial { phase, release, .. }
                        if *phase != Phase::Loading && Some(release.digest) == digest(slot_after)),
                    "{name} was committed from {:?}",
                    slot.stage
                );
            }
        }
    }
    let record = serde_json::to_vec(&StateRecord::from(after.clone())).unwrap();
    let read: State = serde_json::from_slice::<StateRecord>(&record).unwrap().into();
    assert_eq!(&read, after, "the record does not give the state back");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn invariants_hold_after_every_step(moves in moves()) {
        let mut state = State::default();
        for one in &moves {
            let Some(event) = event(&state, one) else { continue };
            if let Ok(after) = step(&state, event.clone()) {
                check_step(&state, &event, &after);
                check_state(&after.state);
                state = after.state;
            }
        }
    }

    /// A driver that always answers, well or badly, comes to rest: nothing loops for ever.
    #[test]
    fn the_plan_comes_to_rest(moves in moves(), outcomes in proptest::collection::vec(0u8..10, 200)) {
        let mut state = State::default();
        for one in &moves {
            if let Some(after) = event(&state, one).and_then(|event| step(&state, event).ok()) {
                state = after.state;
            }
        }
        let mut budget = 200;
        for outcome in outcomes {
            // `Damaged` is an accident, not an answer that a driver repeats for ever.
            let outcome = if outcome == 2 { 9 } else { outcome };
            let Some(effect) = plan(&state).into_iter().find(|effect| !matches!(effect, Effect::Serve(..))) else {
                break;
            };
            let event = match answer(&effect, outcome) {
                // A committed release cannot be given up: its repair ends well in the end.
                Event::Unusable { package, digest, .. } => Event::Fetched { package, digest, rules: rules(1) },
                event => event,
            };
            if let Ok(after) = step(&state, event) {
                state = after.state;
            }
            budget -= 1;
        }
        prop_assert!(budget > 0, "still planning {:?}", plan(&state));
    }

    /// Starts that are cut every time end after [`MAX_ATTEMPTS`], with the release given up.
    #[test]
    fn a_release_that_takes_the_device_down_is_given_up(cuts in proptest::collection::vec(any::<bool>(), 40)) {
        let (package, release) = (name(0), release(0, 2));
        let desired = Event::desired(1, vec![(package.clone(), release.clone())]);
        let mut state = step(&State::default(), desired).unwrap().state;
        state = step(&state, Event::Fetched { package: package.clone(), digest: release.digest, rules: rules(2) }).unwrap().state;
        let mut starts = 0;
        for agent_restarts in cuts {
            let Some(Effect::Begin(_)) = plan(&state).into_iter().next() else { break };
            state = step(&state, Event::Begin { package: package.clone() }).unwrap().state;
            if plan(&state).iter().any(|effect| matches!(effect, Effect::Load(..))) {
                starts += 1;
            }
            let cut = if agent_restarts { Event::Restarted } else { Event::HostDied { suspects: vec![], now_ms: 0 } };
            state = step(&state, cut).unwrap().state;
        }
        prop_assert_eq!(starts, MAX_ATTEMPTS);
        prop_assert_eq!(&state.slots[&package].stage, &Stage::Idle);
        prop_assert_eq!(&state.slots[&package].failure.as_ref().unwrap().reason, "attempts-exhausted");
        prop_assert!(state.slots[&package].committed.is_none());
    }
}

/// Feeds events that must all fit.
fn feed(mut state: State, events: impl IntoIterator<Item = Event>) -> State {
    for event in events {
        state = step(&state, event).unwrap().state;
    }
    state
}

/// From assigned to committed.
fn install(number: u8, sequence: u64) -> [Event; 5] {
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
    let health_after = |times: [u64; 3]| {
        let mut state = state.clone();
        for now_ms in times {
            state = step(&state, Event::HostDied { suspects: vec![digest], now_ms }).unwrap().state;
        }
        state.slots[&package].committed.as_ref().unwrap().health
    };
    assert_eq!(health_after([10, 20, CRASH_WINDOW_MS]), Health::Quarantined);
    let apart = CRASH_WINDOW_MS + 1;
    assert!(matches!(health_after([10, 10 + apart, 10 + 2 * apart]), Health::Sound { crashes: 1, .. }));
    // Time before the first one: the device was started anew in between.
    assert!(matches!(health_after([1000, 2000, 5]), Health::Sound { crashes: 1, .. }));
}

/// Event sequences per property; `PROPTEST_CASES` sets another number.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(20_000)
}
