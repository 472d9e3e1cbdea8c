//! What must hold of every state, and between a state and its successor.

use selvedge_deployment::*;
use selvedge_package::PackageName;

fn about<'a>(effect: &'a Effect, name: &PackageName) -> Option<&'a Release> {
    match effect {
        Effect::Serve(n, release) | Effect::Activate(n, release) | Effect::Load(n, release) if n == name => {
            Some(release)
        }
        _ => None,
    }
}

/// What must hold of every state.
pub fn check_state(state: &State) {
    let plan = plan(state);
    let (loadable, stored) = (loadable(state), stored(state));
    for (name, slot) in &state.slots {
        let floor = state.floors.get(name).copied().unwrap_or(0);
        let active = plan
            .iter()
            .filter(|effect| match effect {
                Effect::Serve(n, _) | Effect::Activate(n, _) | Effect::Watch(n, _) => n == name,
                _ => false,
            })
            .count();
        assert!(active <= 1, "two releases of {name} are active: {plan:?}");
        // Where one is committed and sound it answers, or the one that follows it is about to.
        let alone = matches!(&slot.stage, Stage::Trial { rules, phase: Phase::Loading, .. }
            if rules.swap == Swap::StopFirst);
        assert!(slot.servable().is_none() || active == 1 || alone, "nothing of {name} answers: {slot:?}");
        if let Some(committed) = &slot.committed {
            assert!(committed.release.release >= floor, "{name} is below its floor");
        }
        if let Some(release) = slot.stage.release() {
            assert!(release.release >= floor, "what is on its way for {name} is below its floor");
        }
        for release in plan.iter().filter_map(|effect| about(effect, name)) {
            assert!(release.release >= floor, "{name} would run below its floor");
        }
        match slot.stage {
            Stage::Trial { attempt, .. } => assert!(attempt <= MAX_ATTEMPTS),
            Stage::Staged { attempts, .. } => assert!(attempts <= MAX_ATTEMPTS),
            _ => {}
        }
        if let Some(failure) = &slot.failure {
            assert!(failure.what.len() <= Failure::LONGEST);
        }
    }
    for effect in &plan {
        if let Effect::Serve(name, r) | Effect::Load(name, r) | Effect::Activate(name, r) = effect {
            assert!(loadable.contains(&(name.clone(), r.digest)), "{effect:?} would be unloaded at once");
            assert!(stored.contains(&r.digest), "{effect:?} would be collected");
        }
    }
}

/// Whether an event means the same when it comes twice. Two deaths are two; what is fetched may be both
/// committed and on its way, and then comes twice.
fn is_idempotent(event: &Event, before: &State) -> bool {
    match event {
        Event::HostDied { .. } => false,
        Event::Fetched { package, digest, .. } | Event::Unusable { package, digest, .. } => {
            let slot = &before.slots[package];
            slot.committed.as_ref().is_none_or(|committed| committed.release.digest != *digest)
        }
        _ => true,
    }
}

/// What must hold between a state and its successor.
pub fn check_step(before: &State, event: &Event, after: &Step) {
    if is_idempotent(event, before)
        && let Ok(again) = step(&after.state, event.clone())
    {
        assert_eq!(again.state, after.state, "{event:?} twice is not what it is once");
    }
    let after = &after.state;
    let anew = matches!(event, Event::Desired { anew: true, .. });
    assert!(after.generation >= before.generation && (anew || after.desired >= before.desired));
    if let Event::Desired { assignments, unfit, sequence, .. } = event {
        assert_eq!(after.desired, *sequence);
        for (name, release) in assignments {
            let (had, has) = (before.slots.get(name), &after.slots[name]);
            let same = had.is_some_and(|had| had.wanted.as_ref() == Some(release));
            let below = release.release < before.floors.get(name).copied().unwrap_or(0);
            // What is below the floor, or for other hardware, is neither wanted nor begun, and nothing else
            // goes on that nobody asks for any more.
            if !same && (below || unfit.contains_key(name)) {
                assert_eq!(has.wanted, None);
                assert_ne!(has.stage.release(), Some(release));
                assert!(has.servable().is_none() || has.stage == Stage::Idle, "{has:?}");
                assert_eq!(has.committed, had.and_then(|had| had.committed.clone()));
            } else if !same {
                assert_eq!(has.wanted.as_ref(), Some(release));
                assert_eq!(has.failure, None, "a new assignment forgives");
            }
        }
    }
    for (name, floor) in &before.floors {
        assert!(after.floors.get(name) >= Some(floor), "the floor of {name} fell");
    }
    for (name, slot) in &before.slots {
        check_slot(before, event, after, name, slot);
    }
}

fn check_slot(before: &State, event: &Event, after: &State, name: &PackageName, slot: &Slot) {
    let removed = matches!(event, Event::Desired { assignments, .. }
        if !assignments.iter().any(|(n, _)| n == name));
    let Some(has) = after.slots.get(name) else {
        assert!(removed, "{name} is gone by {event:?}");
        return;
    };
    assert!(slot.committed.is_none() || has.committed.is_some(), "{name} lost what answers by {event:?}");
    // Only crashes that it was named for, or a repair that cannot be, end the service of what answers.
    let quarantined = |slot: &Slot| slot.committed.as_ref().is_some_and(|c| c.health == Health::Quarantined);
    if quarantined(has) && !quarantined(slot) {
        let digest = slot.committed.as_ref().unwrap().release.digest;
        match event {
            Event::HostDied { suspects, .. } => assert!(suspects.contains(&digest)),
            Event::Unusable { digest: found, .. } => {
                assert!(*found == digest && slot.committed.as_ref().unwrap().health == Health::Damaged);
            }
            _ => panic!("{name} was quarantined by {event:?}"),
        }
        assert_eq!(has.failure.as_ref().unwrap().digest, digest, "nothing says why");
    }
    // Other settings are no other release, but they are tried before they are committed.
    let settings = |slot: &Slot| match &slot.committed {
        Some(committed) if matches!(committed.health, Health::Sound { .. }) => {
            Some((committed.release.digest, committed.release.settings.clone()))
        }
        _ => None,
    };
    if let (Some(had), Some(has)) = (settings(slot), settings(has))
        && had != has
    {
        assert!(
            matches!(&slot.stage, Stage::Trial { phase, release, .. }
                if *phase != Phase::Loading && release.settings == has.1),
            "{name} runs with settings that were not tried, by {event:?}"
        );
    }
    // What is refused stays until something else is committed; the one before it may be tried.
    if let Event::Refused { package, .. } = event
        && package == name
    {
        assert_eq!(has.committed, slot.committed);
        let tried = slot.previous.as_ref().filter(|_| has.previous.is_none()).map(|(release, _)| release);
        assert_eq!(has.stage.release(), tried);
    }
    if let (Event::Tight { package, .. }, Stage::Trial { release, rules, .. }) = (event, &has.stage)
        && package == name
    {
        assert_eq!(rules.swap, Swap::StopFirst);
        let open = loadable(after).into_iter().filter(|(n, _)| n == name);
        assert_eq!(open.collect::<Vec<_>>(), [(name.clone(), release.digest)], "two are open together");
    }
    // Only a trial whose cases passed becomes committed, and no time on probation is skipped.
    let digest = |slot: &Slot| slot.committed.as_ref().map(|c| c.release.digest);
    if digest(slot) != digest(has) {
        let Stage::Trial { phase, release, rules, .. } = &slot.stage else {
            panic!("{name} was committed from {:?}", slot.stage)
        };
        assert!(*phase != Phase::Loading && Some(release.digest) == digest(has), "{slot:?}");
        assert_eq!(rules.probation_ms > 0, matches!(event, Event::Proved { .. }), "by {event:?}");
        assert!(after.generation > before.generation);
    }
}
